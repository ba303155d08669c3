// SPDX-License-Identifier: BSD-2-Clause
// The split ring of VIRTIO 1.1, clause 2.6, between the driver and a device that may lie.
//
// What the device can write is read once, into a local variable, checked, and only then used. What the driver has to know later
// (buffers, lengths, what is under way) it keeps in memory of its own and never reads back from the ring. A rule that the device
// breaks sets `fault`: from then on the ring gives nothing out until vnet_ring_reset.
//
// Context of all functions: task and bottom half, for each ring one at a time. Lengths are in octets.
#ifndef VNET_RING_H
#define VNET_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The largest ring that the driver uses; a device with a larger one that cannot be made smaller is refused.
#define VNET_RING_SIZE_MAX 1024u

// Which rule the device broke.
enum vnet_fault {
    VNET_FAULT_NONE,
    VNET_FAULT_INDEX,      // the used index went further than what is under way
    VNET_FAULT_ID,         // a used element names a descriptor that is not under way: foreign, or for the second time
    VNET_FAULT_LENGTH,     // a used length is below the header's or above the buffer's
    VNET_FAULT_RESET,      // the device asks for a reset, or has reset itself
    VNET_FAULT_INTERRUPTS, // interrupts without end, and nothing to do
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

// One buffer under way, or a free place. Memory of the driver alone.
struct vnet_slot {
    void *cookie;
    uint32_t room; // octets that the device may write; 0: it may only read
    uint16_t next_free;
};

struct vnet_ring {
    // Shared with the device.
    volatile struct vnet_descriptor *descriptors;
    volatile struct vnet_available *available;
    volatile struct vnet_used *used;
    // The driver's own.
    struct vnet_slot *slots;
    uint32_t *under_way; // a bit for each slot
    uint16_t size;       // descriptors; a power of two
    uint16_t slots_count;
    uint16_t free_first; // slots_count: none is free
    uint16_t under_way_count;
    uint16_t available_next;      // index of the next entry to fill
    uint16_t available_published; // index that the device can see
    uint16_t used_next;           // index of the next element to take
    uint16_t used_seen;           // elements before this index were there when the index was last read
    uint16_t header;              // octets of the header in front of a frame that the device writes
    uint8_t pair;                 // 1: header and frame have a descriptor each, 0: one descriptor for both
    uint8_t fault;                // enum vnet_fault
};

// Octets of a ring's shared memory, and where its used part begins. `alignment` of the used part: 4,096 on legacy devices, else 4.
size_t vnet_ring_octets(uint16_t size, size_t alignment);
size_t vnet_ring_used_offset(uint16_t size, size_t alignment);

// Octets of the driver's own memory for `slots` buffers under way.
size_t vnet_ring_own_octets(uint16_t slots);

// Makes an empty ring with interrupts off. `shared` has vnet_ring_octets octets (aligned to `alignment`, at least 16), `own` has
// vnet_ring_own_octets. `size` is a power of two; `slots` ≤ size, or size / 2 if `pair`.
void vnet_ring_reset(struct vnet_ring *ring, void *shared, void *own, uint16_t size, size_t alignment, uint16_t slots, bool pair,
                     uint16_t header);

// Puts `octets` octets at bus address `bus`, the first `header` of them a header, into the ring; the device sees them after
// vnet_ring_publish. `may_write`: a buffer to receive into. Returns false if no slot is free.
bool vnet_ring_add(struct vnet_ring *ring, uint64_t bus, uint16_t header, uint32_t octets, bool may_write, void *cookie);

// Shows the device what was added. Returns whether the device wants to be notified of it.
bool vnet_ring_publish(struct vnet_ring *ring);

// Takes the next buffer that the device has finished: its cookie and how many octets the device says it wrote. Returns false if there
// is none or the device broke a rule; `ring->fault` then names the rule. `octets` is checked for buffers to receive into only.
bool vnet_ring_take(struct vnet_ring *ring, void **cookie, uint32_t *octets);

// Takes back a buffer that is under way, after the device was reset. Returns NULL when none is left.
void *vnet_ring_take_back(struct vnet_ring *ring);

// Asks the device for interrupts, or for none. It is a hint: a device may interrupt all the same.
void vnet_ring_want_interrupts(struct vnet_ring *ring, bool on);

// After interrupts were asked for: orders that before the look, and returns whether the device has finished a buffer meanwhile.
bool vnet_ring_is_pending_after_enable(struct vnet_ring *ring);

static inline bool vnet_ring_is_full(const struct vnet_ring *ring) {
    return ring->free_first == ring->slots_count;
}

#endif
