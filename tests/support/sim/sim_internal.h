/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated drive's structures: an I/O in flight, a queue, a file, and a write that is not
 * durable yet. All of them are under the drive's lock.
 */
#ifndef TESTS_SUPPORT_SIM_SIM_INTERNAL_H
#define TESTS_SUPPORT_SIM_SIM_INTERNAL_H

#include <limits.h>
#include <pthread.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "support/inject.h"
#include "support/sim/sim_drive.h"
#include "swap/swap_fixture.h"

#define SIM_SECTOR 512u
#define SIM_PLACES 65536u

struct sim_file {
	LIST_ENTRY(sim_file) link;
	dev_t dev;
	ino_t ino;
	uint32_t unit;	 /* bytes; the unit of direct I/O and of short counts */
	int fd;		 /* the drive's own descriptor, buffered; -1: not opened yet */
	unsigned users;	 /* slots in which it is registered */
	uint64_t writes; /* writes that are not durable yet */
};

struct sim_flight {
	TAILQ_ENTRY(sim_flight) link;
	struct sim_queue *queue;
	struct io *io;
	uint64_t chance;
	bool served, faulty;
	struct sim_rule fault; /* where it is faulty */
	uint64_t due_ns;       /* where it is served */
};

struct sim_queue {
	LIST_ENTRY(sim_queue) link;
	struct sim *sim;
	struct engine_facts *facts;
	struct engine_options options;
	struct sim_flight *flights; /* by io->index */
	struct io **done;	    /* completed and not yet reaped, oldest first */
	unsigned ndone;
	unsigned outstanding; /* I/Os submitted and not yet reaped */
	unsigned awaited;     /* completions that a reap waits for; 0: none does */
	bool woken, interrupted;
	struct {
		int fd;
		struct sim_file *file;
	} files[ENGINE_FILES];
	struct {
		char *data;
		size_t nbytes;
	} regions[ENGINE_BUFFERS];
};

struct sim_write {
	TAILQ_ENTRY(sim_write) link;
	struct sim_file *file;
	uint64_t offset, nbytes;
	uint64_t file_bytes; /* the file's length before it */
	uint64_t old_bytes;  /* bytes of `old` that existed */
	bool durable;	     /* the write itself is durable, but not the write it replaced */
	char *old, *new;
	char bytes[];
};

struct sim_active_rule {
	struct sim_rule rule;
	uint64_t matched;
};

struct sim {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct sim_drive drive;
	struct sim_active_rule rules[SIM_RULES_MAX];
	unsigned nrules;
	unsigned held; /* directions whose I/Os stay in flight */
	bool in_vain;  /* patience_us has passed without new I/Os */
	LIST_HEAD(, sim_queue) queues;
	LIST_HEAD(, sim_file) files;
	TAILQ_HEAD(sim_flights, sim_flight) flights; /* not completed, in the order of submission */
	unsigned in_service;
	uint64_t bus_free_ns[2];
	struct sim_counts counts;
	uint32_t touched[SIM_PLACES]; /* hashed by place; a collision only adds the counts */

	bool remembers, crashed;
	uint64_t crash_after; /* I/Os and syncs left before the failure; 0: none */
	TAILQ_HEAD(sim_writes, sim_write) writes; /* that can still be lost, in their order */
	LIST_HEAD(, sim_directory) directories;
	TAILQ_HEAD(sim_names, sim_name) names; /* changes that can still be lost, in their order */
	struct inject_observer observer;
};

/* Until the end of the block: the lock, under which the thread's calls are the drive's own. */
#define ENTER(drive)                                                                               \
	struct sim *entered __attribute__((cleanup(sim_leave), unused)) = sim_enter(drive)
struct sim *sim_enter(struct sim *sim);
void sim_leave(struct sim **entered);

/* Returns a hash of both. */
uint64_t sim_mix(uint64_t a, uint64_t b);

/* The file of a descriptor, added if it is new. */
struct sim_file *sim_file_of(struct sim *sim, int fd);
/* Opens the drive's own descriptor of the file, while `fd` is open. */
int sim_file_open(struct sim_file *file, int fd);
/* Closes the file if it is unused. */
void sim_file_done(struct sim_file *file);
/* Closes all files, which must be unused. */
void sim_forget_files(struct sim *sim);

/* Decides on the I/O's fault, at its submission. */
void sim_decide(struct sim *sim, struct sim_flight *flight);
/* Moves the I/O's bytes according to its fault; returns its result. */
int sim_move(struct sim *sim, const struct sim_flight *flight);

/* Saves the bytes about to be overwritten, if writes are remembered. */
void sim_note_write(struct sim *sim, struct sim_file *file, int fd, const void *data,
		    uint64_t nbytes, uint64_t offset, bool durable);
/* Counts an I/O, plain write, sync or change of a name; the power may fail at it. */
void sim_count_down(struct sim *sim);

#endif
