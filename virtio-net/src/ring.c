// SPDX-License-Identifier: BSD-2-Clause
// The rings: layout, reset, and taking back. What runs for each frame is in ring.h.
#include "vnet_ring.h"

#include "memory.h"
#include "ring.h"

static size_t align_up(size_t octets, size_t alignment) {
    return (octets + alignment - 1) & ~(alignment - 1);
}

size_t vnet_ring_used_offset(uint16_t size, size_t alignment) {
    // One entry more than the ring has: the place of the event index, which legacy devices may touch.
    return align_up((size_t)size * sizeof(struct vnet_descriptor) + sizeof(struct vnet_available) +
                        ((size_t)size + 1) * 2,
                    alignment);
}

size_t vnet_ring_octets(uint16_t size, size_t alignment) {
    return vnet_ring_used_offset(size, alignment) +
           align_up(sizeof(struct vnet_used) + (size_t)size * sizeof(struct vnet_used_element) + 2, alignment);
}

size_t vnet_ring_own_octets(uint16_t slots, bool pair) {
    return ((size_t)slots << pair) * sizeof(struct vnet_slot);
}

void vnet_ring_reset(struct vnet_ring *ring, void *shared, void *own, const struct vnet_ring_shape *shape) {
    size_t size = shape->size;
    memset(shared, 0, vnet_ring_octets(shape->size, shape->alignment));
    memset(own, 0, vnet_ring_own_octets(shape->slots, shape->pair));
    memset(ring, 0, sizeof(*ring));
    ring->is_packed = shape->packed;
    uint8_t *start = shared;
    ring->packed = (volatile struct vnet_packed_descriptor *)(void *)start;
    ring->driver_event = (volatile struct vnet_packed_event *)(volatile void *)&ring->packed[size];
    ring->device_event = ring->driver_event + 1;
    ring->descriptors = (volatile struct vnet_descriptor *)(void *)start;
    ring->available = (volatile struct vnet_available *)(void *)(start + size * sizeof(struct vnet_descriptor));
    ring->used = (volatile struct vnet_used *)(void *)(start + vnet_ring_used_offset(shape->size, shape->alignment));
    ring->slots = own;
    ring->mask = size - 1;
    ring->slots_count = (size_t)shape->slots << shape->pair;
    ring->pair = shape->pair;
    ring->header = shape->header;
    ring->room = shape->room;
    ring->has_event_index = shape->event_index;
    ring->used_event = &ring->available->ring[size];
    ring->available_event = (volatile uint16_t *)(volatile void *)&ring->used->ring[size];
    // What is the same for all buffers is written once. A device that changes it deceives itself: the driver does not
    // read it.
    size_t step = shape->pair ? 2 : 1;
    uint16_t flags = shape->room != 0 ? DESCRIPTOR_WRITE : 0;
    ring->flags = flags;
    for (size_t slot = 0; slot < ring->slots_count; slot += step) {
        ring->slots[slot].next_free = slot + step;
        if (is_packed(ring)) {
            continue; // a descriptor of this ring belongs to no slot
        }
        volatile struct vnet_descriptor *descriptor = &ring->descriptors[slot];
        descriptor->flags = flags;
        if (ring->pair) {
            descriptor->length = shape->header;
            descriptor->flags = flags | DESCRIPTOR_NEXT;
            descriptor->next = (uint16_t)(slot + 1);
            descriptor[1].flags = flags;
        }
    }
    if (has_event_index(ring) && !is_packed(ring)) {
        vnet_store16(ring->used_event, UINT16_MAX); // the device has just passed it
    } else {
        vnet_ring_want_interrupts(ring, false);
    }
}

void *vnet_ring_take_back(struct vnet_ring *ring) {
    for (size_t index = 0; ring->under_way_count != 0 && index < ring->slots_count; index++) {
        void *cookie = ring->slots[index].cookie;
        if (cookie != NULL) {
            vnet_ring_release(ring, &ring->slots[index], index);
            return cookie;
        }
    }
    return NULL;
}
