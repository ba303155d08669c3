// SPDX-License-Identifier: BSD-2-Clause
// The control queue (VIRTIO 1.1, clause 5.1.6.5): one command after each start says how many queue pairs are used. Its
// ring is fresh then, so the command has the first descriptors. The answer is waited for a bounded number of looks.
#include "net.h"
#include "ring.h"

#if (VNET_OPTIONS) & VNET_OPTION_QUEUES

#define CLASS_QUEUES 4u
#define COMMAND_SET_PAIRS 0u
#define ACK_OK 0u
#define NO_ACK 0xffu
#define DESCRIPTORS 4u // of which the command needs three

// What the device reads, and what it answers.
struct vnet_command {
    uint8_t class, command;
    uint16_t pairs;
    uint8_t ack;
};

int vnet_set_up_control(struct vnet_device *device, unsigned queue) {
    const struct vnet_transport_ops *ops = device->transport->ops;
    const struct vnet_platform *platform = device->platform;
    struct vnet_control *control = &device->control;
    uint16_t size = vnet_choose_size(device, ops->queue_size_max(device->transport, queue), DESCRIPTORS);
    if (size < DESCRIPTORS) {
        return VNET_ERROR_QUEUE;
    }
    const struct vnet_ring_shape shape = vnet_shape(device, size, 1, 0);
    size_t octets = vnet_ring_octets(size, shape.alignment);
    if (control->ring == NULL) {
        control->octets = octets;
        control->ring = platform->memory(platform->context, octets, shape.alignment);
    }
    if (control->command == NULL) {
        control->command = platform->memory(platform->context, sizeof(*control->command), 16);
    }
    if (control->ring == NULL || control->command == NULL) {
        return VNET_ERROR_MEMORY;
    }
    if (octets > control->octets) {
        return VNET_ERROR_QUEUE;
    }
    uint64_t bus = platform->bus_address(platform->context, control->ring, octets);
    control->bus = platform->bus_address(platform->context, control->command, sizeof(*control->command));
    if (bus == VNET_NO_ADDRESS || control->bus == VNET_NO_ADDRESS) {
        return VNET_ERROR_MEMORY;
    }
    control->queue = queue;
    struct vnet_slot slots[2]; // for the ring's reset alone: the command is no buffer
    vnet_ring_reset(&control->view, control->ring, slots, &shape);
    control->view.slots = NULL;
    const struct vnet_queue where = vnet_place(&shape, bus);
    return ops->start_queue(device->transport, queue, &where) ? VNET_OK : VNET_ERROR_QUEUE;
}

// Header and pairs to be read, the answer to be written: a descriptor for each, as legacy devices may want.
static void write_parts(const struct vnet_control *control) {
    static const uint8_t OFFSETS[] = {0, 2, 4}, OCTETS[] = {2, 2, 1};
    const struct vnet_ring *ring = &control->view;
    for (unsigned part = 3; part-- > 0;) {
        uint16_t flags = part == 2 ? DESCRIPTOR_WRITE : DESCRIPTOR_NEXT;
        uint64_t bus = control->bus + OFFSETS[part];
        if (is_packed(ring)) {
            ring->packed[part].address = bus;
            ring->packed[part].length = OCTETS[part];
            ring->packed[part].id = 0;
            vnet_fence_release(); // the first part's flags show the others
            vnet_store16(&ring->packed[part].flags, flags | PACKED_AVAILABLE);
        } else {
            ring->descriptors[part].address = bus;
            ring->descriptors[part].length = OCTETS[part];
            ring->descriptors[part].flags = flags;
            ring->descriptors[part].next = (uint16_t)(part + 1);
        }
    }
    if (!is_packed(ring)) {
        ring->available->ring[0] = 0;
        vnet_fence_release();
        vnet_store16(&ring->available->index, 1);
    }
}

// Whether the device has finished the command. What else it writes into the ring does not matter.
static bool is_finished(const struct vnet_ring *ring) {
    return is_packed(ring) ? vnet_packed_is_used(ring, 0) : vnet_load16(&ring->used->index) != 0;
}

int vnet_set_pairs(struct vnet_device *device, unsigned pairs) {
    const struct vnet_control *control = &device->control;
    volatile struct vnet_command *command = control->command;
    command->class = CLASS_QUEUES;
    command->command = COMMAND_SET_PAIRS;
    command->pairs = (uint16_t)pairs;
    command->ack = NO_ACK;
    write_parts(control);
    vnet_fence_device();
    device->transport->ops->notify(device->transport, control->queue);
    for (unsigned poll = 0; poll < VNET_CONTROL_POLLS; poll++) {
        if (is_finished(&control->view)) {
            vnet_fence_acquire();
            return command->ack == ACK_OK ? VNET_OK : VNET_ERROR_DEVICE;
        }
        device->platform->pause(device->platform->context);
    }
    return VNET_ERROR_TIMEOUT;
}

#endif
