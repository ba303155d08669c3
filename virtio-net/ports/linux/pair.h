// SPDX-License-Identifier: BSD-2-Clause
// One receive and one transmit ring of a vhost-user device, driven by polling, in a process of Linux.
//
// Two areas of memory: `shared` is what the backend maps; `own` is the driver's alone. The driver's records (buffers,
// slots) lie in `own`, so a backend that writes anywhere it can reaches rings and frames, and no pointer.
//
// Context of all functions: one thread at a time for each pair. No function blocks. Lengths are in octets.
#ifndef PAIR_H
#define PAIR_H

#include "vnet.h"
#include "vnet_vhost.h"

// Frames that one call of pair_receive takes at most.
#define PAIR_BATCH 32u
#define PAIR_RING_SIZE 256u

// The layout is known to the Rust wrapper too.
struct pair_options {
    uint8_t *shared; // divisible by 4,096, set to zero
    uint8_t *own;    // divisible by 64, set to zero
    size_t shared_octets, own_octets;
    uint64_t bus; // how the backend calls `shared`
    uint64_t offered;
    int32_t kicks[2];          // sockets whose other end the backend has; of receive and transmit
    uint16_t posted, tx_slots; // receive buffers posted; frames under way at most
};

struct pair_ring {
    uint64_t descriptors, available, used; // as the backend calls them
    uint64_t size;
};

struct pair;

// Octets that a pair takes of each area, generously.
size_t pair_octets(void);
size_t pair_shared_octets(uint16_t posted, uint16_t tx_slots);
size_t pair_own_octets(uint16_t posted, uint16_t tx_slots);

// Makes the driver and its rings at `pair` (pair_octets octets, divisible by 64). Returns enum vnet_status.
int pair_start(struct pair *pair, const struct pair_options *options);

// What the driver has accepted of the backend's features; where a ring lies.
uint64_t pair_features(const struct pair *pair);
void pair_ring(const struct pair *pair, unsigned queue, struct pair_ring *ring);

// From now on the backend is notified. Both rings are notified once: it may have missed what was posted before.
void pair_go_live(struct pair *pair);

// Copies a frame into the transmit ring. Returns VNET_OK, VNET_ERROR_LENGTH, VNET_ERROR_FULL, or VNET_ERROR_DOWN: the
// backend broke a rule.
int pair_send(struct pair *pair, const uint8_t *frame, size_t octets);

// Takes back what the backend has sent, and brings what the next pair_send touches into this CPU's caches. Received
// frames are dropped. For a program that knows when it will send.
void pair_warm_up(struct pair *pair);

// Copies up to `most` (PAIR_BATCH at most) received frames to `to`, each at a multiple of `stride` ≥ VNET_FRAME_MAX,
// and their lengths to `lengths`. Returns how many.
unsigned pair_receive(struct pair *pair, uint8_t *to, size_t stride, uint16_t *lengths, unsigned most);

// Whether the backend broke a rule: the pair moves no frame any more. The rule, enum vnet_fault.
bool pair_is_broken(const struct pair *pair);
unsigned pair_fault(struct pair *pair);

// Ends the pair. Returns how many frames the backend has not taken.
uint64_t pair_stop(struct pair *pair);

#endif
