// SPDX-License-Identifier: BSD-2-Clause
// What the driver needs of its surroundings: seven functions. A port fills the table once; the driver calls nothing
// else but memcpy and memset. The driver never blocks in interrupt context and allocates only inside the first
// vnet_start.
#ifndef VNET_PLATFORM_H
#define VNET_PLATFORM_H

#include <stddef.h>
#include <stdint.h>

// bus_address returns this for memory that the device cannot reach.
#define VNET_NO_ADDRESS UINT64_MAX

// Why the driver reports something through `log`. The meaning of the value stands beside each.
enum vnet_event {
    VNET_EVENT_FAULT,   // the device broke a rule; value: enum vnet_fault
    VNET_EVENT_RESTART, // the device was reset and runs again; value: restarts so far
    VNET_EVENT_FAILED,  // the driver gave the device up; value: -(enum vnet_status)
};

struct vnet_platform {
    void *context; // the first argument of every function

    // Context: task. Returns memory that the device can read and write, set to zero, contiguous on the bus, or NULL
    // when the platform refuses. `octets` > 0; `alignment` is a power of two up to 4,096 octets. The memory is never
    // given back. It must be coherent: the driver flushes no cache. Rings and frames have an alignment of 16 octets or
    // more. The driver's own records have less, and bus_address is not asked about them: a port may put them where the
    // device cannot write.
    void *(*memory)(void *context, size_t octets, size_t alignment);

    // Context: task and bottom half. Returns the bus address of `octets` octets at `start`, or VNET_NO_ADDRESS.
    uint64_t (*bus_address)(void *context, const void *start, size_t octets);

    // Context: task and bottom half, never interrupt. A mutex between the tasks that send and the bottom half. It is
    // held for a bounded number of steps; during a restart for up to VNET_RESET_POLLS calls of `pause`. NULL for both:
    // one task does everything.
    void (*lock)(void *context);
    void (*unlock)(void *context);

    // Context: interrupt, task and bottom half. Makes the bottom half call vnet_poll. A wake-up that comes while the
    // bottom half runs must not be lost: use a semaphore, an event or a flag that is kept.
    void (*wake)(void *context);

    // Context: task and bottom half. Waits for about 100 microseconds: between two looks at a device that has to finish
    // a reset.
    void (*pause)(void *context);

    // Context: task and bottom half. May be NULL. Must not call the driver.
    void (*log)(void *context, enum vnet_event event, unsigned value);
};

#endif
