// SPDX-License-Identifier: BSD-2-Clause
// Checksum offload (VIRTIO 1.1, clauses 5.1.6.2 and 5.1.6.4), and the same in software where the device does not offer
// it.
#include "net.h"
#include "ring.h"

#if (VNET_OPTIONS) & VNET_OPTION_CHECKSUM

#define HEADER_NEEDS_CHECKSUM 1u
#define HEADER_DATA_VALID 2u
enum { HEADER_CHECKSUM_START = 6, HEADER_CHECKSUM_OFFSET = 8 };

void vnet_finish_checksum(const struct vnet_segment *segments, unsigned count) {
    struct vnet_buffer *first = segments[0].buffer;
    size_t at = 0, start = first->checksum_start, field = start + first->checksum_offset;
    uint32_t sum = 0;
    uint8_t *halves[2] = {NULL, NULL}; // of the field: it may lie in two segments
    for (unsigned index = 0; index < count; index++) {
        const struct vnet_segment *segment = &segments[index];
        for (size_t octet = 0; octet < segment->octets; octet++, at++) {
            if (at == field || at == field + 1) {
                halves[at - field] = &segment->data[octet];
            }
            if (at >= start) {
                sum += (uint32_t)segment->data[octet] << ((at - start) % 2 == 0 ? 8 : 0);
                sum = (sum & 0xffff) + (sum >> 16);
            }
        }
    }
    // 0 means "no checksum" for UDP; its other form has the same value.
    uint16_t result = sum == 0xffff ? 0xffff : (uint16_t)~sum;
    if (first->checksum == VNET_CHECKSUM_PARTIAL && halves[1] != NULL) {
        *halves[0] = (uint8_t)(result >> 8);
        *halves[1] = (uint8_t)result;
        first->checksum = VNET_CHECKSUM_NONE;
    }
}

bool vnet_is_checksum_inside(const struct vnet_buffer *buffer, size_t octets) {
    return (size_t)buffer->checksum_start + buffer->checksum_offset + 2 <= octets;
}

static volatile uint16_t *header_at(const struct vnet_ring *ring, const struct vnet_buffer *buffer, size_t offset) {
    return (volatile uint16_t *)__builtin_assume_aligned(vnet_frame(buffer) - ring->header + offset, 2);
}

bool vnet_read_checksum(const struct vnet_device *device, const struct vnet_ring *ring, struct vnet_buffer *buffer,
                        size_t octets) {
    buffer->checksum = VNET_CHECKSUM_NONE;
    if (!(device->features & FEATURE_GUEST_CHECKSUM)) {
        return true;
    }
    unsigned flags = vnet_load16(header_at(ring, buffer, 0));
    if (flags & HEADER_NEEDS_CHECKSUM) {
        buffer->checksum = VNET_CHECKSUM_PARTIAL;
        buffer->checksum_start = vnet_load16(header_at(ring, buffer, HEADER_CHECKSUM_START));
        buffer->checksum_offset = vnet_load16(header_at(ring, buffer, HEADER_CHECKSUM_OFFSET));
        return vnet_is_checksum_inside(buffer, octets);
    }
    if (flags & HEADER_DATA_VALID) {
        buffer->checksum = VNET_CHECKSUM_VALID;
    }
    return true;
}

void vnet_write_checksum(const struct vnet_device *device, const struct vnet_ring *ring, struct vnet_buffer *buffer) {
    if (device->features & FEATURE_CHECKSUM) {
        *header_at(ring, buffer, 0) = HEADER_NEEDS_CHECKSUM;
        *header_at(ring, buffer, HEADER_CHECKSUM_START) = buffer->checksum_start;
        *header_at(ring, buffer, HEADER_CHECKSUM_OFFSET) = buffer->checksum_offset;
    } else {
        vnet_finish_checksum(&(struct vnet_segment){buffer, vnet_frame(buffer), buffer->length}, 1);
    }
}

#endif
