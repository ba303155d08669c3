// SPDX-License-Identifier: BSD-2-Clause
// The rings of VIRTIO 1.1 between the driver and a device that may lie: split (clause 2.6), and packed (clause 2.7) if
// VNET_OPTION_PACKED is compiled in and negotiated.
//
// What the device can write is read once, into a local variable, checked, and only then used. What the driver has to
// know later (buffers, lengths, which of them are under way) it keeps in memory of its own and never reads back from
// the ring. A rule that the device breaks sets `fault`: from then on the ring gives nothing out until vnet_ring_reset.
// What runs for each frame is in src/ring.h.
//
// Context of all functions: task and bottom half, for each ring one at a time. Lengths are in octets.
#ifndef VNET_RING_H
#define VNET_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The largest ring that the driver asks for.
#define VNET_RING_SIZE_MAX 1024u
// The largest ring of a PCI legacy device, which names the size itself (clause 2.6: 32,768). It takes vnet_ring_octets
// of that size and 4,096 octets of memory, however many descriptors are in use: 12 KiB for 256, 112 KiB for 4,096, 840
// KiB for 32,768.
#define VNET_RING_SIZE_FIXED_MAX 32768u

// Which rule the device broke.
enum vnet_fault {
    VNET_FAULT_NONE,
    VNET_FAULT_INDEX,      // the used index (packed ring: the used flags) went further than what is under way
    VNET_FAULT_ID,         // a used element names a descriptor that is not under way: foreign, or for the second time
    VNET_FAULT_LENGTH,     // a used length is below the header's or above the buffer's
    VNET_FAULT_RESET,      // the device asks for a reset, or has reset itself
    VNET_FAULT_INTERRUPTS, // interrupts without end, and nothing to do
    VNET_FAULT_SEGMENTS,   // a frame in no buffer, or in more buffers than the device has finished
    VNET_FAULTS,           // how many there are
};

struct vnet_descriptor {
    uint64_t address;
    uint32_t length;
    uint16_t flags;
    uint16_t next;
};

struct vnet_available {
    uint16_t flags;
    uint16_t index;
    uint16_t ring[];
};

struct vnet_used_element {
    uint32_t id;
    uint32_t length;
};

struct vnet_used {
    uint16_t flags;
    uint16_t index;
    struct vnet_used_element ring[];
};

struct vnet_packed_descriptor {
    uint64_t address;
    uint32_t length;
    uint16_t id;
    uint16_t flags;
};

// Packed ring: at which descriptor one side wants to hear of the other.
struct vnet_packed_event {
    uint16_t at; // the position; the upper bit is the lap's
    uint16_t flags;
};

// One buffer under way, or a free place. Memory of the driver alone. A slot has the number of its first descriptor.
// All numbers have the width of a register: that saves conversions.
struct vnet_slot {
    void *cookie; // NULL: free, or no first descriptor, so an element that names this slot is a lie
    size_t next_free;
};

struct vnet_ring {
    // Shared with the device.
    volatile struct vnet_descriptor *descriptors;
    volatile struct vnet_available *available;
    volatile struct vnet_used *used;
    // With an event index: the element at which the device is to interrupt, and the entry at which it wants to be
    // notified.
    volatile uint16_t *used_event, *available_event;
    volatile struct vnet_packed_descriptor *packed;
    volatile struct vnet_packed_event *driver_event, *device_event;
    // The driver's own.
    struct vnet_slot *slots;
    size_t mask;        // number of descriptors, a power of two, less 1
    size_t slots_count; // numbers of slots are below this
    size_t free_first;  // slots_count: none is free
    size_t under_way_count;
    // Indices count on without end; the device sees their lower 16 bits.
    size_t available_next;       // the next entry to fill
    size_t available_published;  // what the device can see
    size_t used_next;            // the next element to take
    size_t used_seen;            // elements before this one were there when the device's index was last read
    size_t header;               // octets of the header in front of a frame
    size_t room;                 // octets of each buffer that the device writes
    unsigned pair;               // 1: header and frame have a descriptor each, 0: one descriptor for both
    unsigned fault;              // enum vnet_fault
    unsigned has_event_index;    // 1: VIRTIO_F_EVENT_IDX is negotiated
    unsigned is_packed;          // 1: VIRTIO_F_RING_PACKED is negotiated
    uint16_t flags, first_flags; // packed: of all descriptors; of the first one that the device cannot see yet
};

// Octets of a ring's shared memory (a packed ring fits into it too), and where a split ring's used part begins.
// `alignment` of the used part: 4,096 on legacy devices, else 4.
size_t vnet_ring_octets(uint16_t size, size_t alignment);
size_t vnet_ring_used_offset(uint16_t size, size_t alignment);

// Octets of the driver's own memory for `slots` buffers under way.
size_t vnet_ring_own_octets(uint16_t slots, bool pair);

// How a ring is made.
struct vnet_ring_shape {
    uint16_t size;    // descriptors; a power of two
    uint16_t slots;   // buffers under way at most: ≤ size, or size / 2 if `pair`
    uint16_t header;  // octets of the header in front of a frame
    size_t alignment; // of the used part
    bool pair;        // header and frame need a descriptor each
    size_t room;      // octets of each buffer that the device may write, header included; 0: it only reads
    bool event_index; // VIRTIO_F_EVENT_IDX is negotiated
    bool packed;      // VIRTIO_F_RING_PACKED is negotiated; not with `pair`
};

// Makes an empty ring with interrupts off. `shared` has vnet_ring_octets octets (aligned to `alignment`, at least 16),
// `own` has vnet_ring_own_octets.
void vnet_ring_reset(struct vnet_ring *ring, void *shared, void *own, const struct vnet_ring_shape *shape);

// Takes back a buffer that is under way, after the device was reset. Returns NULL when none is left.
void *vnet_ring_take_back(struct vnet_ring *ring);

static inline bool vnet_ring_is_full(const struct vnet_ring *ring) {
    return ring->free_first == ring->slots_count;
}

#endif
