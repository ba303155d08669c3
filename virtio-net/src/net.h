// SPDX-License-Identifier: BSD-2-Clause
// What start.c and net.c share. All functions are called with the driver's lock held.
#ifndef VNET_INTERNAL_H
#define VNET_INTERNAL_H

#include "options.h"
#include "vnet.h"

// Features (VIRTIO 1.1, clauses 5.1.3 and 6).
#define FEATURE_CHECKSUM (UINT64_C(1) << 0)
#define FEATURE_GUEST_CHECKSUM (UINT64_C(1) << 1)
#define FEATURE_MTU (UINT64_C(1) << 3)
#define FEATURE_MAC (UINT64_C(1) << 5)
#define FEATURE_MERGEABLE (UINT64_C(1) << 15)
#define FEATURE_STATUS (UINT64_C(1) << 16)
#define FEATURE_CONTROL (UINT64_C(1) << 17)
#define FEATURE_QUEUES (UINT64_C(1) << 22)
#define FEATURE_ANY_LAYOUT (UINT64_C(1) << 27)
#define FEATURE_EVENT_INDEX (UINT64_C(1) << 29)
#define FEATURE_VERSION_1 (UINT64_C(1) << 32)
#define FEATURE_ACCESS_PLATFORM (UINT64_C(1) << 33)
#define FEATURE_PACKED (UINT64_C(1) << 34)
#define FEATURE_ORDER_PLATFORM (UINT64_C(1) << 36)

enum { QUEUE_RX, QUEUE_TX };

// Queue pairs in use.
static inline unsigned vnet_pairs(const struct vnet_device *device) {
    return HAS(QUEUES) ? device->pairs : 1;
}

// Queue pairs that there is memory for.
static inline unsigned vnet_pairs_made(const struct vnet_device *device) {
    return HAS(QUEUES) && device->more != NULL ? device->config.tx_classes : 1;
}

static inline struct vnet_pair *vnet_pair(struct vnet_device *device, unsigned index) {
    return HAS(QUEUES) && index != 0 ? &device->more[index - 1] : &device->pair;
}

// A device that was never made has no lock, and is stopped: each call then ends with an error.
static inline void vnet_lock(struct vnet_device *device) {
    if (device->lock != NULL) {
        device->lock(device->platform->context);
    }
}

static inline void vnet_unlock(struct vnet_device *device) {
    if (device->unlock != NULL) {
        device->unlock(device->platform->context);
    }
}

// What a run of the bottom half received.
struct vnet_batch {
    size_t taken, shorts;              // frames, and those of them that were too short
    size_t longs, bad_checksums, more; // too long; nonsense; buffers beyond each frame's first
};

// Takes the further `count` - 1 buffers of a frame and hands it up. Returns false if the device broke a rule. `octets`:
// of the frame in the first buffer.
bool vnet_receive_segments(struct vnet_device *device, struct vnet_ring *ring, struct vnet_buffer *first, size_t octets,
                           unsigned count, struct vnet_batch *batch);

// Reads what the device says about a received frame's checksum. Returns false if that is outside its `octets` octets.
bool vnet_read_checksum(const struct vnet_device *device, const struct vnet_ring *ring, struct vnet_buffer *buffer,
                        size_t octets);
// Leaves a partial checksum to the device, or computes it.
void vnet_write_checksum(const struct vnet_device *device, const struct vnet_ring *ring, struct vnet_buffer *buffer);
bool vnet_is_checksum_inside(const struct vnet_buffer *buffer, size_t octets);

// Resets and negotiates; the device then runs. Buffers that the device had are taken back first.
int vnet_bring_up(struct vnet_device *device);

// Resets the device after an error or for good, and takes all buffers back. False: it did not finish, and still owns
// them.
bool vnet_take_down(struct vnet_device *device);

// Reads the link's state from the device's configuration. Returns whether it changed.
bool vnet_read_link(struct vnet_device *device);

// Posts receive buffers up to the targets, as far as the pool has some, and tells the device.
void vnet_refill(struct vnet_device *device);

// Gives back the frames that wait in interface queues: they are lost.
void vnet_drop_queued(struct vnet_device *device);

// Gives a buffer back to its owner: the pool, or (later, without the lock) the caller's `sent`.
void vnet_return(struct vnet_device *device, struct vnet_buffer *buffer, bool is_sent);

// How many descriptors a ring gets, at most `wanted`, or 0 if the device's wish cannot be met.
uint16_t vnet_choose_size(const struct vnet_device *device, uint32_t size_max, uint16_t wanted);

// How a ring is made as negotiated, and where its parts are. `room` as in struct vnet_ring_shape.
struct vnet_ring_shape vnet_shape(const struct vnet_device *device, uint16_t size, uint16_t slots, size_t room);
struct vnet_queue vnet_place(const struct vnet_ring_shape *shape, uint64_t bus);

// Prepares the control queue, with number `queue`.
int vnet_set_up_control(struct vnet_device *device, unsigned queue);

// Asks the running device to use `pairs` queue pairs. VNET_ERROR_DEVICE: it refuses. VNET_ERROR_TIMEOUT: no answer.
int vnet_set_pairs(struct vnet_device *device, unsigned pairs);

// The device broke a rule: the next run of the bottom half resets it. Counts only the first fault.
void vnet_break_down(struct vnet_device *device, unsigned fault);

void vnet_report(struct vnet_device *device, enum vnet_event event, unsigned value);
void vnet_push(struct vnet_list *list, struct vnet_buffer *buffer);
struct vnet_buffer *vnet_pop(struct vnet_list *list);

// Makes the bottom half run. Context: any.
void vnet_wake(struct vnet_device *device);

// Calls `sent` for the buffers that are on their way back to the caller, and `link`. The lock is not held.
void vnet_deliver(struct vnet_device *device);

#endif
