/* SPDX-License-Identifier: Apache-2.0 */
/* `nvswap store`: its options and actions, from the command line to the exit status. */
#include <string.h>

#include "base/numbers.h"
#include "base/text.h"
#include "cli/store/store.h"

#define FIELD(name) offsetof(struct store_job, name)

static const char *const kinds[] = {"parameters", "optimizer", NULL};
static const struct store_job defaults = {.kind = KIND_ANY, .state = STATE_NONE};

enum { LIST, SHOW, VERIFY, REPAIR, REMOVE, EXPORT, IMPORT, CONVERT, CHECKSUM, ACTIONS };
#define OF(action) (1u << (action))

static const struct option_spec options[] = {
	{"rank", "N", OPTION_COUNT, FIELD(rank), .max = UINT32_MAX, .modes = OF(CHECKSUM) - 1,
	 .help = "only the stores of this rank"},
	{"kind", "KIND", OPTION_CHOICE, FIELD(kind), .choices = kinds, .modes = OF(CHECKSUM) - 1,
	 .help = "only stores of parameters, or of the optimizer"},
	{"rollback", NULL, OPTION_FLAG, FIELD(rollback), .modes = OF(REPAIR),
	 .help = "repair: go back to the commit before if the last one is lost"},
	{"to", "PATH", OPTION_STRING, FIELD(to), .modes = OF(EXPORT) | OF(CHECKSUM),
	 .help = "export: the file to write, .safetensors or .pt. checksum: the directory of the "
		 "checksums, instead of that of the files"},
	{"from", "PATH", OPTION_STRING, FIELD(from), .modes = OF(IMPORT),
	 .help = "import: the file to read"},
	{"shard-size", "BYTES", OPTION_SIZE, FIELD(shard_bytes), .min = 1, .max = UINT64_MAX,
	 .modes = OF(EXPORT),
	 .help = "export: several .safetensors files of at most so much data, and their index"},
	{"check", NULL, OPTION_FLAG, FIELD(check), .modes = OF(CHECKSUM),
	 .help = "checksum: compare the tensors with the checksums that are there"},
	{"optimizer-state", "FORMAT", OPTION_CHOICE, FIELD(state), .choices = store_formats,
	 .modes = OF(CONVERT),
	 .help = "convert: the format of the state that the store is to have"},
	REPORT_OPTIONS(FIELD(report)),
};

static const struct action {
	const char *name;
	int (*run)(struct store_job *job);
	store_fn *each; /* without `run` */
} actions[ACTIONS] = {
	[LIST] = {"list", store_list},
	[SHOW] = {"show", .each = store_show},
	[VERIFY] = {"verify", store_verify},
	[REPAIR] = {"repair", .each = store_repair},
	[REMOVE] = {"remove", store_remove},
	[EXPORT] = {"export", store_export},
	[IMPORT] = {"import", store_import},
	[CONVERT] = {"convert", store_convert},
	[CHECKSUM] = {"checksum", store_checksum},
};

