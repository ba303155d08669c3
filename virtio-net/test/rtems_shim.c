// SPDX-License-Identifier: BSD-2-Clause
// The calls of RTEMS that the port for RTEMS uses (ports/rtems/stub), made of FreeRTOS, for riscv64 `virt`: so the
// port's own code runs in a test without RTEMS. It shows that the port's logic works, not that the port fits RTEMS.
#include <FreeRTOS.h>
#include <queue.h>
#include <semphr.h>
#include <stdarg.h>
#include <stdlib.h>
#include <task.h>

#include <bsp/irq.h>
#include <rtems.h>
#include <rtems/bspIo.h>
#include <rtems/confdefs.h>
#include <rtems/irq-extension.h>
#include <rtems/malloc.h>
#include <rtems/thread.h>

#include "machine.h"

#define PLIC UINT64_C(0xc000000)
#define PLIC_ENABLE 0x2000
#define TASKS_MAX 16u
#define HANDLERS_MAX 4u
#define STACK_LEAST 4096u

static struct {
    TaskHandle_t handle;
    rtems_task_entry entry;
    rtems_task_argument argument;
    UBaseType_t priority;
    size_t stack_octets;
} tasks[TASKS_MAX];
static unsigned tasks_count;
static struct {
    rtems_interrupt_handler handler;
    void *argument;
} handlers[HANDLERS_MAX];
static volatile bool is_in_interrupt;
static BaseType_t is_switch_wanted;

void freertos_risc_v_trap_handler(void);

_Noreturn static void stop(const char *why) {
    machine_print(why);
    machine_exit(3);
}

void guest_interrupt(void) {
    is_in_interrupt = true;
    is_switch_wanted = pdFALSE;
    for (unsigned index = 0; index < HANDLERS_MAX; index++) {
        if (handlers[index].handler != NULL) {
            handlers[index].handler(handlers[index].argument);
        }
    }
    is_in_interrupt = false;
    portYIELD_FROM_ISR(is_switch_wanted);
}

rtems_status_code rtems_interrupt_handler_install(rtems_vector_number vector, const char *info, rtems_option options,
                                                  rtems_interrupt_handler handler, void *argument) {
    (void)info;
    (void)options;
    unsigned line = vector - RISCV_INTERRUPT_VECTOR_EXTERNAL(0);
    for (unsigned index = 0; index < HANDLERS_MAX; index++) {
        if (handlers[index].handler == NULL) {
            handlers[index].argument = argument;
            handlers[index].handler = handler;
            *(volatile uint32_t *)(PLIC + 4 * line) = 1;
            *(volatile uint32_t *)(PLIC + PLIC_ENABLE + line / 32 * 4) |= 1u << (line % 32);
            return RTEMS_SUCCESSFUL;
        }
    }
    return RTEMS_TOO_MANY;
}

rtems_status_code rtems_interrupt_handler_remove(rtems_vector_number vector, rtems_interrupt_handler handler,
                                                 void *argument) {
    (void)vector;
    for (unsigned index = 0; index < HANDLERS_MAX; index++) {
        if (handlers[index].handler == handler && handlers[index].argument == argument) {
            handlers[index].handler = NULL;
        }
    }
    return RTEMS_SUCCESSFUL;
}

rtems_status_code rtems_task_create(rtems_name name, rtems_task_priority priority, size_t stack_octets,
                                    rtems_mode modes, rtems_attribute attributes, rtems_id *id) {
    (void)name;
    (void)modes;
    (void)attributes;
    if (tasks_count == TASKS_MAX) {
        return RTEMS_TOO_MANY;
    }
    // RTEMS counts downwards; the order stays.
    tasks[tasks_count].priority = priority <= 2 ? 6 : priority <= 3 ? 5 : priority <= 10 ? 3 : 2;
    tasks[tasks_count].stack_octets = stack_octets < STACK_LEAST ? STACK_LEAST : stack_octets;
    *id = ++tasks_count;
    return RTEMS_SUCCESSFUL;
}

