// SPDX-License-Identifier: BSD-2-Clause
// The guest under RTEMS: finds the device, then starts all of it (ports/guest/guest.c). Its settings are the macro
// GUEST_SETTINGS, for example -DGUEST_SETTINGS='"rx_max=64"'. docs/guide/rtems.md says how to build and run it.
#include <bsp.h>
#include <rtems.h>
#include <rtems/bspIo.h>
#include <rtems/malloc.h>
#include <stdlib.h>
#include <string.h>

#include "guest.h"
#include "vnet_rtems.h"

#ifndef GUEST_SETTINGS
#define GUEST_SETTINGS NULL
#endif
#define BUDGET 16u
#define ALIGNMENT 64u

static struct vnet_rtems port;
static rtems_vector_number vector;
struct vnet_device *const guest_device = &port.device;

int guest_start_driver(struct vnet_transport *transport, const struct vnet_config *config) {
    return vnet_rtems_start(&port, transport, config, vector, GUEST_PRIORITY_DRIVER, BUDGET, guest_log);
}

size_t guest_driver_memory(void) {
    return port.memory_octets;
}

void *guest_take_memory(size_t octets) {
    void *memory = rtems_heap_allocate_aligned_with_boundary(octets, ALIGNMENT, 0);
    return memory == NULL ? NULL : memset(memory, 0, octets);
}

uint64_t guest_now(void) {
    return rtems_clock_get_uptime_nanoseconds();
}

void guest_print(const char *line) {
    printk("%s", line);
}

_Noreturn void guest_exit(unsigned status) {
    exit((int)status);
}

rtems_task Init(rtems_task_argument argument) {
    (void)argument;
    guest_start(vnet_rtems_find(&vector), GUEST_SETTINGS);
    rtems_task_exit();
}

#define CONFIGURE_APPLICATION_NEEDS_CLOCK_DRIVER
#define CONFIGURE_APPLICATION_NEEDS_SIMPLE_CONSOLE_DRIVER
#define CONFIGURE_MICROSECONDS_PER_TICK 1000
// Tasks, message queues and stacks come from one heap, so no number of them has to be named.
#define CONFIGURE_UNLIMITED_OBJECTS
#define CONFIGURE_UNIFIED_WORK_AREAS
#define CONFIGURE_RTEMS_INIT_TASKS_TABLE
#define CONFIGURE_INIT_TASK_STACK_SIZE (32 * 1024)
#define CONFIGURE_INIT_TASK_ATTRIBUTES RTEMS_DEFAULT_ATTRIBUTES
#define CONFIGURE_INIT
#include <rtems/confdefs.h>
