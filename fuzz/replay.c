/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives a fuzz target each file that is named, in order and once: its seeds, or inputs that the
 * fuzzer found. Needs no fuzzer, so that any compiler and any sanitizer will do.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);
/* Not every target has one. */
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);

static void fail(const char *path)
{
	perror(path);
	exit(2);
}

/* An input is in memory of its own size, so that a sanitizer sees what is read beyond it. */
static void replay(const char *path)
{
	FILE *file = fopen(path, "rb");
	uint8_t *data;
	long nbytes;

	if (!file || fseek(file, 0, SEEK_END) || (nbytes = ftell(file)) < 0 ||
	    fseek(file, 0, SEEK_SET))
		fail(path);
	data = malloc(nbytes ? (size_t)nbytes : 1);
	if (!data || fread(data, 1, (size_t)nbytes, file) != (size_t)nbytes)
		fail(path);
	fclose(file);
	/* Names the input where the target aborts. */
	fprintf(stderr, "%s\n", path);
	LLVMFuzzerTestOneInput(data, (size_t)nbytes);
	free(data);
}

int main(int argc, char **argv)
{
	if (LLVMFuzzerInitialize)
		LLVMFuzzerInitialize(&argc, &argv);
	for (int i = 1; i < argc; i++)
		replay(argv[i]);
	return argc > 1 ? 0 : 2;
}
