// SPDX-License-Identifier: BSD-2-Clause
// A virtio network device (VIRTIO 1.1, clause 5.1) for real-time guests.
//
//   interrupt:    vnet_interrupt acknowledges, and wakes the bottom half once for all that happens until it runs
//   bottom half:  one task of high priority: while (wait for wake) while (vnet_poll(device, budget)) yield
//   tasks:        vnet_send
//
// The device is not trusted. When the device breaks a rule, the bottom half resets it and negotiates again, and counts
// that. Lengths are in octets. No function blocks, spins or asserts; each does a bounded number of steps.
#ifndef VNET_H
#define VNET_H

#include <stdatomic.h>

#include "vnet_options.h"
#include "vnet_platform.h"
#include "vnet_ring.h"
#include "vnet_transport.h"

// A frame begins here in its buffer; the device's header lies right before it. 18 + 14 octets of Ethernet header: IP is
// aligned.
#define VNET_HEADROOM 18u
#define VNET_FRAME_MIN 14u
#define VNET_FRAME_MAX 1518u // with a VLAN tag, without FCS
#define VNET_BUFFER_OCTETS (VNET_HEADROOM + VNET_FRAME_MAX)
#define VNET_MTU_MAX (VNET_FRAME_MAX - 18u) // octets behind the Ethernet header and a VLAN tag
// Mergeable buffers: the shortest segment, and the most segments of a frame.
#define VNET_SEGMENT_MIN 128u
#define VNET_SEGMENTS_MAX 16u
// A reset that is not finished after so many looks, with a pause after each, has failed.
#define VNET_RESET_POLLS 1000u
// A command on the control queue that is not answered after so many looks, with a pause after each, has failed.
#define VNET_CONTROL_POLLS 1000u
// Restarts without a single good frame between them, after which the device is given up.
#define VNET_RESTARTS_MAX 8u
// Wake-ups without anything to do, one after the other, that count as VNET_FAULT_INTERRUPTS.
#define VNET_IDLE_WAKES_MAX 4096u
// The adaptive bound of posted buffers is judged once in so many runs of the bottom half.
#define VNET_ADAPT_POLLS 1024u

// Results: 0 and above are good.
enum vnet_status {
    VNET_OK = 0,
    VNET_QUEUED = 1,          // the ring was full: the frame waits in the interface queue
    VNET_ERROR_ARGUMENT = -1, // a configuration that cannot be, or an option that is not compiled in
    VNET_ERROR_MEMORY = -2,   // the platform refused memory or a bus address; its `memory` was asked for what is needed
    VNET_ERROR_DEVICE = -3,   // no virtio network device, or of an unknown version
    VNET_ERROR_FEATURES = -4, // the device insists on, or lacks, a feature
    VNET_ERROR_QUEUE = -5,    // a ring is missing, has a size that cannot be, or is larger than at the first start
    VNET_ERROR_TIMEOUT = -6,  // the device did not finish a reset
    VNET_ERROR_CONFIG = -7,   // no usable MAC address
    VNET_ERROR_LENGTH = -8,   // a frame below VNET_FRAME_MIN, above its buffer, or above the device's MTU
    VNET_ERROR_FULL = -9,     // ring and interface queue are full
    VNET_ERROR_LINK = -10,    // the link is down
    VNET_ERROR_DOWN = -11,    // the driver is not running
    VNET_ERROR_OWNER = -12,   // the buffer is not the caller's
};

enum vnet_owner {
    VNET_OWNER_CALLER, // where a buffer of the caller's own begins
    VNET_OWNER_POOL,
    VNET_OWNER_POSTED,
    VNET_OWNER_QUEUED,
    VNET_OWNER_SENDING,
};

// The checksum of layer 4 (VNET_OPTION_CHECKSUM).
enum vnet_checksum {
    VNET_CHECKSUM_NONE,    // stands in the frame, and was not checked
    VNET_CHECKSUM_VALID,   // received: the device has checked it
    VNET_CHECKSUM_PARTIAL, // its field has the sum of the pseudo header: the rest has to be added
};

struct vnet_buffer {
    struct vnet_buffer *next; // the owner's
    uint8_t *start;           // divisible by 8: VNET_HEADROOM octets, then the frame
    uint64_t bus;             // bus address of `start`
    size_t capacity;          // the longest frame
    size_t length;            // the frame
    uint8_t owner;            // enum vnet_owner
    bool is_pooled;           // one of the driver's own buffers
    bool is_sent;             // for `sent`: the device took the frame
    uint8_t checksum;         // enum vnet_checksum: set for each received frame, and by the program before vnet_send
    uint16_t checksum_start;  // VNET_CHECKSUM_PARTIAL: octets of the frame before the summed ones
    uint16_t checksum_offset; // and from there to the field
};

