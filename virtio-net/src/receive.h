// SPDX-License-Identifier: BSD-2-Clause
// What runs for each received frame: taking, handing up, posting, and the bound of posted buffers. Inline, for net.c
// alone. Context of all functions: bottom half.
#ifndef VNET_RECEIVE_H
#define VNET_RECEIVE_H

#include "net.h"
#include "ring.h"

static inline void refill(struct vnet_device *device, struct vnet_pair *pair) {
    struct vnet_ring *ring = &pair->rx;
    struct vnet_buffer *buffer;
    while (ring->under_way_count < pair->rx_target && (buffer = device->pool) != NULL) {
        if (!vnet_ring_add(ring, buffer->bus + VNET_HEADROOM - ring->header, ring->room, buffer)) {
            break;
        }
        device->pool = buffer->next;
        buffer->owner = VNET_OWNER_POSTED;
    }
}

// Buffers posted now, and the most so far.
static inline void note_posted(struct vnet_device *device) {
    size_t posted = 0;
    for (unsigned index = 0; index < vnet_pairs(device); index++) {
        posted += vnet_pair(device, index)->rx.under_way_count;
    }
    if (posted > device->rx_peak) {
        device->rx_peak = posted;
    }
}

// Whether a ring has fewer buffers than it should.
static inline bool lacks_buffers(struct vnet_device *device) {
    for (unsigned index = 0; index < vnet_pairs(device); index++) {
        const struct vnet_pair *pair = vnet_pair(device, index);
        if (pair->rx.under_way_count < pair->rx_target) {
            return true;
        }
    }
    return false;
}

// Hands up one frame that the device has finished. Returns false if the device broke a rule.
static inline bool receive_one(struct vnet_device *device, struct vnet_ring *ring, struct vnet_batch *batch) {
    size_t octets;
    struct vnet_buffer *buffer = vnet_ring_take(ring, &octets, ring->header);
    if (buffer == NULL) {
        return false;
    }
    batch->taken++;
    octets -= ring->header;
    buffer->owner = VNET_OWNER_CALLER;
    if (HAS(MERGEABLE) && device->is_mergeable) {
        unsigned count = vnet_load16(__builtin_assume_aligned(vnet_frame(buffer) - 2, 2));
        if (count != 1) {
            return vnet_receive_segments(device, ring, buffer, octets, count, batch);
        }
    }
    if (octets < VNET_FRAME_MIN) {
        batch->shorts++;
        vnet_free(device, buffer);
        return true;
    }
    buffer->length = octets;
    if (HAS(CHECKSUM) && !vnet_read_checksum(device, ring, buffer, octets)) {
        batch->bad_checksums++;
        vnet_free(device, buffer);
        return true;
    }
    device->config.receive(device->config.context, buffer);
    return true;
}

// Hands frames of one ring up. The lock is not held: only the bottom half takes from this ring. It looks at the
// device's index once more after several frames, because more may have come; after a single frame the look at the run's
// end is soon enough.
static inline void receive(struct vnet_device *device, struct vnet_ring *ring, unsigned budget,
                           struct vnet_batch *batch) {
    if (ring->fault) {
        return;
    }
    while (vnet_ring_look(ring)) {
        do {
            if (!receive_one(device, ring, batch) || batch->taken == budget || device->state != VNET_RUNNING) {
                return;
            }
        } while (ring->used_next != ring->used_seen);
        if (batch->taken == 1) { // a lone frame
            return;
        }
    }
}

// The bound of posted buffers follows the load: doubled when the device ran out, halved after a span in which half was
// enough.
static void adapt(struct vnet_pair *pair, size_t taken, bool is_starved) {
    size_t target = pair->rx_target;
    if (is_starved) {
        target = target < pair->rx_most / 2 ? target * 2 : pair->rx_most;
    }
    if (taken > pair->rx_taken_max) {
        pair->rx_taken_max = taken;
    }
    if (++pair->adapt_polls == VNET_ADAPT_POLLS) {
        if (pair->rx_taken_max <= target / 2) {
            target = target / 2 > pair->rx_least ? target / 2 : pair->rx_least;
        }
        pair->adapt_polls = 0;
        pair->rx_taken_max = 0;
    }
    pair->rx_target = target;
}

static inline void judge_rx(struct vnet_device *device, struct vnet_pair *pair, const struct vnet_batch *batch,
                            bool is_spent) {
    // What the device had finished when it was last looked at, and is not taken yet.
    size_t finished = pair->rx.used_seen - pair->rx.used_next;
    size_t frame = HAS(MERGEABLE) ? pair->rx_frame : 1;
    bool is_starved = pair->rx.under_way_count - finished < frame && batch->taken > 0;
    if (is_starved) {
        device->counters.rx_starved++;
    }
    if (pair->rx_least != pair->rx_most) {
        // A whole budget: more may have waited.
        size_t buffers = HAS(MERGEABLE) ? batch->taken + batch->more : batch->taken;
        adapt(pair, is_spent ? pair->rx_target : buffers, is_starved);
    }
}

#endif
