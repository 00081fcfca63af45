/* SPDX-License-Identifier: Apache-2.0 */
/* The syntax of job files: the meaning of a text, and the line of each error in it. */

#include "cli/jobs/jobs.h"
#include "system/nth_fixture.h"

static void *memory; /* of the job files of a test */
static struct jobfile jobfile;
static struct nvs_error error = {.size = sizeof(error)};

/* Reads nbytes of text as a file. */
static int parse(const char *text, size_t nbytes)
{
	static char path[64];
	int fd = memfd_create("x.ini", MFD_CLOEXEC), rc;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, nbytes), nbytes);
	snprintf(path, sizeof(path), "/dev/fd/%d", fd);
	rc = jobfile_read(&jobfile, path, &memory, &error);
	close(fd);
	return rc;
}

/* Prints the job file as "[name]key=value,bare," for each section, for comparison. */
static const char *shown(void)
{
	static char text[4096];
	size_t n = 0;

	text[0] = '\0';
	for (size_t i = 0; i < jobfile.n; i++) {
		const struct jobfile_section *section = &jobfile.sections[i];

		n += (size_t)snprintf(text + n, sizeof(text) - n, "[%s]", section->name);
		for (size_t j = 0; j < section->n; j++)
			n += (size_t)snprintf(
				text + n, sizeof(text) - n, "%s%s%s,", section->lines[j].key,
				section->lines[j].value ? "=" : "",
				section->lines[j].value ? section->lines[j].value : "");
	}
	return text;
}

static void assert_reads(const char *text, const char *expected)
{
	SUCCEEDS(parse(text, strlen(text)), &error);
	for (size_t i = 0; i < jobfile.nlines; i++)
		SUCCEEDS(jobfile_expand(&memory, &jobfile.lines[i], &error), &error);
	assert_string_equal(shown(), expected);
}

static void assert_refused_bytes(const char *text, size_t nbytes, int code, const char *said)
{
	assert_int_equal(parse(text, nbytes), code);
	assert_int_equal(error.code, code);
	assert_says(error.text, said);
}

static void assert_refused(const char *text, const char *said)
{
	assert_refused_bytes(text, strlen(text), -EINVAL, said);
}

TEST(sections_and_lines_are_as_fio_reads_them)
{
	assert_reads("; only\n# comments\n\n   \n", "");
	assert_reads("[a]\nbs=4k\nstonewall\n[b c]\n", "[a]bs=4k,stonewall,[b c]");
	assert_reads("[a]\n[a]\nx=1\n[global]\n[a]", "[a][a]x=1,[global][a]");
	assert_reads("  [ a ]  \n\t bs =  4k 8k \t\n bare \nempty=\n", "[a]bs=4k 8k,bare,empty=,");
	assert_reads("[a] ; first\nbs=4k # block\nx=1;2\n ;y=1\n#z", "[a]bs=4k,x=1,");
	assert_reads("[a]\nd=\"b c\" 'e'=f\n", "[a]d=\"b c\" 'e'=f,");
	assert_reads("\xef\xbb\xbf[a]\r\nbs=4k\r\nbare\r\n", "[a]bs=4k,bare,");
}

TEST(values_have_the_environment_in_them)
{
	setenv("NVSWAP_TEST", "4k", 1);
	setenv("NVSWAP_EMPTY", "", 1);
	assert_reads("[a]\nbs=${NVSWAP_TEST}\nx=1${NVSWAP_TEST}2${NVSWAP_TEST}3\n",
		     "[a]bs=4k,x=14k24k3,");
	assert_reads("[${NVSWAP_TEST}]\n${NVSWAP_TEST}=${NVSWAP_EMPTY}$ $$x $HOME$",
		     "[${NVSWAP_TEST}]${NVSWAP_TEST}=$ $$x $HOME$,");
	/* A variable's contents are a value, whatever characters they have. */
	setenv("NVSWAP_TEST", "${NVSWAP_EMPTY};#", 1);
	assert_reads("[a]\nbs=${NVSWAP_TEST}", "[a]bs=${NVSWAP_EMPTY};#,");
	unsetenv("NVSWAP_TEST");
	unsetenv("NVSWAP_EMPTY");
}

TEST(errors_have_their_line)
{
	assert_refused("\nbs=4k\n[a]\n", ":2: this line is in no section");
	assert_refused("[a\nbs=4k\n", ":1: a [ has no ]");
	assert_refused("[a]\n\n[b;]\n", ":3: a [ has no ]");
	assert_refused("[a] bs=4k\n", ":1: nothing may follow [...]");
	assert_refused("[a]\n[ ]\n", ":2: [] lacks the name of a job");
	assert_refused("[a]\n=4k\n", ":2: a line is key=value, a key alone");
	assert_refused("[a]\ntwo words\n", ":2: a line is key=value, a key alone");
	assert_refused("[a]\ntwo words=1\n", ":2: a line is key=value, a key alone");
	assert_refused_bytes("[a]\nbs=4\0k\n", 11, -EINVAL, ":2: a byte of 0");
	assert_refused_bytes("[a]\n\0", 5, -EINVAL, ":2: a byte of 0");
}

