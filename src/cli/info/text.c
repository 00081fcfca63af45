/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of nvswap info as text: the facts with their units, then the advice.
 */
#include <math.h>
#include <stdint.h>

#include "cli/commands.h"
#include "cli/info/info.h"

static const char *size(uint64_t nbytes, char text[32])
{
	static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double value = (double)nbytes;
	unsigned unit = 0;

	for (; value >= 1024 && unit + 1 < COUNT_OF(units); unit++)
		value /= 1024;
	snprintf(text, 32, "%.4g %s", value, units[unit]);
	return text;
}

/* Names, paths and reasons come from outside: drives, sysfs and the command line. */
static void print_named(FILE *out, const char *name, const char *text)
{
	fprintf(out, "  %-20s ", name);
	print_visible(out, text);
	fputc('\n', out);
}

static void print_machine(FILE *out, const struct nvs_machine_info *machine)
{
	const char *reason = machine->ioengine[NVS_IOENGINE_AUTO].reason;
	char text[32], left[32];

	fprintf(out, "machine\n  kernel               %s\n", machine->kernel);
	fprintf(out, "  CPUs                 %u\n", machine->cpus);
	fprintf(out, "  NUMA nodes           %u\n", machine->numa_nodes);
	fprintf(out, "  memory               %s\n", size(machine->memory_bytes, text));
	if (machine->memory_limit_bytes) {
		fprintf(out, "  memory limit         %s (",
			size(machine->memory_limit_bytes, text));
		print_visible(out, machine->memory_limit_file);
		fputs(")\n", out);
	}
	fprintf(out, "  free for nvswap      %s\n",
		machine->memory_free_bytes == UINT64_MAX ? "unknown"
							 : size(machine->memory_free_bytes, left));
	fprintf(out, "  lockable             %s\n",
		machine->memlock_bytes == UINT64_MAX ? "all of it"
						     : size(machine->memlock_bytes, text));
	if (machine->hugepage_bytes)
		fprintf(out, "  huge pages           %llu of %llu free, %s each\n",
			(unsigned long long)machine->hugepages_free,
			(unsigned long long)machine->hugepages_total,
			size(machine->hugepage_bytes, text));
	fprintf(out, "  transparent          %s\n",
		machine->transparent_hugepages[0] ? machine->transparent_hugepages : "unknown");
	fprintf(out, "  libaio events        %llu of %llu in use\n",
		(unsigned long long)machine->aio_nr, (unsigned long long)machine->aio_max_nr);
	if (machine->io_uring_disabled >= 0)
		fprintf(out, "  io_uring_disabled    %d\n", machine->io_uring_disabled);
	fprintf(out, "\nI/O engines\n");
	for (int i = NVS_IOENGINE_AUTO + 1; i < NVS_IOENGINE_COUNT; i++)
		fprintf(out, "  %-20s %s%s\n", nvs_ioengine_name((enum nvs_ioengine)i),
			machine->ioengine[i].works ? "works" : "does not work: ",
			machine->ioengine[i].reason);
	fprintf(out, "  auto                 %s%s%s%s\n",
		machine->ioengine[NVS_IOENGINE_AUTO].works
			? nvs_ioengine_name(machine->auto_ioengine)
			: "none",
		reason[0] ? " (" : "", reason, reason[0] ? ")" : "");
}

