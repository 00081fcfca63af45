/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated drive: an I/O engine for aio_open_with(), engine_open_with() and
 * optimizer_open_with() with virtual time and chosen faults; one seed determines all randomness.
 * Bytes lie in the store's files, so every layer above aio runs on it unchanged; the drive decides
 * when, and whether, they get there. A breach of the contract in aio/engines/engine.h aborts the
 * process.
 */
#ifndef TESTS_SUPPORT_SIM_SIM_DRIVE_H
#define TESTS_SUPPORT_SIM_SIM_DRIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "aio/engines/engine.h"

extern const struct engine_ops engine_sim; /* takes a struct sim * */

struct sim;

/*
 * The drive's properties. Zeros: I/Os take no time and complete in order. The bytes of one
 * direction move one I/O after the other; the latencies of I/Os served together overlap. The clock
 * stands still while a worker with I/Os in flight is doing anything but waiting, and then advances
 * to the next completion.
 */
struct sim_drive {
	uint64_t seed;
	uint64_t latency_ns;	 /* of an I/O, in addition to moving its bytes */
	uint64_t jitter_ns;	 /* added to that, uniform from 0 */
	uint64_t bytes_per_s[2]; /* by direction, of the whole drive; 0: unlimited */
	unsigned parallel;	 /* I/Os served at a time; 0: all */
	bool reorder;		 /* I/Os that are due at the same time complete in random order */
	bool lies;		 /* a sync of a file makes nothing durable, and reports success */
	/* Replaces bytes_per_s: the time to move an I/O's bytes, with so many in service, reads
	 * and writes one after the other. */
	uint64_t (*moving_ns)(bool write, uint32_t nbytes, unsigned in_service);
	bool still; /* no bytes move, except by faults */
	/* While a queue has room, the clock waits this long in real time for more I/Os, so that it
	 * does not outrun a submitting thread. After waiting in vain once, it does not wait again
	 * until I/Os have come. */
	uint32_t patience_us;
};

enum sim_fault {
	SIM_ERROR,     /* moves nothing and completes with -error */
	SIM_SHORT,     /* moves and reports a part, in whole units of direct I/O (512 bytes or
			  more); an I/O of one unit or less has no fault */
	SIM_LATE,      /* completes delay_ns later */
	SIM_TORN,      /* write: some sectors reach the drive; reports success */
	SIM_LOST,      /* write: no sector reaches the drive; reports success */
	SIM_MISPLACED, /* write: goes to sectors close behind, or close before at the file's end;
			  reports success */
	SIM_FLIP,      /* one bit is flipped; reports success */
};

/*
 * Which I/Os have which fault; decided at submission by the first rule that applies. Chance depends
 * on the seed, direction, file, offset and the number of earlier I/Os there, but not on the order
 * in which threads submit.
 */
struct sim_rule {
	enum sim_fault fault;
	int error;	    /* of SIM_ERROR: EIO, ENOSPC, EAGAIN, EINTR, ENODEV... */
	uint64_t delay_ns;  /* of SIM_LATE */
	bool reads, writes; /* the directions; neither: both */
	uint64_t from, to;  /* only I/Os that touch these bytes of the file; to 0: all */
	uint64_t first;	    /* of the matching I/Os, the first to fail, from 1; 0: 1 */
	uint64_t times;	    /* how many of them fail; 0: all that follow */
	uint32_t ppm;	    /* the probability of each, in millionths; 0: certain */
};

/* All queues opened with it belong to the same drive. */
struct sim *sim_open(const struct sim_drive *drive);
/* All queues must be closed. */
void sim_close(struct sim *sim);

#define SIM_RULES_MAX 256
/* Rules may be added and removed at any time, from any thread, for later submissions. */
void sim_fault(struct sim *sim, const struct sim_rule *rule);
void sim_no_faults(struct sim *sim);
/* Adds a rule: after the next `after` I/Os of the direction, `times` of them fail with the errno (a
 * positive number). */
#define SIM_ALWAYS 0
void sim_fail(struct sim *sim, enum nvs_direction direction, uint64_t after, int error,
	      uint64_t times);

/*
 * Holds I/Os of these directions (SIM_READS, SIM_WRITES or both) in flight: only sim_complete()
 * completes them, until sim_go(). With SIM_ALL, time stands still.
 */
enum { SIM_READS = 1 << NVS_READ, SIM_WRITES = 1 << NVS_WRITE, SIM_ALL = SIM_READS | SIM_WRITES };
void sim_hold(struct sim *sim, unsigned directions);
void sim_go(struct sim *sim, unsigned directions);
/* While it is held: waits briefly, in real time, until every worker waits for completions, so that
 * all completions have been processed. */
void sim_await_workers(struct sim *sim);
/* While it is held: completes the next `n` I/Os that are due; returns how many there were. */
unsigned sim_complete(struct sim *sim, unsigned n);

struct sim_counts {
	uint64_t ios[2], bytes[2]; /* completed, by direction, including faulty ones */
	uint64_t faults;	   /* I/Os that had a fault */
	uint64_t in_flight;	   /* submitted and not completed */
	uint64_t in_flight_max;
	uint64_t now_ns; /* virtual time */
};
void sim_get(struct sim *sim, struct sim_counts *counts);
/* I/Os of the direction that have completed since the start or sim_forget_counts(). */
uint64_t sim_ios(struct sim *sim, enum nvs_direction direction);
void sim_forget_counts(struct sim *sim);

/* Waits in real time until so many I/Os are in flight; false after 20 s. */
bool sim_await_in_flight(struct sim *sim, uint64_t n);

/*
 * A power failure: what happens to writes that were not durable, that is, those in flight and those
 * completed since the last sync of their file, including plain writes of labels and manifests (see
 * inject.h). SIM_ANY: chance decides for each of them; otherwise all are treated alike.
 *
 * A name that was made, removed or changed is durable once its directory was synced. Until then
 * SIM_KEEP keeps the change, SIM_LOSE takes it back, and otherwise chance decides for each name. A
 * directory whose name is lost is lost with all that it holds.
 */
enum sim_crash { SIM_KEEP, SIM_LOSE, SIM_TEAR, SIM_ANY };

/*
 * From now on writes are remembered, with the bytes that they replaced, and changes of names, until
 * they are durable. The power fails at the `crash_after`-th I/O of a transfer, plain write, sync or
 * change of a name (while the write is in flight, or after the sync or change succeeded); 0: never.
 * Uses inject_observe().
 */
void sim_remember(struct sim *sim, uint64_t crash_after);
/*
 * The crash: from now on every I/O, those in flight included, fails with -EIO, and so do plain
 * writes, syncs and changes of names (by inject_fail()), so an engine can be closed
 * (engine_abandon) without changing the files.
 */
void sim_crash(struct sim *sim);
/* Whether the power has failed. */
bool sim_has_crashed(struct sim *sim);
/* After everything was closed: leaves the files as the power failure would have, or as one now
 * would. Ends sim_remember(). */
void sim_crashed(struct sim *sim, enum sim_crash how);

#endif
