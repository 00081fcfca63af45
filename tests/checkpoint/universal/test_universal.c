/* SPDX-License-Identifier: Apache-2.0 */
/* State of parameters to universal checkpoints and back, by one rank and by several. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/weights_fixture.h"
#include "optim/optim_fixture.h"
#include "support/inject.h"
#include "support/support.h"
#include "support/tests.h"

/* The groups end with elements of no parameter: padding. */
static const struct group groups[] = {{"first", 100100, NVS_F32}, {"second", 300011, NVS_BF16}};

static const uint64_t matrix[] = {300, 333}, empty[] = {0, 5};

#define PARAMS 5u
#define LAST   4u /* without elements */
#define ROOM   400111u

static const struct {
	const char *name;
	uint64_t numel;
} table[PARAMS] = {
	{"embed.weight", 99900}, {"embed.bias", 111}, {"blocks.0.weight", 299000},
	{"blocks.0.norm", 1003}, {"head", 0},
};

/* Where the whole parameters lie in the groups above. */
static void params_of(struct nvs_checkpoint_param params[PARAMS])
{
	const uint64_t offsets[PARAMS] = {0, 99950, 0, 299001, 7};

	for (size_t i = 0; i < PARAMS; i++)
		params[i] = (struct nvs_checkpoint_param){.size = sizeof(params[i]),
							  .name = table[i].name,
							  .group = i / 2 ? 1 : 0,
							  .offset = offsets[i],
							  .numel = table[i].numel};
	params[0].shape = matrix;
	params[0].ndim = 2;
	params[LAST].shape = empty;
	params[LAST].ndim = 2;
}

TWO_OPTIMIZERS

/* Of each test, and a checkpoint in it, which is not there yet. */
static const char *directory, *path;

static int begin(void **state)
{
	(void)state;
	directory = temp_directory();
	path = path_in(directory, "tag");
	return 0;
}

EACH_TEST(begin, cleanup)

static void start(struct optim *on, uint64_t steps)
{
	optim_begin(on, groups, COUNT(groups));
	optim_run(on, 1, steps);
}

static int export_to(struct optim *on, const char *to)
{
	struct nvs_checkpoint_param params[PARAMS];

	params_of(params);
	return nvs_checkpoint_export_universal(on->optimizer, params, PARAMS, to, NULL, &on->error);
}

/* The checkpoint is of `optim` after so many steps. */
static void export_after(uint64_t steps)
{
	start(&optim, steps);
	DONE(&optim, export_to(&optim, path));
}

static int import_as(struct optim *on, const struct nvs_checkpoint_param *params, size_t n,
		     const char *from)
{
	return nvs_checkpoint_import_universal(on->optimizer, params, n, from, &on->error);
}

static int import_from(struct optim *on, const char *from)
{
	struct nvs_checkpoint_param params[PARAMS];

	params_of(params);
	return import_as(on, params, PARAMS, from);
}

/* Elements of a parameter in one part. */
static void get(struct optim *on, const struct nvs_checkpoint_param *param, unsigned part,
		float *data)
{
	DONE(on, nvs_optimizer_get(on->optimizer, param->group, part, param->offset, param->numel,
				   data, &on->error));
}

/* Both have the same bits of all parameters. */
static void same_params(struct optim *a, struct optim *b)
{
	static float left[ROOM], right[ROOM];
	struct nvs_checkpoint_param params[PARAMS];

	params_of(params);
	for (size_t i = 0; i < PARAMS; i++)
		for (unsigned part = 0; part < 3; part++) {
			get(a, &params[i], part, left);
			get(b, &params[i], part, right);
			assert_memory_equal(left, right, params[i].numel * sizeof(float));
		}
}

static uint64_t steps_of(struct optim *on)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};

	DONE(on, nvs_optimizer_get_info(on->optimizer, &info, &on->error));
	return info.step;
}

static void read_text(const char *file, char *text, size_t room)
{
	int fd = open(file, O_RDONLY);
	ssize_t n = read(fd, text, room - 1);

	assert_true(n >= 0);
	text[n] = '\0';
	close(fd);
}

TEST(what_is_exported_is_imported)
{
	float padding[100];
	char latest[64];

	start(&optim, 4);
	for (unsigned twice = 0; twice < 2; twice++)
		DONE(&optim, export_to(&optim, path));
	read_text(path_in(directory, "latest_universal"), latest, sizeof(latest));
	assert_string_equal(latest, "tag");
	assert_int_equal(entries_of(directory), 2);
	assert_int_equal(entries_of(path), 1);
	start(&other, 1);
	DONE(&other, import_from(&other, path));
	assert_int_equal(steps_of(&other), 4);
	same_params(&optim, &other);
	for (unsigned part = 0; part < 3; part++) {
		DONE(&other,
		     nvs_optimizer_get(other.optimizer, 0, part, 99901, 49, padding, &other.error));
		for (size_t i = 0; i < 49; i++)
			assert_true(padding[i] == 0);
	}
}

