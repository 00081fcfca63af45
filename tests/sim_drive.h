/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated drive: an I/O engine for aio_open_with(), engine_open_with() and
 * optimizer_open_with() whose time is virtual, whose faults are chosen, and all of whose chance
 * comes from one seed. Bytes lie in the files that the store makes, so that every layer above aio
 * runs on it unchanged; when they get there, and whether they do, is the drive's to say. What it is
 * handed against the contract of aio/engine.h ends the process.
 */
#ifndef TESTS_SIM_DRIVE_H
#define TESTS_SIM_DRIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "aio/engine.h"

extern const struct engine_ops engine_sim; /* its argument is a struct sim * */

struct sim;

/*
 * How the drive is. Zeros: every I/O takes no time, in the order in which they came. Bytes of one
 * direction move one I/O's after the other's; latencies of I/Os that are served together overlap.
 * The clock stands while a worker that has I/Os in flight has anything else to do, and then goes to
 * the next completion.
 */
struct sim_drive {
	uint64_t seed;
	uint64_t latency_ns;	 /* of an I/O, besides the moving of its bytes */
	uint64_t jitter_ns;	 /* added to that, evenly from 0 */
	uint64_t bytes_per_s[2]; /* by direction, of the whole drive; 0: without limit */
	unsigned parallel;	 /* I/Os that are served at a time; 0: all */
	bool reorder;		 /* completions that are due come in any order */
	bool lies;		 /* a sync of a file makes nothing durable, and reports success */
	/* In place of the above: the time that an I/O is served for, with so many in service. */
	uint64_t (*service_ns)(void *arg, bool write, uint32_t nbytes, unsigned in_service);
	void *service_arg;
	/* In place of bytes_per_s: the time that it takes to move them, reads and writes one after
	 * the other. */
	uint64_t (*moving_ns)(void *arg, bool write, uint32_t nbytes, unsigned in_service);
	bool still; /* no bytes move, and memory and files stay as they are, but for faults */
	/* While a queue has room for more I/Os, time stands so long in real time for them to come:
	 * a thread that hands them over is not outrun by a clock that knows nothing of it. Once in
	 * vain, it does not wait again until some have come. */
	uint32_t patience_us;
};

enum sim_fault {
	SIM_ERROR,     /* nothing moves, and it comes back with -error */
	SIM_SHORT,     /* a part of it moves, in whole units of direct I/O (512 bytes or more), and
			  it says so; one of no more than a unit has no fault */
	SIM_LATE,      /* it completes delay_ns later; UINT64_MAX: when sim_let_go() is called */
	SIM_TORN,      /* write: some of its sectors reach the drive, and it reports success */
	SIM_LOST,      /* write: none does, and it reports success */
	SIM_MISPLACED, /* write: it goes to sectors not far behind, at the file's end before its
			  own; and reports success */
	SIM_FLIP,      /* one bit of what is written or read is changed, and it reports success */
	SIM_GONE,      /* from this I/O on every one comes back with -error, and nothing moves */
};

/*
 * Which I/Os have which fault, decided as they are handed over: the first rule that gives one does.
 * Chance depends on the seed, and on direction, file, offset, and how often that place was touched,
 * so that it is the same whatever the order in which threads hand over.
 */
struct sim_rule {
	enum sim_fault fault;
	int error;	    /* of SIM_ERROR and SIM_GONE: EIO, ENOSPC, EAGAIN, EINTR, ENODEV... */
	uint64_t delay_ns;  /* of SIM_LATE */
	bool reads, writes; /* which of them; neither: both */
	uint64_t from, to;  /* I/Os that touch these bytes of the member's file; to 0: any */
	uint64_t first;	    /* the first of those that match so far, counted from 1; 0: 1 */
	uint64_t times;	    /* and how many of them; 0: all that follow */
	uint32_t ppm;	    /* each with this chance, in millionths; 0: certainly */
};

/* NULL where there is no memory. Every queue that is opened with it is one of the same drive's. */
struct sim *sim_open(const struct sim_drive *drive);
/* All queues have been closed. */
void sim_close(struct sim *sim);

#define SIM_RULES_MAX 256
/* Rules may be added and taken away at any time, from any thread, for I/Os that are handed over
 * from then on. Without rules, a drive that was gone is there again. */
void sim_fault(struct sim *sim, const struct sim_rule *rule);
void sim_no_faults(struct sim *sim);

/* Time stands still: nothing completes but what sim_complete() lets go. And it goes on. */
void sim_hold(struct sim *sim);
void sim_go(struct sim *sim);
/* While it is held: waits in real time, but not for long, until every worker waits for completions,
 * so that none has any that it has not told of yet. */
void sim_await_workers(struct sim *sim);
/* While it is held: the next `n` completions that are due come about now; how many did. */
unsigned sim_complete(struct sim *sim, unsigned n);
/* I/Os that are late without end complete, and later ones of that rule are not late. */
void sim_let_go(struct sim *sim);

struct sim_counts {
	uint64_t ios[2], bytes[2]; /* by direction, completed, faulty ones among them */
	uint64_t faults;	   /* I/Os that had one */
	uint64_t in_flight;	   /* handed over and not completed */
	uint64_t in_flight_max;
	uint64_t now_ns; /* of virtual time */
};
void sim_get(struct sim *sim, struct sim_counts *counts);

/* Waits in real time until so many I/Os are in flight; false where they are not within 20 s. */
bool sim_await_in_flight(struct sim *sim, uint64_t n);

/*
 * A power failure. What a drive does with writes that were not made durable (those in flight, and
 * those completed since the last sync of their file, plain ones of labels and manifests among
 * them, see inject.h), each for itself, by chance from the seed, or all of them alike.
 */
enum sim_crash { SIM_KEEP, SIM_LOSE, SIM_TEAR, SIM_ANY };

/*
 * From here on writes are remembered with what they replaced, until they are made durable. The
 * power fails by itself at the `crash_after`-th I/O of a transfer, plain write or sync (a write is
 * in flight then, a sync has just succeeded); 0: it does not. Takes inject_observe().
 */
void sim_remember(struct sim *sim, uint64_t crash_after);
/*
 * The moment of the crash: every I/O from here on, and every one in flight, fails with -EIO, and
 * plain writes and syncs do (by inject_fail()), so that what still runs can be closed
 * (engine_abandon) without changing the files.
 */
void sim_crash(struct sim *sim);
/* Whether it has come. */
bool sim_has_crashed(struct sim *sim);
/* After everything was closed: leaves in the files what such a failure would have, also one that
 * only comes now. The drive is as before sim_remember() then. */
void sim_crashed(struct sim *sim, enum sim_crash how);

#endif
