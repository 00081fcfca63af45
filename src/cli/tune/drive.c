/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rates are compared within the fill, quarter with quarter, and by a reference that is measured
 * before the search and after it: overwriting is another thing than writing for the first time, so
 * neither is compared with the other.
 */
#include "tune_drive.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "clock.h"
#include "progress.h"

#define MIB	       ((uint64_t)1 << 20)
#define GIB	       ((double)(1 << 30))
#define TRANSFER_BYTES (4 * MIB)
#define TRANSFERS      8u
#define MOMENTS	       256u /* of the fill, at which its time is noted */
#define SLOWER	       0.8

struct fill {
	struct tune_work *work;
	struct nvs_aio *aio;
	struct nvs_file *file;
	struct nvs_transfer transfers[TRANSFERS];
	bool in_flight[TRANSFERS];
	uint64_t handed_over, done; /* bytes */
	uint64_t began_ns, moments[MOMENTS + 1];
	uint64_t soft_ns, hard_ns;
	struct nvs_error *error;
};

/* So that no drive finds a block that it has. */
static void stamp(char *data, uint64_t nbytes, uint64_t offset)
{
	for (uint64_t at = 0; at < nbytes; at += 4096)
		*(uint64_t *)(void *)(data + at) = offset + at;
}

static int hand_over(struct fill *fill, unsigned slot)
{
	const struct tune_load *load = &fill->work->load;
	struct nvs_transfer *transfer = &fill->transfers[slot];
	uint64_t left = load->working_set - fill->handed_over;
	int rc;

	*transfer = (struct nvs_transfer){
		.file = fill->file,
		.direction = NVS_WRITE,
		.data = (char *)load->memory + slot * TRANSFER_BYTES,
		.nbytes = left < TRANSFER_BYTES ? left : TRANSFER_BYTES,
		.offset = fill->handed_over,
	};
	stamp(transfer->data, transfer->nbytes, transfer->offset);
	fill->handed_over += transfer->nbytes;
	rc = nvs_submit(fill->aio, &transfer, 1, fill->error);
	fill->in_flight[slot] = !rc;
	return rc;
}

/* Until that one has ended. */
static int await(struct fill *fill, unsigned slot, struct nvs_error *error)
{
	struct nvs_transfer *transfer = &fill->transfers[slot];

	if (!fill->in_flight[slot])
		return 0;
	fill->in_flight[slot] = false;
	return nvs_transfer_wait(fill->aio, &transfer, 1, -1, error);
}

/* Notes the time of all moments that lie in what is done. */
static void note(struct fill *fill, uint64_t nbytes)
{
	uint64_t set = fill->work->load.working_set, now = now_ns() - fill->began_ns;
	uint64_t from = fill->done * MOMENTS / set;

	fill->done += nbytes;
	for (uint64_t i = from + 1; i <= fill->done * MOMENTS / set; i++)
		fill->moments[i] = now;
	progress_update(fill->done, fill->done);
}

/* Whether to write on; 1: no, there is enough. */
static int look_at_time(const struct fill *fill)
{
	uint64_t spent = now_ns() - fill->began_ns;

	if (fill->work->load.stopped())
		return -EINTR;
	if (spent > fill->soft_ns && fill->handed_over >= TUNE_WORKING_SET_MIN)
		return 1;
	return spent > fill->hard_ns ? -ETIME : 0;
}

/* In order: what is done has no holes. 1: it is enough, though not all. */
static int write_all(struct fill *fill)
{
	uint64_t set = fill->work->load.working_set;
	int rc = 0;

	for (unsigned i = 0; i < TRANSFERS && fill->handed_over < set && !rc; i++)
		rc = hand_over(fill, i);
	for (unsigned i = 0; fill->done < fill->handed_over && !rc; i = (i + 1) % TRANSFERS) {
		rc = await(fill, i, fill->error);
		if (rc)
			break;
		note(fill, fill->transfers[i].nbytes);
		rc = look_at_time(fill);
		if (!rc && fill->handed_over < set)
			rc = hand_over(fill, i);
	}
	return rc;
}

