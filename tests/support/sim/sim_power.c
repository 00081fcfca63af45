/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated drive's power failures: which writes and names can be lost, and what is left of
 * them. A write can be lost until a later sync of its file, unless it was durable by itself; a
 * change of a name until its directory is synced. A removed file is held by a descriptor, so that
 * its bytes can come back. Other metadata of the file system (sizes, reserved space) is not lost.
 */
#include "support/sim/sim_internal.h"

#include <sys/sendfile.h>

/* A directory in which names have changed that are not durable. */
struct sim_directory {
	LIST_ENTRY(sim_directory) link;
	dev_t dev;
	ino_t ino;
	int fd;	       /* the drive's own descriptor */
	unsigned uses; /* changes that name it */
};

/* A name that was made, removed or replaced, and is not durable. */
struct sim_name {
	TAILQ_ENTRY(sim_name) link;
	enum inject_change change;
	struct sim_directory *in;
	struct sim_directory *removed; /* the directory that had the name; NULL: a file had it */
	int fd;			       /* the file that was removed or replaced; -1: none */
	bool lost;		       /* the power failure takes it back */
	char name[NAME_MAX + 1];
	char to[NAME_MAX + 1]; /* of a renaming */
};

/* ---- Names ---- */

/* Takes the descriptor. */
static struct sim_directory *directory_of(struct sim *sim, int fd)
{
	struct sim_directory *one;
	struct stat st;

	MUST(fd >= 0 && !fstat(fd, &st));
	for (one = LIST_FIRST(&sim->directories); one; one = LIST_NEXT(one, link))
		if (one->dev == st.st_dev && one->ino == st.st_ino)
			break;
	if (one) {
		close(fd);
	} else {
		one = malloc(sizeof(*one));
		MUST(one);
		*one = (struct sim_directory){.dev = st.st_dev, .ino = st.st_ino, .fd = fd};
		LIST_INSERT_HEAD(&sim->directories, one, link);
	}
	one->uses++;
	return one;
}

static void directory_done(struct sim_directory *one)
{
	if (!one || --one->uses)
		return;
	close(one->fd);
	LIST_REMOVE(one, link);
	free(one);
}

