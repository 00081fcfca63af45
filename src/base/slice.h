/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Short turns on the processor for the calling thread: others that wake up need not wait for it
 * long, and it need not wait long for others. Its share of the processor stays what it is. Linux
 * 6.12 and later; before, and where it may not be asked for, nothing changes.
 */
#ifndef BASE_SLICE_H
#define BASE_SLICE_H

#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLICE_NS 100000u /* the least that the kernel takes */

static inline void take_short_slices(void)
{
	/* The kernel's struct sched_attr: its header and libc's <sched.h> can't be had together. */
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} now = {0};

	if (syscall(SYS_sched_getattr, 0, &now, sizeof(now), 0) ||
	    (now.policy != SCHED_OTHER && now.policy != SCHED_BATCH))
		return;
	now.runtime = SLICE_NS;
	syscall(SYS_sched_setattr, 0, &now, 0);
}

#endif
