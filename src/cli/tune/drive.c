/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of tuning on a machine and a path, the fill, and whether writes become slower. */
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/numbers.h"
#include "cli/commands.h"
#include "cli/tune/tune.h"

#define MIB	     ((uint64_t)1 << 20)
#define WORKING_SET  (1024 * MIB)
#define MEMORY_MAX   (256 * MIB)
#define MEMORY_MIN   (64 * MIB)
#define MEMORY_LEAST (8 * MIB) /* where a memory limit leaves less than twice MEMORY_MIN */
#define BLOCK_MIN    65536u
#define BLOCK_MAX    (16 * MIB)
#define DEPTH_MAX    256u
#define THREAD_MAX   8u
#define FILL_BYTES   (4 * MIB) /* of a transfer */
#define FILL_SLOTS   8u
#define SLOWER	     0.8

_Static_assert(TUNE_BLOCK_SIZE_MAX == MEMORY_MAX / 2, "no larger block may ever be in flight");

int tune_look(const char *directory, struct tune_drive *drive, struct nvs_error *error)
{
	int rc;

	drive->machine.size = sizeof(drive->machine);
	drive->path.size = sizeof(drive->path);
	rc = nvs_machine_get_info(&drive->machine, error);
	rc = rc ?: nvs_path_get_info(directory, &drive->path, error);
	if (rc)
		return rc;
	if (drive->path.block_device)
		return error_set(error, -EINVAL,
				 "%.512s is a block device, whose contents would be lost: give a "
				 "directory on its file system",
				 directory);
	drive->directory = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (drive->directory < 0 && errno == ENOTDIR)
		return error_set(error, -ENOTDIR,
				 "%.512s is not a directory: give one on the drive", directory);
	if (drive->directory < 0)
		return error_set(error, -errno, "%.512s: %s", directory, nvs_strerror(-errno));
	if (!drive->path.direct)
		return error_set(error, -ENOTSUP,
				 "%.512s is on %.32s, which has no direct I/O, so memory would be "
				 "measured: give a directory on ext4 or xfs (findmnt -t ext4,xfs "
				 "lists some)",
				 directory, drive->path.filesystem);
	if (access(directory, W_OK | X_OK))
		return error_set(error, -errno, "can't create a file in %.512s: %s", directory,
				 nvs_strerror(-errno));
	if (flock(drive->directory, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
		return error_set(error, -EBUSY,
				 "%.512s is in use by another nvswap tune: wait for its end",
				 directory);
	return 0;
}

int tune_choose_working_set(const struct tune_options *options, const struct tune_drive *drive,
			    uint64_t *working_set, struct nvs_error *error)
{
	uint64_t free_bytes = drive->path.free_bytes, set = options->working_set;

	if (!set)
		set = min_u64(min_u64(free_bytes, options->max_writes) / 4, WORKING_SET);
	set = align_down(max_u64(set, TUNE_WORKING_SET_MIN), MIB);
	if (free_bytes < set + set / 10)
		return error_set(
			error, -ENOSPC,
			"%.512s has %llu MiB free, and tuning on %llu MiB needs a tenth more "
			"than that: make room%s",
			options->directory, (unsigned long long)(free_bytes / MIB),
			(unsigned long long)(set / MIB),
			set > TUNE_WORKING_SET_MIN ? ", or give a smaller --working-set" : "");
	if (set > options->max_writes)
		return error_set(
			error, -EINVAL,
			"filling a file of %llu MiB is more than --max-writes allows: give a "
			"smaller --working-set",
			(unsigned long long)(set / MIB));
	*working_set = set;
	return 0;
}

uint64_t tune_memory_bytes(const struct nvs_machine_info *machine)
{
	uint64_t nbytes = max_u64(min_u64(machine->memory_bytes / 8, MEMORY_MAX), MEMORY_MIN);

	nbytes = max_u64(min_u64(nbytes, machine->memory_free_bytes / 2), MEMORY_LEAST);
	return align_down(nbytes, MIB);
}

/* Stores the powers of two from `least` to `most`, and returns how many there are. */
static unsigned powers(uint64_t least, uint64_t most, uint32_t values[TUNE_VALUES_MAX])
{
	unsigned n = 0;

	for (uint64_t value = 1; value <= most && n < TUNE_VALUES_MAX; value *= 2)
		if (value >= least)
			values[n++] = (uint32_t)value;
	return n;
}

int tune_space_make(const struct tune_options *options, const struct nvs_machine_info *machine,
		    uint64_t working_set, struct tune_space *space, struct nvs_error *error)
{
	uint64_t half = tune_memory_bytes(machine) / 2;
	uint64_t block_max = options->block_size_max, block_min = options->block_size_min;
	uint64_t depths = options->queue_depth_max, threads = options->thread_count_max;
	enum nvs_ioengine first = (enum nvs_ioengine)options->ioengine;

	if (!block_max)
		block_max = max_u64(BLOCK_MAX, block_min);
	if (!block_min)
		block_min = min_u64(BLOCK_MIN, block_max);
	*space = (struct tune_space){.single_submits = true, .overlap_events = true};
	space->in_flight_max = min_u64(half, working_set / 8);
	space->nblock_sizes = powers(block_min, block_max, space->block_sizes);
	space->nqueue_depths = powers(1, depths ? depths : DEPTH_MAX, space->queue_depths);
	space->nthread_counts = powers(1, threads ? threads : min_u64(machine->cpus, THREAD_MAX),
				       space->thread_counts);
	if (first == NVS_IOENGINE_AUTO)
		first = machine->auto_ioengine;
	space->ioengines[space->nioengines++] = first;
	for (int i = NVS_IOENGINE_AUTO + 1; i < NVS_IOENGINE_COUNT; i++)
		if (options->ioengine == NVS_IOENGINE_AUTO && machine->ioengine[i].works &&
		    (enum nvs_ioengine)i != first)
			space->ioengines[space->nioengines++] = (enum nvs_ioengine)i;
	if (!machine->ioengine[first].works)
		return error_set(error, -ENOTSUP, "%s does not work here: %s",
				 nvs_ioengine_name(first), machine->ioengine[first].reason);
	if (!space->nblock_sizes)
		return error_set(
			error, -EINVAL,
			"there is no power of two from --block-size-min to --block-size-max");
	if (space->block_sizes[0] > space->in_flight_max)
		return error_set(
			error, -EINVAL,
			"the smallest block is larger than the %llu MiB that may be in flight: "
			"give %sa smaller --block-size-min",
			(unsigned long long)(space->in_flight_max / MIB),
			space->in_flight_max < half ? "a larger --working-set or " : "");
	return 0;
}

/* Writes in order, so that the filled part has no holes, and waits for everything submitted.
 * Returns the number of transfers, or a negative errno. */
static int64_t fill_in_order(struct tune_workload *workload, struct nvs_aio *aio,
			     struct nvs_file *file, uint64_t soft_ns, uint64_t hard_ns,
			     struct nvs_error *error)
{
	uint64_t slots = min_u64(workload->memory_bytes / FILL_BYTES, FILL_SLOTS);
	uint64_t total = workload->working_set, n = align_up(total, FILL_BYTES) / FILL_BYTES;
	uint64_t began_ns = clock_ns(), submitted = 0, done = 0, ns;
	struct nvs_request *requests[FILL_SLOTS];
	int rc = 0;

	while (done < submitted || (!rc && submitted < n)) {
		while (!rc && submitted < n && submitted - done < slots) {
			uint64_t offset = submitted * FILL_BYTES;
			uint64_t nbytes = min_u64(FILL_BYTES, total - offset);
			char *data = (char *)workload->memory + submitted % slots * FILL_BYTES;

			/* The offset in each 4 KiB, so that the drive can't deduplicate. */
			for (uint64_t at = 0; at < nbytes; at += 4096)
				*(uint64_t *)(void *)(data + at) = offset + at;
			rc = nvs_aio_pwrite(aio, file, data, nbytes, offset,
					    &requests[submitted % slots], error);
			if (rc)
				break;
			workload->written += nbytes;
			submitted++;
		}
		if (done < submitted) {
			struct nvs_request *oldest = requests[done % slots];
			int reaped = nvs_aio_wait(aio, &oldest, 1, -1, error);

			nvs_request_close(oldest);
			done++;
			progress_update(min_u64(done * FILL_BYTES, total),
					min_u64(done * FILL_BYTES, total));
			if (rc >= 0 && reaped)
				rc = reaped;
		}
		if (rc)
			continue;
		ns = clock_ns() - began_ns;
		if (workload->stopped())
			rc = -EINTR;
		else if (ns > soft_ns && submitted * FILL_BYTES >= TUNE_WORKING_SET_MIN)
			rc = 1;
		else if (ns > hard_ns)
			rc = error_set(error, -ETIME,
				       "in all of the time the drive wrote %llu MiB of the %llu "
				       "that tuning needs: give a longer --time",
				       (unsigned long long)(done * FILL_BYTES / MIB),
				       (unsigned long long)(TUNE_WORKING_SET_MIN / MIB));
	}
	if (rc >= 0)
		rc = nvs_file_sync(file, error);
	return rc ? rc : (int64_t)done;
}

int tune_fill(struct tune_workload *workload, enum nvs_ioengine ioengine, struct tune_drive *drive,
	      uint64_t soft_ns, uint64_t hard_ns, struct nvs_error *error)
{
	const struct tune_point point = {ioengine, MIB, 32, 1, false, true};
	struct nvs_aio *aio = NULL;
	struct nvs_file *file;
	uint64_t began_ns = clock_ns();
	int64_t done = tune_aio_open(workload, &point, &aio, error);

	if (!done)
		done = nvs_file_from_fd(aio, workload->fd, NVS_FILE_WRITE, &file, error);
	if (!done) {
		progress_begin("filling", workload->working_set);
		done = fill_in_order(workload, aio, file, soft_ns, hard_ns, error);
		progress_end();
		nvs_file_close(file);
	}
	nvs_aio_close(aio);
	if (done < 0)
		return (int)done;
	workload->working_set = min_u64((uint64_t)done * FILL_BYTES, workload->working_set);
	drive->fill = (double)workload->working_set * 1e9 / (double)(clock_ns() - began_ns);
	return 0;
}

void tune_judge_writes(struct tune_drive *drive, uint64_t written)
{
	double first = drive->reference[0], last = drive->reference[1];

	drive->slows_down = first > 0 && last > 0 && last <= SLOWER * first;
	if (drive->slows_down)
		snprintf(drive->slows_text, sizeof(drive->slows_text),
			 "the drive slows down as it is written: from %.2f to %.2f GB/s (%.0f %% "
			 "less) within %.1f GiB. Its write cache is full, it needs trimming, or "
			 "others use it: give a larger --working-set, or run fstrim, let it rest, "
			 "and tune again",
			 first / 1e9, last / 1e9, 100 * (1 - last / first),
			 (double)written / (double)(1 << 30));
}
