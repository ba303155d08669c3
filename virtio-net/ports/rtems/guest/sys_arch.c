// SPDX-License-Identifier: BSD-2-Clause
// lwIP's system layer on RTEMS 6 (lwip/sys.h says what each function does). Context of all: task.
#include <lwip/def.h>
#include <lwip/sys.h>

#include "guest.h"

#define NANOSECONDS_PER_MILLISECOND 1000000u

static rtems_recursive_mutex protection;

void sys_init(void) {
    rtems_recursive_mutex_init(&protection, "lwIP");
}

u32_t sys_now(void) {
    return (u32_t)(rtems_clock_get_uptime_nanoseconds() / NANOSECONDS_PER_MILLISECOND);
}

// Protected data are shared by tasks only. A mutex serves one processor and several.
sys_prot_t sys_arch_protect(void) {
    rtems_recursive_mutex_lock(&protection);
    return 0;
}

void sys_arch_unprotect(sys_prot_t level) {
    (void)level;
    rtems_recursive_mutex_unlock(&protection);
}

// Ticks of a wait; a wait of lwIP is at least as long as it says.
static rtems_interval ticks_of(u32_t milliseconds) {
    uint64_t per_second = rtems_clock_get_ticks_per_second();
    return (rtems_interval)((milliseconds * per_second + 999) / 1000);
}

// lwIP makes semaphores with the count 0 or 1.
err_t sys_sem_new(sys_sem_t *semaphore, u8_t count) {
    rtems_binary_semaphore_init(&semaphore->semaphore, "lwIP");
    semaphore->is_valid = true;
    if (count > 0) {
        rtems_binary_semaphore_post(&semaphore->semaphore);
    }
    return ERR_OK;
}

void sys_sem_free(sys_sem_t *semaphore) {
    rtems_binary_semaphore_destroy(&semaphore->semaphore);
    semaphore->is_valid = false;
}

void sys_sem_signal(sys_sem_t *semaphore) {
    rtems_binary_semaphore_post(&semaphore->semaphore);
}

u32_t sys_arch_sem_wait(sys_sem_t *semaphore, u32_t milliseconds) {
    if (milliseconds == 0) {
        rtems_binary_semaphore_wait(&semaphore->semaphore);
        return 0;
    }
    return rtems_binary_semaphore_wait_timed_ticks(&semaphore->semaphore, ticks_of(milliseconds)) == 0
               ? 0
               : SYS_ARCH_TIMEOUT;
}

err_t sys_mutex_new(sys_mutex_t *mutex) {
    rtems_recursive_mutex_init(&mutex->mutex, "lwIP");
    mutex->is_valid = true;
    return ERR_OK;
}

void sys_mutex_free(sys_mutex_t *mutex) {
    rtems_recursive_mutex_destroy(&mutex->mutex);
    mutex->is_valid = false;
}

void sys_mutex_lock(sys_mutex_t *mutex) {
    rtems_recursive_mutex_lock(&mutex->mutex);
}

void sys_mutex_unlock(sys_mutex_t *mutex) {
    rtems_recursive_mutex_unlock(&mutex->mutex);
}

err_t sys_mbox_new(sys_mbox_t *box, int size) {
    rtems_status_code status = rtems_message_queue_create(rtems_build_name('l', 'w', 'I', 'P'), (uint32_t)size,
                                                          sizeof(void *), RTEMS_DEFAULT_ATTRIBUTES, box);
    if (status != RTEMS_SUCCESSFUL) {
        *box = 0;
        return ERR_MEM;
    }
    return ERR_OK;
}

void sys_mbox_free(sys_mbox_t *box) {
    (void)rtems_message_queue_delete(*box);
    *box = 0;
}

err_t sys_mbox_trypost(sys_mbox_t *box, void *message) {
    return rtems_message_queue_send(*box, &message, sizeof(message)) == RTEMS_SUCCESSFUL ? ERR_OK : ERR_MEM;
}

// RTEMS' senders do not wait for room, so this one looks again at each tick.
void sys_mbox_post(sys_mbox_t *box, void *message) {
    while (sys_mbox_trypost(box, message) != ERR_OK) {
        (void)rtems_task_wake_after(1);
    }
}

err_t sys_mbox_trypost_fromisr(sys_mbox_t *box, void *message) {
    return sys_mbox_trypost(box, message);
}

static u32_t fetch(const sys_mbox_t *box, void **message, rtems_option option, rtems_interval ticks) {
    void *received = NULL;
    size_t octets;
    if (rtems_message_queue_receive(*box, &received, &octets, option, ticks) != RTEMS_SUCCESSFUL) {
        received = NULL;
        octets = 0;
    }
    if (message != NULL) {
        *message = received;
    }
    return octets == 0 ? SYS_ARCH_TIMEOUT : 0;
}

u32_t sys_arch_mbox_fetch(sys_mbox_t *box, void **message, u32_t milliseconds) {
    return fetch(box, message, RTEMS_WAIT, milliseconds == 0 ? RTEMS_NO_TIMEOUT : ticks_of(milliseconds));
}

u32_t sys_arch_mbox_tryfetch(sys_mbox_t *box, void **message) {
    return fetch(box, message, RTEMS_NO_WAIT, RTEMS_NO_TIMEOUT) == 0 ? 0 : SYS_MBOX_EMPTY;
}

// A thread's function and its argument; one task takes one argument.
struct thread {
    lwip_thread_fn function;
    void *argument;
};

static rtems_task run(rtems_task_argument argument) {
    struct thread *thread = (struct thread *)argument;
    thread->function(thread->argument);
    rtems_task_exit();
}

sys_thread_t sys_thread_new(const char *name, lwip_thread_fn function, void *argument, int octets, int priority) {
    rtems_id task;
    struct thread *thread = guest_take_memory(sizeof(*thread));
    if (thread == NULL) {
        guest_stop("no memory for a thread", GUEST_NO_MEMORY);
    }
    *thread = (struct thread){function, argument};
    rtems_status_code status =
        rtems_task_create(rtems_build_name(name[0], name[1], name[2], name[3]), (rtems_task_priority)priority,
                          (size_t)octets, RTEMS_DEFAULT_MODES, RTEMS_DEFAULT_ATTRIBUTES, &task);
    if (status == RTEMS_SUCCESSFUL) {
        status = rtems_task_start(task, run, (rtems_task_argument)thread);
    }
    if (status != RTEMS_SUCCESSFUL) {
        guest_stop("no task for a thread", GUEST_NO_MEMORY);
    }
    return task;
}