const struct command_spec store_command = {
	.name = "store",
	.summary =
		"Looks at the stores below a path, repairs, removes, exports, fills and converts "
		"them, without a configuration.",
	.notes =
		"list   the stores below each DIR\n"
		"\nshow   a store with the copies of its metadata and its tensors\n"
		"\nverify reads every byte, compares checksums and names each damaged tensor\n"
		"\nrepair writes damaged copies of the metadata anew from valid ones\n"
		"\nremove removes the one store that is chosen, unless a process holds it\n"
		"\nexport writes the one store that is chosen to --to: the tensors of parameters "
		"with their shapes, or of each group G of an optimizer G.fp32 and its states, "
		"of Adam G.exp_avg and G.exp_avg_sq, with one dimension, and step\n"
		"\nimport reads the tensors of the file of --from, with their shapes, into the "
		"store of --rank (0), which "
		"it makes if there is none, and commits; other tensors of the store stay. Beside "
		"stores of optimizers alone it needs --kind parameters. With "
		"--kind optimizer it reads what export writes into a kept store that is there, "
		"whose gradients and note it discards; the loss scale of fp16 begins anew\n"
		"\nconvert writes the moments of the one optimizer's store that is chosen anew "
		"in the format of --optimizer-state, as nvswap.optimizer_state has it, and "
		"commits: a crash leaves the old format or the new one. Moments are rounded to "
		"nearest, and the report counts those that have changed; nothing else changes. "
		"The drive needs room for the new moments beside the old ones\n"
		"\nchecksum writes the checksums of the tensors of each .safetensors file FILE "
		"that DIR "
		"is, or that is in the folder or index DIR, to FILE.checksums, where verify of the "
		"configuration finds them; --check compares instead\n"
		"\nDIR is a path of nvme_path; but for list, several are those of one store, in "
		"their order.\n\n"
		"Exit status: 0; 1 if a store or a file is damaged, or can't be read; 2 for bad "
		"usage.",
	.operand = "ACTION DIR...",
	.options = options,
	.noptions = COUNT_OF(options),
	.defaults = &defaults,
};

/* The action of that name, if it has the options that were given; or says why not. */
static const struct action *find_action(const char *text, const struct options_given *given)
{
	const char *names[ACTIONS + 1] = {NULL}, *owners[ACTIONS + 1], *nearest;
	const struct action *found = NULL;
	char text_of[384];

	for (size_t i = 0; i < ACTIONS; i++) {
		names[i] = actions[i].name;
		if (!strcmp(text, actions[i].name))
			found = &actions[i];
	}
	nearest = found ? NULL : nearest_name(text, names, ACTIONS);
	if (nearest)
		say("%s is no action of nvswap store; did you mean %s?", text, nearest);
	else if (!found)
		say("%s is no action of nvswap store; see nvswap store --help", text);
	for (size_t i = 0; i < COUNT_OF(options) && found; i++) {
		unsigned n = 0;

		if (!given->text[i] || !options[i].modes ||
		    options[i].modes & 1u << (found - actions))
			continue;
		for (size_t k = 0; k < ACTIONS; k++)
			if (options[i].modes & 1u << k)
				owners[n++] = names[k];
		owners[n] = NULL;
		join_names(owners, text_of);
		say("--%s is an option of nvswap store %s", options[i].name, text_of);
		return NULL;
	}
	return found;
}

int cmd_store(int argc, char **argv)
{
	struct store_job job = defaults;
	struct options_given given;
	const struct action *action;
	struct output output;
	struct json_writer json;
	int rc = options_parse(&store_command, argc, argv, &job, &given), status, closed;

	if (rc)
		return rc == OPTIONS_HELP ? options_help(&store_command) : STATUS_USAGE;
	if (!given.noperands)
		return REFUSE(STATUS_USAGE,
			      "store needs an action and a path: nvswap store list /mnt/nvme");
	action = find_action(given.operands[0], &given);
	if (!action)
		return STATUS_USAGE;
	job.paths = (const char *const *)given.operands + 1;
	job.npaths = given.noperands - 1;
	job.any_rank = !given.text[options_find(&store_command, "rank") - options];
	if (!job.npaths || job.npaths > NVS_PATHS_MAX)
		return REFUSE(STATUS_USAGE, "store %s needs 1 to %d paths, as nvme_path has them",
			      action->name, NVS_PATHS_MAX);
	if (output_open(&output, job.report.output))
		return STATUS_FAILED;
	status = output_begin(&output);
	json = report_writer(&job.report, output.file);
	job.json = &json;
	json_open_object(&json, NULL);
	json_text(&json, "nvswap version", nvs_version());
	json_open_list(&json, action->run == store_checksum ? "files" : "stores");
	if (!status)
		status = action->run ? action->run(&job) : store_each(&job, action->each);
	json_close_list(&json);
	json_close_object(&json);
	closed = output_close(&output);
	return status ? status : closed;
}
