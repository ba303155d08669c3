// SPDX-License-Identifier: BSD-2-Clause
// lwIP's view of RTEMS 6: semaphores, mutexes, mailboxes and threads. The functions are in sys_arch.c.
#ifndef ARCH_SYS_ARCH_H
#define ARCH_SYS_ARCH_H

#include <rtems.h>
#include <rtems/thread.h>

typedef struct {
    rtems_binary_semaphore semaphore;
    bool is_valid;
} sys_sem_t;

typedef struct {
    rtems_recursive_mutex mutex;
    bool is_valid;
} sys_mutex_t;

typedef rtems_id sys_mbox_t; // a message queue; 0: none
typedef rtems_id sys_thread_t;
typedef unsigned sys_prot_t;

#define sys_sem_valid(semaphore) ((semaphore) != NULL && (semaphore)->is_valid)
#define sys_sem_set_invalid(semaphore) ((semaphore)->is_valid = false)
#define sys_mutex_valid(mutex) ((mutex) != NULL && (mutex)->is_valid)
#define sys_mutex_set_invalid(mutex) ((mutex)->is_valid = false)
#define sys_mbox_valid(box) ((box) != NULL && *(box) != 0)
#define sys_mbox_set_invalid(box) (*(box) = 0)

#endif
