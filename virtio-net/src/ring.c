// SPDX-License-Identifier: BSD-2-Clause
// The split ring. See vnet_ring.h for what is trusted.
#include "vnet_ring.h"

#include "memory.h"
#include "shared.h"

#define DESCRIPTOR_NEXT 1u
#define DESCRIPTOR_WRITE 2u
#define AVAILABLE_NO_INTERRUPT 1u
#define USED_NO_NOTIFY 1u

static size_t align_up(size_t octets, size_t alignment) {
    return (octets + alignment - 1) & ~(alignment - 1);
}

size_t vnet_ring_used_offset(uint16_t size, size_t alignment) {
    // One entry more than the ring has: the place of the event index, which legacy devices may touch.
    return align_up((size_t)size * sizeof(struct vnet_descriptor) + sizeof(struct vnet_available) + ((size_t)size + 1) * 2, alignment);
}

size_t vnet_ring_octets(uint16_t size, size_t alignment) {
    return vnet_ring_used_offset(size, alignment) +
           align_up(sizeof(struct vnet_used) + (size_t)size * sizeof(struct vnet_used_element) + 2, alignment);
}

static size_t bitmap_octets(uint16_t slots) {
    return align_up(((size_t)slots + 31) / 32 * 4, sizeof(void *));
}

size_t vnet_ring_own_octets(uint16_t slots) {
    return bitmap_octets(slots) + (size_t)slots * sizeof(struct vnet_slot);
}

void vnet_ring_reset(struct vnet_ring *ring, void *shared, void *own, uint16_t size, size_t alignment, uint16_t slots, bool pair,
                     uint16_t header) {
    memset(shared, 0, vnet_ring_octets(size, alignment));
    memset(own, 0, vnet_ring_own_octets(slots));
    memset(ring, 0, sizeof(*ring));
    uint8_t *start = shared;
    ring->descriptors = (volatile struct vnet_descriptor *)(void *)start;
    ring->available = (volatile struct vnet_available *)(void *)(start + (size_t)size * sizeof(struct vnet_descriptor));
    ring->used = (volatile struct vnet_used *)(void *)(start + vnet_ring_used_offset(size, alignment));
    ring->under_way = own;
    ring->slots = (struct vnet_slot *)(void *)((uint8_t *)own + bitmap_octets(slots));
    ring->size = size;
    ring->slots_count = slots;
    ring->pair = pair;
    ring->header = header;
    for (uint16_t slot = 0; slot < slots; slot++) {
        ring->slots[slot].next_free = (uint16_t)(slot + 1);
    }
    vnet_ring_want_interrupts(ring, false);
}

bool vnet_ring_add(struct vnet_ring *ring, uint64_t bus, uint16_t header, uint32_t octets, bool may_write, void *cookie) {
    uint16_t index = ring->free_first;
    if (index == ring->slots_count) {
        return false;
    }
    struct vnet_slot *slot = &ring->slots[index];
    ring->free_first = slot->next_free;
    slot->cookie = cookie;
    slot->room = may_write ? octets : 0;
    ring->under_way[index / 32] |= 1u << (index % 32);
    ring->under_way_count++;

    // All fields are written each time: the device may have changed them.
    uint16_t flags = may_write ? DESCRIPTOR_WRITE : 0;
    uint16_t head = (uint16_t)(index << ring->pair);
    volatile struct vnet_descriptor *descriptor = &ring->descriptors[head];
    descriptor->address = bus;
    if (ring->pair) {
        descriptor->length = header;
        descriptor->flags = flags | DESCRIPTOR_NEXT;
        descriptor->next = (uint16_t)(head + 1);
        descriptor++;
        descriptor->address = bus + header;
        octets -= header;
    }
    descriptor->length = octets;
    descriptor->flags = flags;
    descriptor->next = 0;
    ring->available->ring[ring->available_next & (ring->size - 1)] = head;
    ring->available_next++;
    return true;
}

bool vnet_ring_publish(struct vnet_ring *ring) {
    if (ring->available_published == ring->available_next) {
        return false;
    }
    ring->available_published = ring->available_next;
    vnet_fence_release();
    vnet_store16(&ring->available->index, ring->available_next);
    // The device shows that it wants a notification, then looks at the index; the driver does the reverse.
    vnet_fence_full();
    return !(vnet_load16(&ring->used->flags) & USED_NO_NOTIFY);
}

static bool fail(struct vnet_ring *ring, enum vnet_fault fault) {
    ring->fault = (uint8_t)fault;
    return false;
}

// Reads the device's index, if all seen before is taken. Returns whether there is an element to take.
static bool look(struct vnet_ring *ring) {
    if (ring->used_next != ring->used_seen) {
        return true;
    }
    uint16_t index = vnet_load16(&ring->used->index);
    uint16_t jump = (uint16_t)(index - ring->used_next);
    if (jump == 0) {
        return false;
    }
    if (jump > ring->under_way_count) {
        return fail(ring, VNET_FAULT_INDEX);
    }
    vnet_fence_acquire();
    ring->used_seen = index;
    return true;
}

static void release(struct vnet_ring *ring, uint16_t index) {
    ring->under_way[index / 32] &= ~(1u << (index % 32));
    ring->under_way_count--;
    ring->slots[index].next_free = ring->free_first;
    ring->free_first = index;
}

bool vnet_ring_take(struct vnet_ring *ring, void **cookie, uint32_t *octets) {
    if (ring->fault || !look(ring)) {
        return false;
    }
    volatile struct vnet_used_element *element = &ring->used->ring[ring->used_next & (ring->size - 1)];
    uint32_t id = vnet_load32(&element->id);
    uint32_t length = vnet_load32(&element->length);
    uint32_t index = id >> ring->pair;
    if (index >= ring->slots_count || index << ring->pair != id || !(ring->under_way[index / 32] >> (index % 32) & 1)) {
        return fail(ring, VNET_FAULT_ID);
    }
    const struct vnet_slot *slot = &ring->slots[index];
    if (slot->room != 0 && (length < ring->header || length > slot->room)) {
        return fail(ring, VNET_FAULT_LENGTH);
    }
    ring->used_next++;
    *cookie = slot->cookie;
    *octets = length;
    release(ring, (uint16_t)index);
    return true;
}

void *vnet_ring_take_back(struct vnet_ring *ring) {
    for (uint16_t index = 0; ring->under_way_count != 0 && index < ring->slots_count; index++) {
        if (ring->under_way[index / 32] >> (index % 32) & 1) {
            release(ring, index);
            return ring->slots[index].cookie;
        }
    }
    return NULL;
}

void vnet_ring_want_interrupts(struct vnet_ring *ring, bool on) {
    vnet_store16(&ring->available->flags, (uint16_t)(on ? 0 : AVAILABLE_NO_INTERRUPT));
}

bool vnet_ring_is_pending_after_enable(struct vnet_ring *ring) {
    vnet_fence_full();
    return vnet_load16(&ring->used->index) != ring->used_next;
}
