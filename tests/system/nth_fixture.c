/* SPDX-License-Identifier: Apache-2.0 */
/* See nth_fixture.h. */
#include "system/nth_fixture.h"

static uint64_t faults_of(struct sim *sim)
{
	struct sim_counts counts;

	sim_get(sim, &counts);
	return counts.faults;
}

static uint64_t faults_before;

void nth_arm(struct sim *sim, const struct faulty *what, uint64_t n)
{
	faults_before = faults_of(sim);
	if (what->ios)
		sim_fault(sim, &(const struct sim_rule){.fault = SIM_ERROR,
							.error = what->error,
							.reads = what->ios & SIM_READS,
							.writes = what->ios & SIM_WRITES,
							.first = n,
							.times = !what->lasts});
	else
		inject_fail(what->kinds, n, what->lasts ? INJECT_ALWAYS : 1, what->error);
}

bool nth_disarm(struct sim *sim)
{
	uint64_t failed;

	inject_stop(&failed);
	sim_no_faults(sim);
	return failed || faults_of(sim) > faults_before;
}

bool survives_all(const char *call)
{
	return call;
}

unsigned fail_each(attempt_fn *attempt, void *arg, unsigned kinds, int error, survives_fn *survives)
{
	struct nvs_error why = {.size = sizeof(why)};
	struct inject_held before;
	uint64_t failed = 1, n;
	unsigned times = 0;

	/* Once without a failure: libraries allocate some memory once and keep it. */
	if (attempt(arg, &why))
		fail_msg("%s", why.text);
	before = inject_held();
	for (n = 1; failed && n < N_LIMIT; n++) {
		const char *call;
		int rc;

		why = (struct nvs_error){.size = sizeof(why)};
		inject_fail(kinds, n, 1, error);
		rc = attempt(arg, &why);
		inject_stop(&failed);
		call = inject_failed_call();
		assert_same_held(&before, "a failed call", n);
		if (rc ? !failed || why.code != rc || !why.text[0] ||
				    (error == ENOMEM && rc != -ENOMEM)
		       : failed && !(survives && survives(call)))
			fail_msg("when %s failed, n %" PRIu64 ", it returned %d: %d \"%s\"", call,
				 n, rc, why.code, why.text);
		times += rc != 0;
	}
	assert_true(n < N_LIMIT);
	return times;
}

static const char *const for_memory[] = {
	"mmap",	   "madvise",  "memfd_create", "getrandom", "malloc",	      "calloc",
	"realloc", "strdup",   "XXH3_",	       "hwloc_",    "strndup",	      "aligned_alloc",
	"tsearch", "asprintf", "vasprintf",    "newlocale", "pthread_create", NULL};

static bool is_among(const char *call, const char *const *calls)
{
	for (; *calls; calls++)
		if (!strncmp(call, *calls, strlen(*calls)))
			return true;
	return false;
}

bool world_failed(struct world *w, int rc)
{
	const char *text = w->f.error.text, *call = inject_failed_call();
	/* Calls for memory have no place that the error could name. */
	bool memory = is_among(call, for_memory);
	/* Some have an error of their own, whatever they failed with. */
	bool own = !strcmp(call, "getrandom") ? rc == -EIO : memory && rc == -ENOMEM;
	bool told = memory ? text[0]
			   : w->f.setup.device == NVS_DEVICE_CPU && strstr(text, "host memory");

	if (!rc)
		return false;
	for (unsigned i = 0; i < w->f.setup.npaths; i++)
		told |= w->f.paths[i] && strstr(text, w->f.paths[i]);
	if ((rc != -w->error && !own) || w->f.error.code != rc || !told)
		fail_msg("%d instead of %d with the path: %d \"%s\" (%s failed)", rc, -w->error,
			 w->f.error.code, text, call);
	w->f.error = (struct nvs_error){.size = sizeof(w->f.error)};
	w->failures++;
	return true;
}

/*
 * Failures that the library survives, with less speed or less knowledge, or with a file left
 * behind.
 */
static const char *const survived[] = {
	"mlock",
	"mmap", /* mmap of explicit huge pages */
	"glob",
	"getline",	  /* the NUMA node of the drive */
	"madvise",	  /* huge pages; not the populating of the pool */
	"fstatvfs",	  /* the space left; reserving it detects a shortage */
	"fstatfs",	  /* the kind of file system; direct I/O is tried anyway */
	"stat ",	  /* a directory without metadata is opened anyway */
	"fstat",	  /* drives beneath, for their NUMA node and physical block */
	"fopen /proc/",	  /* the same */
	"fopen /sys/",	  /* memory limit of a container */
	"realpath /sys/", /* the same */
	"open /sys/",	  /* the same */
	"read",		  /* files in /sys */
	"fclose",	  /* after reading */
	"unlinkat",	  /* leftover files are found and reused */
	NULL};

bool survives_at(const char *path, const char *call)
{
	char node[600];

	/* The second open of the path determines the NUMA node of its drive. */
	snprintf(node, sizeof(node), "open %s", path);
	return is_among(call, survived) || !strcmp(call, node);
}

