// SPDX-License-Identifier: BSD-2-Clause
// The platform layer and the bottom half under FreeRTOS.
#include "vnet_freertos.h"

#include <string.h>

#if configNUMBER_OF_CORES != 1
#error "vnet_freertos supports one core: a flag says whether the driver runs inside its interrupt handler"
#endif

// Context: task. The heap never gets this memory back, so the octets in front of the aligned ones are lost.
static void *take_memory(void *context, size_t octets, size_t alignment) {
    struct vnet_freertos *port = context;
    size_t slack = alignment > portBYTE_ALIGNMENT ? alignment - portBYTE_ALIGNMENT : 0;
    if (octets > SIZE_MAX - slack) {
        return NULL;
    }
    uint8_t *start = pvPortMalloc(octets + slack);
    if (start == NULL) {
        return NULL;
    }
    port->memory_octets += octets + slack;
    start = (uint8_t *)(((uintptr_t)start + alignment - 1) & ~(uintptr_t)(alignment - 1));
    return memset(start, 0, octets);
}

// The guest runs without address translation, or with identity mapping.
static uint64_t bus_address(void *context, const void *start, size_t octets) {
    (void)context;
    (void)octets;
    return (uintptr_t)start;
}

static void lock(void *context) {
    struct vnet_freertos *port = context;
    (void)xSemaphoreTake(port->mutex, portMAX_DELAY);
}

static void unlock(void *context) {
    struct vnet_freertos *port = context;
    (void)xSemaphoreGive(port->mutex);
}

// A notification is kept while the task runs: no wake-up is lost.
static void wake(void *context) {
    struct vnet_freertos *port = context;
    if (port->is_in_interrupt) {
        vTaskNotifyGiveFromISR(port->task, &port->is_switch_wanted);
    } else {
        (void)xTaskNotifyGive(port->task);
    }
}

// A tick is longer than 100 microseconds, but other tasks run meanwhile.
static void pause_one_tick(void *context) {
    (void)context;
    vTaskDelay(1);
}

static void run(void *context) {
    struct vnet_freertos *port = context;
    port->result = vnet_start(&port->device);
    (void)xSemaphoreGive(port->started);
    if (port->result != VNET_OK) {
        vTaskSuspend(NULL);
    }
    for (;;) {
        (void)ulTaskNotifyTake(pdTRUE, portMAX_DELAY);
        while (vnet_poll(&port->device, port->budget)) {
            taskYIELD();
        }
    }
}

int vnet_freertos_start(struct vnet_freertos *port, struct vnet_transport *transport, const struct vnet_config *config,
                        UBaseType_t priority, unsigned budget, void (*log)(void *, enum vnet_event, unsigned)) {
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
    port->mutex = xSemaphoreCreateMutexStatic(&port->mutex_memory);
    port->started = xSemaphoreCreateBinaryStatic(&port->started_memory);
    // The handle is stored before the task can run: the task may have the higher priority.
    vTaskSuspendAll();
    port->task =
        xTaskCreateStatic(run, "vnet", VNET_FREERTOS_STACK_WORDS, port, priority, port->stack, &port->task_memory);
    (void)xTaskResumeAll();
    (void)xSemaphoreTake(port->started, portMAX_DELAY);
    if (port->result != VNET_OK) {
        vTaskDelete(port->task);
    }
    return port->result;
}

bool vnet_freertos_interrupt(struct vnet_freertos *port) {
    port->is_switch_wanted = pdFALSE;
    port->is_in_interrupt = true;
    bool is_ours = vnet_interrupt(&port->device);
    port->is_in_interrupt = false;
    portYIELD_FROM_ISR(port->is_switch_wanted);
    return is_ours;
}
