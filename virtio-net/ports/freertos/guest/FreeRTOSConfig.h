// SPDX-License-Identifier: BSD-2-Clause
// FreeRTOS for the guest: preemption, a tick of 1 ms, static tasks for the driver, a heap for all else.
#ifndef FREERTOS_CONFIG_H
#define FREERTOS_CONFIG_H

#ifndef __ASSEMBLER__
void guest_assert(const char *file, unsigned line);
#define configASSERT(is_true) ((is_true) ? (void)0 : guest_assert(__FILE__, __LINE__))
#endif

#define configUSE_PREEMPTION 1
#define configUSE_TIME_SLICING 1
#define configTICK_RATE_HZ 1000
#define configMAX_PRIORITIES 8
#define configMINIMAL_STACK_SIZE 512
#define configTICK_TYPE_WIDTH_IN_BITS TICK_TYPE_WIDTH_32_BITS
#define configUSE_IDLE_HOOK 1
#define configUSE_TICK_HOOK 0
#define configCHECK_FOR_STACK_OVERFLOW 2
#define configUSE_MALLOC_FAILED_HOOK 0
#define configSUPPORT_STATIC_ALLOCATION 1
#define configKERNEL_PROVIDED_STATIC_MEMORY 1
#define configSUPPORT_DYNAMIC_ALLOCATION 1
#define configTOTAL_HEAP_SIZE (1024 * 1024)
#define configUSE_MUTEXES 1
#define configUSE_RECURSIVE_MUTEXES 1
#define configUSE_COUNTING_SEMAPHORES 1
#define configUSE_TASK_NOTIFICATIONS 1
#define configUSE_TIMERS 0
#define configUSE_PORT_OPTIMISED_TASK_SELECTION 1
#define configENABLE_BACKWARD_COMPATIBILITY 1 // lwIP's sys_arch.c uses an old name

#define INCLUDE_vTaskDelay 1
#define INCLUDE_xTaskDelayUntil 1
#define INCLUDE_vTaskSuspend 1
#define INCLUDE_vTaskDelete 1
#define INCLUDE_xTaskGetCurrentTaskHandle 1

#ifdef __riscv
#define configMTIME_BASE_ADDRESS 0x200bff8
#define configMTIMECMP_BASE_ADDRESS 0x2004000
#define configCPU_CLOCK_HZ 10000000 // the timer's
#define configISR_STACK_SIZE_WORDS 512
#else
#define configCPU_CLOCK_HZ 1000000000 // QEMU's local APIC
#define configISR_STACK_SIZE 1024
#define configUSE_COMMON_INTERRUPT_ENTRY_POINT 0
#define configMAX_API_CALL_INTERRUPT_PRIORITY 15 // critical sections switch interrupts off
#define configSUPPORT_FPU 0
#endif

#endif
