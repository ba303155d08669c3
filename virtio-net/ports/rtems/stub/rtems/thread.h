// SPDX-License-Identifier: BSD-2-Clause
// A stub: it only declares what this port uses of RTEMS 6's API, so that the port can be compiled where RTEMS is not
// installed. Nothing here is RTEMS' own text.
#ifndef STUB_RTEMS_THREAD_H
#define STUB_RTEMS_THREAD_H

#include <stdint.h>

// The sizes are not RTEMS'.
typedef struct {
    void *stub[4];
} rtems_mutex;
typedef struct {
    void *stub[5];
} rtems_recursive_mutex;
typedef struct {
    void *stub[4];
} rtems_binary_semaphore;

void rtems_mutex_init(rtems_mutex *mutex, const char *name);
void rtems_mutex_lock(rtems_mutex *mutex);
void rtems_mutex_unlock(rtems_mutex *mutex);

void rtems_recursive_mutex_init(rtems_recursive_mutex *mutex, const char *name);
void rtems_recursive_mutex_lock(rtems_recursive_mutex *mutex);
void rtems_recursive_mutex_unlock(rtems_recursive_mutex *mutex);
void rtems_recursive_mutex_destroy(rtems_recursive_mutex *mutex);

void rtems_binary_semaphore_init(rtems_binary_semaphore *semaphore, const char *name);
void rtems_binary_semaphore_wait(rtems_binary_semaphore *semaphore);
int rtems_binary_semaphore_wait_timed_ticks(rtems_binary_semaphore *semaphore, uint32_t ticks); // 0, or an errno
void rtems_binary_semaphore_post(rtems_binary_semaphore *semaphore);
void rtems_binary_semaphore_destroy(rtems_binary_semaphore *semaphore);

#endif
