/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fault of a simulated I/O, and where its bytes go. Whole I/Os use the caller's descriptor;
 * parts, which direct I/O could not move, use the drive's own buffered one.
 */
#include "support/sim/sim_internal.h"

#include <sys/uio.h>

/* ---- Files ---- */

struct sim_file *sim_file_of(struct sim *sim, int fd)
{
	struct sim_file *file;
	struct stat st;
	struct statx stx;

	MUST(!fstat(fd, &st));
	for (file = LIST_FIRST(&sim->files); file; file = LIST_NEXT(file, link))
		if (file->dev == st.st_dev && file->ino == st.st_ino)
			return file;
	file = calloc(1, sizeof(*file));
	MUST(file);
	*file = (struct sim_file){.dev = st.st_dev, .ino = st.st_ino, .unit = SIM_SECTOR, .fd = -1};
	if (!statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) && stx.stx_mask & STATX_DIOALIGN &&
	    stx.stx_dio_offset_align > SIM_SECTOR)
		file->unit = stx.stx_dio_offset_align;
	LIST_INSERT_HEAD(&sim->files, file, link);
	return file;
}

/* Opened again, so that it shares neither flags nor locks with the caller's. */
int sim_file_open(struct sim_file *file, int fd)
{
	char path[64];

	if (file->fd >= 0)
		return file->fd;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	file->fd = open(path, O_RDWR | O_CLOEXEC);
	MUST(file->fd >= 0);
	return file->fd;
}

void sim_file_done(struct sim_file *file)
{
	if (file->users || file->writes)
		return;
	if (file->fd >= 0)
		close(file->fd);
	LIST_REMOVE(file, link);
	free(file);
}

void sim_forget_files(struct sim *sim)
{
	while (!LIST_EMPTY(&sim->files)) {
		MUST(!LIST_FIRST(&sim->files)->users && !LIST_FIRST(&sim->files)->writes);
		sim_file_done(LIST_FIRST(&sim->files));
	}
}

static struct sim_file *file_behind(struct sim *sim, const struct sim_flight *flight)
{
	int slot = flight->io->file_slot;

	return slot < 0 ? sim_file_of(sim, flight->io->fd) : flight->queue->files[slot].file;
}

/* ---- Choosing the fault ---- */

static bool strikes(struct sim *sim, unsigned index, const struct sim_flight *flight)
{
	struct sim_active_rule *active = &sim->rules[index];
	const struct sim_rule *rule = &active->rule;
	const struct io *io = flight->io;
	uint64_t first = rule->first ? rule->first : 1;

	if (rule->reads != rule->writes && rule->writes != io->write)
		return false;
	if (!io->write &&
	    (rule->fault == SIM_TORN || rule->fault == SIM_LOST || rule->fault == SIM_MISPLACED))
		return false;
	if (rule->fault == SIM_SHORT && io->nbytes <= file_behind(sim, flight)->unit)
		return false;
	if (rule->to && (io->offset >= rule->to || io->offset + io->nbytes <= rule->from))
		return false;
	active->matched++;
	if (active->matched < first || (rule->times && active->matched - first >= rule->times))
		return false;
	return !rule->ppm || sim_mix(flight->chance, index) % 1000000 < rule->ppm;
}

void sim_decide(struct sim *sim, struct sim_flight *flight)
{
	for (unsigned i = 0; i < sim->nrules && !flight->faulty; i++) {
		flight->faulty = strikes(sim, i, flight);
		flight->fault = sim->rules[i].rule;
	}
}

/* ---- Moving the bytes ---- */

static int whole(struct sim *sim, const struct sim_flight *flight)
{
	const struct io *io = flight->io;
	struct iovec run = {.iov_base = io->data, .iov_len = io->nbytes};
	ssize_t rc;

	if (io->write && sim->remembers)
		sim_note_write(sim, file_behind(sim, flight), io->fd, io->data, io->nbytes,
			       io->offset, io->sync);
	rc = io->write ? pwritev2(io->fd, &run, 1, (off_t)io->offset, io->sync ? RWF_DSYNC : 0)
		       : preadv2(io->fd, &run, 1, (off_t)io->offset, 0);
	return rc < 0 ? -errno : (int)rc;
}

