// SPDX-License-Identifier: BSD-2-Clause
// The guest under FreeRTOS: the first task starts all of it (ports/guest/guest.c) and ends.
#include <string.h>

#include "guest.h"
#include "machine.h"
#include "system.h"
#include "vnet_freertos.h"

#define BUDGET 16u

static struct vnet_freertos port;
static struct vnet_transport *transport;
struct vnet_device *const guest_device = &port.device;

int guest_start_driver(struct vnet_transport *device, const struct vnet_config *config) {
    return vnet_freertos_start(&port, device, config, GUEST_PRIORITY_DRIVER, BUDGET, guest_log);
}

size_t guest_driver_memory(void) {
    return port.memory_octets;
}

void *guest_take_memory(size_t octets) {
    void *memory = pvPortMalloc(octets);
    return memory == NULL ? NULL : memset(memory, 0, octets);
}

uint64_t guest_now(void) {
    uint64_t now = machine_nanoseconds();
    return now != 0 ? now : (uint64_t)xTaskGetTickCount() * (1000000000 / configTICK_RATE_HZ);
}

// No other task prints in between; interrupts stay on.
void guest_print(const char *line) {
    vTaskSuspendAll();
    machine_print(line);
    (void)xTaskResumeAll();
}

_Noreturn void guest_exit(unsigned status) {
    machine_exit(status);
}

void vApplicationStackOverflowHook(TaskHandle_t task, char *name) {
    (void)task;
    machine_print(name);
    machine_print(": the task's stack is full\n");
    machine_exit(GUEST_STACK);
}

// Context: the idle task. Sleeps until the next interrupt.
void vApplicationIdleHook(void) {
#ifdef __riscv
    __asm__ volatile("wfi");
#else
    __asm__ volatile("hlt");
#endif
}

// The machine's file calls this: the network device interrupts. Context: interrupt.
void guest_interrupt(void) {
    (void)vnet_freertos_interrupt(&port);
}

static void start(void *context) {
    (void)context;
    guest_start(transport, system_command_line());
    vTaskDelete(NULL);
}

_Noreturn void guest_main(void) {
    machine_init();
    transport = system_find_network();
    if (xTaskCreate(start, "start", 1024, NULL, GUEST_PRIORITY_START, NULL) == pdPASS) {
        vTaskStartScheduler();
    }
    machine_print("guest: the scheduler did not start\n");
    machine_exit(GUEST_NO_MEMORY);
}
