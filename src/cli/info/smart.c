/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SMART log of an NVMe drive, by libnvme. The library is loaded when it is needed: linking it
 * would have every run of the command load OpenSSL, which libnvme is linked with.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libnvme.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/info/wear.h"

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

static void get_page(struct wear *wear, get_log_fn *get_log, int fd)
{
	unsigned char page[SMART_PAGE_BYTES] = {0};
	struct nvme_get_log_args args = {.log = page,
					 .args_size = sizeof(args),
					 .fd = fd,
					 .timeout = NVME_DEFAULT_IOCTL_TIMEOUT,
					 .lid = NVME_LOG_LID_SMART,
					 .len = sizeof(page),
					 .nsid = NVME_NSID_ALL,
					 .csi = NVME_CSI_NVM,
					 .lsi = NVME_LOG_LSI_NONE,
					 .lsp = NVME_LOG_LSP_NONE,
					 .uuidx = NVME_UUID_NONE};
	int rc = get_log(&args);

	if (rc < 0)
		explain(wear, -errno);
	else if (rc > 0)
		snprintf(wear->why, sizeof(wear->why),
			 "the drive refuses its SMART log (NVMe status 0x%x)", (unsigned)rc);
	else
		smart_decode(page, wear);
}

void smart_read(struct wear *wear)
{
	char path[sizeof(wear->device) + 8];
	void *library, *symbol;
	get_log_fn *get_log;
	int fd;

	if (strncmp(wear->device, "nvme", 4) != 0) {
		snprintf(wear->why, sizeof(wear->why),
			 "it is no NVMe drive, so it has no SMART log of NVMe");
		return;
	}
	snprintf(path, sizeof(path), "/dev/%s", wear->device);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) {
		explain(wear, -errno);
		return;
	}
	library = dlopen("libnvme.so.1", RTLD_NOW | RTLD_LOCAL);
	symbol = library ? dlsym(library, "nvme_get_log") : NULL;
	memcpy(&get_log, &symbol, sizeof(symbol));
	if (get_log)
		get_page(wear, get_log, fd);
	else
		snprintf(wear->why, sizeof(wear->why),
			 "libnvme.so.1, which reads the SMART log, is not installed (Debian: "
			 "libnvme1)");
	if (library)
		dlclose(library);
	close(fd);
}