static void run(void *context) {
    rtems_id id = (rtems_id)(uintptr_t)context;
    tasks[id - 1].entry(tasks[id - 1].argument);
    stop("shim: a task returned\n");
}

rtems_status_code rtems_task_start(rtems_id id, rtems_task_entry entry, rtems_task_argument argument) {
    tasks[id - 1].entry = entry;
    tasks[id - 1].argument = argument;
    BaseType_t status = xTaskCreate(run, "rtems", tasks[id - 1].stack_octets / sizeof(StackType_t),
                                    (void *)(uintptr_t)id, tasks[id - 1].priority, &tasks[id - 1].handle);
    return status == pdPASS ? RTEMS_SUCCESSFUL : RTEMS_UNSATISFIED;
}

rtems_status_code rtems_task_delete(rtems_id id) {
    if (tasks[id - 1].handle != NULL) {
        vTaskDelete(tasks[id - 1].handle);
    }
    return RTEMS_SUCCESSFUL;
}

_Noreturn void rtems_task_exit(void) {
    vTaskDelete(NULL);
    stop("shim: a deleted task runs\n");
}

rtems_status_code rtems_task_wake_after(rtems_interval ticks) {
    if (ticks == 0) {
        taskYIELD();
    } else {
        vTaskDelay(ticks);
    }
    return RTEMS_SUCCESSFUL;
}

rtems_status_code rtems_event_send(rtems_id id, rtems_event_set events) {
    if (is_in_interrupt) {
        (void)xTaskNotifyFromISR(tasks[id - 1].handle, events, eSetBits, &is_switch_wanted);
    } else {
        (void)xTaskNotify(tasks[id - 1].handle, events, eSetBits);
    }
    return RTEMS_SUCCESSFUL;
}

static TickType_t ticks_of(rtems_option options, rtems_interval ticks) {
    return options & RTEMS_NO_WAIT ? 0 : ticks == RTEMS_NO_TIMEOUT ? portMAX_DELAY : ticks;
}

rtems_status_code rtems_event_receive(rtems_event_set events, rtems_option options, rtems_interval ticks,
                                      rtems_event_set *received) {
    uint32_t value;
    if (xTaskNotifyWait(0, events, &value, ticks_of(options, ticks)) != pdTRUE) {
        return RTEMS_TIMEOUT;
    }
    *received = value & events;
    return RTEMS_SUCCESSFUL;
}

// All addresses of this machine have 32 bits.
static QueueHandle_t queue_of(rtems_id id) {
    return (QueueHandle_t)(uintptr_t)id;
}

rtems_status_code rtems_message_queue_create(rtems_name name, uint32_t count, size_t octets_max,
                                             rtems_attribute attributes, rtems_id *id) {
    (void)name;
    (void)attributes;
    QueueHandle_t queue = xQueueCreate(count, octets_max);
    *id = (rtems_id)(uintptr_t)queue;
    return queue == NULL ? RTEMS_UNSATISFIED : RTEMS_SUCCESSFUL;
}

rtems_status_code rtems_message_queue_delete(rtems_id id) {
    vQueueDelete(queue_of(id));
    return RTEMS_SUCCESSFUL;
}

// Every message has the queue's size here.
rtems_status_code rtems_message_queue_send(rtems_id id, const void *message, size_t octets) {
    (void)octets;
    return xQueueSend(queue_of(id), message, 0) == pdTRUE ? RTEMS_SUCCESSFUL : RTEMS_TOO_MANY;
}

rtems_status_code rtems_message_queue_receive(rtems_id id, void *message, size_t *octets, rtems_option options,
                                              rtems_interval ticks) {
    if (xQueueReceive(queue_of(id), message, ticks_of(options, ticks)) != pdTRUE) {
        return options & RTEMS_NO_WAIT ? RTEMS_UNSATISFIED : RTEMS_TIMEOUT;
    }
    *octets = sizeof(void *);
    return RTEMS_SUCCESSFUL;
}