TEST(a_universal_checkpoint_has_the_states_of_the_rule)
{
	for (unsigned k = 0; k < 2; k++) {
		struct optim *on = k ? &other : &optim;

		optim_renew(on, groups, COUNT(groups));
		strcpy(on->config.adam.type, "Adagrad");
		optim_open_run(on, k ? 1 : 4);
	}
	DONE(&optim, export_to(&optim, path));
	assert_int_equal(entries_of(path_in(path, "zero/embed.bias")), 2);
	assert_int_equal(access(path_in(path, "zero/embed.bias/exp_avg_sq.pt"), R_OK), 0);
	DONE(&other, import_from(&other, path));
	assert_int_equal(steps_of(&other), 4);
	for (unsigned k = 0; k < 2; k++) {
		static float left[99900], right[99900];

		DOES(&optim, get, 0, k ? NVS_SUM : NVS_MASTER, 0, 99900, left);
		DOES(&other, get, 0, k ? NVS_SUM : NVS_MASTER, 0, 99900, right);
		assert_memory_equal(left, right, sizeof(left));
	}
	optim_shut(&other);
	strcpy(other.config.adam.type, "Adam");
	DONE(&other, optim_open(&other));
	REFUSED(&other, import_from(&other, path), -ENOENT, "exp_avg");
}

/* All of bf16, whose masters may be weights and remainders. */
static const struct group halves[] = {{"first", 100100, NVS_BF16}, {"second", 300011, NVS_BF16}};

static void start_in(struct optim *on, enum nvs_optimizer_state state, uint64_t steps)
{
	optim_renew(on, halves, COUNT(halves));
	on->config.optimizer_state = state;
	optim_open_run(on, steps);
}

TEST(state_in_fewer_bytes_is_exported_as_float32_and_imported_into_any_format)
{
	const char *again = path_in(directory, "again");
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	struct nvs_checkpoint_param whole[COUNT(halves)];
	struct stat status;

	for (size_t i = 0; i < COUNT(halves); i++)
		whole[i] = (struct nvs_checkpoint_param){.size = sizeof(whole[i]),
							 .name = halves[i].name,
							 .group = i,
							 .numel = halves[i].numel};
	for (enum nvs_optimizer_state kind = NVS_STATE_SPLIT; kind <= NVS_STATE_8BIT; kind++) {
		start_in(&optim, kind, 4);
		DONE(&optim, nvs_optimizer_get_info(optim.optimizer, &info, &optim.error));
		assert_true(info.state == kind && info.split_numel == info.numel);
		DONE(&optim, nvs_checkpoint_export_universal(optim.optimizer, whole, COUNT(halves),
							     path, NULL, &optim.error));
		assert_int_equal(stat(path_in(path, "zero/first/exp_avg.pt"), &status), 0);
		assert_in_range(status.st_size, 100100 * sizeof(float),
				100100 * sizeof(float) + 8192);
		start_in(&other, NVS_STATE_FP32, 1);
		DONE(&other, import_as(&other, whole, COUNT(halves), path));
		other.result.norm = optim.result.norm;
		IS_LIKE(&optim, &other);
		DONE(&other, nvs_checkpoint_export_universal(other.optimizer, whole, COUNT(halves),
							     again, NULL, &other.error));
		optim_close(&other);
		start_in(&other, kind, 1);
		DONE(&other, import_as(&other, whole, COUNT(halves), again));
		other.result.norm = optim.result.norm;
		IS_LIKE(&optim, &other);
		assert_int_equal(steps_of(&other), 4);
	}
}

/* ---- Several ranks ---- */

#define RANKS_MAX    4u
#define GATHER_BYTES 1024u

static struct meeting {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned world, arrived, round, left;
	size_t nbytes;
	/* of the round that is gathered, and of the one before, which ranks may still read */
	_Alignas(8) char all[2][RANKS_MAX * GATHER_BYTES];
} meeting = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

struct seat {
	struct meeting *meeting;
	unsigned number;
};

/* -EDEADLK: this rank would wait for one whose export has returned. */
static int gather(void *arg, const void *own, size_t nbytes, const void **all)
{
	const struct seat *seat = arg;
	struct meeting *m = seat->meeting;
	unsigned round;
	bool met;

	assert_true(nbytes && nbytes <= GATHER_BYTES);
	pthread_mutex_lock(&m->lock);
	round = m->round;
	assert_true(!m->arrived || m->nbytes == nbytes);
	m->nbytes = nbytes;
	memcpy(m->all[round % 2] + seat->number * nbytes, own, nbytes);
	if (++m->arrived == m->world) {
		m->arrived = 0;
		m->round++;
		pthread_cond_broadcast(&m->changed);
	}
	while (m->round == round && !m->left)
		pthread_cond_wait(&m->changed, &m->lock);
	met = m->round != round;
	*all = m->all[round % 2];
	pthread_mutex_unlock(&m->lock);
	return met ? (int)m->world : -EDEADLK;
}

static void leave(struct meeting *m)
{
	pthread_mutex_lock(&m->lock);
	m->left++;
	pthread_cond_broadcast(&m->changed);
	pthread_mutex_unlock(&m->lock);
}

/* A rank has ceil(numel / world) elements of each parameter, side by side in one group. */
struct rank {
	struct optim optim;
	struct nvs_checkpoint_param params[PARAMS];
	const struct nvs_checkpoint_param *exported; /* `n`; NULL: `params` */
	size_t n;
	unsigned rank, world;
	const char *path;
	struct seat seat;
	int rc;
};

