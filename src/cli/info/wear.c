/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SMART log of an NVMe drive, by libnvme, which is loaded when it is needed: linking it would
 * have every run of the command load OpenSSL. And how long a drive lasts by the rate at which it
 * was written so far and by that of a job.
 */
#include "cli/info/info.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libnvme.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/results.h"

#define NS_PER_DAY	(86400 * 1e9)
#define DATA_UNIT_BYTES 512000 /* of the log's counts of data units */

_Static_assert(sizeof(struct nvme_smart_log) == SMART_PAGE_BYTES, "the log is one page");

typedef int get_log_fn(struct nvme_get_log_args *args);

/* Little-endian, of 128 bits. */
static double number_of(const __u8 bytes[16])
{
	double number = 0;

	for (int i = 15; i >= 0; i--)
		number = number * 256 + bytes[i];
	return number;
}

void smart_decode(const unsigned char page[SMART_PAGE_BYTES], struct wear *wear)
{
	struct nvme_smart_log log;

	memcpy(&log, page, sizeof(log));
	wear->percent_used = log.percent_used;
	wear->written_bytes = number_of(log.data_units_written) * DATA_UNIT_BYTES;
	wear->power_on_hours = number_of(log.power_on_hours);
}

static void explain(struct wear *wear, int code)
{
	if (code == -EACCES || code == -EPERM)
		snprintf(wear->why, sizeof(wear->why),
			 "only root may read the SMART log of /dev/%s", wear->device);
	else
		snprintf(wear->why, sizeof(wear->why), "the SMART log of /dev/%s can't be read: %s",
			 wear->device, nvs_strerror(code));
}

void smart_read(struct wear *wear)
{
	char path[sizeof(wear->device) + 8];
	unsigned char page[SMART_PAGE_BYTES] = {0};
	struct nvme_get_log_args args = {.log = page,
					 .args_size = sizeof(args),
					 .timeout = NVME_DEFAULT_IOCTL_TIMEOUT,
					 .lid = NVME_LOG_LID_SMART,
					 .len = sizeof(page),
					 .nsid = NVME_NSID_ALL,
					 .csi = NVME_CSI_NVM,
					 .lsi = NVME_LOG_LSI_NONE,
					 .lsp = NVME_LOG_LSP_NONE,
					 .uuidx = NVME_UUID_NONE};
	void *library, *symbol;
	get_log_fn *get_log;
	int rc;

	if (strncmp(wear->device, "nvme", 4) != 0) {
		snprintf(wear->why, sizeof(wear->why),
			 "it is no NVMe drive, so it has no SMART log of NVMe");
		return;
	}
	snprintf(path, sizeof(path), "/dev/%s", wear->device);
	args.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (args.fd < 0) {
		explain(wear, -errno);
		return;
	}
	library = dlopen("libnvme.so.1", RTLD_NOW | RTLD_LOCAL);
	symbol = library ? dlsym(library, "nvme_get_log") : NULL;
	memcpy(&get_log, &symbol, sizeof(symbol));
	rc = get_log ? get_log(&args) : 0;
	if (!get_log)
		snprintf(wear->why, sizeof(wear->why),
			 "libnvme.so.1, which reads the SMART log, is not installed (Debian: "
			 "libnvme1)");
	else if (rc < 0)
		explain(wear, -errno);
	else if (rc > 0)
		snprintf(wear->why, sizeof(wear->why),
			 "the drive refuses its SMART log (NVMe status 0x%x)", (unsigned)rc);
	else
		smart_decode(page, wear);
	if (library)
		dlclose(library);
	close(args.fd);
}

static double days_of(double left_bytes, double daily_bytes)
{
	return daily_bytes > 0 ? fmax(left_bytes, 0) / daily_bytes : NAN;
}

void wear_forecast(struct wear *wear, double rated_bytes, double job_daily_bytes)
{
	double left;

	wear->own_days = wear->job_days = NAN;
	if (*wear->why)
		return;
	if (wear->power_on_hours >= 1)
		wear->own_daily_bytes = wear->written_bytes * 24 / wear->power_on_hours;
	wear->rated = rated_bytes > 0;
	if (wear->rated)
		wear->endurance_bytes = rated_bytes;
	else if (wear->percent_used)
		wear->endurance_bytes = wear->written_bytes * 100 / wear->percent_used;
	if (wear->endurance_bytes <= 0)
		return;
	left = wear->endurance_bytes - wear->written_bytes;
	wear->own_days = days_of(left, wear->own_daily_bytes);
	wear->job_days = days_of(left, job_daily_bytes);
}

int wear_job_rate(const char *path, double *daily_bytes, struct nvs_error *error)
{
	struct results results;
	int rc = results_read(&results, path, error);

	*daily_bytes = 0;
	for (const struct json_value *job = rc ? NULL : results.jobs->first; job && !rc;
	     job = job->next) {
		const struct json_value *step = json_member(job, "step"),
					*way = json_member(job, "write");
		double step_ns = result_number(step, "wall_mean_ns", path, error);

		rc = result_check(job, path, error);
		if (step_ns > 0)
			*daily_bytes += result_number(step, "drive_written_bytes", path, error) *
					NS_PER_DAY / step_ns;
		else
			*daily_bytes += result_number(way, "bw_bytes", path, error) * 86400;
		rc = rc ? rc : error->code;
	}
	if (!rc && *daily_bytes <= 0)
		rc = result_refuse(error, path, results.jobs, "these jobs write nothing");
	results_free(&results);
	return rc;
}
