/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A round of tuning: like swapping, transfers of several blocks walk over the file in order, with
 * more of them submitted than the queues hold.
 */
#ifndef CLI_TUNE_WORKLOAD_H
#define CLI_TUNE_WORKLOAD_H

#include "cli/tune/search/search.h"

struct tune_workload {
	/* How to open an aio and read the clock, of a real or a simulated drive. */
	int (*open)(void *arg, const struct nvs_config *config, struct nvs_aio **aio,
		    struct nvs_error *error);
	uint64_t (*now_ns)(void *arg);
	void *arg;
	int fd;			      /* a filled file */
	uint64_t working_set;	      /* its bytes; 2 x in_flight_max and 128 MiB suffice */
	void *memory;		      /* the data, incompressible; aligned to a huge page */
	uint64_t memory_bytes;	      /* in_flight_max and 64 MiB suffice */
	uint64_t written, writes_max; /* bytes submitted for writing, and their limit */
	double rate;		      /* of the last round */
	bool (*stopped)(void);	      /* may be NULL */
	/* Stops and restarts a simulated clock while counters are read; may be NULL. */
	void (*hold)(void *arg, bool on);
};

/* A setting of a configuration that a point gives a value. */
struct tune_setting {
	const char *key; /* of the block "aio", with "aio." */
	uint32_t value;
	bool is_flag;
};
#define TUNE_SETTINGS 5
/* Those beside the I/O engine. */
void tune_settings(const struct tune_point *point, struct tune_setting settings[TUNE_SETTINGS]);
/* Opens the aio of a point. -ENOMEM, -EINVAL for a value that is out of range; errors of the drive. */
int tune_aio_open(const struct tune_workload *workload, const struct tune_point *point,
		  struct nvs_aio **aio, struct nvs_error *error);
/*
 * A tune_meter's measure() over a struct tune_workload. Besides what it counts, a round has a
 * warm-up of up to half its time, and waits for what is in flight at its end.
 *	-EDQUOT	the round would write beyond writes_max
 *	-EINVAL	memory or working set are too small for the point
 *	-EINTR	stopped() says so
 */
int tune_workload_measure(void *workload, const struct tune_point *point,
			  enum tune_objective objective, uint64_t for_ns,
			  struct tune_sample *sample, struct nvs_error *error);

#endif
