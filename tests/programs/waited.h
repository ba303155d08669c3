// SPDX-License-Identifier: Apache-2.0
// Whether a call waited for another thread or process, however long the machine took for it.
#ifndef WAITED_H
#define WAITED_H

#include <sys/resource.h>

// How often this thread gave its CPU away to wait; being preempted does not count.
static inline long waited(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw;
}

#endif