static struct rank ranks[RANKS_MAX]; /* closed at the end of a test */

static void close_ranks(void)
{
	for (unsigned i = 0; i < RANKS_MAX; i++)
		if (ranks[i].optim.made)
			optim_close(&ranks[i].optim);
}
AFTER_SUCCESS(close_ranks)

static void rank_open(struct rank *rank, unsigned number, unsigned world, const char *to)
{
	uint64_t at = 0;
	struct group group = {"all", 0, NVS_F32};

	*rank = (struct rank){.optim = rank->optim, .rank = number, .world = world, .path = to};
	params_of(rank->params);
	for (size_t i = 0; i < PARAMS; i++) {
		struct nvs_checkpoint_param *param = &rank->params[i];
		uint64_t numel = table[i].numel, most = (numel + world - 1) / world;

		param->first = number * most < numel ? number * most : numel;
		param->numel = numel - param->first < most ? numel - param->first : most;
		param->group = 0;
		param->offset = at;
		if (!param->shape) {
			param->shape = &table[i].numel;
			param->ndim = 1;
		}
		at += most;
	}
	group.numel = at;
	optim_begin(&rank->optim, &group, 1);
}

static void ranks_open(unsigned world)
{
	for (unsigned i = 0; i < world; i++)
		rank_open(&ranks[i], i, world, path);
}

static void *rank_export(void *arg)
{
	struct rank *rank = arg;
	const struct nvs_universal_options options = {.size = sizeof(options),
						      .rank = rank->rank,
						      .world = rank->world,
						      .gather = gather,
						      .gather_arg = &rank->seat};

	rank->rc = nvs_checkpoint_export_universal(
		rank->optim.optimizer, rank->exported ? rank->exported : rank->params,
		rank->exported ? rank->n : PARAMS, rank->path, &options, &rank->optim.error);
	leave(&meeting);
	return NULL;
}

static void ranks_export(unsigned world)
{
	pthread_t threads[RANKS_MAX];

	meeting.world = world;
	meeting.arrived = meeting.left = 0;
	for (unsigned i = 0; i < world; i++) {
		ranks[i].seat = (struct seat){&meeting, i};
		assert_int_equal(pthread_create(&threads[i], NULL, rank_export, &ranks[i]), 0);
	}
	for (unsigned i = 0; i < world; i++)
		pthread_join(threads[i], NULL);
}

/* This rank's elements are those that `whole` has. */
static void rank_is_as(struct rank *rank, struct optim *whole)
{
	static float left[ROOM], right[ROOM];
	struct nvs_checkpoint_param params[PARAMS];

	params_of(params);
	for (size_t i = 0; i < PARAMS; i++) {
		const struct nvs_checkpoint_param *own = &rank->params[i];

		params[i].offset += own->first;
		params[i].numel = own->numel;
		for (unsigned part = 0; part < 3; part++) {
			get(whole, &params[i], part, left);
			get(&rank->optim, own, part, right);
			assert_memory_equal(left, right, own->numel * sizeof(float));
		}
	}
}

/* Takes a step when a file of the parameters is opened. */
static void step_before_open(void *arg, const char *file)
{
	struct optim **next = arg;
	struct optim *own = *next;

	if (!own || !strstr(file, "fp32.pt"))
		return;
	*next = NULL;
	optim_run(own, 2, 2);
}

TEST(an_import_that_a_step_changes_meanwhile_is_told)
{
	struct optim *steps = &optim;
	const struct inject_observer observer = {.arg = &steps, .before_open = step_before_open};

	export_after(1);
	inject_observe(&observer);
	REFUSED(&optim, import_from(&optim, path), -EBUSY, "took a step");
	inject_observe(NULL);
	assert_int_equal(steps_of(&optim), 2);
}

struct replacement {
	const char *path; /* of the file that another save writes when it is opened again */
	unsigned opened;
};

/* The file gets another time of its last write, and no other bytes. */
static void write_before_second_open(void *arg, const char *file)
{
	struct replacement *replacement = arg;
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = 1}};

	if (strstr(file, "embed.weight/exp_avg.pt") && ++replacement->opened == 2)
		assert_int_equal(utimensat(AT_FDCWD, replacement->path, times, 0), 0);
}

TEST(a_file_that_is_written_to_during_an_import_is_told)
{
	struct replacement replacement = {path_in(path, "zero/embed.weight/exp_avg.pt"), 0};
	const struct inject_observer observer = {.arg = &replacement,
						 .before_open = write_before_second_open};

	export_after(1);
	inject_observe(&observer);
	REFUSED(&optim, import_from(&optim, path), -ESTALE, replacement.path);
	inject_observe(NULL);
	assert_true(replacement.opened >= 2);
	DONE(&optim, import_from(&optim, path));
}

