// SPDX-License-Identifier: BSD-2-Clause
// What runs for each frame on a ring; packed.h has the packed ring's part. Inline, because a frame costs few
// instructions and a call would cost as many again. See vnet_ring.h for what is trusted, and for the context of all
// functions.
#ifndef VNET_RING_INTERNAL_H
#define VNET_RING_INTERNAL_H

#include "options.h"
#include "packed.h"
#include "shared.h"
#include "vnet_ring.h"

#define DESCRIPTOR_NEXT 1u
#define DESCRIPTOR_WRITE 2u
#define AVAILABLE_NO_INTERRUPT 1u
#define USED_NO_NOTIFY 1u

static inline bool has_event_index(const struct vnet_ring *ring) {
    return HAS(EVENT_INDEX) && ring->has_event_index;
}

static inline bool is_packed(const struct vnet_ring *ring) {
    return HAS(PACKED) && ring->is_packed;
}

// Puts `octets` octets at bus address `bus` into the ring, the header's first; the device sees them after
// vnet_ring_publish. Returns false if no slot is free. `cookie` is not NULL.
static inline bool vnet_ring_add(struct vnet_ring *ring, uint64_t bus, size_t octets, void *cookie) {
    size_t index = ring->free_first;
    if (index == ring->slots_count) {
        return false;
    }
    struct vnet_slot *slot = &ring->slots[index];
    ring->free_first = slot->next_free;
    slot->cookie = cookie;
    ring->under_way_count++;
    if (is_packed(ring)) {
        vnet_packed_add(ring, index, bus, octets);
        return true;
    }
    volatile struct vnet_descriptor *descriptor = &ring->descriptors[index];
    descriptor->address = bus;
    if (ring->pair) {
        descriptor++;
        descriptor->address = bus + ring->header;
        octets -= ring->header;
    }
    descriptor->length = (uint32_t)octets;
    size_t next = ring->available_next;
    ring->available_next = next + 1;
    ring->available->ring[next & ring->mask] = (uint16_t)index;
    return true;
}

// Shows the device what was added. Returns whether the device wants to be notified of it.
static inline bool vnet_ring_publish(struct vnet_ring *ring) {
    if (is_packed(ring)) {
        return vnet_packed_publish(ring);
    }
    if (ring->available_published == ring->available_next) {
        return false;
    }
    uint16_t before = (uint16_t)ring->available_published;
    ring->available_published = ring->available_next;
    vnet_fence_release();
    vnet_store16(&ring->available->index, (uint16_t)ring->available_next);
    // The device shows that it wants a notification, then looks at the index; the driver does the reverse.
    vnet_fence_full();
    if (has_event_index(ring)) {
        // Whether the entry that the device has named is among the new ones.
        uint16_t now = (uint16_t)ring->available_next, event = vnet_load16(ring->available_event);
        return (uint16_t)(now - event - 1) < (uint16_t)(now - before);
    }
    return !(vnet_load16(&ring->used->flags) & USED_NO_NOTIFY);
}

// Frees a slot: its buffer is the device's no more.
static inline void vnet_ring_release(struct vnet_ring *ring, struct vnet_slot *slot, size_t index) {
    slot->cookie = NULL;
    slot->next_free = ring->free_first;
    ring->free_first = index;
    ring->under_way_count--;
}

// Reads the device's index, after all that was seen before is taken. Returns whether there is an element to take.
static inline bool vnet_ring_read_index(struct vnet_ring *ring) {
    if (is_packed(ring)) {
        return vnet_packed_read_index(ring);
    }
    size_t jump = (uint16_t)(vnet_load16(&ring->used->index) - ring->used_next);
    if (jump == 0) {
        return false;
    }
    if (jump > ring->under_way_count) {
        ring->fault = VNET_FAULT_INDEX;
        return false;
    }
    vnet_fence_acquire();
    ring->used_seen = ring->used_next + jump;
    return true;
}

// Returns whether there is an element to take; reads the device's index only if none is left of what was seen before.
static inline bool vnet_ring_look(struct vnet_ring *ring) {
    return ring->used_next != ring->used_seen || vnet_ring_read_index(ring);
}

// Returns whether `count` elements are there to take. The device finishes all buffers of a frame before the driver can
// see one of them, so one more look is enough.
static inline bool vnet_ring_has(struct vnet_ring *ring, size_t count) {
    if (ring->used_seen - ring->used_next < count) {
        vnet_ring_read_index(ring);
    }
    return ring->used_seen - ring->used_next >= count;
}

// Takes the next of the buffers that vnet_ring_look has seen. Returns its cookie, or NULL if the device broke a rule,
// which `ring->fault` names. `octets`: how many octets the device says it wrote, `least` or more, checked; NULL: the
// device only reads.
static inline void *vnet_ring_take(struct vnet_ring *ring, size_t *octets, size_t least) {
    volatile struct vnet_used_element *element = &ring->used->ring[ring->used_next & ring->mask];
    volatile struct vnet_packed_descriptor *descriptor = &ring->packed[ring->used_next & ring->mask];
    // Through a signed number, which costs nothing on a 64-bit machine: what is above 2^31 becomes larger still, and
    // fails the check.
    size_t index = is_packed(ring) ? vnet_load16(&descriptor->id) : (size_t)(int32_t)vnet_load32(&element->id);
    if (index >= ring->slots_count || ring->slots[index].cookie == NULL) {
        ring->fault = VNET_FAULT_ID;
        return NULL;
    }
    if (octets != NULL) {
        size_t length = (size_t)(int32_t)vnet_load32(is_packed(ring) ? &descriptor->length : &element->length);
        if (length < least || length > ring->room) {
            ring->fault = VNET_FAULT_LENGTH;
            return NULL;
        }
        *octets = length;
    }
    struct vnet_slot *slot = &ring->slots[index];
    void *cookie = slot->cookie;
    ring->used_next++;
    vnet_ring_release(ring, slot, index);
    return cookie;
}

// Asks the device for interrupts, or for none. It is a hint: a device may interrupt all the same. With an event index
// the device interrupts once, for the next element that it finishes: the driver asks again when it wants more. Then
// `off` has nothing to do, because the device has passed the element.
static inline void vnet_ring_want_interrupts(struct vnet_ring *ring, bool on) {
    if (is_packed(ring)) {
        vnet_packed_want_interrupts(ring, on);
        return;
    }
    if (has_event_index(ring)) {
        if (on) {
            vnet_store16(ring->used_event, (uint16_t)ring->used_next);
        }
        return;
    }
    vnet_store16(&ring->available->flags, (uint16_t)(on ? 0 : AVAILABLE_NO_INTERRUPT));
}

// After interrupts were asked for: orders that before the look, and returns whether the device has finished a buffer
// meanwhile.
static inline bool vnet_ring_is_pending_after_enable(struct vnet_ring *ring) {
    vnet_fence_full();
    if (is_packed(ring)) {
        return vnet_packed_is_used(ring, ring->used_next);
    }
    return vnet_load16(&ring->used->index) != (uint16_t)ring->used_next;
}

#endif