static void assert_not_expanded(const char *value, const char *said)
{
	char text[512];

	snprintf(text, sizeof(text), "[a]\nbs=%s\n", value);
	SUCCEEDS(parse(text, strlen(text)), &error);
	assert_int_equal(jobfile_expand(&memory, &jobfile.lines[0], &error), -EINVAL);
	assert_int_equal(error.code, -EINVAL);
	assert_says(error.text, said);
	assert_string_equal(jobfile.lines[0].value, value);
}

TEST(a_value_that_cannot_be_expanded_is_reported_with_its_line)
{
	char name[257], text[300], held[4097];

	unsetenv("NVSWAP_TEST");
	assert_not_expanded("${NVSWAP_TEST}",
			    ":2: ${NVSWAP_TEST} is not set: put NVSWAP_TEST=... before");
	assert_not_expanded("1${NVSWAP_TEST", ":2: ${NVSWAP_TEST has no }");
	assert_not_expanded("${}", ":2: ${...} takes the name of an environment variable");
	/* The longest name of a variable, and one that is too long. */
	memset(name, 'N', sizeof(name));
	name[255] = '\0';
	setenv(name, "4k", 1);
	snprintf(text, sizeof(text), "[a]\nbs=${%s}\n", name);
	assert_reads(text, "[a]bs=4k,");
	unsetenv(name);
	name[255] = 'N';
	name[256] = '\0';
	snprintf(text, sizeof(text), "${%s}", name);
	assert_not_expanded(text, ":2: ${...} takes the name");
	memset(held, 'v', sizeof(held));
	held[4095] = '\0';
	setenv("NVSWAP_TEST", held, 1);
	assert_not_expanded("${NVSWAP_TEST}1", ":2: the value of bs has more than 4095 bytes");
	unsetenv("NVSWAP_TEST");
}

TEST(a_mebibyte_is_read_and_no_more)
{
	size_t n = 1u << 20;
	char *text = malloc(n + 1);

	assert_non_null(text);
	memset(text, 'v', n + 1);
	memcpy(text, "[a]\nk=", 6);
	SUCCEEDS(parse(text, n), &error);
	assert_int_equal(strlen(jobfile.sections[0].lines[0].value), n - 6);
	assert_refused_bytes(text, n + 1, -EFBIG, ": a job file has at most 1 MiB");
	free(text);
}

/* ---- Files ---- */

TEST(an_unreadable_file_is_reported_with_the_reason)
{
	const char *directory = temp_directory();

	assert_int_equal(jobfile_read(&jobfile, path_in(directory, "no"), &memory, &error),
			 -ENOENT);
	assert_says(error.text, "No such file");
	assert_int_equal(jobfile_read(&jobfile, directory, &memory, &error), -EISDIR);
}

TEST(standard_input_is_a_file)
{
	int ends[2], saved = dup(STDIN_FILENO);

	assert_int_equal(pipe(ends), 0);
	assert_int_equal(write(ends[1], "[a]\nx=1\n", 8), 8);
	close(ends[1]);
	assert_int_equal(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
	int rc = jobfile_read(&jobfile, "-", &memory, &error);

	dup2(saved, STDIN_FILENO);
	close(saved);
	close(ends[0]);
	SUCCEEDS(rc, &error);
	assert_string_equal(shown(), "[a]x=1,");
	assert_string_equal(jobfile.sections[0].file, "standard input");
}

static int read_and_expand(void *path, struct nvs_error *failure)
{
	int rc = jobfile_read(&jobfile, path, &memory, failure)
			 ?: jobfile_expand(&memory, &jobfile.lines[0], failure);

	jobfile_forget(&memory);
	return rc;
}

TEST(a_failing_call_is_reported)
{
	const char *path = path_in(temp_directory(), "a.ini");

	setenv("NVSWAP_TEST", "4k", 1);
	write_text(path, "[a]\nx=${NVSWAP_TEST}\n[b]\n");
	fail_each(read_and_expand, (void *)(uintptr_t)path,
		  INJECT_MEMORY | INJECT_OPEN | INJECT_READ, EIO, NULL);
	unsetenv("NVSWAP_TEST");
}

static int forget(void **state)
{
	jobfile_forget(&memory);
	return cleanup(state);
}

EACH_TEST(NULL, forget)
