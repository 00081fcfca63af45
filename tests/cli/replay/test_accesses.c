/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading the accesses of a replay: the resulting list, the program's clock, and damaged input,
 * which must give an error.
 */

#include "cli/replay/replay.h"
#include "support/support.h"

static struct access_list list;
static struct model model;
static struct nvs_error error = {.size = sizeof(error)};

static int unload(void **state)
{
	accesses_free(&list);
	model_free(&model);
	return cleanup(state);
}

static int load(const char *text, size_t nbytes)
{
	int fd = memfd_create("accesses", MFD_CLOEXEC), rc;
	char path[64];

	accesses_free(&list);
	model_free(&model);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, nbytes), nbytes);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	rc = accesses_load(&list, &model, path, &error);
	close(fd);
	return rc;
}

static void load_text(const char *text)
{
	SUCCEEDS(load(text, strlen(text)), &error);
}

/* Prints "SWAP_IN 0 at 5" for each access, with a letter for the call. */
static const char *listed(void)
{
	static const char letters[] = "ILWCDPOBE";
	static char text[4096];

	*text = '\0';
	for (size_t i = 0; i < list.n; i++) {
		const struct access *access = &list.accesses[i];
		size_t length = strlen(text);

		snprintf(text + length, sizeof(text) - length, "%s%c%u@%llu",
			 access->joined ? "+" : " ", letters[access->call], access->tensor,
			 (unsigned long long)access->at_ns);
	}
	return text;
}

static void refuses(const char *text, const char *says)
{
	int rc = load(text, strlen(text));

	assert_true(rc == -EINVAL || rc == -E2BIG || rc == -ENOTSUP);
	assert_says(error.text, says);
}

/* ---- Text ---- */

TEST(verbs_become_the_calls_of_a_program)
{
	load_text("  # nothing\n\nprefetch b 1.5k\nstep\n"
		  "swapin a 4097 # of odd length\ncompute 1.5us\n"
		  "release a\nswapout b\nstep\nswapin b 1536\n"
		  "compute 2ns\nswapout b");
	assert_string_equal(listed(),
			    " P0@0 B0@0 I1@0 W1@0 C1@1500 L0@1500 D0@1500 O0@1500 E0@1500 B0@1500"
			    " I0@1500 W0@1500 D0@1502 O0@1502 E0@1502");
	assert_int_equal(model.n, 2);
	assert_string_equal(model.tensors[1].name, "a");
	assert_int_equal(model.tensors[0].nbytes, 1536);
	assert_int_equal(model.nbytes, 1536 + 4097);
	assert_true(list.read_first[0] && list.read_first[1]);
	assert_int_equal(list.in_use_max, 8192);
}

TEST(pinned_tensors_are_released_at_the_end)
{
	load_text("swapout a 1\nstep\nswapin a\n");
	assert_string_equal(listed(), " L0@0 D0@0 O0@0 B0@0 I0@0 W0@0 C0@0 E0@0");
	assert_false(list.read_first[0]);
}

TEST(invalid_text_is_refused_with_its_line)
{
	static const struct {
		const char *text, *says;
	} cases[] = {
		{"", "no accesses of tensors"},
		{"swapin a\n", ":1: a is new: give its size"},
		{"swapin a 1\nswapin a 2\n", ":2: a has another size"},
		{"swapin a 1\nswapin a\n", ":2: a is in use"},
		{"swapout a 1\n\nrelease a\n", ":3: a is released, and was not in use"},
		{"swapin a 1k 2\n", "more than three words"},
		{"swapin\n", ":1: a line is swapin, swapout"},
		{"sawpin a 1\n", ":1: a line is"},
		{"swapin a -1\n", "-1 is no size"},
		{"swapin a 1e30\n", "1e30 is no size"},
		{"swapin a 512g\nswapin b 576460752303423000\n", "more than"},
		{"compute 1\n", "1 is no time"},
		{"compute 9007199s\ncompute 1s\n", ":2: 1s is no time"},
	};

	for (unsigned i = 0; i < COUNT(cases); i++)
		refuses(cases[i].text, cases[i].says);
}

/* ---- Traces ---- */

#define HEAD "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
#define TAIL "\n],\"otherData\":{\"version\":\"nvswap 0.1.0\",\"dropped\":0}}\n"
#define CALL(call, tensor, ts)                                                                     \
	"{\"ph\":\"n\",\"cat\":\"call\",\"name\":\"use " tensor "\",\"pid\":1,\"tid\":1,\"id\":0," \
	"\"ts\":" ts ",\"args\":{\"call\":\"" call                                                 \
	"\",\"offset\":4096,\"bytes\":6,\"element\":2}}"
#define SPAN(category, ts, dur)                                                                    \
	"{\"ph\":\"X\",\"cat\":\"" category "\",\"name\":\"it\",\"pid\":1,\"tid\":1,\"ts\":" ts    \
	",\"dur\":" dur "}"
#define TRANSFER(direction)                                                                        \
	"{\"ph\":\"b\",\"cat\":\"tensor\",\"name\":\"" direction " w\",\"pid\":1,\"tid\":1,"       \
	"\"id\":1,\"ts\":1.000,\"args\":{\"offset\":0,\"bytes\":6}}"
#define OPEN                                                                                       \
	"{\"ph\":\"n\",\"cat\":\"call\",\"name\":\"engine \",\"pid\":1,\"tid\":1,\"id\":0,"        \
	"\"ts\":0.000,\"args\":{\"call\":\"open\",\"offset\":0,\"bytes\":65536,\"element\":0}}"

