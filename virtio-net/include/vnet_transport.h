// SPDX-License-Identifier: BSD-2-Clause
// How the driver reaches a device's registers. One table for each transport of Virtual I/O Device (VIRTIO) 1.1, clause
// 4: MMIO 1 (legacy) and 2, PCI legacy and PCI modern. No function waits or loops for long; what a device answers is
// not trusted.
#ifndef VNET_TRANSPORT_H
#define VNET_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

// Bits of the device's status (clause 2.1).
#define VNET_STATUS_ACKNOWLEDGE 1u
#define VNET_STATUS_DRIVER 2u
#define VNET_STATUS_DRIVER_OK 4u
#define VNET_STATUS_FEATURES_OK 8u
#define VNET_STATUS_NEEDS_RESET 64u
#define VNET_STATUS_FAILED 128u

// Bits that `acknowledge` returns (clauses 4.1.4.5 and 4.2.2).
#define VNET_INTERRUPT_QUEUE 1u
#define VNET_INTERRUPT_CONFIG 2u

// Queue pairs at most. Queue 2 × n receives and queue 2 × n + 1 sends for pair n. The control queue comes after the
// pairs that the device has, however many these are.
#define VNET_PAIRS_MAX 8u
#define VNET_QUEUES_MAX (2 * VNET_PAIRS_MAX + 1)

struct vnet_transport;

// Where a ring lies: bus addresses, and the number of descriptors.
struct vnet_queue {
    uint64_t descriptors;
    uint64_t available; // packed ring: the driver's event suppression
    uint64_t used;      // packed ring: the device's event suppression
    uint16_t size;
};

struct vnet_transport_ops {
    const char *name;
    bool is_legacy;     // rings have the layout and the headers of legacy devices (clauses 2.6.2 and 5.1.6.1)
    bool is_size_fixed; // the ring has exactly the size that the device names (PCI legacy)

    // Context of all below: task and bottom half, one at a time, except `notify` and `acknowledge`.
    uint8_t (*status)(struct vnet_transport *transport);
    void (*set_status)(struct vnet_transport *transport,
                       uint8_t status); // 0 begins a reset, which ends when `status` reads 0
    uint64_t (*features)(struct vnet_transport *transport);
    void (*set_features)(struct vnet_transport *transport, uint64_t features);
    uint32_t (*queue_size_max)(struct vnet_transport *transport,
                               unsigned queue); // 0: no such queue, or it is in use already
    bool (*start_queue)(struct vnet_transport *transport, unsigned queue,
                        const struct vnet_queue *ring); // false: cannot be
    // Copies octets of the device's configuration; what lies beyond its end reads as 0. Two octets are one field of
    // 16 bits, and one access.
    void (*read_config)(struct vnet_transport *transport, unsigned offset, uint8_t *to, unsigned octets);
    uint32_t (*config_generation)(
        struct vnet_transport *transport); // changes with the configuration; constant on legacy devices

    void (*notify)(struct vnet_transport *transport, unsigned queue); // context: task and bottom half
    uint32_t (*acknowledge)(
        struct vnet_transport *transport); // context: interrupt; 0: the interrupt is another device's
};

// The first member of each transport's own structure.
struct vnet_transport {
    const struct vnet_transport_ops *ops;
};

#endif
