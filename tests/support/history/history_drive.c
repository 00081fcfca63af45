/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drive of a random history. A seed chooses its speed, the order of completions and the
 * frequency of each fault.
 */
#include "support/history/history.h"
#include "swap/swap_fixture.h"

/* Silent ones are of verified contents alone. */
static void add_usual(struct history_drive *drive)
{
	const struct {
		bool here;
		struct sim_rule rule;
	} rules[] = {
		{drive->faulty, {.fault = SIM_ERROR, .error = EIO}},
		{drive->faulty, {.fault = SIM_ERROR, .error = ENOSPC, .writes = true}},
		{drive->faulty, {.fault = SIM_ERROR, .error = EAGAIN}},
		{drive->faulty, {.fault = SIM_ERROR, .error = EINTR}},
		{drive->faulty, {.fault = SIM_SHORT}},
		{drive->faulty, {.fault = SIM_LATE, .delay_ns = 50000000}},
		{drive->silent[NVS_WRITE], {.fault = SIM_TORN, .writes = true}},
		{drive->silent[NVS_WRITE], {.fault = SIM_LOST, .writes = true}},
		{drive->silent[NVS_WRITE], {.fault = SIM_FLIP, .writes = true}},
		{drive->misplaces, {.fault = SIM_MISPLACED, .writes = true}},
		{drive->silent[NVS_READ], {.fault = SIM_FLIP, .reads = true}},
	};
	uint64_t random = drive->seed;

	for (size_t i = 0; i < LENGTH(rules); i++) {
		struct sim_rule rule = rules[i].rule;

		if (!rules[i].here)
			continue;
		rule.ppm = 1000 + (uint32_t)below(&random, 40000);
		sim_fault(drive->sim, &rule);
	}
}

void history_drive_open(struct history_drive *drive, uint64_t seed, bool verified, bool misplaces)
{
	uint64_t random = seed;
	struct sim_drive how = {.seed = seed,
				.latency_ns = below(&random, 100000),
				.jitter_ns = below(&random, 2) ? 0 : below(&random, 1000000),
				.bytes_per_s = {UINT64_C(1) << below(&random, 34),
						UINT64_C(1) << below(&random, 34)},
				.parallel = (unsigned)below(&random, 8),
				.reorder = below(&random, 2)};

	*drive = (struct history_drive){.seed = next_random(&random)};
	drive->faulty = below(&random, 3) > 0;
	if (verified && drive->faulty) {
		drive->silent[NVS_WRITE] = below(&random, 2);
		drive->silent[NVS_READ] = below(&random, 2);
		drive->misplaces = misplaces && drive->silent[NVS_WRITE] && below(&random, 2);
	}
	drive->sim = sim_open(&how);
	add_usual(drive);
	history_log("a drive of %u at a time, %s%s%s%s%s\n", how.parallel,
		    how.reorder ? "out of order, " : "", drive->faulty ? "with faults" : "sound",
		    drive->silent[NVS_WRITE] ? ", silent ones of writes" : "",
		    drive->silent[NVS_READ] ? ", silent ones of reads" : "",
		    drive->misplaces ? ", misplaced writes" : "");
}

void history_drive_close(struct history_drive *drive)
{
	struct history_counts *counts = history_counts();
	struct sim_counts of_drive;

	sim_get(drive->sim, &of_drive);
	counts->ios += of_drive.ios[NVS_READ] + of_drive.ios[NVS_WRITE];
	counts->faults += of_drive.faults;
	history_log_more("%" PRIu64 " reads and %" PRIu64 " writes, %" PRIu64
			 " faults, at most %" PRIu64 " in flight, in %" PRIu64 " ns\n",
			 of_drive.ios[NVS_READ], of_drive.ios[NVS_WRITE], of_drive.faults,
			 of_drive.in_flight_max, of_drive.now_ns);
	sim_close(drive->sim);
	drive->sim = NULL;
}

void history_drive_hold(struct history_drive *drive)
{
	sim_hold(drive->sim, SIM_ALL);
	drive->held = true;
}

void history_drive_go(struct history_drive *drive)
{
	sim_go(drive->sim, SIM_ALL);
	drive->held = false;
}

void history_drive_storm(struct history_drive *drive, bool writes, int error)
{
	history_log("every %s fails: %s\n", writes ? "write" : "read", strerror(error));
	sim_no_faults(drive->sim);
	sim_fail(drive->sim, writes ? NVS_WRITE : NVS_READ, 0, error, SIM_ALWAYS);
	add_usual(drive);
	drive->stormy = true;
}

void history_drive_calm(struct history_drive *drive)
{
	sim_no_faults(drive->sim);
	add_usual(drive);
	drive->stormy = false;
}

void history_drive_change(struct history_drive *drive, uint64_t *random)
{
	/* EAGAIN and EINTR are retried by the library, up to a bound. */
	static const int errors[] = {EIO, EIO, EIO, EIO, ENOSPC, ENOSPC, EAGAIN, EINTR};
	bool writes = below(random, 2);

	if (!drive->faulty)
		return;
	if (below(random, 2)) {
		history_log("no more faults\n");
		history_drive_calm(drive);
		return;
	}
	history_drive_storm(drive, writes, errors[below(random, LENGTH(errors))]);
}

void history_drive_mend(struct history_drive *drive)
{
	sim_no_faults(drive->sim);
	history_drive_go(drive);
	drive->stormy = false;
}

bool history_drive_caused(const struct history_drive *drive, int rc)
{
	switch (rc) {
	case -EIO:
	case -ENOSPC:
		return drive->faulty || drive->stormy;
	case -EBADMSG:
		return drive->silent[NVS_READ] || drive->silent[NVS_WRITE];
	default:
		return false;
	}
}
