/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fio's keys that are not options of nvswap. A key without effect on the load is accepted and
 * ignored, so such job files run unchanged; other keys of fio's are refused. Any other key is
 * unknown.
 */
#include <string.h>

#include "cli/jobs/jobs.h"
#include "cli/options/values.h"

#define ANY NULL

/* With these values, the keys change neither the load nor the report. */
static const struct {
	const char *key, *value;
} harmless[] = {
	{"name", ANY},
	{"thread", ANY},
	{"stats", "1"},
	/* How fio measures and prints. */
	{"gtod_reduce", ANY},
	{"gtod_cpu", ANY},
	{"clocksource", ANY},
	{"disable_lat", ANY},
	{"disable_clat", ANY},
	{"disable_slat", ANY},
	{"disable_bw", ANY},
	{"disable_bw_measurement", ANY},
	{"clat_percentiles", ANY},
	{"lat_percentiles", ANY},
	{"slat_percentiles", ANY},
	{"significant_figures", ANY},
	{"disk_util", ANY},
	{"unit_base", ANY},
	{"kb_base", "1024"},
	{"unified_rw_reporting", "0"},
	/* The page cache, which direct I/O bypasses. */
	{"buffered", "0"},
	{"invalidate", ANY},
	{"fadvise_hint", ANY},
	/* The file, which nvswap preallocates and removes. */
	{"create_serialize", ANY},
	{"create_fsync", ANY},
	{"create_on_open", ANY},
	{"allow_file_create", ANY},
	{"fallocate", "native"},
	{"fallocate", "posix"},
	{"unlink", ANY},
	{"nrfiles", "1"},
	{"openfiles", "1"},
	{"overwrite", "0"},
	{"fsync", "0"},
	{"fdatasync", "0"},
	{"end_fsync", "0"},
	{"fsync_on_close", "0"},
	{"sync", "0"},
	{"sync", "none"},
	/* The order, which differs for each seed. */
	{"randrepeat", ANY},
	{"allrandrepeat", ANY},
	{"randseed", ANY},
	{"random_generator", ANY},
	{"random_distribution", "random"},
	{"percentage_random", "100"},
	{"norandommap", "0"},
	{"offset", "0"},
	{"zonemode", "none"},
	/* Memory and engines, which nvswap chooses itself. */
	{"mem", ANY},
	{"iomem", ANY},
	{"hugepage-size", ANY},
	{"fixedbufs", "1"},
	{"registerfiles", "1"},
	{"hipri", "0"},
	{"sqthread_poll", "0"},
	{"scramble_buffers", ANY},
	{"refill_buffers", "0"},
	{"zero_buffers", "0"},
	{"rate_iops", "0"},
	{"thinktime", "0"},
};

/* Keys that change the load; so do the keys above with other values. */
static const char *const refused[] = {
	"ba",
	"blockalign",
	"bs_is_seq_rand",
	"bs_unaligned",
	"bsrange",
	"buffer_compress_chunk",
	"buffer_compress_percentage",
	"buffer_pattern",
	"cmdprio_percentage",
	"continue_on_error",
	"cpumask",
	"cpus_allowed",
	"cpus_allowed_policy",
	"dedupe_percentage",
	"do_verify",
	"exec_postrun",
	"exec_prerun",
	"exitall",
	"file_append",
	"file_service_type",
	"filesize",
	"fill_device",
	"flow",
	"flow_id",
	"io_submit_mode",
	"iodepth_batch",
	"iodepth_batch_complete",
	"iodepth_batch_complete_max",
	"iodepth_batch_complete_min",
	"iodepth_batch_submit",
	"iodepth_low",
	"ioscheduler",
	"latency_target",
	"latency_window",
	"lockmem",
	"max_latency",
	"nice",
	"number_ios",
	"numa_cpu_nodes",
	"numa_mem_policy",
	"offset_align",
	"offset_increment",
	"pre_read",
	"prio",
	"prioclass",
	"rate_cycle",
	"rate_iops_min",
	"rate_min",
	"rate_process",
	"read_iolog",
	"replay_no_stall",
	"replay_redirect",
	"rw_sequencer",
	"rwmixwrite",
	"serialize_overlap",
	"softrandommap",
	"steadystate",
	"sync_file_range",
	"thinktime_blocks",
	"thinktime_iotime",
	"thinktime_spin",
	"trim_backlog",
	"trim_percentage",
	"verify_async",
	"verify_backlog",
	"verify_interval",
	"verify_offset",
	"verify_only",
	"verify_pattern",
	"wait_for",
	"write_iolog",
	"zonerange",
	"zonesize",
	"zoneskip",
};

#define NHARMLESS (sizeof(harmless) / sizeof(*harmless))
#define NREFUSED  (sizeof(refused) / sizeof(*refused))

_Static_assert(NHARMLESS + NREFUSED == FIO_KEYS, "the count in jobs.h");

const char *fio_key_name(unsigned i)
{
	return i < NHARMLESS ? harmless[i].key : refused[i - NHARMLESS];
}

enum fio_key fio_key_find(const char *key, const char *value)
{
	enum fio_key found = FIO_KEY_UNKNOWN;

	for (unsigned i = 0; i < FIO_KEYS; i++) {
		if (!option_names_equal(key, fio_key_name(i)))
			continue;
		found = FIO_KEY_REFUSED;
		if (i < NHARMLESS &&
		    (harmless[i].value == ANY || !strcmp(value ? value : "1", harmless[i].value)))
			return FIO_KEY_HARMLESS;
	}
	return found;
}
