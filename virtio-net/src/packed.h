// SPDX-License-Identifier: BSD-2-Clause
// The packed ring (VIRTIO 1.1, clause 2.7), for ring.h alone: driver and device write the same descriptors in turn, and
// two bits of each say whose turn it is. A buffer has one descriptor here, because only modern devices have this ring.
//
// The counters of struct vnet_ring count on without end: position = counter & mask, and the lap's bit is the next one.
// What a descriptor says is read once: its flags when the driver looks how many buffers are finished, its id and length
// when a buffer is taken.
#ifndef VNET_PACKED_H
#define VNET_PACKED_H

#include "shared.h"
#include "vnet_ring.h"

#define PACKED_AVAILABLE 0x80u
#define PACKED_USED 0x8000u
enum { EVENT_ON, EVENT_OFF, EVENT_AT };

// 1 in the first lap, 0 in the second, and so on.
static inline bool vnet_packed_wrap(const struct vnet_ring *ring, size_t counter) {
    return (counter & (ring->mask + 1)) == 0;
}

static inline void vnet_packed_add(struct vnet_ring *ring, size_t index, uint64_t bus, size_t octets) {
    size_t next = ring->available_next;
    ring->available_next = next + 1;
    volatile struct vnet_packed_descriptor *descriptor = &ring->packed[next & ring->mask];
    descriptor->address = bus;
    descriptor->length = (uint32_t)octets;
    descriptor->id = (uint16_t)index;
    uint16_t flags = (uint16_t)(ring->flags | (vnet_packed_wrap(ring, next) ? PACKED_AVAILABLE : PACKED_USED));
    if (next == ring->available_published) {
        // The first of a batch hides the others until it is shown.
        ring->first_flags = flags;
    } else {
        vnet_store16(&descriptor->flags, flags);
    }
}

static inline bool vnet_packed_publish(struct vnet_ring *ring) {
    size_t before = ring->available_published, now = ring->available_next;
    if (before == now) {
        return false;
    }
    ring->available_published = now;
    vnet_fence_release();
    vnet_store16(&ring->packed[before & ring->mask].flags, ring->first_flags);
    // The device shows that it wants a notification, then looks at the descriptor; the driver does the reverse.
    vnet_fence_full();
    uint16_t wish = vnet_load16(&ring->device_event->flags);
    if (wish != EVENT_AT || !ring->has_event_index) {
        return wish != EVENT_OFF;
    }
    vnet_fence_acquire();
    uint16_t at = vnet_load16(&ring->device_event->at);
    // The named descriptor as a counter: in the lap of `now`, or in the one before.
    size_t size = ring->mask + 1, event = (now & ~ring->mask) + (at & 0x7fffu);
    if ((at >> 15 != 0) != vnet_packed_wrap(ring, now)) {
        event -= size;
    }
    return now - event - 1 < now - before;
}

static inline bool vnet_packed_is_used(const struct vnet_ring *ring, size_t counter) {
    unsigned flags = vnet_load16(&ring->packed[counter & ring->mask].flags) & (PACKED_AVAILABLE | PACKED_USED);
    return flags == (vnet_packed_wrap(ring, counter) ? PACKED_AVAILABLE | PACKED_USED : 0);
}

// Looks how many buffers are finished: no more than are under way. Returns whether there is one.
static inline bool vnet_packed_read_index(struct vnet_ring *ring) {
    size_t seen = ring->used_seen, end = ring->used_next + ring->under_way_count;
    while (vnet_packed_is_used(ring, seen)) {
        if (seen == end) {
            ring->fault = VNET_FAULT_INDEX;
            return false;
        }
        seen++;
    }
    bool is_new = seen != ring->used_seen;
    ring->used_seen = seen;
    vnet_fence_acquire();
    return is_new;
}

static inline void vnet_packed_want_interrupts(struct vnet_ring *ring, bool on) {
    uint16_t wish = EVENT_OFF;
    if (on && ring->has_event_index) {
        size_t next = ring->used_next;
        vnet_store16(&ring->driver_event->at,
                     (uint16_t)((next & ring->mask) | (vnet_packed_wrap(ring, next) ? 0x8000u : 0)));
        vnet_fence_release();
        wish = EVENT_AT;
    } else if (on) {
        wish = EVENT_ON;
    }
    vnet_store16(&ring->driver_event->flags, wish);
}

#endif
