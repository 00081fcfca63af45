/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Short time slices for the calling thread: other threads that wake up run soon, and so does it.
 * Its share of the processor does not change. Needs Linux 6.12; otherwise, or without permission,
 * nothing changes.
 */
#ifndef THREADS_SLICE_H
#define THREADS_SLICE_H

#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLICE_NS 100000u /* the minimum of the kernel */

static inline void take_short_slices(void)
{
	/* The kernel's struct sched_attr; its header conflicts with libc's <sched.h>. */
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
