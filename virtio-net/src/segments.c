// SPDX-License-Identifier: BSD-2-Clause
// Mergeable receive buffers (VIRTIO 1.1, clause 5.1.6.4): a frame in several buffers. The device says in how many; that
// is read once, and counts only as far as the device has finished so many.
#include "net.h"
#include "ring.h"

#if (VNET_OPTIONS) & VNET_OPTION_MERGEABLE

// Gives the buffers of a frame that cannot be handed up back to the pool.
static void free_all(struct vnet_device *device, const struct vnet_segment *segments, unsigned count) {
    for (unsigned index = 0; index < count; index++) {
        vnet_free(device, segments[index].buffer);
    }
}

bool vnet_receive_segments(struct vnet_device *device, struct vnet_ring *ring, struct vnet_buffer *first, size_t octets,
                           unsigned count, struct vnet_batch *batch) {
    struct vnet_segment segments[VNET_SEGMENTS_MAX];
    if (count == 0 || !vnet_ring_has(ring, count - 1)) {
        vnet_free(device, first);
        ring->fault = ring->fault ? ring->fault : VNET_FAULT_SEGMENTS;
        return false;
    }
    // A frame in too many buffers is no lie: the sender decides how long it is. It is dropped.
    bool fits = count <= VNET_SEGMENTS_MAX;
    segments[0] = (struct vnet_segment){first, vnet_frame(first), octets};
    first->length = octets;
    size_t total = octets;
    for (unsigned index = 1; index < count; index++) {
        struct vnet_buffer *buffer = vnet_ring_take(ring, &octets, 1);
        if (buffer == NULL) {
            free_all(device, segments, fits ? index : 1);
            return false;
        }
        batch->more++;
        buffer->owner = VNET_OWNER_CALLER;
        buffer->length = 0;
        total += octets;
        if (fits) {
            // Only the first buffer has a header.
            segments[index] = (struct vnet_segment){buffer, vnet_frame(buffer) - ring->header, octets};
        } else {
            vnet_free(device, buffer);
        }
    }
    if (!fits) {
        batch->longs++;
    } else if (total < VNET_FRAME_MIN) {
        batch->shorts++;
    } else if (HAS(CHECKSUM) && !vnet_read_checksum(device, ring, first, total)) {
        batch->bad_checksums++;
    } else {
        device->config.receive_segments(device->config.context, segments, count);
        return true;
    }
    free_all(device, segments, fits ? count : 1);
    return true;
}

#endif
