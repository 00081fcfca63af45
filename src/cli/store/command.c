/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store`: its options and actions, from the command line to the exit status.
 */
#include <stddef.h>
#include <string.h>

#include "base/nearest.h"
#include "base/numbers.h"
#include "cli/options/report_options.h"
#include "cli/store/store.h"

struct values {
	uint64_t rank;
	unsigned kind;
	struct report_options report;
	bool rollback;
	const char *to, *from;
	uint64_t shard_bytes;
};

#define FIELD(name) offsetof(struct values, name)

static const char *const kinds[] = {"parameters", "optimizer", NULL};
static const struct values defaults = {.kind = KIND_ANY};

enum { RANK, ROLLBACK, TO, FROM, SHARD_SIZE };
static const struct option_spec options[] = {
	[RANK] = {"rank", "N", OPTION_COUNT, FIELD(rank), .max = UINT32_MAX,
		  .help = "only the stores of this rank"},
	[ROLLBACK] = {"rollback", NULL, OPTION_FLAG, FIELD(rollback),
		      .help = "repair: go back to the commit before if the last one is lost"},
	[TO] = {"to", "PATH", OPTION_STRING, FIELD(to),
		.help = "export: the file to write, .safetensors or .pt; for an optimizer also a "
			"directory"},
	[FROM] = {"from", "PATH", OPTION_STRING, FIELD(from),
		  .help = "import: the file to read; for an optimizer also a directory"},
	[SHARD_SIZE] = {"shard-size", "BYTES", OPTION_SIZE, FIELD(shard_bytes), .min = 1,
			.max = UINT64_MAX,
			.help = "export: several .safetensors files of at most so much data, and "
				"their index"},
	{"kind", "KIND", OPTION_CHOICE, FIELD(kind), .choices = kinds,
	 .help = "only stores of parameters, or of the optimizer"},
	REPORT_OPTIONS(offsetof(struct values, report)),
};

static const struct action {
	const char *name;
	int (*run)(struct store_job *job);
} actions[] = {
	{"list", store_list},	  {"show", store_show},	    {"verify", store_verify},
	{"repair", store_repair}, {"remove", store_remove}, {"export", store_export},
	{"import", store_import},
};

#define NACTIONS (COUNT_OF(actions))

const struct command_spec store_command = {
	.name = "store",
	.summary = "Looks at the stores below a path, repairs, removes, exports and fills them, "
		   "without a configuration.",
	.notes = "list   the stores below each DIR\n"
		 "\nshow   a store with the copies of its metadata and its tensors\n"
		 "\nverify reads every byte, compares checksums and names each damaged tensor\n"
		 "\nrepair writes damaged copies of the metadata anew from valid ones\n"
		 "\nremove removes the one store that is chosen, unless a process holds it\n"
		 "\nexport writes the one store that is chosen to --to: the tensors of parameters "
		 "with their shapes, or of each group G of an optimizer G.fp32, G.exp_avg and "
		 "G.exp_avg_sq with one dimension, and step. A "
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
		 "\nDIR is a path of nvme_path; but for list, several are those of one store, in "
		 "their order.\n\n"
		 "Exit status: 0; 1 if a store is damaged, or can't be read; 2 for bad usage.",
	.operand = "ACTION DIR...",
	.options = options,
	.noptions = COUNT_OF(options),
	.defaults = &defaults,
};

static const struct action *find_action(const char *text)
{
	const char *names[NACTIONS], *nearest;

	for (size_t i = 0; i < NACTIONS; i++) {
		names[i] = actions[i].name;
		if (!strcmp(text, actions[i].name))
			return &actions[i];
	}
	nearest = nearest_name(text, names, NACTIONS);
	if (nearest)
		say("%s is no action of nvswap store; did you mean %s?", text, nearest);
	else
		say("%s is no action of nvswap store; see nvswap store --help", text);
	return NULL;
}

/* Says which option that was given is another action's. */
static bool options_fit(const struct action *action, const struct options_given *given)
{
	static const struct {
		unsigned option;
		const char *action;
	} owners[] = {
		{ROLLBACK, "repair"}, {TO, "export"}, {FROM, "import"}, {SHARD_SIZE, "export"}};

	for (size_t i = 0; i < COUNT_OF(owners); i++)
		if (given->text[owners[i].option] && strcmp(owners[i].action, action->name)) {
			say("--%s is an option of nvswap store %s", options[owners[i].option].name,
			    owners[i].action);
			return false;
		}
	return true;
}

static int run(const struct action *action, struct store_job *job, const struct values *values)
{
	struct output output;
	struct json_writer json;
	int status, closed;

	if (output_open(&output, values->report.output))
		return STATUS_FAILED;
	status = output_begin(&output);
	job->out = output.file;
	json = json_to(output.file, 4);
	job->json = values->report.format == REPORT_JSON ? &json : NULL;
	if (!status && job->json) {
		json_open_object(&json, NULL);
		json_text(&json, "nvswap version", nvs_version());
		json_open_list(&json, "stores");
	}
	if (!status)
		status = action->run(job);
	if (job->json) {
		json_close_list(&json);
		json_close_object(&json);
	}
	job->json = NULL;
	closed = output_close(&output);
	return status ? status : closed;
}

int cmd_store(int argc, char **argv)
{
	struct values values = defaults;
	struct options_given given;
	struct store_job job;
	const struct action *action;
	int rc = options_parse(&store_command, argc, argv, &values, &given);

	if (rc)
		return rc == OPTIONS_HELP ? options_help(&store_command) : STATUS_USAGE;
	if (!given.noperands) {
		say("store needs an action and a path: nvswap store list /mnt/nvme");
		return STATUS_USAGE;
	}
	action = find_action(given.operands[0]);
	if (!action || !options_fit(action, &given))
		return STATUS_USAGE;
	if (given.noperands < 2 || given.noperands - 1 > NVS_PATHS_MAX) {
		say("store %s needs 1 to %d paths, as nvme_path has them", action->name,
		    NVS_PATHS_MAX);
		return STATUS_USAGE;
	}
	job = (struct store_job){.paths = (const char *const *)given.operands + 1,
				 .npaths = given.noperands - 1,
				 .any_rank = !given.text[RANK],
				 .rank = (uint32_t)values.rank,
				 .rollback = values.rollback,
				 .to = values.to,
				 .from = values.from,
				 .shard_bytes = values.shard_bytes,
				 .kind = (enum store_kind)values.kind};
	return run(action, &job, &values);
}