/* A part of an I/O, to or from anywhere in its file. */
static int part(struct sim *sim, const struct sim_flight *flight, void *data, uint64_t nbytes,
		uint64_t offset)
{
	const struct io *io = flight->io;
	struct sim_file *file = file_behind(sim, flight);
	int fd = sim_file_open(file, io->fd);
	ssize_t rc;

	if (io->write && sim->remembers)
		sim_note_write(sim, file, io->fd, data, nbytes, offset, false);
	rc = io->write ? pwrite(fd, data, nbytes, (off_t)offset)
		       : pread(fd, data, nbytes, (off_t)offset);
	return rc < 0 ? -errno : (int)rc;
}

static int torn(struct sim *sim, const struct sim_flight *flight)
{
	const struct io *io = flight->io;
	uint32_t sectors = (io->nbytes + SIM_SECTOR - 1) / SIM_SECTOR;
	uint32_t lost = (uint32_t)(sim_mix(flight->chance, 'l') % sectors);
	int rc = 0;

	for (uint32_t i = 0; i < sectors && rc >= 0; i++) {
		uint32_t at = i * SIM_SECTOR;
		uint32_t n = io->nbytes - at < SIM_SECTOR ? io->nbytes - at : SIM_SECTOR;

		if (i != lost && sim_mix(flight->chance, 256 + i) % 2)
			rc = part(sim, flight, (char *)io->data + at, n, io->offset + at);
	}
	return rc < 0 ? rc : (int)io->nbytes;
}

static int misplaced(struct sim *sim, const struct sim_flight *flight)
{
	const struct io *io = flight->io;
	int fd = sim_file_open(file_behind(sim, flight), io->fd), rc;
	uint64_t sectors = io->nbytes / SIM_SECTOR + 1;
	uint64_t away = SIM_SECTOR * (1 + sim_mix(flight->chance, 'm') % (2 * sectors));
	off_t end = lseek(fd, 0, SEEK_END);
	uint64_t to;

	MUST(end >= 0);
	if (io->offset + away + io->nbytes <= (uint64_t)end)
		to = io->offset + away;
	else if (io->offset >= away)
		to = io->offset - away;
	else
		return (int)io->nbytes; /* the place is beyond the file: the write is lost */
	rc = part(sim, flight, io->data, io->nbytes, to);
	return rc < 0 ? rc : (int)io->nbytes;
}

static int flipped(struct sim *sim, const struct sim_flight *flight)
{
	const struct io *io = flight->io;
	uint64_t bit = sim_mix(flight->chance, 'f') % (io->nbytes * UINT64_C(8));
	char *byte = (char *)io->data + bit / 8, other;
	int rc = whole(sim, flight);

	if (rc <= 0)
		return rc;
	other = (char)(*byte ^ (1 << bit % 8));
	if (!io->write)
		*byte = other;
	else if (part(sim, flight, &other, 1, io->offset + bit / 8) != 1)
		return -EIO;
	return rc;
}

int sim_move(struct sim *sim, const struct sim_flight *flight)
{
	const struct io *io = flight->io;
	uint64_t n;

	if (sim->crashed)
		return -EIO;
	if (!flight->faulty)
		return sim->drive.still ? (int)io->nbytes : whole(sim, flight);
	switch (flight->fault.fault) {
	case SIM_ERROR:
		return -flight->fault.error;
	case SIM_SHORT:
		n = file_behind(sim, flight)->unit;
		n *= 1 + sim_mix(flight->chance, 's') % ((io->nbytes - 1) / n);
		return part(sim, flight, io->data, n, io->offset);
	case SIM_TORN:
		return torn(sim, flight);
	case SIM_LOST:
		return (int)io->nbytes;
	case SIM_MISPLACED:
		return misplaced(sim, flight);
	case SIM_FLIP:
		return flipped(sim, flight);
	default:
		return whole(sim, flight);
	}
}
