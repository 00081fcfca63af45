/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detects slower writes by comparing the begin and end of the fill, and a reference measurement
 * before the search with one after it. The fill is not compared with the references, because
 * overwriting differs from a first write.
 */
#include "cli/tune/drive.h"

#include <errno.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/progress.h"

#define MIB	       ((uint64_t)1 << 20)
#define TRANSFER_BYTES (4 * MIB)
#define TRANSFERS      8u
#define MOMENTS	       256u /* points of the fill with a recorded time */
#define SLOWER	       0.8

struct fill {
	struct tune_work *work;
	struct nvs_aio *aio;
	struct nvs_file *file;
	struct nvs_request *requests[TRANSFERS];
	unsigned slots; /* transfers that the workload's memory has room for, TRANSFERS at most */
	uint64_t submitted, done; /* bytes */
	uint64_t began_ns, moments[MOMENTS + 1];
	uint64_t soft_ns, hard_ns;
	struct nvs_error *error;
};

static int submit(struct fill *fill)
{
	struct tune_workload *workload = &fill->work->workload;
	uint64_t left = workload->working_set - fill->submitted;
	unsigned slot = fill->submitted / TRANSFER_BYTES % fill->slots;
	uint64_t nbytes = left < TRANSFER_BYTES ? left : TRANSFER_BYTES;
	char *data = (char *)workload->memory + slot * TRANSFER_BYTES;
	int rc;

	/* The offset in each 4 KiB, so that the drive can't deduplicate. */
	for (uint64_t at = 0; at < nbytes; at += 4096)
		*(uint64_t *)(void *)(data + at) = fill->submitted + at;
	rc = nvs_aio_pwrite(fill->aio, fill->file, data, nbytes, fill->submitted,
			    &fill->requests[slot], fill->error);
	if (!rc) {
		fill->submitted += nbytes;
		workload->written += nbytes;
	}
	return rc;
}

/* Waits for the oldest transfer and records the time. */
static int reap(struct fill *fill, uint64_t total)
{
	struct nvs_request *request = fill->requests[fill->done / TRANSFER_BYTES % fill->slots];
	uint64_t from = fill->done * MOMENTS / total, left = fill->submitted - fill->done;
	int rc = nvs_aio_wait(fill->aio, &request, 1, -1, fill->error);

	nvs_request_close(request);
	fill->done += left < TRANSFER_BYTES ? left : TRANSFER_BYTES;
	for (uint64_t i = from + 1; i <= fill->done * MOMENTS / total; i++)
		fill->moments[i] = clock_ns() - fill->began_ns;
	progress_update(fill->done, fill->done);
	return rc;
}

/* Returns 1 if enough is filled; -EINTR; -ETIME if not and the time is over. */
static int look_at_time(const struct fill *fill)
{
	uint64_t spent = clock_ns() - fill->began_ns;

	if (fill->work->workload.stopped())
		return -EINTR;
	if (spent > fill->soft_ns && fill->submitted >= TUNE_WORKING_SET_MIN)
		return 1;
	return spent > fill->hard_ns ? -ETIME : 0;
}

/* Writes in order, so that the filled part has no holes. Waits for everything submitted. */
static int write_all(struct fill *fill)
{
	uint64_t total = fill->work->workload.working_set;
	int rc = 0;

	while (fill->done < fill->submitted || (!rc && fill->submitted < total)) {
		int reaped;

		while (!rc && fill->submitted < total &&
		       fill->submitted - fill->done < fill->slots * TRANSFER_BYTES)
			rc = submit(fill);
		reaped = fill->done < fill->submitted ? reap(fill, total) : 0;
		if (rc >= 0 && reaped)
			rc = reaped;
		if (!rc)
			rc = look_at_time(fill);
	}
	return rc < 0 ? rc : nvs_file_sync(fill->file, fill->error);
}

