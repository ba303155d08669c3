// SPDX-License-Identifier: BSD-2-Clause
// The driver under RTEMS 6. A task of high priority is the bottom half. The interrupt handler sends it one event for
// each batch. Any task may send. A mutex with priority inheritance guards the driver.
#ifndef VNET_RTEMS_H
#define VNET_RTEMS_H

#include <rtems.h>
#include <rtems/thread.h>

#include "vnet.h"

#define VNET_RTEMS_STACK_OCTETS 16384u
#define VNET_RTEMS_EVENT RTEMS_EVENT_0

// All fields are the port's own, except that `device` is the first argument of vnet_send, vnet_take and vnet_free.
struct vnet_rtems {
    struct vnet_device device;
    struct vnet_platform platform;
    rtems_id task;
    rtems_mutex mutex;
    rtems_binary_semaphore started;
    unsigned budget;
    int result;           // of vnet_start
    size_t memory_octets; // taken from the heap
};

// Context: task. Starts the bottom half as a task of `priority` (2 in RTEMS' order is above all but one), installs the
// interrupt handler at `vector`, and starts the device inside the task. The task takes up to `budget` frames in a run,
// then yields to tasks of its own priority. Waits for the device. Returns VNET_OK, an error of vnet_init and
// vnet_start, or VNET_ERROR_MEMORY if RTEMS has no task or no handler left. After VNET_OK `port`, `transport` and what
// `config` points to must live for ever.
int vnet_rtems_start(struct vnet_rtems *port, struct vnet_transport *transport, const struct vnet_config *config,
                     rtems_vector_number vector, rtems_task_priority priority, unsigned budget,
                     void (*log)(void *, enum vnet_event, unsigned));

// In the file of each BSP (riscv_virt.c, pc386.c). Context: task. Finds and opens a virtio network device. Returns NULL
// if there is none. `vector` is where it interrupts.
struct vnet_transport *vnet_rtems_find(rtems_vector_number *vector);

#endif