/* Writes the text of a trace with these events, which NULL ends. */
static const char *trace_of(const char *const *events)
{
	static char text[4096];

	strcpy(text, HEAD);
	for (unsigned i = 0; events[i]; i++)
		strcat(strcat(text, i ? "\n," : ""), events[i]);
	return strcat(text, TAIL);
}

#define TRACE(...) trace_of((const char *const[]){__VA_ARGS__, NULL})

static const char *const recorded[] = {
	OPEN,
	CALL("lease", "w", "10.000"),
	CALL("lease", "v", "10.000"),
	CALL("release-dirty", "w", "11.000"),
	CALL("release-dirty", "v", "11.000"),
	CALL("swapout", "v", "11.000"),
	SPAN("wait", "12.000", "4.000"),
	SPAN("wait", "13.000", "5.000"),
	SPAN("compute", "14.000", "1.500"),
	CALL("swapin", "v", "20.000"),
	TRANSFER("read"),
	TRANSFER("write"),
	CALL("wait", "v", "21.123"),
	NULL,
};

TEST(the_clock_of_a_recorded_program_stops_while_it_waits)
{
	load_text(trace_of(recorded));
	/* The program waits from 12 to 18 us, except 1.5 us in which a thread computes. */
	assert_string_equal(listed(), " L0@0+L1@0 D0@1000+D1@1000 O1@1000 I1@5500 "
				      "W1@6623 C1@6623");
	assert_int_equal(list.wall_ns, 11123);
	assert_int_equal(list.stall_ns, 4500);
	assert_int_equal(list.pool_bytes, 65536);
	assert_int_equal(list.bytes[NVS_READ], 6);
	assert_int_equal(list.bytes[NVS_WRITE], 6);
	assert_string_equal(model.tensors[0].name, "w@4096");
	assert_int_equal(model.tensors[0].numel, 3);
}

TEST(external_transfers_are_replayed_through_the_pool)
{
	load_text(TRACE(CALL("swapout-from", "w", "1.000"), CALL("wait", "w", "2.000"),
			CALL("swapin-to", "w", "3.000"), CALL("wait", "w", "4.000"),
			CALL("swapin-to", "w", "5.000")));
	assert_string_equal(listed(),
			    " L0@0 D0@0 O0@0 W0@1000 I0@2000 W0@3000 C0@3000 O0@3000 W0@3000"
			    " I0@4000 C0@4000");
}

TEST(a_file_that_can_not_be_read_is_refused_without_a_line)
{
	assert_int_equal(accesses_load(&list, &model, "/nosuch/trace", &error), -ENOENT);
	assert_string_equal(error.text,
			    "/nosuch/trace: can't be opened: No such file or directory");
	assert_int_equal(accesses_load(&list, &model, "/tmp", &error), -EIO);
	assert_string_equal(error.text, "/tmp: can't be read: Input/output error");
}

TEST(a_damaged_trace_is_refused_with_its_line)
{
	static const struct {
		const char *text, *says;
	} cases[] = {
		{"{}", ":1: not a trace"},
		{HEAD, ":1: the trace is damaged: it was cut off"},
		{HEAD CALL("lease", "w", "1.000"), ":2: the trace is damaged: no event"},
		{HEAD CALL("lease", "w", "1.000") "\n", ":2: the trace is damaged: it was cut"},
		{HEAD "{\"ph\":\n" TAIL, ":2: the trace is damaged"},
		{HEAD "[]\n" TAIL, "\"ph\""},
		{HEAD CALL("seize", "w", "1.000") TAIL, "\"call\""},
		{HEAD CALL("lease", "", "1.000") TAIL, "\"name\""},
		{HEAD CALL("lease", "w", "-1") TAIL, "\"ts\""},
		{HEAD CALL("swapin", "w", "1.000") "\n," CALL("read-part", "w", "2.000") TAIL,
		 ":3: the run read parts of tensors (nvs_tensor_read)"},
		{HEAD SPAN("wait", "1.000", "null") TAIL, "\"dur\""},
		{HEAD CALL("release", "w", "1.000") TAIL, ":2: w is released, and was not in use"},
		{HEAD CALL("lease", "w", "1.000") "\n," CALL("swapout", "w", "2.000") TAIL,
		 ":3: w is swapped out while in use"},
		{HEAD SPAN("wait", "1.000", "1.000") TAIL, "no accesses of tensors"},
		{HEAD CALL("lease", "w", "1.000") TAIL "\n", "no event"},
	};

	for (unsigned i = 0; i < COUNT(cases); i++)
		refuses(cases[i].text, cases[i].says);
}

#define DAMAGED 3000

TEST(a_trace_with_random_damage_is_read_or_refused)
{
	static const char bytes[] = "\"{}[],:0-e\n\\u9w\0";
	const char *trace = trace_of(recorded);
	size_t nbytes = strlen(trace);
	char damaged[4096];
	unsigned seed = 7, refused = 0;

	for (unsigned i = 0; i < DAMAGED; i++) {
		int rc;

		memcpy(damaged, trace, nbytes);
		for (int n = rand_r(&seed) % 4; n >= 0; n--)
			damaged[(size_t)rand_r(&seed) % nbytes] =
				bytes[(size_t)rand_r(&seed) % sizeof(bytes)];
		rc = load(damaged, nbytes - (i % 8 ? 0 : (size_t)rand_r(&seed) % 99));
		refused += rc != 0;
		if (rc)
			assert_says(error.text, "/proc/self/fd/");
		else
			assert_true(list.n && model.n);
	}
	assert_true(refused > DAMAGED / 2);
}

EACH_TEST(NULL, unload)
