// SPDX-License-Identifier: BSD-2-Clause
// The probe as a guest under FreeRTOS, on QEMU's riscv64 `virt` machine. The task of the highest priority wakes by
// FreeRTOS' tick of 1 ms, whose instants the timer's compare register gives exactly; a task below it prints. workers=N:
// N tasks of each kind, as idle work: square roots, and memory that is taken, written and given back. (No function is
// called `start`: the section of that name is _start's.)
#include <stdbool.h>
#include <string.h>

#include <FreeRTOS.h>
#include <task.h>

#include "guest.h"
#include "machine.h"
#include "probe.h"
#include "system.h"

#define TICK_NS (UINT64_C(1000000000) / configTICK_RATE_HZ)
#define TIMER_NS (UINT64_C(1000000000) / configCPU_CLOCK_HZ)

enum { PRIORITY_LOAD = 1, PRIORITY_PRINT, PRIORITY_PROBE = configMAX_PRIORITIES - 1 };
enum { STACK_WORDS = 512, LOAD_WORDS = 256, WORKERS_MAX = 16, WORKER_OCTETS = 32 * 1024, FAILED = 1 };

void freertos_risc_v_trap_handler(void);

static struct probe probe;
static uint64_t tick_zero; // when tick 0 was, or would have been
static TickType_t woken;   // the tick of the last wake-up

// Context: interrupt. There is no network device.
void guest_interrupt(void) {}

_Noreturn static void stop(const char *why) {
    machine_print("probe: ");
    machine_print(why);
    machine_print("\n");
    machine_exit(FAILED);
}

void guest_assert(const char *file, unsigned line) {
    (void)line;
    stop(file);
}

void vApplicationStackOverflowHook(TaskHandle_t task, char *name) {
    (void)task;
    stop(name);
}

void vApplicationIdleHook(void) {
    __asm__ volatile("wfi");
}

uint64_t probe_now(void) {
    return machine_nanoseconds();
}

uint64_t probe_begin(uint64_t period_ns) {
    // The register holds the instant of the tick that FreeRTOS has not counted yet.
    taskENTER_CRITICAL();
    woken = xTaskGetTickCount();
    uint64_t next = *(volatile uint64_t *)configMTIMECMP_BASE_ADDRESS * TIMER_NS;
    taskEXIT_CRITICAL();
    tick_zero = next - (woken + UINT64_C(1)) * TICK_NS;
    return tick_zero + woken * TICK_NS + period_ns;
}

void probe_wait(uint64_t due) {
    TickType_t tick = (TickType_t)((due - tick_zero) / TICK_NS);
    (void)xTaskDelayUntil(&woken, tick - woken);
}

static void measure(void *context) {
    probe_measure(context);
    vTaskDelete(NULL);
}

static void print(void *context) {
    (void)context;
    char line[48];
    while (!probe_is_done(&probe)) {
        while (probe_line(&probe, line) != 0) {
            machine_print(line);
        }
        if (atomic_load(&probe.has_lost)) {
            stop("latencies were lost: the console is too slow");
        }
        vTaskDelay(5);
    }
    machine_exit(0);
}

static void take_roots(void *context) {
    volatile uint64_t *sink = context;
    for (uint64_t value = 1;; value++) {
        uint64_t root = value;
        for (uint64_t next = (root + 1) / 2; next < root; next = (root + value / root) / 2) {
            root = next;
        }
        *sink = root;
    }
}

static void take_memory(void *context) {
    (void)context;
    for (uint8_t pattern = 0;; pattern++) {
        void *memory = pvPortMalloc(WORKER_OCTETS);
        if (memory != NULL) {
            memset(memory, pattern, WORKER_OCTETS);
            vPortFree(memory);
        }
    }
}

static void start_task(TaskFunction_t task, const char *name, unsigned words, void *context, unsigned priority) {
    if (xTaskCreate(task, name, (configSTACK_DEPTH_TYPE)words, context, priority, NULL) != pdPASS) {
        stop("no memory for a task");
    }
}

_Noreturn void guest_main(void) {
    static uint64_t roots[WORKERS_MAX];
    machine_init();
    __asm__ volatile("csrw mtvec, %0" ::"r"(freertos_risc_v_trap_handler));
    const char *settings = system_command_line();
    probe.period_ns = probe_setting(settings, "period_us", 10000) * 1000;
    probe.loops = probe_setting(settings, "loops", 0);
    uint64_t workers = probe_setting(settings, "workers", 0);
    if (probe.loops == 0 || probe.period_ns == 0 || probe.period_ns % TICK_NS != 0 || workers > WORKERS_MAX) {
        stop("expected period_us=N (whole ticks of 1000), loops=N, workers=N (at most 16)");
    }
    start_task(measure, "measure", STACK_WORDS, &probe, PRIORITY_PROBE);
    start_task(print, "print", STACK_WORDS, NULL, PRIORITY_PRINT);
    for (unsigned worker = 0; worker < workers; worker++) {
        start_task(take_roots, "roots", LOAD_WORDS, &roots[worker], PRIORITY_LOAD);
        start_task(take_memory, "memory", LOAD_WORDS, NULL, PRIORITY_LOAD);
    }
    vTaskStartScheduler();
    stop("the scheduler did not start");
}