/* From one rank to three, from these to one, which compares the checksums, and to four. */
TEST(ranks_cut_and_join_parameters)
{
	const char *several = path_in(directory, "several");

	export_after(3);
	for (unsigned world = 2; world <= RANKS_MAX; world++) {
		for (unsigned i = 0; i < world; i++) {
			rank_open(&ranks[i], i, world, several);
			DONE(&ranks[i].optim,
			     import_as(&ranks[i].optim, ranks[i].params, PARAMS, path));
			rank_is_as(&ranks[i], &optim);
		}
		ranks_export(world);
		for (unsigned i = 0; i < world; i++)
			DONE(&ranks[i].optim, ranks[i].rc);
		start(&other, 1);
		DONE(&other, import_from(&other, several));
		assert_int_equal(steps_of(&other), 3);
		same_params(&optim, &other);
	}
}

TEST(a_rank_that_fails_ends_the_export_of_all)
{

	ranks_open(2);
	/* It has no such elements. */
	ranks[1].params[1].offset = UINT64_MAX;
	ranks_export(2);
	assert_int_equal(ranks[0].rc, -ECANCELED);
	assert_says(ranks[0].optim.error.text, "rank 1");
	assert_int_equal(ranks[1].rc, -EINVAL);
	assert_int_equal(entries_of(path), 0);
	ranks[1].params[1].offset = ranks[0].params[1].offset;
	ranks[1].params[1].name = "other";
	ranks_export(2);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(ranks[i].rc, -EINVAL);
		assert_says(ranks[i].optim.error.text, "other parameters than rank 0");
	}
	assert_int_equal(entries_of(path), 0);
}

/* One rank runs out of memory, in any allocation. */
TEST(a_rank_without_memory_ends_the_export_of_all)
{
	const char *memory = memory_directory();
	uint64_t failed = 1;

	if (memory)
		path = path_in(memory, "tag");
	ranks_open(2);
	for (uint64_t nth = 1; failed; nth += 1 + nth / 32) {
		inject_fail(INJECT_MEMORY, nth, 1, ENOMEM);
		ranks_export(2);
		inject_stop(&failed);
		assert_int_equal(!ranks[0].rc, !ranks[1].rc);
		for (unsigned i = 0; i < 2; i++)
			if (ranks[i].rc == -EDEADLK || (ranks[i].rc && !failed))
				fail_msg("allocation %" PRIu64 ": rank %u: %s", nth, i,
					 ranks[i].optim.error.text);
		assert_true(nth < 20000);
	}
}

/* The checkpoint is that of `optim` in step 4, and nothing is beside it. */
static void is_as_before(void)
{
	DONE(&other, import_from(&other, path));
	assert_int_equal(steps_of(&other), 4);
	same_params(&other, &optim);
	assert_int_equal(entries_of(path), 1);
}

TEST(elements_that_a_rank_alone_leaves_out_are_refused)
{
	struct nvs_checkpoint_param params[PARAMS];
	static const struct {
		size_t param;
		uint64_t first, numel;
		const char *words;
	} holes[] = {
		{0, 0, 99893,
		 "embed.weight: no rank has the 7 elements from 99893 on, of 99900; "
		 "rank 0 has those before"},
		{0, 3, 99897,
		 "embed.weight: no rank has the 3 elements from 0 on, of 99900; "
		 "rank 0 has those behind"},
		{0, 0, 0, "embed.weight: no rank has the 99900 elements from 0 on, of 99900; none"},
		{1, 1, 111, "embed.bias: no rank has the 1 elements from 0 on, of 112"},
		{3, 5, 0, "blocks.0.norm: no rank has the 5 elements from 0 on, of 5"},
	};

	export_after(4);
	start(&other, 0);
	for (size_t i = 0; i < COUNT(holes); i++) {
		struct nvs_checkpoint_param *param = &params[holes[i].param];

		params_of(params);
		param->first = holes[i].first;
		param->numel = holes[i].numel;
		REFUSED(&optim,
			nvs_checkpoint_export_universal(optim.optimizer, params, PARAMS, path, NULL,
							&optim.error),
			-EINVAL, holes[i].words);
		is_as_before();
	}
}

/* All ranks have the same error. */
static void ranks_refuse(unsigned world, const char *words)
{
	ranks_export(world);
	for (unsigned i = 0; i < world; i++) {
		assert_int_equal(ranks[i].rc, -EINVAL);
		assert_says(ranks[i].optim.error.text, words);
	}
}

TEST(elements_that_ranks_leave_out_or_have_twice_are_refused_by_all)
{
	static const uint64_t half[] = {56};
	struct nvs_checkpoint_param *param;

	export_after(4);
	start(&other, 0);
	ranks_open(RANKS_MAX);
	param = &ranks[1].params[0]; /* elements 24975 to 49950 of embed.weight */
	param->numel -= 2;
	ranks_refuse(RANKS_MAX,
		     "embed.weight: no rank has the 2 elements from 49948 on, of 99900; rank 1 has "
		     "those before, rank 2 those behind");
	is_as_before();
	param->numel += 2;
	param->first++;
	ranks_refuse(RANKS_MAX,
		     "embed.weight: no rank has the 1 elements from 24975 on, of 99900; rank 0 has "
		     "those before, rank 1 those behind");
	param->first -= 2;
	ranks_refuse(RANKS_MAX,
		     "embed.weight: ranks 0 and 1 both have the 1 elements from 24974 on");
	param->first++;
	/* Three ranks have one half. */
	for (unsigned i = 0; i < RANKS_MAX; i++) {
		ranks[i].params[1].shape = half;
		ranks[i].params[1].numel = 28;
		ranks[i].params[1].first = i < 3 ? 0 : 28;
	}
	ranks_refuse(RANKS_MAX, "embed.bias: ranks 0 and 1 both have the 28 elements from 0 on");
	is_as_before();
}

