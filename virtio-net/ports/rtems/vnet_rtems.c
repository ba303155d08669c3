// SPDX-License-Identifier: BSD-2-Clause
// The platform layer and the bottom half under RTEMS.
#include "vnet_rtems.h"

#include <rtems/irq-extension.h>
#include <rtems/malloc.h>
#include <string.h>

static void *take_memory(void *context, size_t octets, size_t alignment) {
    struct vnet_rtems *port = context;
    void *memory = rtems_heap_allocate_aligned_with_boundary(octets, alignment, 0);
    if (memory == NULL) {
        return NULL;
    }
    port->memory_octets += octets;
    return memset(memory, 0, octets);
}

// The BSPs that this port is for have no address translation.
static uint64_t bus_address(void *context, const void *start, size_t octets) {
    (void)context;
    (void)octets;
    return (uintptr_t)start;
}

static void lock(void *context) {
    struct vnet_rtems *port = context;
    rtems_mutex_lock(&port->mutex);
}

static void unlock(void *context) {
    struct vnet_rtems *port = context;
    rtems_mutex_unlock(&port->mutex);
}

// Tasks and interrupt handlers may send events. An event is kept while the task runs: no wake-up is lost.
static void wake(void *context) {
    struct vnet_rtems *port = context;
    (void)rtems_event_send(port->task, VNET_RTEMS_EVENT);
}

// A tick is longer than 100 microseconds, but other tasks run meanwhile.
static void pause_one_tick(void *context) {
    (void)context;
    (void)rtems_task_wake_after(1);
}

static void interrupt(void *context) {
    struct vnet_rtems *port = context;
    (void)vnet_interrupt(&port->device);
}

static rtems_task run(rtems_task_argument argument) {
    struct vnet_rtems *port = (struct vnet_rtems *)argument;
    port->result = vnet_start(&port->device);
    rtems_binary_semaphore_post(&port->started);
    if (port->result != VNET_OK) {
        rtems_task_exit();
    }
    for (;;) {
        rtems_event_set events;
        (void)rtems_event_receive(VNET_RTEMS_EVENT, RTEMS_EVENT_ANY | RTEMS_WAIT, RTEMS_NO_TIMEOUT, &events);
        while (vnet_poll(&port->device, port->budget)) {
            (void)rtems_task_wake_after(RTEMS_YIELD_PROCESSOR);
        }
    }
}

int vnet_rtems_start(struct vnet_rtems *port, struct vnet_transport *transport, const struct vnet_config *config,
                     rtems_vector_number vector, rtems_task_priority priority, unsigned budget,
                     void (*log)(void *, enum vnet_event, unsigned)) {
    memset(port, 0, sizeof(*port));
    port->platform = (struct vnet_platform){
        .context = port,
        .memory = take_memory,
        .bus_address = bus_address,
        .lock = lock,
        .unlock = unlock,
        .wake = wake,
        .pause = pause_one_tick,
        .log = log,
    };
    if (budget == 0) {
        return VNET_ERROR_ARGUMENT;
    }
    port->budget = budget;
    int result = vnet_init(&port->device, &port->platform, transport, config);
    if (result != VNET_OK) {
        return result;
    }
    rtems_mutex_init(&port->mutex, "vnet");
    rtems_binary_semaphore_init(&port->started, "vnet");
    rtems_status_code status =
        rtems_task_create(rtems_build_name('v', 'n', 'e', 't'), priority, VNET_RTEMS_STACK_OCTETS, RTEMS_DEFAULT_MODES,
                          RTEMS_DEFAULT_ATTRIBUTES, &port->task);
    if (status != RTEMS_SUCCESSFUL) {
        return VNET_ERROR_MEMORY;
    }
    status = rtems_interrupt_handler_install(vector, "vnet", RTEMS_INTERRUPT_SHARED, interrupt, port);
    if (status == RTEMS_SUCCESSFUL) {
        status = rtems_task_start(port->task, run, (rtems_task_argument)port);
    }
    if (status != RTEMS_SUCCESSFUL) {
        (void)rtems_interrupt_handler_remove(vector, interrupt, port);
        (void)rtems_task_delete(port->task);
        return VNET_ERROR_MEMORY;
    }
    rtems_binary_semaphore_wait(&port->started);
    if (port->result != VNET_OK) {
        (void)rtems_interrupt_handler_remove(vector, interrupt, port);
    }
    return port->result;
}