static void print_path(FILE *out, const struct nvs_path_info *path)
{
	char a[32], b[32];

	print_named(out, "file system", path->filesystem[0] ? path->filesystem : "unknown");
	fprintf(out, "  space                %s free of %s\n", size(path->free_bytes, a),
		size(path->total_bytes, b));
	if (path->reserve_fails[0]) {
		fprintf(out, "  %-20s may not suffice: ", "reserved space");
		print_visible(out, path->reserve_fails);
		fputc('\n', out);
	}
	if (!path->direct)
		fprintf(out, "  direct I/O           no; data goes through the page cache\n");
	else
		fprintf(out, "  direct I/O           memory aligned to %s, offsets to %s%s\n",
			size(path->dio_mem_align, a), size(path->dio_offset_align, b),
			path->dio_from_statx ? "" : " (the block size; the kernel gives none)");
	if (!path->device[0]) {
		fprintf(out, "  drive                none or unknown\n");
		return;
	}
	fprintf(out, "  %-20s ", "drive");
	print_visible(out, path->device);
	fputs(path->model[0] ? ", " : "", out);
	print_visible(out, path->model);
	fputs(path->rotational ? ", rotational\n" : "\n", out);
	fprintf(out, "  blocks               %s logical, %s physical\n",
		size(path->logical_block_bytes, a), size(path->physical_block_bytes, b));
	fprintf(out, "  longest I/O          %s, in up to %u segments\n",
		size(path->max_io_bytes, a), path->max_segments);
	fprintf(out, "  requests in queue    %u\n", path->nr_requests);
	print_named(out, "scheduler", path->scheduler[0] ? path->scheduler : "unknown");
	if (path->numa_node >= 0)
		fprintf(out, "  NUMA node            %d\n", path->numa_node);
	else
		fprintf(out, "  NUMA node            the only one or unknown\n");
}

/* Data sheets and SMART logs have decimal units. */
static const char *decimal(double nbytes, char text[32])
{
	static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB", "PB"};
	unsigned unit = 0;

	for (; nbytes >= 1000 && unit + 1 < COUNT_OF(units); unit++)
		nbytes /= 1000;
	snprintf(text, 32, "%.4g %s", nbytes, units[unit]);
	return text;
}

static void print_days(FILE *out, const struct wear *wear, double days, const char *at,
		       double daily_bytes)
{
	char text[32];

	if (isnan(days))
		return;
	fprintf(out, "                       %s%.0f day%s left at %s, %s a day\n",
		wear->rated ? "" : "about ", days, days >= 0.5 && days < 1.5 ? "" : "s", at,
		decimal(daily_bytes, text));
}

static void print_wear(FILE *out, const struct report *report, const struct wear *wear)
{
	char label[80], a[32], b[32];

	snprintf(label, sizeof(label), "wear of %s", wear->device);
	if (*wear->why) {
		print_named(out, label, wear->why);
		return;
	}
	fprintf(out, "  %-20s %u %% of its endurance used by its own account, %s written", label,
		wear->percent_used, decimal(wear->written_bytes, a));
	if (wear->rated)
		fprintf(out, " of %s", decimal(wear->endurance_bytes, b));
	fprintf(out, ", powered on for %.0f days\n", floor(wear->power_on_hours / 24));
	if (wear->endurance_bytes <= 0)
		fprintf(out,
			"                       how long it lasts is not known yet: --tbw tells "
			"what it is rated for\n");
	print_days(out, wear, wear->own_days, "its own rate so far", wear->own_daily_bytes);
	print_days(out, wear, wear->job_days, "the job's rate", report->job_daily_bytes);
}

void info_text(FILE *out, const struct report *report)
{
	print_machine(out, &report->machine);
	for (unsigned i = 0; i < report->npaths; i++) {
		const struct report_path *path = &report->paths[i];

		fputc('\n', out);
		print_visible(out, path->status ? path->asked : path->info.path);
		fputs(path->status ? "\n  " : "\n", out);
		if (!path->status) {
			print_path(out, &path->info);
			for (unsigned d = 0; d < path->ndrives; d++)
				print_wear(out, report, &path->drives[d]);
			continue;
		}
		print_visible(out, path->error.text);
		fputc('\n', out);
	}
	fprintf(out, "\nwhat to change\n");
	for (unsigned i = 0; i < report->nadvice; i++) {
		fprintf(out, "  %u. ", i + 1);
		print_visible(out, report->advice[i]);
		fputc('\n', out);
	}
	if (!report->nadvice)
		fprintf(out, "  nothing\n");
}
