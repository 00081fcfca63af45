/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of the simulated drive: a change of a name is remembered until its directory is synced,
 * and can be taken back after a power failure. A removed file is held by a descriptor, so that its
 * bytes can come back.
 */
#include "support/sim/sim_internal.h"

#include <sys/sendfile.h>

/* ---- Directories ---- */

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

/* ---- Changes ---- */

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

/* Symbolic links, devices and the like are not of the library's making. */
static bool is_change(const struct sim_name *one)
{
	mode_t type = type_of(one->in->fd, one->name);

	if (one->change == INJECT_MAKES)
		return !type;
	return type == S_IFREG || type == S_IFDIR;
}

static struct sim_name *begin_change(struct sim *sim, const struct inject_name *name)
{
	struct sim_name *one = malloc(sizeof(*one));
	int fd;

	MUST(one);
	*one = (struct sim_name){.change = name->change, .fd = -1};
	fd = open_above(name->from, name->path, one->name);
	if (fd >= 0)
		one->in = directory_of(sim, fd);
	if (fd < 0 || !is_change(one)) {
		name_done(one);
		return NULL;
	}
	if (one->change == INJECT_REMOVES)
		hold_removed(sim, one, one->name);
	if (one->change != INJECT_RENAMES)
		return one;
	/* Only within a directory. */
	fd = open_above(name->from, name->to, one->to);
	MUST(fd >= 0 && directory_of(sim, fd) == one->in);
	one->in->uses--;
	hold_removed(sim, one, one->to);
	return one;
}

void sim_before_name(void *arg, struct inject_name *name)
{
	struct sim *sim = arg;

	inject_pause();
	pthread_mutex_lock(&sim->lock);
	name->note = begin_change(sim, name);
	pthread_mutex_unlock(&sim->lock);
	inject_resume();
}

void sim_after_name(void *arg, struct inject_name *name, bool done)
{
	struct sim_name *one = name->note;
	struct sim *sim = arg;

	if (!one)
		return;
	inject_pause();
	pthread_mutex_lock(&sim->lock);
	if (done) {
		/* It began before the power failed, and ended after it. */
		one->lost = sim->crashed;
		TAILQ_INSERT_TAIL(&sim->names, one, link);
		if (!sim->crashed)
			sim_count_down(sim);
	} else {
		name_done(one);
	}
	pthread_mutex_unlock(&sim->lock);
	inject_resume();
}

void sim_names_synced(struct sim *sim, dev_t dev, ino_t ino)
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

/* ---- The names after the failure ---- */

static bool touch_one_name(const struct sim_name *a, const struct sim_name *b)
{
	if (a->in != b->in)
		return false;
	return !strcmp(a->name, b->name) || !strcmp(a->name, b->to) || !strcmp(a->to, b->name) ||
	       (a->to[0] && !strcmp(a->to, b->to));
}

/* A change is lost with the one before it of the same name. */
static void choose(struct sim *sim, enum sim_crash how, uint64_t chance)
{
	struct sim_name *one, *before;

	for (one = TAILQ_FIRST(&sim->names); one; one = TAILQ_NEXT(one, link)) {
		chance = sim_mix(chance, one->change);
		one->lost |= how == SIM_LOSE || (how != SIM_KEEP && chance % 2);
		for (before = TAILQ_FIRST(&sim->names); before != one;
		     before = TAILQ_NEXT(before, link))
			one->lost |= before->lost && touch_one_name(before, one);
	}
}

/* Unless the directory is gone, too. */
static void bring_back_file(const struct sim_name *one, const char *name)
{
	int to = openat(one->in->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	off_t at = 0;
	ssize_t n;

	MUST(to >= 0 || errno == ENOENT);
	do
		n = to >= 0 ? sendfile(to, one->fd, &at, 1 << 20) : 0;
	while (n > 0);
	MUST(!n);
	if (to >= 0)
		close(to);
}

static void bring_back_directory(const struct sim_name *one)
{
	if (mkdirat(one->in->fd, one->name, 0700)) {
		MUST(errno == ENOENT);
		return;
	}
	close(one->removed->fd);
	one->removed->fd = openat(one->in->fd, one->name, O_PATH | O_DIRECTORY | O_CLOEXEC);
	MUST(one->removed->fd >= 0);
}

static void take_back(const struct sim_name *one)
{
	char path[NAME_MAX + 64];

	if (one->change == INJECT_MAKES) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", one->in->fd, one->name);
		MUST(!remove_tree(path));
	}
	if (one->change == INJECT_REMOVES && one->removed)
		bring_back_directory(one);
	if (one->change == INJECT_REMOVES && one->fd >= 0)
		bring_back_file(one, one->name);
	if (one->change != INJECT_RENAMES)
		return;
	MUST(!renameat(one->in->fd, one->to, one->in->fd, one->name));
	if (one->fd >= 0)
		bring_back_file(one, one->to);
}

void sim_names_crashed(struct sim *sim, enum sim_crash how, uint64_t chance)
{
	struct sim_name *one;

	choose(sim, how, chance);
	for (one = TAILQ_LAST(&sim->names, sim_names); one; one = TAILQ_PREV(one, sim_names, link))
		if (one->lost)
			take_back(one);
	sim_names_synced(sim, 0, 0);
}
