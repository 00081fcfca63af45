/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated drive's power failures: which writes can be lost, and what is left of them. A write
 * can be lost until a later sync of its file, unless it was durable by itself. Names
 * are lost by sim_names.c; other metadata of the file system (sizes, reserved space) is not lost.
 */
#include "support/sim/sim_internal.h"

static void forget(struct sim *sim, const struct sim_file *file)
{
	STAILQ_HEAD(, sim_write) kept = STAILQ_HEAD_INITIALIZER(kept);

	while (!STAILQ_EMPTY(&sim->writes)) {
		struct sim_write *one = STAILQ_FIRST(&sim->writes);

		STAILQ_REMOVE_HEAD(&sim->writes, link);
		if (file && one->file != file) {
			STAILQ_INSERT_TAIL(&kept, one, link);
			continue;
		}
		one->file->writes--;
		free(one);
	}
	STAILQ_CONCAT(&sim->writes, &kept);
}

void sim_note_write(struct sim *sim, struct sim_file *file, int fd, const void *data,
		    uint64_t nbytes, uint64_t offset, bool durable)
{
	struct sim_write *one = malloc(sizeof(*one) + 2 * nbytes);
	int own = sim_file_open(file, fd);
	struct stat st;
	ssize_t had;

	MUST(one && !fstat(own, &st));
	*one = (struct sim_write){
		.file = file,
		.offset = offset,
		.nbytes = nbytes,
		.file_bytes = (uint64_t)st.st_size,
		.durable = durable,
		.old = one->bytes,
		.new = one->bytes + nbytes,
	};
	had = pread(own, one->old, nbytes, (off_t)offset);
	MUST(had >= 0);
	one->old_bytes = (uint64_t)had;
	memcpy(one->new, data, nbytes);
	STAILQ_INSERT_TAIL(&sim->writes, one, link);
	file->writes++;
}

/* ---- The failure ---- */

static void crash(struct sim *sim)
{
	struct sim_flight *flight;

	if (sim->crashed)
		return;
	sim->crashed = true;
	sim->held = false;
	for (flight = TAILQ_FIRST(&sim->flights); flight; flight = TAILQ_NEXT(flight, link)) {
		const struct io *io = flight->io;

		if (io->write)
			sim_note_write(sim, sim_file_of(sim, io->fd), io->fd, io->data, io->nbytes,
				       io->offset, false);
		flight->due_ns = sim->counts.now_ns;
	}
	inject_fail(INJECT_WRITE | INJECT_SYNC | INJECT_SPACE | INJECT_NAME, 1, INJECT_ALWAYS, EIO);
	pthread_cond_broadcast(&sim->changed);
}

void sim_crash(struct sim *sim)
{
	inject_pause();
	pthread_mutex_lock(&sim->lock);
	crash(sim);
	pthread_mutex_unlock(&sim->lock);
	inject_resume();
}

bool sim_has_crashed(struct sim *sim)
{
	bool crashed;

	pthread_mutex_lock(&sim->lock);
	crashed = sim->crashed;
	pthread_mutex_unlock(&sim->lock);
	return crashed;
}

void sim_count_down(struct sim *sim)
{
	if (sim->crash_after && !--sim->crash_after)
		crash(sim);
}

static void before_write(void *arg, int fd, const void *data, size_t nbytes, uint64_t offset)
{
	struct sim *sim = arg;

	inject_pause();
	pthread_mutex_lock(&sim->lock);
	if (!sim->crashed) {
		sim_note_write(sim, sim_file_of(sim, fd), fd, data, nbytes, offset, false);
		sim_count_down(sim);
	}
	pthread_mutex_unlock(&sim->lock);
	inject_resume();
}

static void synced(void *arg, int fd)
{
	struct sim *sim = arg;
	struct stat st;

	inject_pause();
	MUST(!fstat(fd, &st));
	pthread_mutex_lock(&sim->lock);
	if (!sim->crashed) {
		if (S_ISDIR(st.st_mode))
			sim_names_synced(sim, st.st_dev, st.st_ino);
		else if (!sim->drive.lies)
			forget(sim, sim_file_of(sim, fd));
		sim_count_down(sim);
	}
	pthread_mutex_unlock(&sim->lock);
	inject_resume();
}

void sim_remember(struct sim *sim, uint64_t crash_after)
{
	pthread_mutex_lock(&sim->lock);
	sim->remembers = true;
	sim->crash_after = crash_after;
	sim->observer = (struct inject_observer){
		sim, before_write, synced, sim_before_name, sim_after_name, NULL};
	pthread_mutex_unlock(&sim->lock);
	inject_observe(&sim->observer);
}

/* ---- Contents after the failure ---- */

static void put(const struct sim_write *one, const char *data, uint64_t from, uint64_t to)
{
	MUST(pwrite(one->file->fd, data + from, to - from, (off_t)(one->offset + from)) ==
	     (ssize_t)(to - from));
}

static void undo(const struct sim_write *one)
{
	struct stat st;

	put(one, one->old, 0, one->old_bytes);
	MUST(!fstat(one->file->fd, &st));
	if (S_ISREG(st.st_mode) && one->file_bytes < one->offset + one->nbytes)
		MUST(!ftruncate(one->file->fd, (off_t)one->file_bytes));
}

/* A drive writes whole sectors of the file. */
static void tear(const struct sim_write *one, uint64_t chance)
{
	uint64_t from = 0;

	while (from < one->nbytes) {
		uint64_t to = from + SIM_SECTOR - (one->offset + from) % SIM_SECTOR;

		to = to < one->nbytes ? to : one->nbytes;
		if (sim_mix(chance, from) % 2)
			put(one, one->new, from, to);
		from = to;
	}
}

static void redo(const struct sim_write *one, enum sim_crash how, uint64_t chance)
{
	if (one->durable)
		how = SIM_KEEP;
	else if (how == SIM_ANY)
		how = (enum sim_crash)(chance % SIM_ANY);
	if (how == SIM_KEEP)
		put(one, one->new, 0, one->nbytes);
	else if (how == SIM_TEAR)
		tear(one, chance);
}

/* Undoing from the newest write back restores the last durable contents. */
static void undo_all(struct sim *sim)
{
	size_t n = 0, i = 0;
	struct sim_write *one, **all;

	for (one = STAILQ_FIRST(&sim->writes); one; one = STAILQ_NEXT(one, link))
		n++;
	all = calloc(n + 1, sizeof(*all));
	MUST(all);
	for (one = STAILQ_FIRST(&sim->writes); one; one = STAILQ_NEXT(one, link))
		all[i++] = one;
	while (i)
		undo(all[--i]);
	free(all);
}

void sim_crashed(struct sim *sim, enum sim_crash how)
{
	struct sim_write *one;
	uint64_t chance = sim_mix(sim->drive.seed, sim->counts.ios[1]);

	inject_observe(NULL);
	inject_stop(NULL);
	inject_pause();
	pthread_mutex_lock(&sim->lock);
	MUST(LIST_EMPTY(&sim->queues));
	undo_all(sim);
	for (one = STAILQ_FIRST(&sim->writes); one; one = STAILQ_NEXT(one, link)) {
		chance = sim_mix(chance, one->offset);
		redo(one, how, chance);
	}
	sim_names_crashed(sim, how, sim_mix(chance, 'n'));
	forget(sim, NULL);
	sim_forget_files(sim);
	sim->remembers = sim->crashed = false;
	sim->crash_after = 0;
	pthread_mutex_unlock(&sim->lock);
	inject_resume();
}