void rtems_mutex_init(rtems_mutex *mutex, const char *name) {
    (void)name;
    mutex->stub[0] = xSemaphoreCreateMutex();
}

void rtems_mutex_lock(rtems_mutex *mutex) {
    (void)xSemaphoreTake(mutex->stub[0], portMAX_DELAY);
}

void rtems_mutex_unlock(rtems_mutex *mutex) {
    (void)xSemaphoreGive(mutex->stub[0]);
}

void rtems_recursive_mutex_init(rtems_recursive_mutex *mutex, const char *name) {
    (void)name;
    mutex->stub[0] = xSemaphoreCreateRecursiveMutex();
}

void rtems_recursive_mutex_lock(rtems_recursive_mutex *mutex) {
    (void)xSemaphoreTakeRecursive(mutex->stub[0], portMAX_DELAY);
}

void rtems_recursive_mutex_unlock(rtems_recursive_mutex *mutex) {
    (void)xSemaphoreGiveRecursive(mutex->stub[0]);
}

void rtems_recursive_mutex_destroy(rtems_recursive_mutex *mutex) {
    vSemaphoreDelete(mutex->stub[0]);
}

void rtems_binary_semaphore_init(rtems_binary_semaphore *semaphore, const char *name) {
    (void)name;
    semaphore->stub[0] = xSemaphoreCreateBinary();
}

void rtems_binary_semaphore_wait(rtems_binary_semaphore *semaphore) {
    (void)xSemaphoreTake(semaphore->stub[0], portMAX_DELAY);
}

int rtems_binary_semaphore_wait_timed_ticks(rtems_binary_semaphore *semaphore, uint32_t ticks) {
    return xSemaphoreTake(semaphore->stub[0], ticks) == pdTRUE ? 0 : 1;
}

void rtems_binary_semaphore_post(rtems_binary_semaphore *semaphore) {
    (void)xSemaphoreGive(semaphore->stub[0]);
}

void rtems_binary_semaphore_destroy(rtems_binary_semaphore *semaphore) {
    vSemaphoreDelete(semaphore->stub[0]);
}

void *rtems_heap_allocate_aligned_with_boundary(size_t octets, uintptr_t alignment, uintptr_t boundary) {
    (void)boundary;
    uint8_t *start = pvPortMalloc(octets + alignment);
    return start == NULL ? NULL : (void *)(((uintptr_t)start + alignment - 1) & ~(alignment - 1));
}

uint64_t rtems_clock_get_uptime_nanoseconds(void) {
    return machine_nanoseconds();
}

rtems_interval rtems_clock_get_ticks_per_second(void) {
    return configTICK_RATE_HZ;
}

// The port prints by "%s" alone.
int printk(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vTaskSuspendAll();
    machine_print(va_arg(arguments, const char *));
    (void)xTaskResumeAll();
    va_end(arguments);
    return 0;
}

_Noreturn void exit(int status) {
    machine_exit((unsigned)status);
}

void vApplicationStackOverflowHook(TaskHandle_t task, char *name) {
    (void)task;
    (void)name;
    stop("shim: a task's stack is full\n");
}

void vApplicationIdleHook(void) {
    __asm__ volatile("wfi");
}

void freertos_risc_v_application_interrupt_handler(uint64_t cause) {
    void riscv64_trap(uint64_t, uint64_t);
    riscv64_trap(cause, 0);
}

void freertos_risc_v_application_exception_handler(uint64_t cause) {
    (void)cause;
    stop("shim: trap\n");
}

static void begin(void *context) {
    (void)context;
    Init(0);
}

_Noreturn void guest_main(void) {
    machine_init();
    __asm__ volatile("csrw mtvec, %0" ::"r"(freertos_risc_v_trap_handler));
    (void)xTaskCreate(begin, "init", 2048, NULL, 1, NULL);
    vTaskStartScheduler();
    stop("shim: the scheduler did not start\n");
}
