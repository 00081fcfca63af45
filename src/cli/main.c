/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a subcommand, which parses its own options and returns the exit status. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/numbers.h"
#include "base/text.h"
#include "cli/options/options.h"
#include "commands.h"

static const struct subcommand {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help;
} subcommands[] = {
	{"bench", cmd_bench, "swap a model's tensors, measure it and verify it"},
	{"compare", cmd_compare, "distinguish changes between results from noise"},
	{"tune", cmd_tune, "find the aio settings that suit a drive and this machine"},
	{"replay", cmd_replay, "make the calls of a recorded run again, on another drive"},
	{"info", cmd_info, "report the abilities of this machine and a path, with advice"},
	{"store", cmd_store, "look at stores, verify, repair, remove, export and fill them"},
};

static void print_help(FILE *file)
{
	fputs("usage: nvswap COMMAND [OPTION]...\n\n"
	      "Swaps the tensors of a model between a pinned pool in host memory and NVMe.\n\n",
	      file);
	for (size_t i = 0; i < COUNT_OF(subcommands); i++)
		fprintf(file, "  %-10s  %s\n", subcommands[i].name, subcommands[i].help);
	fputs("\n  --version   the version\n  --help      this text\n\n"
	      "nvswap COMMAND --help lists the options of a command.\n",
	      file);
}

/* If a standard file is closed, the next file opened gets its number, and a store would receive
 * messages. So open /dev/null there, in the direction in which each use still fails. */
static bool keep_standard_files(void)
{
	static const int flags[] = {O_WRONLY, O_RDONLY, O_RDONLY};

	for (int fd = 0; fd < 3; fd++) {
		int placed = fcntl(fd, F_GETFD) < 0 ? open("/dev/null", flags[fd]) : fd;

		if (placed != fd)
			return false;
	}
	return true;
}

int main(int argc, char **argv)
{
	if (!keep_standard_files())
		return REFUSE(STATUS_FAILED, "can't open /dev/null for a closed standard file: %s",
			      nvs_strerror(-errno));
	if (argc < 2) {
		print_help(stderr);
		return STATUS_USAGE;
	}
	for (size_t i = 0; i < COUNT_OF(subcommands); i++)
		if (!strcmp(argv[1], subcommands[i].name))
			return subcommands[i].run(argc - 1, argv + 1);

	const char *names[COUNT_OF(subcommands) + 2] = {"--version", "--help"}, *nearest;
	bool version = !strcmp(argv[1], "--version") || !strcmp(argv[1], "-V");
	struct output output;

	if (version || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ||
	    !strcmp(argv[1], "help")) {
		if (output_open(&output, NULL))
			return STATUS_FAILED;
		if (version)
			fprintf(output.file, "nvswap %s\n", nvs_version());
		else
			print_help(output.file);
		return output_close(&output);
	}
	for (size_t i = 0; i < COUNT_OF(subcommands); i++)
		names[i + 2] = subcommands[i].name;
	nearest = nearest_name(argv[1], names, COUNT_OF(subcommands) + 2);
	if (nearest)
		say("%s is not a command; did you mean %s?", argv[1], nearest);
	else
		say("%s is not a command; see nvswap --help", argv[1]);
	return STATUS_USAGE;
}
