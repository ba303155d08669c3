// SPDX-License-Identifier: BSD-2-Clause
// A stub: it only declares what this port uses of RTEMS 6's API, so that the port can be compiled where RTEMS is not
// installed. Nothing here is RTEMS' own text.
#ifndef STUB_RTEMS_H
#define STUB_RTEMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    RTEMS_SUCCESSFUL = 0,
    RTEMS_TOO_MANY = 5,
    RTEMS_TIMEOUT = 6,
    RTEMS_UNSATISFIED = 13,
} rtems_status_code;

typedef uint32_t rtems_id;
typedef uint32_t rtems_name;
typedef uint32_t rtems_option;
typedef uint32_t rtems_interval;
typedef uint32_t rtems_attribute;
typedef uint32_t rtems_mode;
typedef uint32_t rtems_event_set;
typedef uint32_t rtems_task_priority;
typedef uint32_t rtems_vector_number;
typedef uint32_t rtems_interrupt_level;
typedef uintptr_t rtems_task_argument;
typedef void rtems_task;
typedef rtems_task (*rtems_task_entry)(rtems_task_argument argument);
typedef void (*rtems_interrupt_handler)(void *argument);

#define RTEMS_DEFAULT_ATTRIBUTES 0
#define RTEMS_DEFAULT_MODES 0
#define RTEMS_WAIT 0
#define RTEMS_NO_WAIT 1
#define RTEMS_EVENT_ANY 2
#define RTEMS_NO_TIMEOUT ((rtems_interval)0)
#define RTEMS_YIELD_PROCESSOR ((rtems_interval)0)
#define RTEMS_EVENT_0 1u
#define RTEMS_INTERRUPT_SHARED ((rtems_option)0)

#define rtems_build_name(one, two, three, four)                                                                \
    ((rtems_name)(uint8_t)(one) << 24 | (rtems_name)(uint8_t)(two) << 16 | (rtems_name)(uint8_t)(three) << 8 | \
     (uint8_t)(four))

rtems_status_code rtems_task_create(rtems_name name, rtems_task_priority priority, size_t stack_octets,
                                    rtems_mode modes, rtems_attribute attributes, rtems_id *id);
rtems_status_code rtems_task_start(rtems_id id, rtems_task_entry entry, rtems_task_argument argument);
rtems_status_code rtems_task_delete(rtems_id id);
_Noreturn void rtems_task_exit(void);
rtems_status_code rtems_task_wake_after(rtems_interval ticks);

rtems_status_code rtems_event_send(rtems_id id, rtems_event_set events);
rtems_status_code rtems_event_receive(rtems_event_set events, rtems_option options, rtems_interval ticks,
                                      rtems_event_set *received);

rtems_status_code rtems_message_queue_create(rtems_name name, uint32_t count, size_t octets_max,
                                             rtems_attribute attributes, rtems_id *id);
rtems_status_code rtems_message_queue_delete(rtems_id id);
rtems_status_code rtems_message_queue_send(rtems_id id, const void *message, size_t octets);
rtems_status_code rtems_message_queue_receive(rtems_id id, void *message, size_t *octets, rtems_option options,
                                              rtems_interval ticks);

uint64_t rtems_clock_get_uptime_nanoseconds(void);
rtems_interval rtems_clock_get_ticks_per_second(void);

// RTEMS has macros here, which write the level.
rtems_interrupt_level stub_interrupt_disable(void);
void stub_interrupt_enable(rtems_interrupt_level level);
#define rtems_interrupt_local_disable(level) ((level) = stub_interrupt_disable())
#define rtems_interrupt_local_enable(level) stub_interrupt_enable(level)

#endif
