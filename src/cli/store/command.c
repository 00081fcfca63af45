/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store`: its options and actions, from the command line to the exit status.
 */
#include <stddef.h>
#include <string.h>

#include "base/nearest.h"
#include "base/numbers.h"
#include "cli/store/store.h"

#define FIELD(name) offsetof(struct store_job, name)

static const char *const kinds[] = {"parameters", "optimizer", NULL};
static const struct store_job defaults = {.kind = KIND_ANY, .state = STATE_NONE};

enum { RANK, KIND, ROLLBACK, TO, FROM, SHARD_SIZE, CHECK, STATE };
static const struct option_spec options[] = {
	[RANK] = {"rank", "N", OPTION_COUNT, FIELD(rank), .max = UINT32_MAX,
		  .help = "only the stores of this rank"},
	[KIND] = {"kind", "KIND", OPTION_CHOICE, FIELD(kind), .choices = kinds,
		  .help = "only stores of parameters, or of the optimizer"},
	[ROLLBACK] = {"rollback", NULL, OPTION_FLAG, FIELD(rollback),
		      .help = "repair: go back to the commit before if the last one is lost"},
	[TO] = {"to", "PATH", OPTION_STRING, FIELD(to),
		.help = "export: the file to write, .safetensors or .pt; for an optimizer also a "
			"directory. checksum: the directory of the checksums, instead of that of "
			"the files"},
	[FROM] = {"from", "PATH", OPTION_STRING, FIELD(from),
		  .help = "import: the file to read; for an optimizer also a directory"},
	[SHARD_SIZE] = {"shard-size", "BYTES", OPTION_SIZE, FIELD(shard_bytes), .min = 1,
			.max = UINT64_MAX,
			.help = "export: several .safetensors files of at most so much data, and "
				"their index"},
	[CHECK] = {"check", NULL, OPTION_FLAG, FIELD(check),
		   .help = "checksum: compare the tensors with the checksums that are there"},
	[STATE] = {"optimizer-state", "FORMAT", OPTION_CHOICE, FIELD(state),
		   .choices = store_formats,
		   .help = "convert: the format of the state that the store is to have"},
	REPORT_OPTIONS(FIELD(report)),
};

static const struct action {
	const char *name;
	int (*run)(struct store_job *job);
} actions[] = {
	{"list", store_list},	  {"show", store_show},	      {"verify", store_verify},
	{"repair", store_repair}, {"remove", store_remove},   {"export", store_export},
	{"import", store_import}, {"convert", store_convert}, {"checksum", store_checksum},
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
		"of Adam G.exp_avg and G.exp_avg_sq, with one dimension, and step. A "
		"name without a dot, or a directory that is there, is for a universal "
		"checkpoint of DeepSpeed with a parameter for each group; "
		"the file latest_universal beside it is replaced to name it, as DeepSpeed has "
		"it\n"
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
	static const struct {
		unsigned option;
		const char *action;
	} owners[] = {{ROLLBACK, "repair"},
		      {FROM, "import"},
		      {SHARD_SIZE, "export"},
		      {CHECK, "checksum"},
		      {STATE, "convert"}};
	const char *names[COUNT_OF(actions)], *nearest;
	const struct action *found = NULL;

	for (size_t i = 0; i < COUNT_OF(actions); i++) {
		names[i] = actions[i].name;
		if (!strcmp(text, actions[i].name))
			found = &actions[i];
	}
	nearest = found ? NULL : nearest_name(text, names, COUNT_OF(actions));
	if (nearest)
		say("%s is no action of nvswap store; did you mean %s?", text, nearest);
	else if (!found)
		say("%s is no action of nvswap store; see nvswap store --help", text);
	for (size_t i = 0; i < COUNT_OF(owners) && found; i++)
		if (given->text[owners[i].option] && strcmp(owners[i].action, found->name)) {
			say("--%s is an option of nvswap store %s", options[owners[i].option].name,
			    owners[i].action);
			found = NULL;
		}
	if (found && given->text[TO] && found->run != store_export &&
	    found->run != store_checksum) {
		say("--to is an option of nvswap store export and checksum");
		found = NULL;
	} else if (found && found->run == store_checksum &&
		   (given->text[RANK] || given->text[KIND])) {
		say("--%s chooses stores, and nvswap store checksum reads .safetensors files",
		    given->text[RANK] ? "rank" : "kind");
		found = NULL;
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
	if (!given.noperands) {
		say("store needs an action and a path: nvswap store list /mnt/nvme");
		return STATUS_USAGE;
	}
	action = find_action(given.operands[0], &given);
	if (!action)
		return STATUS_USAGE;
	job.paths = (const char *const *)given.operands + 1;
	job.npaths = given.noperands - 1;
	job.any_rank = !given.text[RANK];
	if (!job.npaths || job.npaths > NVS_PATHS_MAX) {
		say("store %s needs 1 to %d paths, as nvme_path has them", action->name,
		    NVS_PATHS_MAX);
		return STATUS_USAGE;
	}
	if (output_open(&output, job.report.output))
		return STATUS_FAILED;
	status = output_begin(&output);
	json = report_writer(&job.report, output.file);
	job.json = &json;
	json_open_object(&json, NULL);
	json_text(&json, "nvswap version", nvs_version());
	json_open_list(&json, action->run == store_checksum ? "files" : "stores");
	if (!status)
		status = action->run(&job);
	json_close_list(&json);
	json_close_object(&json);
	closed = output_close(&output);
	return status ? status : closed;
}