// A part of a received frame that has several buffers.
struct vnet_segment {
    struct vnet_buffer *buffer;
    uint8_t *data;
    size_t octets;
};

static inline uint8_t *vnet_frame(const struct vnet_buffer *buffer) {
    return buffer->start + VNET_HEADROOM;
}

struct vnet_config {
    uint16_t ring_size;     // descriptors of each ring; a power of two; PCI legacy devices choose it themselves
                            // (VNET_RING_SIZE_FIXED_MAX says what memory that takes)
    uint16_t rx_posted_min; // receive buffers posted at first; independent of the ring's size
    uint16_t rx_posted_max; // and at most. Above the minimum, the number follows the load
    uint16_t buffers;       // the driver's own buffers, at least rx_posted_max; VNET_BUFFER_OCTETS each
    uint16_t tx_slots;      // frames under way to the device at most
    uint16_t tx_queue_max;  // frames in the interface queue at most
    uint16_t tx_watermark;  // the device interrupts for transmitted frames only while so few slots are free
    uint8_t mac[6];         // for a device that has none; all 0: then vnet_start fails
    void *context;          // the first argument of the functions below
    // Context of all three: bottom half or (`sent`) a task inside vnet_send; the driver's lock is not held. They may
    // call vnet_send and vnet_free.
    // A frame arrived. The buffer is the caller's now: vnet_free or vnet_send it.
    void (*receive)(void *context, struct vnet_buffer *buffer);
    // A buffer of the caller's own comes back. May be NULL.
    void (*sent)(void *context, struct vnet_buffer *buffer);
    // The link went up or down, or was read for the first time. May be NULL.
    void (*link)(void *context, bool is_up);
    uint32_t options; // VNET_OPTION_… bits that are used if the device offers them; each must be compiled in
    // VNET_OPTION_MERGEABLE: octets of a frame in each of the driver's own buffers, VNET_SEGMENT_MIN to VNET_FRAME_MAX.
    // 0: VNET_FRAME_MAX. Below that vnet_start needs a device that offers mergeable buffers.
    uint16_t segment_octets;
    // VNET_OPTION_MERGEABLE: a frame arrived in `count` segments, 2 to VNET_SEGMENTS_MAX, in order. The array is valid
    // during the call. The buffers are the caller's now: vnet_free each, or use it to send. Context: bottom half.
    void (*receive_segments)(void *context, const struct vnet_segment *segments, unsigned count);
    uint16_t tx_classes; // VNET_OPTION_QUEUES: traffic classes, up to VNET_PAIRS_MAX; 0 means 1. Each queue pair has
                         // tx_slots, a tx_queue_max, and receive buffers from rx_posted_min to rx_posted_max
};

struct vnet_counters {
    uint64_t rx_frames, tx_frames;
    uint32_t interrupts, wakes;  // interrupts of this device; how many of them woke the bottom half
    uint32_t interrupts_foreign; // calls of vnet_interrupt without an interrupt of this device
    uint32_t rx_starved;         // runs of the bottom half that found no buffer posted any more
    uint32_t rx_short;           // frames below VNET_FRAME_MIN, dropped
    uint32_t tx_queued;          // frames that waited in the interface queue
    uint32_t tx_full;            // frames refused: VNET_ERROR_FULL
    uint32_t tx_lost;            // frames that a restart took back from the device or the interface queue
    uint32_t restarts;
    uint32_t faults[VNET_FAULTS];
    uint16_t rx_target, rx_posted, rx_posted_peak; // buffers: wanted now, posted now, posted at most
    uint16_t pairs;                                // queue pairs in use
    uint32_t rx_long;                              // frames in more than VNET_SEGMENTS_MAX buffers, dropped
    uint32_t rx_bad_checksums;                     // frames whose checksum field would lie outside, dropped
};

enum vnet_state { VNET_STOPPED, VNET_RUNNING, VNET_BROKEN, VNET_FAILED };

struct vnet_list {
    struct vnet_buffer *first, *last;
    size_t count;
};

// A receive ring and a transmit ring. All fields are the driver's own.
struct vnet_pair {
    struct vnet_ring rx, tx;
    unsigned number;
    void *ring_shared[2], *ring_own[2];
    size_t ring_octets[2];
    struct vnet_list queue; // the interface queue
    bool tx_interrupts;
    size_t tx_busy;           // with so many frames under way their interrupts are on
    size_t rx_least, rx_most; // bounds of rx_target with this ring
    size_t rx_frame;          // buffers that the longest frame needs
    size_t rx_target, rx_taken_max, adapt_polls;
};

