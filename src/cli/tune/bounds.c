/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every value of a setting is a power of two.
 */
#include "cli/tune/bounds.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/numbers.h"

#define MIB	     ((uint64_t)1 << 20)
#define WORKING_SET  (1024 * MIB)
#define MEMORY_MAX   (256 * MIB)
#define MEMORY_MIN   (64 * MIB)
#define MEMORY_LEAST (8 * MIB) /* where a memory limit leaves less than twice MEMORY_MIN */
#define BLOCK_MIN    65536u
#define BLOCK_MAX    (16 * MIB)
#define DEPTH_MAX    256u
#define THREAD_MAX   8u

_Static_assert(TUNE_BLOCK_SIZE_MAX == MEMORY_MAX / 2, "no larger block may ever be in flight");

int tune_look(const struct tune_options *options, struct tune_drive *drive, struct nvs_error *error)
{
	const char *directory = options->directory;
	struct stat st;
	int rc;

	drive->machine.size = sizeof(drive->machine);
	drive->path.size = sizeof(drive->path);
	rc = nvs_machine_get_info(&drive->machine, error);
	if (!rc)
		rc = nvs_path_get_info(directory, &drive->path, error);
	if (rc)
		return rc;
	if (drive->path.block_device)
		return error_set(error, -EINVAL,
				 "%.512s is a block device, whose contents would be lost: give a "
				 "directory on its file system",
				 directory);
	if (stat(directory, &st))
		return error_set(error, -errno, "%.512s: %s", directory, nvs_strerror(-errno));
	if (!S_ISDIR(st.st_mode))
		return error_set(error, -ENOTDIR,
				 "%.512s is not a directory: give one on the drive", directory);
	if (!drive->path.direct)
		return error_set(error, -ENOTSUP,
				 "%.512s is on %.32s, which has no direct I/O, so memory would be "
				 "measured: give a directory on ext4 or xfs (findmnt -t ext4,xfs "
				 "lists some)",
				 directory, drive->path.filesystem);
	if (access(directory, W_OK | X_OK))
		return error_set(error, -errno, "can't create a file in %.512s: %s", directory,
				 nvs_strerror(-errno));
	return 0;
}

int tune_choose_working_set(const struct tune_options *options, struct tune_drive *drive,
			    struct nvs_error *error)
{
	uint64_t free_bytes = drive->path.free_bytes, set = options->working_set;

	if (!set) {
		set = min_u64(free_bytes / 4, WORKING_SET);
		set = min_u64(options->max_writes / 4, set);
	}
	if (set < TUNE_WORKING_SET_MIN)
		set = TUNE_WORKING_SET_MIN;
	set -= set % MIB;
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
	drive->working_set = set;
	return 0;
}

uint64_t tune_memory_bytes(const struct tune_drive *drive)
{
	uint64_t nbytes = drive->machine.memory_bytes / 8;
	uint64_t half = drive->machine.memory_free_bytes / 2;

	nbytes = min_u64(nbytes, MEMORY_MAX);
	nbytes = nbytes > MEMORY_MIN ? nbytes - nbytes % MIB : MEMORY_MIN;
	if (half >= nbytes)
		return nbytes;
	return half > MEMORY_LEAST ? half - half % MIB : MEMORY_LEAST;
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

static void add_ioengines(const struct tune_options *options,
			  const struct nvs_machine_info *machine, struct tune_space *space)
{
	if (options->ioengine != NVS_IOENGINE_AUTO) {
		space->ioengines[space->nioengines++] = (enum nvs_ioengine)options->ioengine;
		return;
	}
	space->ioengines[space->nioengines++] = machine->auto_ioengine;
	for (int i = NVS_IOENGINE_AUTO + 1; i < NVS_IOENGINE_COUNT; i++)
		if (machine->ioengine[i].works && (enum nvs_ioengine)i != machine->auto_ioengine)
			space->ioengines[space->nioengines++] = (enum nvs_ioengine)i;
}

int tune_space_make(const struct tune_options *options, const struct tune_drive *drive,
		    struct tune_space *space, struct nvs_error *error)
{
	const struct nvs_machine_info *machine = &drive->machine;
	unsigned threads = machine->cpus < THREAD_MAX ? machine->cpus : THREAD_MAX;
	uint64_t memory = tune_memory_bytes(drive);
	uint64_t block_min = options->block_size_min ? options->block_size_min : BLOCK_MIN;
	uint64_t block_max = options->block_size_max ? options->block_size_max : BLOCK_MAX;

	if (!options->block_size_max && block_max < block_min)
		block_max = block_min;
	if (!options->block_size_min && block_min > block_max)
		block_min = block_max;
	*space = (struct tune_space){.single_submits = true, .overlap_events = true};
	space->in_flight_max = min_u64(memory / 2, drive->working_set / 8);
	space->nblock_sizes = powers(block_min, block_max, space->block_sizes);
	space->nqueue_depths =
		powers(1, options->queue_depth_max ? options->queue_depth_max : DEPTH_MAX,
		       space->queue_depths);
	space->nthread_counts =
		powers(1, options->thread_count_max ? options->thread_count_max : threads,
		       space->thread_counts);
	add_ioengines(options, machine, space);
	if (!machine->ioengine[space->ioengines[0]].works)
		return error_set(error, -ENOTSUP, "%s does not work here: %s",
				 nvs_ioengine_name(space->ioengines[0]),
				 machine->ioengine[space->ioengines[0]].reason);
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
			space->in_flight_max < memory / 2 ? "a larger --working-set or " : "");
	return 0;
}