/* The descriptor of the path's directory, and the last name. -1: there is no such directory. */
static int open_above(int from, const char *path, char name[NAME_MAX + 1])
{
	const char *slash = strrchr(path, '/');
	char above[PATH_MAX];

	snprintf(name, NAME_MAX + 1, "%s", slash ? slash + 1 : path);
	snprintf(above, sizeof(above), "%.*s", slash ? (int)(slash + 1 - path) : 1,
		 slash ? path : ".");
	return openat(from, above, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* 0: there is nothing of that name. */
static mode_t type_of(int fd, const char *name)
{
	struct stat st;

	return fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) ? 0 : st.st_mode & S_IFMT;
}

static void hold_removed(struct sim *sim, struct sim_name *one, const char *name)
{
	mode_t type = type_of(one->in->fd, name);

	if (type == S_IFREG)
		one->fd = openat(one->in->fd, name, O_RDONLY | O_CLOEXEC);
	else if (type == S_IFDIR)
		one->removed = directory_of(
			sim, openat(one->in->fd, name, O_PATH | O_DIRECTORY | O_CLOEXEC));
	MUST(type != S_IFREG || one->fd >= 0);
}

static void name_done(struct sim_name *one)
{
	directory_done(one->in);
	directory_done(one->removed);
	if (one->fd >= 0)
		close(one->fd);
	free(one);
}

static void before_name(void *arg, struct inject_name *name)
{
	struct sim *sim = arg;
	ENTER(sim);
	struct sim_name *one = malloc(sizeof(*one));
	int fd;
	mode_t type;

	MUST(one);
	*one = (struct sim_name){.change = name->change, .fd = -1};
	fd = open_above(name->from, name->path, one->name);
	if (fd >= 0)
		one->in = directory_of(sim, fd);
	type = fd >= 0 ? type_of(one->in->fd, one->name) : 0;
	/* Symbolic links, devices and the like are not of the library's making. */
	if (fd < 0 || (one->change == INJECT_MAKES ? type : type != S_IFREG && type != S_IFDIR)) {
		name_done(one);
		return;
	}
	name->note = one;
	if (one->change == INJECT_REMOVES)
		hold_removed(sim, one, one->name);
	if (one->change != INJECT_RENAMES)
		return;
	/* Only within a directory. */
	fd = open_above(name->from, name->to, one->to);
	MUST(fd >= 0 && directory_of(sim, fd) == one->in);
	one->in->uses--;
	hold_removed(sim, one, one->to);
}

static void after_name(void *arg, struct inject_name *name, bool done)
{
	struct sim_name *one = name->note;
	struct sim *sim = arg;
	ENTER(sim);

	if (one && done) {
		/* It began before the power failed, and ended after it. */
		one->lost = sim->crashed;
		TAILQ_INSERT_TAIL(&sim->names, one, link);
		if (!sim->crashed)
			sim_count_down(sim);
	} else if (one) {
		name_done(one);
	}
}

/* The changes of names in the directory, or in all if dev is 0, can't be lost any more. */
static void names_synced(struct sim *sim, dev_t dev, ino_t ino)
{
	struct sim_name *one, *next;

	for (one = TAILQ_FIRST(&sim->names); one; one = next) {
		next = TAILQ_NEXT(one, link);
		if (dev && (one->in->dev != dev || one->in->ino != ino))
			continue;
		TAILQ_REMOVE(&sim->names, one, link);
		name_done(one);
	}
}

static bool touch_one_name(const struct sim_name *a, const struct sim_name *b)
{
	if (a->in != b->in)
		return false;
	return !strcmp(a->name, b->name) || !strcmp(a->name, b->to) || !strcmp(a->to, b->name) ||
	       (a->to[0] && !strcmp(a->to, b->to));
}

/* Unless the directory is gone, too. */
static void bring_back_file(const struct sim_name *one, const char *name)
{
	int to = one->fd < 0
			 ? -1
			 : openat(one->in->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	off_t at = 0;
	ssize_t n;

	MUST(to >= 0 || one->fd < 0 || errno == ENOENT);
	do
		n = to >= 0 ? sendfile(to, one->fd, &at, 1 << 20) : 0;
	while (n > 0);
	MUST(!n);
	if (to >= 0)
		close(to);
}

static void take_back(const struct sim_name *one)
{
	char path[NAME_MAX + 64];

	switch (one->change) {
	case INJECT_MAKES:
		snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", one->in->fd, one->name);
		MUST(!remove_tree(path));
		return;
	case INJECT_REMOVES:
		bring_back_file(one, one->name);
		if (!one->removed)
			return;
		if (mkdirat(one->in->fd, one->name, 0700)) {
			MUST(errno == ENOENT);
			return;
		}
		close(one->removed->fd);
		one->removed->fd = openat(one->in->fd, one->name, O_PATH | O_DIRECTORY | O_CLOEXEC);
		MUST(one->removed->fd >= 0);
		return;
	case INJECT_RENAMES:
		MUST(!renameat(one->in->fd, one->to, one->in->fd, one->name));
		bring_back_file(one, one->to);
	}
}

/* Takes back the changes of names that the power failure loses, and forgets all. */
static void names_crashed(struct sim *sim, enum sim_crash how, uint64_t chance)
{
	struct sim_name *one, *before;

	/* A change is lost with the one before it of the same name. */
	for (one = TAILQ_FIRST(&sim->names); one; one = TAILQ_NEXT(one, link)) {
		chance = sim_mix(chance, one->change);
		one->lost |= how == SIM_LOSE || (how != SIM_KEEP && chance % 2);
		for (before = TAILQ_FIRST(&sim->names); before != one;
		     before = TAILQ_NEXT(before, link))
			one->lost |= before->lost && touch_one_name(before, one);
	}
	for (one = TAILQ_LAST(&sim->names, sim_names); one; one = TAILQ_PREV(one, sim_names, link))
		if (one->lost)
			take_back(one);
	names_synced(sim, 0, 0);
}

/* ---- Writes ---- */

/* Those of the file, or of all, can't be lost any more. */
static void forget(struct sim *sim, const struct sim_file *file)
{
	struct sim_write *one, *next;

	for (one = TAILQ_FIRST(&sim->writes); one; one = next) {
		next = TAILQ_NEXT(one, link);
		if (file && one->file != file)
			continue;
		TAILQ_REMOVE(&sim->writes, one, link);
		one->file->writes--;
		free(one);
	}
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
	TAILQ_INSERT_TAIL(&sim->writes, one, link);
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
	ENTER(sim);

	crash(sim);
}

bool sim_has_crashed(struct sim *sim)
{
	ENTER(sim);

	return sim->crashed;
}

void sim_count_down(struct sim *sim)
{
	if (sim->crash_after && !--sim->crash_after)
		crash(sim);
}

static void before_write(void *arg, int fd, const void *data, size_t nbytes, uint64_t offset)
{
	struct sim *sim = arg;
	ENTER(sim);

	if (sim->crashed)
		return;
	sim_note_write(sim, sim_file_of(sim, fd), fd, data, nbytes, offset, false);
	sim_count_down(sim);
}

static void synced(void *arg, int fd)
{
	struct sim *sim = arg;
	struct stat st;
	ENTER(sim);

	MUST(!fstat(fd, &st));
	if (sim->crashed)
		return;
	if (S_ISDIR(st.st_mode))
		names_synced(sim, st.st_dev, st.st_ino);
	else if (!sim->drive.lies)
		forget(sim, sim_file_of(sim, fd));
	sim_count_down(sim);
}

void sim_remember(struct sim *sim, uint64_t crash_after)
{
	ENTER(sim);

	sim->remembers = true;
	sim->crash_after = crash_after;
	sim->observer = (struct inject_observer){sim,	      before_write, synced,
						 before_name, after_name,   NULL};
	inject_observe(&sim->observer);
}

/* ---- Contents after the failure ---- */

static void put(const struct sim_write *one, const char *data, uint64_t from, uint64_t to)
{
	MUST(pwrite(one->file->fd, data + from, to - from, (off_t)(one->offset + from)) ==
	     (ssize_t)(to - from));
}

static void redo(const struct sim_write *one, enum sim_crash how, uint64_t chance)
{
	if (one->durable)
		how = SIM_KEEP;
	else if (how == SIM_ANY)
		how = (enum sim_crash)(chance % SIM_ANY);
	if (how == SIM_KEEP)
		put(one, one->new, 0, one->nbytes);
	/* A drive writes whole sectors of the file. */
	for (uint64_t from = 0, to; how == SIM_TEAR && from < one->nbytes; from = to) {
		to = from + SIM_SECTOR - (one->offset + from) % SIM_SECTOR;
		to = to < one->nbytes ? to : one->nbytes;
		if (sim_mix(chance, from) % 2)
			put(one, one->new, from, to);
	}
}

void sim_crashed(struct sim *sim, enum sim_crash how)
{
	struct sim_write *one;
	uint64_t chance = sim_mix(sim->drive.seed, sim->counts.ios[1]);
	struct stat st;

	inject_observe(NULL);
	inject_stop(NULL);
	ENTER(sim);
	MUST(LIST_EMPTY(&sim->queues));
	/* Undoing from the newest write back restores the last durable contents. */
	for (one = TAILQ_LAST(&sim->writes, sim_writes); one;
	     one = TAILQ_PREV(one, sim_writes, link)) {
		put(one, one->old, 0, one->old_bytes);
		MUST(!fstat(one->file->fd, &st));
		if (S_ISREG(st.st_mode) && one->file_bytes < one->offset + one->nbytes)
			MUST(!ftruncate(one->file->fd, (off_t)one->file_bytes));
	}
	for (one = TAILQ_FIRST(&sim->writes); one; one = TAILQ_NEXT(one, link)) {
		chance = sim_mix(chance, one->offset);
		redo(one, how, chance);
	}
	names_crashed(sim, how, sim_mix(chance, 'n'));
	forget(sim, NULL);
	sim_forget_files(sim);
	sim->remembers = sim->crashed = false;
	sim->crash_after = 0;
}