void assert_same_held(const struct inject_held *before, const char *what, uint64_t n)
{
	struct inject_held now = inject_held();

	if (now.blocks != before->blocks || now.mapped_bytes != before->mapped_bytes ||
	    now.files != before->files)
		fail_msg("%s, n %" PRIu64 " (%s): %" PRId64 " blocks, %" PRId64
			 " mapped bytes and %d files are leaked",
			 what, n, inject_failed_call(), now.blocks - before->blocks,
			 now.mapped_bytes - before->mapped_bytes,
			 (int)now.files - (int)before->files);
}

/* ---- A store and its tensors ---- */

int world_try_open(struct world *w)
{
	w->f.log[0] = 0;
	return fixture_reopen(&w->f);
}

void world_add_tensors(struct world *w)
{
	uint64_t nbytes[TENSORS];

	for (uint64_t i = 0; i < TENSORS; i++)
		nbytes[i] = PART - 700 * i;
	tensors_add(&w->f, "t", nbytes, TENSORS, w->t);
}

void world_make(struct world *w, const struct setup *setup)
{
	memset(w, 0, sizeof(*w));
	fixture_init(&w->f, setup);
	w->f.sim = sim_open(&(const struct sim_drive){.seed = 1, .reorder = true});
}

void world_open(struct world *w, const struct setup *setup)
{
	world_make(w, setup);
	OK(&w->f, world_try_open(w));
	world_add_tensors(w);
}

bool world_change(struct world *w, unsigned i)
{
	if (world_failed(w, sole_pin(w->f.engine, &w->t[i], 1, -1, &w->f.error)))
		return false;
	w->seed[i] = ++w->seeds;
	fill(nvs_tensor_data(w->t[i]), info_of(&w->f, w->t[i]).nbytes, w->seed[i]);
	OK(&w->f, sole_release(w->f.engine, &w->t[i], 1, NVS_DIRTY, &w->f.error));
	return true;
}

bool world_has_bytes(struct world *w, unsigned i)
{
	return filled(nvs_tensor_data(w->t[i]), info_of(&w->f, w->t[i]).nbytes, w->seed[i]);
}

void world_check(struct world *w, unsigned first, unsigned n)
{
	world_failed(w, sole_wait(w->f.engine, w->t + first, n, -1, &w->f.error));
	for (unsigned i = first; i < first + n; i++)
		if (info_of(&w->f, w->t[i]).pins) {
			assert_true(world_has_bytes(w, i));
			OK(&w->f, sole_release(w->f.engine, &w->t[i], 1, NVS_CLEAN, &w->f.error));
		}
}

void world_swaps_out(struct world *w)
{
	world_failed(w, nvs_tensor_swap_out(w->f.engine, w->t, TENSORS, &w->f.error));
	world_failed(w, sole_wait(w->f.engine, w->t, TENSORS, -1, &w->f.error));
}

void world_swaps(struct world *w)
{
	for (unsigned i = 0; i < TENSORS; i++)
		world_change(w, i);
	world_swaps_out(w);
	for (unsigned i = 0; i < TENSORS; i += TENSORS / 2)
		if (!world_failed(
			    w, sole_swap_in(w->f.engine, w->t + i, TENSORS / 2, -1, &w->f.error)))
			world_check(w, i, TENSORS / 2);
}

void world_step(struct world *w)
{
	OK(&w->f, nvs_engine_step_begin(w->f.engine, &w->f.error));
	for (unsigned i = 0; i < TENSORS; i++) {
		if (world_failed(w, sole_swap_in(w->f.engine, &w->t[i], 1, -1, &w->f.error)) ||
		    world_failed(w, sole_wait(w->f.engine, &w->t[i], 1, -1, &w->f.error)))
			continue;
		assert_true(world_has_bytes(w, i));
		w->seed[i] = ++w->seeds;
		fill(nvs_tensor_data(w->t[i]), info_of(&w->f, w->t[i]).nbytes, w->seed[i]);
		OK(&w->f, sole_release(w->f.engine, &w->t[i], 1, NVS_DIRTY, &w->f.error));
	}
	OK(&w->f, nvs_engine_step_end(w->f.engine, NULL, &w->f.error));
	world_failed(w, sole_wait(w->f.engine, w->t, TENSORS, -1, &w->f.error));
}

void world_check_all(struct world *w)
{
	for (unsigned i = 0; i < TENSORS; i++) {
		if (w->seed[i]) {
			tensor_compare(&w->f, w->t[i], w->seed[i]);
			continue;
		}
		expect_error(&w->f, sole_swap_in(w->f.engine, &w->t[i], 1, -1, &w->f.error),
			     -ENODATA, "has no contents");
		assert_true(world_change(w, i));
	}
	tensors_swap_out(&w->f, w->t, TENSORS);
	if (w->f.config.keep)
		OK(&w->f, nvs_engine_commit(w->f.engine, &w->f.error));
}
