/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated drive's own structures: an I/O in flight, a queue, a file that I/Os go to, and a
 * write that may yet be lost. All of it is under the drive's lock.
 */
#ifndef TESTS_SIM_INTERNAL_H
#define TESTS_SIM_INTERNAL_H

#include <pthread.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "inject.h"
#include "sim_drive.h"
#include "swap_fixture.h"

#define SIM_SECTOR 512u
#define SIM_NEVER  UINT64_MAX
#define SIM_PLACES 65536u

struct sim_file {
	LIST_ENTRY(sim_file) link;
	dev_t dev;
	ino_t ino;
	uint32_t unit;	 /* of direct I/O on it, in which a count can be short */
	int fd;		 /* the drive's own, through the page cache; -1: not opened yet */
	unsigned users;	 /* slots that it is registered in */
	uint64_t writes; /* that may yet be lost */
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
	unsigned with_us; /* handed over and not yet reaped */
	unsigned awaited; /* completions that a reap is waiting for; 0: none is */
	bool woken;
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
	STAILQ_ENTRY(sim_write) link;
	struct sim_file *file;
	uint64_t offset, nbytes;
	uint64_t file_bytes; /* the file's length before it */
	uint64_t old_bytes;  /* of `old` that there were */
	bool durable;	     /* by itself: it can't be lost, but what it replaced may have been */
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
	int gone; /* what every I/O comes back with; 0: it is there */
	bool held;
	bool in_vain; /* patience has been waited for, and nothing came */
	LIST_HEAD(, sim_queue) queues;
	LIST_HEAD(, sim_file) files;
	TAILQ_HEAD(sim_flights, sim_flight) flights; /* not completed, in the order they came in */
	unsigned in_service;
	uint64_t bus_free_ns[2];
	struct sim_counts counts;
	uint32_t *touched; /* by place; two that share a number only count together */

	bool remembers, crashed;
	uint64_t crash_after; /* I/Os, plain writes and syncs until it does; 0: it does not */
	STAILQ_HEAD(, sim_write) writes; /* that may yet be lost, in the order they were made */
	struct inject_observer observer;
};

/* A number that depends on both alone. */
uint64_t sim_mix(uint64_t a, uint64_t b);

/* The file behind a descriptor, known from then on. */
struct sim_file *sim_file_of(struct sim *sim, int fd);
/* The drive's own descriptor of it, while `fd` is open. */
int sim_file_open(struct sim_file *file, int fd);
/* Closes what nobody uses any more. */
void sim_file_done(struct sim_file *file);
/* All of them, which nobody uses. */
void sim_forget_files(struct sim *sim);

/* Which fault this I/O is to have, as it is handed over. */
void sim_decide(struct sim *sim, struct sim_flight *flight);
/* Moves its bytes, or doesn't; what comes back. */
int sim_move(struct sim *sim, const struct sim_flight *flight);

/* Keeps what is about to be overwritten, if writes are remembered. */
void sim_note_write(struct sim *sim, struct sim_file *file, int fd, const void *data,
		    uint64_t nbytes, uint64_t offset, bool durable);
/* One more I/O, plain write or sync: it may be that which the power fails at. */
void sim_count_down(struct sim *sim);

#endif
