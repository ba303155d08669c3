// SPDX-License-Identifier: BSD-2-Clause
// The driver under FreeRTOS (one core). A task of high priority is the bottom half. The interrupt handler gives it one
// task notification for each batch. Any task may send. A mutex with priority inheritance guards the driver.
#ifndef VNET_FREERTOS_H
#define VNET_FREERTOS_H

#include <FreeRTOS.h>
#include <semphr.h>
#include <task.h>

#include "vnet.h"

#ifndef VNET_FREERTOS_STACK_WORDS
#define VNET_FREERTOS_STACK_WORDS (8192u / sizeof(StackType_t))
#endif

// All fields are the port's own, except that `device` is the first argument of vnet_send, vnet_take and vnet_free.
struct vnet_freertos {
    struct vnet_device device;
    struct vnet_platform platform;
    TaskHandle_t task;
    SemaphoreHandle_t mutex, started;
    StaticSemaphore_t mutex_memory, started_memory;
    StaticTask_t task_memory;
    StackType_t stack[VNET_FREERTOS_STACK_WORDS];
    unsigned budget;
    int result;                  // of vnet_start
    size_t memory_octets;        // taken from the heap
    bool is_in_interrupt;        // true inside vnet_freertos_interrupt
    BaseType_t is_switch_wanted; // the notification woke a task of higher priority than the interrupted one
};

// Context: task, before the device's interrupt is on. Starts the bottom half as a task of `priority`, and the device
// inside that task. The task takes up to `budget` frames in a run, then yields to tasks of its own priority. Waits for
// the device. Returns VNET_OK or an error of vnet_init and vnet_start. After VNET_OK `port`, `transport` and what
// `config` points to must live for ever.
int vnet_freertos_start(struct vnet_freertos *port, struct vnet_transport *transport, const struct vnet_config *config,
                        UBaseType_t priority, unsigned budget, void (*log)(void *, enum vnet_event, unsigned));

// Context: interrupt of the device. Returns whether the interrupt was the device's. Asks FreeRTOS for a switch of tasks
// if the bottom half is to run before the interrupted task.
bool vnet_freertos_interrupt(struct vnet_freertos *port);

#endif
