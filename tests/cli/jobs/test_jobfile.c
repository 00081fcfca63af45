/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The form of job files: what a text means, and where each mistake in it is said to be.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/jobfile.h"
#include "inject.h"
#include "support.h"

static void write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

/* The job file as "[name]key=value,bare," for each section, for comparing. */
static const char *shown(const struct jobfile *jobfile)
{
	static char text[4096];
	size_t n = 0;

	text[0] = '\0';
	for (size_t i = 0; i < jobfile->n; i++) {
		const struct jobfile_section *section = &jobfile->sections[i];

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
	struct jobfile jobfile;
	struct nvs_error error;

	SUCCEEDS(jobfile_parse(&jobfile, text, strlen(text), "x.ini", &error), &error);
	assert_string_equal(shown(&jobfile), expected);
	jobfile_free(&jobfile);
}

static void assert_refused_bytes(const char *text, size_t nbytes, int code, const char *said)
{
	struct jobfile jobfile;
	struct nvs_error error = {0};

	assert_int_equal(jobfile_parse(&jobfile, text, nbytes, "x.ini", &error), code);
	assert_int_equal(error.code, code);
	assert_says(error.text, said);
	assert_null(jobfile.memory);
}

static void assert_refused(const char *text, const char *said)
{
	assert_refused_bytes(text, strlen(text), -EINVAL, said);
}

static void sections_and_lines_are_as_fio_reads_them(void **state)
{
	(void)state;
	assert_reads("", "");
	assert_reads("; only\n# comments\n\n   \n", "");
	assert_reads("[a]\nbs=4k\nstonewall\n[b c]\n", "[a]bs=4k,stonewall,[b c]");
	assert_reads("[a]\n[a]\nx=1\n[global]\n[a]", "[a][a]x=1,[global][a]");
	assert_reads("  [ a ]  \n\t bs =  4k 8k \t\n bare \nempty=\n", "[a]bs=4k 8k,bare,empty=,");
	assert_reads("[a] ; first\nbs=4k # block\nx=1;2\n ;y=1\n#z", "[a]bs=4k,x=1,");
	assert_reads("[a]\nd=\"b c\" 'e'=f\n", "[a]d=\"b c\" 'e'=f,");
	assert_reads("\xef\xbb\xbf[a]\r\nbs=4k\r\nbare\r\n", "[a]bs=4k,bare,");
	assert_reads("[a]\ninclude=no\nincluded\ninclude = x\n",
		     "[a]include=no,included,include=x,");
}

static void values_have_the_environment_and_the_machine_in_them(void **state)
{
	char expected[256];

	(void)state;
	setenv("NVSWAP_TEST", "4k", 1);
	setenv("NVSWAP_EMPTY", "", 1);
	assert_reads("[a]\nbs=${NVSWAP_TEST}\nx=1${NVSWAP_TEST}2${NVSWAP_TEST}3\n",
		     "[a]bs=4k,x=14k24k3,");
	assert_reads("[${NVSWAP_TEST}]\n${NVSWAP_TEST}=${NVSWAP_EMPTY}$ $$x $HOME$",
		     "[${NVSWAP_TEST}]${NVSWAP_TEST}=$ $$x $HOME$,");
	/* What a variable has is a value, whatever it looks like. */
	setenv("NVSWAP_TEST", "${NVSWAP_EMPTY};#", 1);
	assert_reads("[a]\nbs=${NVSWAP_TEST}", "[a]bs=${NVSWAP_EMPTY};#,");
	snprintf(expected, sizeof(expected), "[a]x=%ld/%ld/%llu,", sysconf(_SC_NPROCESSORS_ONLN),
		 sysconf(_SC_PAGESIZE),
		 (unsigned long long)sysconf(_SC_PHYS_PAGES) *
				 (unsigned long long)sysconf(_SC_PAGESIZE) >>
			 20);
	assert_reads("[a]\nx=$ncpus/$pagesize/$mb_memory", expected);
	unsetenv("NVSWAP_TEST");
	unsetenv("NVSWAP_EMPTY");
}

static void mistakes_are_told_with_their_line(void **state)
{
	static const char missing[] = "[a]\ninclude /nonexistent/b.ini\n";

	(void)state;
	unsetenv("NVSWAP_TEST");
	assert_refused("\nbs=4k\n[a]\n", "x.ini:2: bs=4k stands in no section");
	assert_refused("[a\nbs=4k\n", "x.ini:1: [a has no ]");
	assert_refused("[a]\n\n[b;]\n", "x.ini:3: [b has no ]");
	assert_refused("[a] bs=4k\n", "x.ini:1: after [...] nothing may follow");
	assert_refused("[a]\n[ ]\n", "x.ini:2: [] needs the name of a job");
	assert_refused("[a]\n=4k\n", "x.ini:2: \"\" is no key");
	assert_refused("[a]\ntwo words\n", "x.ini:2: \"two words\" is no key");
	assert_refused("[a]\ntwo words=1\n", "x.ini:2: \"two words\" is no key");
	assert_refused(
		"[a]\nbs=${NVSWAP_TEST}\n",
		"x.ini:2: ${NVSWAP_TEST} is not set: put NVSWAP_TEST=... before the command");
	assert_refused("[a]\nbs=1${NVSWAP_TEST\n", "x.ini:2: ${NVSWAP_TEST has no }");
	assert_refused("[a]\nbs=${}\n", "x.ini:2: between ${ and } goes the name");
	assert_refused("[a]\ninclude /dev/zero\n", "x.ini:2: include /dev/zero: it is not a file");
	assert_refused_bytes(missing, strlen(missing), -ENOENT,
			     "x.ini:2: include /nonexistent/b.ini: No such file");
	assert_refused("[a]\ninclude .\n", "x.ini:2: include .: it is not a file");
	assert_refused_bytes("[a]\nbs=4\0k\n", 11, -EINVAL, "x.ini:2: a byte of 0");
	assert_refused_bytes("[a]\n\0", 5, -EINVAL, "x.ini:2: a byte of 0");
}

/* The longest name of a variable, and one longer. */
static void names_of_variables_have_a_bound(void **state)
{
	char name[257], text[300];

	(void)state;
	memset(name, 'N', sizeof(name));
	name[255] = '\0';
	setenv(name, "4k", 1);
	snprintf(text, sizeof(text), "[a]\nbs=${%s}\n", name);
	assert_reads(text, "[a]bs=4k,");
	unsetenv(name);
	name[255] = 'N';
	name[256] = '\0';
	snprintf(text, sizeof(text), "[a]\nbs=${%s}\n", name);
	assert_refused(text, "x.ini:2: between ${ and } goes the name");
}

static void a_mebibyte_is_read_and_no_more(void **state)
{
	size_t n = 1u << 20;
	char *text = malloc(n + 1);
	struct jobfile jobfile;
	struct nvs_error error;

	(void)state;
	assert_non_null(text);
	memset(text, 'v', n + 1);
	memcpy(text, "[a]\nk=", 6);
	SUCCEEDS(jobfile_parse(&jobfile, text, n, "x.ini", &error), &error);
	assert_int_equal(strlen(jobfile.sections[0].lines[0].value), n - 6);
	jobfile_free(&jobfile);
	assert_refused_bytes(text, n + 1, -EFBIG, "x.ini: longer than 1 MiB");
	free(text);
}

/* A few bytes that stand for many are counted as these. */
static void what_variables_hold_counts(void **state)
{
	char held[100001], text[512] = "[a]\n";

	(void)state;
	memset(held, 'v', sizeof(held));
	held[100000] = '\0';
	setenv("NVSWAP_TEST", held, 1);
	for (unsigned i = 0; i < 11; i++)
		strcat(text, "k=${NVSWAP_TEST}\n");
	assert_refused_bytes(text, strlen(text), -EFBIG, "x.ini:12: longer than 1 MiB");
	unsetenv("NVSWAP_TEST");
}

static void every_line_keeps_its_number(void **state)
{
	static const char text[] = "\n[a]\n;\nx=1\n\ny\n[b]\n";
	struct jobfile jobfile;
	struct nvs_error error;

	(void)state;
	SUCCEEDS(jobfile_parse(&jobfile, text, strlen(text), "x.ini", &error), &error);
	assert_int_equal(jobfile.sections[0].line, 2);
	assert_int_equal(jobfile.sections[0].lines[0].line, 4);
	assert_int_equal(jobfile.sections[0].lines[1].line, 6);
	assert_int_equal(jobfile.sections[1].line, 7);
	assert_string_equal(jobfile.sections[1].file, "x.ini");
	jobfile_free(&jobfile);
}

/* ---- Files ---- */

static void assert_file_refused(const char *path, int code, const char *said)
{
	struct jobfile jobfile;
	struct nvs_error error = {0};

	assert_int_equal(jobfile_read(&jobfile, path, &error), code);
	assert_says(error.text, said);
	assert_null(jobfile.memory);
}

static void includes_stand_where_they_are_included(void **state)
{
	const char *directory = temp_directory(), *path = path_in(directory, "a.ini");
	struct jobfile jobfile;
	struct nvs_error error;

	(void)state;
	write_file(path, "[a]\nx=1\ninclude more.ini\ny=2\ninclude sections.ini\n[d]\n");
	write_file(path_in(directory, "more.ini"), "m=1\ninclude deeper.ini\nm=3");
	write_file(path_in(directory, "deeper.ini"), "m=2\n");
	write_file(path_in(directory, "sections.ini"), "z=1\n[b]\n[c]\nx=3\n");
	SUCCEEDS(jobfile_read(&jobfile, path, &error), &error);
	assert_string_equal(shown(&jobfile), "[a]x=1,m=1,m=2,m=3,y=2,z=1,[b][c]x=3,[d]");
	assert_string_equal(jobfile.sections[0].lines[2].file, path_in(directory, "deeper.ini"));
	assert_int_equal(jobfile.sections[0].lines[2].line, 1);
	assert_int_equal(jobfile.sections[0].lines[4].line, 4);
	jobfile_free(&jobfile);
}

static void a_line_after_included_sections_belongs_to_none(void **state)
{
	const char *directory = temp_directory(), *path = path_in(directory, "a.ini");

	(void)state;
	write_file(path, "[a]\ninclude sections.ini\nx=1\n");
	write_file(path_in(directory, "sections.ini"), "[b]\n");
	assert_file_refused(path, -EINVAL, "a.ini:3: x=1 stands in no section");
}

static void an_include_is_looked_for_beside_its_file_and_then_here(void **state)
{
	char *directory = realpath(temp_directory(), NULL), *here = getcwd(NULL, 0);
	const char *other = temp_directory(), *path = path_in(directory, "a.ini");
	struct jobfile jobfile;
	struct nvs_error error;

	(void)state;
	write_file(path, "[a]\ninclude b.ini\ninclude c.ini\n");
	write_file(path_in(directory, "b.ini"), "beside\n");
	write_file(path_in(other, "b.ini"), "far\n");
	write_file(path_in(other, "c.ini"), "here\n");
	assert_int_equal(chdir(other), 0);
	int rc = jobfile_read(&jobfile, path, &error);

	assert_int_equal(chdir(here), 0);
	SUCCEEDS(rc, &error);
	assert_string_equal(shown(&jobfile), "[a]beside,here,");
	jobfile_free(&jobfile);
	free(directory);
	free(here);
}

static void a_mistake_in_an_include_is_told_with_its_file(void **state)
{
	const char *directory = temp_directory(), *path = path_in(directory, "a.ini");

	(void)state;
	write_file(path, "[a]\ninclude b.ini\n");
	write_file(path_in(directory, "b.ini"), "\n\ntwo words\n");
	assert_file_refused(path, -EINVAL, "/b.ini:3: \"two words\" is no key");
}

static void files_that_include_each_other_come_to_an_end(void **state)
{
	const char *directory = temp_directory(), *path = path_in(directory, "a.ini");

	(void)state;
	write_file(path, "[a]\ninclude b.ini\n");
	write_file(path_in(directory, "b.ini"), "x\ninclude a.ini\n");
	assert_file_refused(path, -EINVAL, "include b.ini: files include each other 16 deep");
}

/* 0.ini, which includes 1.ini, and so on: as many includes one in another. */
static const char *write_chain(const char *directory, unsigned includes)
{
	char name[32], text[64];

	for (unsigned i = 0; i <= includes; i++) {
		snprintf(name, sizeof(name), "%u.ini", i);
		snprintf(text, sizeof(text), "%sinclude %u.ini\n", i ? "" : "[a]\n", i + 1);
		write_file(path_in(directory, name), i < includes ? text : "end\n");
	}
	return path_in(directory, "0.ini");
}

static void includes_may_be_16_deep(void **state)
{
	struct jobfile jobfile;
	struct nvs_error error;

	(void)state;
	SUCCEEDS(jobfile_read(&jobfile, write_chain(temp_directory(), 16), &error), &error);
	assert_string_equal(shown(&jobfile), "[a]end,");
	jobfile_free(&jobfile);
	assert_file_refused(write_chain(temp_directory(), 17), -EINVAL, "16.ini:1: include 17.ini");
}

static void a_file_that_cannot_be_read_says_why(void **state)
{
	const char *directory = temp_directory();

	(void)state;
	assert_file_refused(path_in(directory, "none.ini"), -ENOENT, "No such file");
	assert_file_refused(directory, -EISDIR, "Is a directory");
}

static void standard_input_is_a_file(void **state)
{
	int ends[2], saved = dup(STDIN_FILENO);
	struct jobfile jobfile;
	struct nvs_error error = {0};

	(void)state;
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(write(ends[1], "[a]\nx=1\n", 8), 8);
	close(ends[1]);
	assert_int_equal(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
	int rc = jobfile_read(&jobfile, "-", &error);

	dup2(saved, STDIN_FILENO);
	close(saved);
	close(ends[0]);
	SUCCEEDS(rc, &error);
	assert_string_equal(shown(&jobfile), "[a]x=1,");
	assert_string_equal(jobfile.sections[0].file, "standard input");
	jobfile_free(&jobfile);
}

/* Each call in turn, until a reading has no more of them: it is told, and all is given back. */
static void a_call_that_fails_is_told(void **state)
{
	const char *directory = temp_directory(), *path = path_in(directory, "a.ini");
	uint64_t failed = 1;

	(void)state;
	setenv("NVSWAP_TEST", "4k", 1);
	write_file(path, "[a]\nx=${NVSWAP_TEST}\ninclude b.ini\n[b]\n");
	write_file(path_in(directory, "b.ini"), "y\n");
	for (uint64_t n = 1; failed; n++) {
		struct inject_held before = inject_held(), after;
		struct nvs_error error = {0};
		struct jobfile jobfile;
		int rc;

		inject_fail(INJECT_MEMORY | INJECT_OPEN | INJECT_READ, n, 1, EIO);
		rc = jobfile_read(&jobfile, path, &error);
		inject_stop(&failed);
		if (!rc == !!failed || error.code != rc || (rc && !*error.text))
			fail_msg("call %" PRIu64 ", %s: %d, \"%s\"", n, inject_failed_call(), rc,
				 error.text);
		if (!rc)
			jobfile_free(&jobfile);
		after = inject_held();
		assert_int_equal(after.blocks, before.blocks);
		assert_int_equal(after.files, before.files);
	}
	unsetenv("NVSWAP_TEST");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(sections_and_lines_are_as_fio_reads_them),
		test(values_have_the_environment_and_the_machine_in_them),
		test(mistakes_are_told_with_their_line),
		test(names_of_variables_have_a_bound),
		test(a_mebibyte_is_read_and_no_more),
		test(what_variables_hold_counts),
		test(every_line_keeps_its_number),
		test(includes_stand_where_they_are_included),
		test(a_line_after_included_sections_belongs_to_none),
		test(an_include_is_looked_for_beside_its_file_and_then_here),
		test(a_mistake_in_an_include_is_told_with_its_file),
		test(files_that_include_each_other_come_to_an_end),
		test(includes_may_be_16_deep),
		test(a_file_that_cannot_be_read_says_why),
		test(standard_input_is_a_file),
		test(a_call_that_fails_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