static int end_all(struct fill *fill, int rc)
{
	for (unsigned i = 0; i < TRANSFERS; i++) {
		int ended = await(fill, i, rc < 0 ? NULL : fill->error);

		rc = rc < 0 ? rc : ended;
	}
	return rc ? rc : nvs_file_sync(fill->file, fill->error);
}

/* The rates of the first and the last quarter of what was written. */
static void take_rates(struct fill *fill)
{
	struct tune_work *work = fill->work;
	uint64_t set = work->load.working_set;
	unsigned n = (unsigned)(fill->done * MOMENTS / set), quarter = n / 4;
	double nbytes = (double)quarter * (double)set / MOMENTS;

	if (!quarter || !fill->moments[quarter] || fill->moments[n] <= fill->moments[n - quarter])
		return;
	work->fill_first = nbytes * 1e9 / (double)fill->moments[quarter];
	work->fill_last = nbytes * 1e9 / (double)(fill->moments[n] - fill->moments[n - quarter]);
}

static int too_slow(const struct fill *fill)
{
	*fill->error = (struct nvs_error){.code = -ETIME};
	snprintf(fill->error->text, sizeof(fill->error->text),
		 "the drive took all of the time to write %.0f MiB, and there have to be %.0f: "
		 "give a longer --time",
		 (double)fill->done / (double)MIB, (double)TUNE_WORKING_SET_MIN / (double)MIB);
	return -ETIME;
}

static int with_file(struct fill *fill)
{
	struct tune_work *work = fill->work;
	int rc = nvs_file_open(fill->aio, work->load.path, NVS_FILE_WRITE, &fill->file,
			       fill->error);

	if (rc)
		return rc;
	fill->began_ns = now_ns();
	progress_begin("filling", work->load.working_set);
	rc = end_all(fill, write_all(fill));
	progress_end();
	nvs_file_close(fill->file);
	if (rc)
		return rc == -ETIME ? too_slow(fill) : rc;
	take_rates(fill);
	work->load.working_set = fill->handed_over;
	work->drive->working_set = work->drive->written_bytes = fill->handed_over;
	return 0;
}

int tune_fill(struct tune_work *work, uint64_t soft_ns, uint64_t hard_ns, struct nvs_error *error)
{
	struct fill fill = {.work = work, .soft_ns = soft_ns, .hard_ns = hard_ns, .error = error};
	const struct nvs_aio_config config = {.block_size = MIB,
					      .queue_depth = 32,
					      .thread_count = 1,
					      .overlap_events = true,
					      .ioengine = work->ioengine};
	int rc = nvs_aio_open(&fill.aio, &config, NULL, error);

	if (rc)
		return rc;
	rc = with_file(&fill);
	nvs_aio_close(fill.aio);
	return rc;
}

int tune_measure(void *arg, const struct tune_point *point, enum tune_objective objective,
		 uint64_t for_ns, struct tune_sample *sample, struct nvs_error *error)
{
	struct tune_work *work = arg;
	int rc = tune_load_measure(&work->load, point, objective, for_ns, sample, error);

	if (rc)
		return rc;
	work->drive->written_bytes += sample->bytes[NVS_WRITE];
	work->rate = sample->bytes_per_s;
	return 0;
}

/* The middle of three, so that one that was disturbed is passed over. */
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
	uint64_t written = drive->written_bytes;

	drive->write_first = work->reference_first;
	drive->write_last = reference_last;
	if (work->fill_last * drive->write_first < work->fill_first * drive->write_last) {
		drive->write_first = work->fill_first;
		drive->write_last = work->fill_last;
		written = drive->working_set;
	}
	drive->slows_down = drive->write_last <= SLOWER * drive->write_first;
	if (drive->slows_down)
		snprintf(drive->slows_text, sizeof(drive->slows_text),
			 "the drive slows down as it is written: from %.2f to %.2f GB/s (%.0f %% "
			 "less) within %.1f GiB. Its write cache is full, it wants trimming, or "
			 "others use it: give a larger --working-set, or run fstrim, let it rest, "
			 "and tune again",
			 drive->write_first / 1e9, drive->write_last / 1e9,
			 100 * (1 - drive->write_last / drive->write_first), (double)written / GIB);
}