static int fill_file(struct fill *fill)
{
	struct tune_work *work = fill->work;
	const uint64_t *moments = fill->moments;
	uint64_t total = work->workload.working_set, n, quarter;
	int rc;

	fill->began_ns = clock_ns();
	progress_begin("filling", total);
	rc = write_all(fill);
	progress_end();
	if (rc == -ETIME)
		return error_set(fill->error, rc,
				 "in all of the time the drive wrote %llu MiB of the %llu that "
				 "tuning needs: give a longer --time",
				 (unsigned long long)(fill->done / MIB),
				 (unsigned long long)(TUNE_WORKING_SET_MIN / MIB));
	if (rc)
		return rc;
	n = fill->done * MOMENTS / total;
	quarter = n / 4;
	if (quarter) {
		double nbytes = (double)quarter * (double)total / MOMENTS;

		work->fill_first = nbytes * 1e9 / (double)moments[quarter];
		work->fill_last = nbytes * 1e9 / (double)(moments[n] - moments[n - quarter]);
	}
	work->workload.working_set = work->drive->working_set = fill->done;
	return 0;
}

int tune_fill(struct tune_work *work, uint64_t soft_ns, uint64_t hard_ns, struct nvs_error *error)
{
	const uint64_t room = work->workload.memory_bytes / TRANSFER_BYTES;
	struct fill fill = {.work = work,
			    .slots = room < TRANSFERS ? (unsigned)room : TRANSFERS,
			    .soft_ns = soft_ns,
			    .hard_ns = hard_ns,
			    .error = error};
	const struct tune_point point = {work->ioengine, MIB, 32, 1, false, true};
	int rc = tune_aio_open(&work->workload, &point, &fill.aio, error);

	if (rc)
		return rc;
	rc = nvs_file_open(fill.aio, work->workload.path, NVS_FILE_WRITE, &fill.file, error);
	if (!rc) {
		rc = fill_file(&fill);
		nvs_file_close(fill.file);
	}
	nvs_aio_close(fill.aio);
	return rc;
}

int tune_measure(void *arg, const struct tune_point *point, enum tune_objective objective,
		 uint64_t for_ns, struct tune_sample *sample, struct nvs_error *error)
{
	struct tune_work *work = arg;
	int rc = tune_workload_measure(&work->workload, point, objective, for_ns, sample, error);

	if (!rc)
		work->rate = sample->bytes_per_s;
	return rc;
}

/* The median of three rounds, which ignores a disturbed one. */
int tune_reference(struct tune_work *work, uint64_t for_ns, double *rate, struct nvs_error *error)
{
	const struct tune_point point = {work->ioengine, MIB, 8, 1, false, true};
	double least = 0, most = 0, sum = 0;

	for (int i = 0; i < 3; i++) {
		struct tune_sample sample;
		int rc = tune_measure(work, &point, TUNE_WRITE, for_ns, &sample, error);

		if (rc)
			return rc;
		sum += sample.bytes_per_s;
		least = !i || sample.bytes_per_s < least ? sample.bytes_per_s : least;
		most = sample.bytes_per_s > most ? sample.bytes_per_s : most;
	}
	*rate = sum - least - most;
	return 0;
}

void tune_judge_writes(struct tune_work *work, double reference_last)
{
	struct tune_drive *drive = work->drive;
	uint64_t written = work->workload.written;
	bool no_reference = work->reference_first <= 0 || reference_last <= 0;

	drive->written_bytes = written;
	drive->write_first = work->reference_first;
	drive->write_last = reference_last;
	if (no_reference ||
	    work->fill_last * drive->write_first < work->fill_first * drive->write_last) {
		drive->write_first = work->fill_first;
		drive->write_last = work->fill_last;
		written = drive->working_set;
	}
	drive->slows_down = drive->write_last <= SLOWER * drive->write_first &&
			    drive->write_first > 0;
	if (drive->slows_down)
		snprintf(drive->slows_text, sizeof(drive->slows_text),
			 "the drive slows down as it is written: from %.2f to %.2f GB/s (%.0f %% "
			 "less) within %.1f GiB. Its write cache is full, it needs trimming, or "
			 "others use it: give a larger --working-set, or run fstrim, let it rest, "
			 "and tune again",
			 drive->write_first / 1e9, drive->write_last / 1e9,
			 100 * (1 - drive->write_last / drive->write_first),
			 (double)written / (double)(1 << 30));
}