/* More than ranks gather at a time. */
TEST(a_checkpoint_may_have_many_parameters)
{
	enum { MANY = 200, NUMEL = 50 };
	static const uint64_t shape[] = {2 * NUMEL};
	static struct nvs_checkpoint_param params[2][MANY];
	static char names[MANY][8];
	float left[NUMEL], right[NUMEL];

	for (unsigned rank = 0; rank < 2; rank++) {
		rank_open(&ranks[rank], rank, 2, path);
		optim_run(&ranks[rank].optim, 1, 2 + rank);
		optim_run(&ranks[rank].optim, 3 + rank, 3);
		for (unsigned i = 0; i < MANY; i++) {
			snprintf(names[i], sizeof(names[i]), "p%u", i);
			params[rank][i] =
				(struct nvs_checkpoint_param){.size = sizeof(params[rank][i]),
							      .name = names[i],
							      .offset = (uint64_t)i * NUMEL,
							      .numel = NUMEL,
							      .first = (uint64_t)rank * NUMEL,
							      .shape = shape,
							      .ndim = 1};
		}
		ranks[rank].exported = params[rank];
		ranks[rank].n = MANY;
	}
	params[1][MANY - 1].numel--;
	ranks_refuse(2, "p199: no rank has the 1 elements from 99 on, of 100");
	params[1][MANY - 1].numel++;
	ranks_export(2);
	/* The checksums of all files are right, or this import fails. */
	for (unsigned rank = 0; rank < 2; rank++)
		DONE(&ranks[rank].optim, ranks[rank].rc);
	for (unsigned rank = 0; rank < 2; rank++)
		DONE(&ranks[rank].optim,
		     import_as(&ranks[rank].optim, params[1 - rank], MANY, path));
	for (unsigned rank = 0; rank < 2; rank++)
		DONE(&ranks[rank].optim, import_as(&ranks[rank].optim, params[0], MANY, path));
	for (unsigned i = 0; i < MANY; i++) {
		get(&ranks[0].optim, &params[0][i], 0, left);
		get(&ranks[1].optim, &params[0][i], 0, right);
		assert_memory_equal(left, right, sizeof(left));
	}
}

/* `gather` has 4 ranks, of which one is wrong, or all but two make the same mistake. */
TEST(ranks_that_differ_in_their_numbers_are_refused)
{
	static const struct {
		bool several;
		unsigned rank, world;
		const char *words;
	} wrong[] = {
		{false, 1, RANKS_MAX, "rank 1 of 4: the ranks differ in their numbers"},
		{false, 2, 3, "rank 2 of 3: the ranks differ in their numbers"},
		{false, 2, 70, "rank 2 of 70: the ranks differ in their numbers"},
		{false, 4, 4, "rank 4 of 4; allowed are 0 to world - 1"},
		{false, 2, 2, "rank 2 of 2; allowed are 0 to world - 1"},
		{true, 3, 4, "rank"},
		{true, 1, 2, "rank"},
		{true, 2, 2, "rank"},
		{true, 7, 70, "rank"},
	};

	ranks_open(RANKS_MAX);
	for (size_t i = 0; i < COUNT(wrong); i++) {
		for (unsigned rank = 0; rank < RANKS_MAX; rank++) {
			bool is = wrong[i].several ? rank > 1 : rank == 2;

			ranks[rank].rank = is ? wrong[i].rank : wrong[i].several ? rank % 2 : rank;
			ranks[rank].world = is ? wrong[i].world : wrong[i].several ? 2 : RANKS_MAX;
		}
		ranks_export(RANKS_MAX);
		for (unsigned rank = 0; rank < RANKS_MAX; rank++) {
			assert_int_equal(ranks[rank].rc, -EINVAL);
			assert_says(ranks[rank].optim.error.text,
				    rank >= 2 && (rank == 2 || wrong[i].several)
					    ? wrong[i].words
					    : "the ranks differ in their numbers");
		}
		assert_int_equal(access(path, F_OK), -1);
	}
	ranks_open(RANKS_MAX);
	ranks_export(RANKS_MAX);
	for (unsigned i = 0; i < RANKS_MAX; i++)
		DONE(&ranks[i].optim, ranks[i].rc);
}

/* ---- Failures ---- */

/* Which of two optimizers the checkpoint is of. */
static struct optim *is_of(struct optim *reader, struct optim *a, struct optim *b, const char *from)
{
	struct optim *whose;

	DONE(reader, import_from(reader, from));
	whose = steps_of(reader) == steps_of(a) ? a : b;
	assert_int_equal(steps_of(reader), steps_of(whose));
	same_params(reader, whose);
	return whose;
}