// The control queue, which carries one command after each start.
struct vnet_control {
    struct vnet_ring view;
    void *ring;
    struct vnet_command *command;
    size_t octets;
    uint64_t bus;
    unsigned queue;
};

// All fields are the driver's own.
struct vnet_device {
    const struct vnet_platform *platform;
    void (*lock)(void *context); // the platform's, at hand
    void (*unlock)(void *context);
    struct vnet_transport *transport;
    struct vnet_config config;
    struct vnet_pair pair;
    struct vnet_pair *more; // VNET_OPTION_QUEUES: the further pairs, NULL until they are made
    unsigned pairs, turn;   // pairs in use; the one that the next run of the bottom half begins with
    struct vnet_control control;
    struct vnet_buffer *buffers;
    struct vnet_buffer *pool; // free buffers
    struct vnet_list done;    // buffers of callers, on their way back
    struct vnet_counters counters;
    uint64_t features;
    uint8_t mac[6];
    uint16_t mtu;      // octets of a frame behind the Ethernet header and a VLAN tag, at most; known after a start
    size_t header;     // octets of the device's header
    size_t tx_longest; // octets of an untagged frame that may be sent; 0: the link is down
    size_t room;       // octets of a frame in each of the driver's own buffers
    unsigned state;    // enum vnet_state
    bool is_link_up, is_polling, is_link_new, is_mergeable;
    size_t rx_peak; // buffers posted at most
    uint32_t restarts_in_vain, idle_wakes;
    atomic_uint pending;                            // bits: the bottom half is to run, the configuration is new
    uint32_t interrupts, wakes, interrupts_foreign; // written in interrupt context only
};

// Context: task, before interrupts of the device are on. Checks the configuration and copies it. Touches no device.
// `platform` and `transport` must live as long as the device.
int vnet_init(struct vnet_device *device, const struct vnet_platform *platform, struct vnet_transport *transport,
              const struct vnet_config *config);

// Context: task while the bottom half does not run, or the bottom half. Resets the device, negotiates, posts buffers.
// The first call takes memory from the platform. After an error the device is stopped or failed and may be started
// again.
int vnet_start(struct vnet_device *device);

// Context as vnet_start. Resets the device and takes all buffers back. VNET_ERROR_TIMEOUT: the device still owns them.
int vnet_stop(struct vnet_device *device);

// Context: interrupt. Returns whether the interrupt was this device's.
bool vnet_interrupt(struct vnet_device *device);

// Context: bottom half. Takes up to `budget` frames and hands them to `receive`, then posts buffers and takes back what
// was sent. Returns true if there is more to do: call again, after others had their turn. false: wait for `wake`.
bool vnet_poll(struct vnet_device *device, unsigned budget);

// Context: task and bottom half. Sends buffer->length octets at vnet_frame(buffer). VNET_OK and VNET_QUEUED: the buffer
// is the driver's until `sent` (a pooled one goes back to the pool). Else the buffer stays the caller's.
int vnet_send(struct vnet_device *device, struct vnet_buffer *buffer);

// Context: task and bottom half. As vnet_send, in traffic class `class` < vnet_config.tx_classes; vnet_send is class 0.
// With fewer queue pairs than classes, neighbouring classes share a pair. Frames of one class stay in order.
int vnet_send_class(struct vnet_device *device, struct vnet_buffer *buffer, unsigned class);

// Context: task and bottom half. Takes a pooled buffer to send with, or NULL: then all are in use.
struct vnet_buffer *vnet_take(struct vnet_device *device);

// Context: task and bottom half. Gives a pooled buffer back. VNET_ERROR_OWNER if the caller does not have it.
int vnet_free(struct vnet_device *device, struct vnet_buffer *buffer);

// Context: any. Completes a partial checksum (VNET_CHECKSUM_PARTIAL of the first buffer) of a received frame in
// software: for a program that checks checksums itself or passes the frame on by another device. Needs
// VNET_OPTION_CHECKSUM.
void vnet_finish_checksum(const struct vnet_segment *segments, unsigned count);

// Context: task and bottom half. Returns the VNET_OPTION_… bits that are in use since the last start or restart.
uint32_t vnet_options(struct vnet_device *device);

// Context: task and bottom half. A copy of the counters. Those of single events wrap at 2^32.
void vnet_read_counters(struct vnet_device *device, struct vnet_counters *counters);

#endif