static void fail_at_each_call(const char *to)
{
	struct optim old = {0}, new = {0}, reader = {0};
	uint64_t failed = 1;

	start(&old, 1);
	start(&new, 2);
	start(&reader, 0);
	DONE(&old, export_to(&old, to));
	/* The later calls are much alike: one for each file that is opened. */
	for (uint64_t nth = 1; failed; nth += 1 + nth / at_length(32, 8)) {
		unsigned files = inject_held().files;
		int rc;

		inject_fail(INJECT_MEMORY | INJECT_OPEN | INJECT_SYNC | INJECT_SPACE | INJECT_NAME,
			    nth, 1, ENOSPC);
		rc = export_to(&new, to);
		inject_stop(&failed);
		assert_int_equal(inject_held().files, files);
		if (!rc)
			assert_ptr_equal(is_of(&reader, &old, &new, to), &new);
		else if (is_of(&reader, &old, &new, to) == &new)
			DONE(&old, export_to(&old, to));
		if (!rc && failed)
			DONE(&old, export_to(&old, to));
		assert_in_range(entries_of(to), 1, 2);
		assert_true(nth < 20000);
	}
	optim_close(&reader);
	optim_close(&new);
	optim_close(&old);
}

TEST(each_failing_call_leaves_the_old_checkpoint_or_the_new)
{
	const char *memory = memory_directory();

	fail_at_each_call(path_in(memory ? memory : temp_directory(), "tag"));
}

/*
 * A file system that can't exchange two names, below which is another one; NULL: it can't be
 * mounted here.
 */
static const char *mount_fuse(void)
{
	const char *below = temp_directory(), *mount = temp_directory();
	char command[1024];

	snprintf(command, sizeof(command), "bindfs '%s' '%s' 2>/dev/null", below, mount);
	return system(command) ? NULL : mount;
}

static void unmount_fuse(const char *mount)
{
	char command[1024];

	snprintf(command, sizeof(command), "umount '%s' || fusermount3 -u '%s'", mount, mount);
	assert_int_equal(system(command), 0);
}

TEST(each_failing_call_leaves_the_old_checkpoint_or_the_new_on_fuse)
{
	const char *mount = mount_fuse();

	if (!mount)
		SKIP("bindfs can't mount here");
	fail_at_each_call(path_in(mount, "tag"));
	unmount_fuse(mount);
}

static void end_at_rename(void *left, struct inject_name *name)
{
	if (name->change == INJECT_RENAMES && !--*(unsigned *)left)
		_exit(0);
}

/*
 * Exports over a checkpoint, in a process that ends before one of its renames; false: it has fewer.
 */
static bool ends_at_rename(unsigned nth)
{
	const struct inject_observer observer = {.arg = &nth, .before_name = end_at_rename};
	pid_t child = fork();
	int status;

	if (!child) {
		struct optim own = {0};

		start(&own, 2);
		inject_observe(&observer);
		_exit(export_to(&own, path) ? 2 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
	return !WEXITSTATUS(status);
}

/*
 * What an export of two steps left, that ended over one of `old`, is either, and the next export
 * whole.
 */
static void old_or_new(struct optim *old)
{
	struct optim reader = {0};

	start(&reader, 0);
	DONE(&reader, import_from(&reader, path));
	assert_in_range(steps_of(&reader), 1, 2);
	if (steps_of(&reader) == 1)
		same_params(&reader, old);
	optim_close(&reader);
	DONE(old, export_to(old, path));
	assert_int_equal(entries_of(path), 1);
}

TEST(an_export_that_ends_between_its_renames_on_fuse_leaves_the_old_checkpoint_or_the_new)
{
	const char *mount = mount_fuse();
	struct optim old = {0};
	unsigned between = 0, nth = 1;

	if (!mount)
		SKIP("bindfs can't mount here");
	path = path_in(mount, "tag");
	start(&old, 1);
	DONE(&old, export_to(&old, path));
	for (; ends_at_rename(nth); nth++) {
		between += access(path_in(path, "zero"), F_OK) != 0;
		old_or_new(&old);
		DONE(&old, import_from(&old, path));
	}
	assert_int_equal(between, 1);
	assert_true(nth > 3);
	optim_close(&old);
	unmount_fuse(mount);
}

/* Over no checkpoint, and over one. */
TEST(a_system_that_refuses_to_exchange_names_before_it_looks_for_them_gets_its_checkpoint)
{

	start(&optim, 0);
	start(&other, 0);
	for (uint64_t step = 1; step <= 2; step++) {
		uint64_t failed, nth = 0;
		int rc;

		optim_run(&optim, step, step);
		do {
			inject_fail(INJECT_NAME, ++nth, 1, EINVAL);
			rc = export_to(&optim, path);
			inject_stop(&failed);
			assert_int_equal(failed, 1);
		} while (strncmp(inject_failed_call(), "renameat2", 9) != 0);
		DONE(&optim, rc);
		assert_int_equal(entries_of(path), 1);
		DONE(&other, import_from(&other, path));
		assert_int_equal(steps_of(&other), step);
		same_params(&optim, &other);
	}
}

/* An export that fails does not remove what a crash has left as the only checkpoint. */
TEST(a_failed_export_keeps_a_checkpoint_that_a_crash_has_left_between_renames)
{
	uint64_t failed;

	export_after(1);
	assert_int_equal(rename(path_in(path, "zero"), path_in(path, "zero.before")), 0);
	inject_fail(INJECT_SPACE, 1, 1, ENOSPC);
	REFUSED(&optim, export_to(&optim, path), -ENOSPC, "zero.partial");
	inject_stop(&failed);
	assert_int_equal(failed, 1);
	assert_int_equal(access(path_in(path, "zero"), F_OK), 0);
	start(&other, 0);
	DONE(&other, import_from(&other, path));
	same_params(&optim, &other);
}

/* A child exports and is killed at moments all over the export. */
TEST(a_killed_export_leaves_the_old_checkpoint_or_the_new)
{
	struct optim old = {0};
	uint64_t random = random_seed("kills");
	unsigned kills = 0, rounds = at_length(12, 4);

	start(&old, 1);
	DONE(&old, export_to(&old, path));
	for (unsigned i = 0; i < rounds; i++) {
		int status;
		pid_t child = fork();

		if (!child) {
			struct optim own = {0};

			start(&own, 2);
			for (;;)
				if (export_to(&own, path))
					_exit(1);
		}
		usleep((useconds_t)(20000 + random_below(&random, 100000)));
		kill(child, SIGKILL);
		assert_int_equal(waitpid(child, &status, 0), child);
		kills += WIFSIGNALED(status);
		old_or_new(&old);
	}
	assert_int_equal(kills, rounds);
	optim_close(&old);
}

/* Any byte of a file: what is imported is what was exported, or an error. */
TEST(damage_is_an_error_or_without_effect)
{
	const char *memory = memory_directory();
	const char *file;
	uint64_t random = random_seed("damage"), refused = 0;
	unsigned rounds = at_length(200, 60);
	struct stat status;

	if (memory)
		path = path_in(memory, "tag");
	file = path_in(path, "zero/embed.bias/exp_avg.pt");
	export_after(2);
	start(&other, 0);
	assert_int_equal(stat(file, &status), 0);
	for (unsigned i = 0; i < rounds; i++) {
		off_t at = (off_t)random_below(&random, (uint64_t)status.st_size);

		flip(file, at, 0x10);
		if (import_from(&other, path))
			refused++;
		else
			same_params(&optim, &other);
		flip(file, at, 0x10);
	}
	assert_in_range(refused, rounds / 20, rounds - 1);
	flip(file, 4096 + 50, 0x10);
	REFUSED(&other, import_from(&other, path), -EBADMSG, "embed.bias/exp_avg.pt");
	flip(file, 4096 + 50, 0x10);
	DONE(&other, import_from(&other, path));
}

/* ---- Refusals ---- */

static void refuses(const struct nvs_checkpoint_param *params, size_t n, int code,
		    const char *words)
{
	REFUSED(&optim,
		nvs_checkpoint_export_universal(optim.optimizer, params, n, path, NULL,
						&optim.error),
		code, words);
	REFUSED(&optim, import_as(&optim, params, n, path), code, words);
}

TEST(params_that_are_wrong_are_refused)
{
	static const char *const names[] = {"", ".", "..", "a/b", "optimizer_state.pt", NULL};
	struct nvs_checkpoint_param params[PARAMS];
	char name[257], words[300];

	start(&optim, 0);
	for (size_t i = 0; i <= COUNT(names); i++) {
		params_of(params);
		memset(name, 'a', 256);
		name[256] = '\0';
		params[1].name = i < COUNT(names) ? names[i] : name;
		snprintf(words, sizeof(words), "params[1], \"%s\": the name",
			 params[1].name ? params[1].name : "");
		refuses(params, PARAMS, -EINVAL, words);
	}
	params_of(params);
	refuses(params, 0, -EINVAL, "0 params");
	refuses(NULL, 1, -EINVAL, "NULL");
	params[1].name = params[0].name;
	refuses(params, PARAMS, -EINVAL, "two parameters have the name embed.weight");
	params_of(params);
	params[1].offset = 99899;
	refuses(params, PARAMS, -EINVAL, "embed.bias and embed.weight have elements in common");
	params[1].offset = 100000;
	refuses(params, PARAMS, -EINVAL, "the group first has 100100");
	params[1].group = 2;
	refuses(params, PARAMS, -EINVAL, "no group 2");
	params_of(params);
	params[0].first = 1;
	refuses(params, PARAMS, -EINVAL, "elements up to 99901 are here");
	params[0].first = UINT64_MAX;
	refuses(params, PARAMS, -EINVAL, "embed.weight");
	params_of(params);
	params[0].ndim = 65;
	refuses(params, PARAMS, -EINVAL, "65 dimensions");
	params[0].size = 0;
	refuses(params, PARAMS, -EINVAL, "params[0]");
}

TEST(paths_and_options_that_are_wrong_are_refused)
{
	static const char *const paths[] = {"", "/", ".", "..", "a/.."};
	struct nvs_checkpoint_param params[PARAMS];
	struct nvs_universal_options options = {.size = sizeof(options), .rank = 1};

	start(&optim, 0);
	params_of(params);
	for (size_t i = 0; i < COUNT(paths); i++)
		REFUSED(&optim, export_to(&optim, paths[i]), -EINVAL, "path must end");
	REFUSED(&optim, export_to(&optim, path_in(directory, "none/tag")), -ENOENT, "none/tag");
	REFUSED(&optim, import_from(&optim, path), -ENOENT, "tag");
	for (options.world = 0; options.world < 3; options.world++)
		REFUSED(&optim,
			nvs_checkpoint_export_universal(optim.optimizer, params, PARAMS, path,
							&options, &optim.error),
			-EINVAL, options.world == 2 ? "gather is NULL" : "rank 1 of 1");
	DONE(&optim, export_to(&optim, path));
	params[0].shape = (const uint64_t[]){params[0].shape[1], params[0].shape[0]};
	REFUSED(&optim, import_as(&optim, params, PARAMS, path), -ESTALE, "has the shape [");
	params[0].shape = NULL;
	params[0].numel = 99899;
	REFUSED(&optim, import_as(&optim, params, PARAMS, path), -ESTALE, "99900 elements");
	params[0].name = "tail";
	REFUSED(&optim, import_as(&optim, params, PARAMS, path), -ENOENT,
		path_in(path, "zero/tail/fp32.pt: "));
}

/* Nobody else's file is touched: not behind a link, not in a directory of that name. */
TEST(a_planted_link_is_not_followed)
{
	const char *victim = path_in(directory, "victim");

	start(&optim, 0);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(mkdir(victim, 0700), 0);
	assert_int_equal(mkdir(path_in(victim, "kept"), 0700), 0);
	assert_int_equal(symlink(victim, path_in(path, "zero.partial")), 0);
	REFUSED(&optim, export_to(&optim, path), -EEXIST, "zero.partial");
	assert_int_equal(entries_of(victim), 1);
}

/* Others' files in a directory with one of the names that an export replaces. */
TEST(a_directory_with_other_files_is_not_replaced)
{
	static const char *const places[] = {"zero/mine", "zero.partial/mine", "zero/params/mine",
					     "zero/a/b/fp32.pt", "zero.before/mine"};

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		const char *mine;
		char command[512];

		path = path_in(temp_directory(), "tag");
		mine = path_in(path, places[i]);
		start(&optim, 0);
		snprintf(command, sizeof(command), "mkdir -p '%s' && rmdir '%s' && echo 1 > '%s'",
			 mine, mine, mine);
		assert_int_equal(system(command), 0);
		REFUSED(&optim, export_to(&optim, path), -EEXIST, "no part of a universal");
		assert_int_equal(access(mine, F_OK), 0);
	}
}

/*
 * As a crash of an NFS client or a FUSE file system leaves them, in all places that are replaced.
 */
TEST(names_of_removed_files_are_no_other_files)
{
	char command[1024];

	export_after(0);
	snprintf(command, sizeof(command),
		 "cd '%s' && cp -a zero zero.partial && for d in zero* zero*/*/; do "
		 "touch $d/.nfs00000000deadbeef00000001 $d/.fuse_hidden0000000100000001; done",
		 path);
	assert_int_equal(system(command), 0);
	DONE(&optim, export_to(&optim, path));
	DONE(&optim, import_from(&optim, path));
	snprintf(command, sizeof(command), "[ -z \"$(find '%s' -name '.*')\" ]", path);
	assert_int_equal(system(command), 0);
}

/* FUSE keeps it under another name until it is closed. */
TEST(what_a_killed_export_has_left_is_replaced_while_a_file_of_it_is_open_on_fuse)
{
	const char *mount = mount_fuse();
	struct nvs_checkpoint_param params[PARAMS];
	int held, exported, imported, kept;
	char command[1024];

	if (!mount)
		SKIP("bindfs can't mount here");
	path = path_in(mount, "tag");
	params_of(params);
	snprintf(command, sizeof(command),
		 "d='%s/zero.partial/%s' && mkdir -p $d && touch $d/fp32.pt", path, params[0].name);
	kept = system(command);
	snprintf(command, sizeof(command), "%s/zero.partial/%s/fp32.pt", path, params[0].name);
	held = open(command, O_RDONLY | O_CLOEXEC);
	start(&optim, 0);
	exported = export_to(&optim, path);
	imported = import_from(&optim, path);
	snprintf(command, sizeof(command), "ls -A '%s'/zero/* | grep -q fuse_hidden", path);
	kept = kept ? kept : system(command);
	close(held);
	unmount_fuse(mount);
	assert_true(held >= 0);
	DONE(&optim, exported);
	DONE(&optim, imported);
	assert_int_equal(kept, 0);
}

TEST(a_signal_while_space_is_reserved_ends_no_export)
{
	uint64_t failed;

	start(&optim, 0);
	inject_fail(INJECT_SPACE, 1, 1, EINTR);
	DONE(&optim, export_to(&optim, path));
	inject_stop(&failed);
	assert_int_equal(failed, 1);
	assert_string_equal(inject_failed_call(), "fallocate");
}

/* With the default action of SIGXFSZ, which ends the process. */
TEST(a_limit_on_file_sizes_is_an_error_with_a_remedy)
{
	struct rlimit was, limit;

	start(&optim, 0);
	signal(SIGXFSZ, SIG_DFL);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
	limit = (struct rlimit){.rlim_cur = KIB, .rlim_max = was.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	REFUSED(&optim, export_to(&optim, path), -ENOSPC, "ulimit -f");
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
	DONE(&optim, export_to(&optim, path));
}
