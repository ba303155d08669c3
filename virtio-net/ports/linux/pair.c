// SPDX-License-Identifier: BSD-2-Clause
// See pair.h.
#include "pair.h"

#include <string.h>
#include <sys/socket.h>

// The driver aligns what the device reaches to 16 octets or more, and its own records to less.
#define SHARED_ALIGNMENT_MIN 16u
// Room for rounding, and for what a ring of another layout needs more.
#define SLACK 65536u

struct area {
    uint8_t *start;
    size_t octets, used;
};

struct pair {
    struct vnet_device device;
    struct vnet_vhost vhost;
    struct vnet_platform platform;
    struct area shared, own;
    uint64_t bus;
    int kicks[2];
    bool is_live;
    // Where pair_receive wants its frames; NULL: they are dropped.
    uint8_t *to;
    size_t stride;
    uint16_t *lengths;
    unsigned received;
};

static size_t buffers(uint16_t posted, uint16_t tx_slots) {
    return (size_t)posted + tx_slots + PAIR_BATCH + 1;
}

size_t pair_octets(void) {
    return sizeof(struct pair);
}

size_t pair_shared_octets(uint16_t posted, uint16_t tx_slots) {
    size_t octets = 2 * vnet_ring_octets(PAIR_RING_SIZE, 4096) + buffers(posted, tx_slots) * VNET_BUFFER_OCTETS + SLACK;
    return (octets + 4095) & ~(size_t)4095;
}

size_t pair_own_octets(uint16_t posted, uint16_t tx_slots) {
    return 2 * vnet_ring_own_octets(PAIR_RING_SIZE, true) + buffers(posted, tx_slots) * sizeof(struct vnet_buffer) +
           SLACK;
}

static void *memory(void *context, size_t octets, size_t alignment) {
    struct pair *pair = context;
    struct area *area = alignment < SHARED_ALIGNMENT_MIN ? &pair->own : &pair->shared;
    size_t start = (area->used + alignment - 1) & ~(alignment - 1);
    if (start > area->octets || octets > area->octets - start) {
        return NULL;
    }
    area->used = start + octets;
    return area->start + start;
}

// Memory of `own` has no address: a record that the driver meant to share is found at once.
static uint64_t bus_address(void *context, const void *start, size_t octets) {
    const struct pair *pair = context;
    uintptr_t at = (uintptr_t)start, first = (uintptr_t)pair->shared.start;
    if (at < first || at - first > pair->shared.octets || octets > pair->shared.octets - (at - first)) {
        return VNET_NO_ADDRESS;
    }
    return pair->bus + (at - first);
}

// The pair is polled.
static void wake(void *context) {
    (void)context;
}

static void pause(void *context) {
    (void)context;
}

// The backend's end is a socket, read like an eventfd. A backend can make a write to a shared eventfd wait, because the
// flag against that belongs to both ends; this flag belongs to the call. A full socket has woken the backend already.
static void kick(void *context, unsigned queue) {
    static const uint64_t ONE = 1;
    const struct pair *pair = context;
    if (pair->is_live) {
        (void)send(pair->kicks[queue], &ONE, sizeof(ONE), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
}

static void receive(void *context, struct vnet_buffer *buffer) {
    struct pair *pair = context;
    if (pair->to != NULL) {
        memcpy(pair->to + pair->received * pair->stride, vnet_frame(buffer), buffer->length);
        pair->lengths[pair->received++] = (uint16_t)buffer->length;
    }
    vnet_free(&pair->device, buffer);
}

int pair_start(struct pair *pair, const struct pair_options *options) {
    memset(pair, 0, sizeof(*pair));
    pair->shared = (struct area){.start = options->shared, .octets = options->shared_octets};
    pair->own = (struct area){.start = options->own, .octets = options->own_octets};
    pair->bus = options->bus;
    memcpy(pair->kicks, options->kicks, sizeof(pair->kicks));
    pair->platform = (struct vnet_platform){
        .context = pair,
        .memory = memory,
        .bus_address = bus_address,
        .wake = wake,
        .pause = pause,
    };
    const struct vnet_config config = {
        .ring_size = PAIR_RING_SIZE,
        .rx_posted_min = options->posted,
        .rx_posted_max = options->posted,
        .buffers = (uint16_t)buffers(options->posted, options->tx_slots),
        .tx_slots = options->tx_slots,
        // A backend has no address; the driver wants one, and sends none of its own.
        .mac = {0x02, 0, 0, 0, 0, 1},
        .context = pair,
        .receive = receive,
    };
    vnet_vhost_open(&pair->vhost, options->offered, PAIR_RING_SIZE, pair, kick);
    int result = vnet_init(&pair->device, &pair->platform, &pair->vhost.transport, &config);
    if (result == VNET_OK) {
        result = vnet_start(&pair->device);
    }
    // What the driver trusts must not lie where the backend can write.
    const struct area *own = &pair->own;
    uintptr_t record = (uintptr_t)pair->device.buffers, first = (uintptr_t)own->start;
    if (result == VNET_OK && (record < first || record - first >= own->octets)) {
        result = VNET_ERROR_MEMORY;
    }
    return result;
}

uint64_t pair_features(const struct pair *pair) {
    return pair->vhost.accepted;
}

void pair_ring(const struct pair *pair, unsigned queue, struct pair_ring *ring) {
    const struct vnet_queue *from = &pair->vhost.queues[queue & 1];
    *ring = (struct pair_ring){from->descriptors, from->available, from->used, from->size};
}

void pair_go_live(struct pair *pair) {
    pair->is_live = true;
    kick(pair, 0);
    kick(pair, 1);
}

int pair_send(struct pair *pair, const uint8_t *frame, size_t octets) {
    if (octets < VNET_FRAME_MIN || octets > VNET_FRAME_MAX) {
        return VNET_ERROR_LENGTH;
    }
    struct vnet_buffer *buffer = vnet_take(&pair->device);
    if (buffer == NULL) {
        return VNET_ERROR_FULL;
    }
    memcpy(vnet_frame(buffer), frame, octets);
    buffer->length = octets;
    int result = vnet_send(&pair->device, buffer);
    if (result < 0) {
        vnet_free(&pair->device, buffer);
    }
    return result;
}

void pair_warm_up(struct pair *pair) {
    // A run of a broken device would reset it; here its connection ends instead.
    if (pair_is_broken(pair)) {
        return;
    }
    vnet_poll(&pair->device, 1);
    struct vnet_buffer *buffer = vnet_take(&pair->device);
    if (buffer != NULL) {
        __builtin_prefetch(vnet_frame(buffer), 1);
        vnet_free(&pair->device, buffer);
    }
}

unsigned pair_receive(struct pair *pair, uint8_t *to, size_t stride, uint16_t *lengths, unsigned most) {
    // A run of a broken device would reset it; here its connection ends instead.
    if (pair_is_broken(pair) || most == 0) {
        return 0;
    }
    pair->to = to;
    pair->stride = stride;
    pair->lengths = lengths;
    pair->received = 0;
    vnet_poll(&pair->device, most < PAIR_BATCH ? most : PAIR_BATCH);
    pair->to = NULL;
    return pair->received;
}

bool pair_is_broken(const struct pair *pair) {
    return pair->device.state != VNET_RUNNING;
}

unsigned pair_fault(struct pair *pair) {
    struct vnet_counters counters;
    vnet_read_counters(&pair->device, &counters);
    for (unsigned fault = 0; fault < VNET_FAULTS; fault++) {
        if (counters.faults[fault] != 0) {
            return fault;
        }
    }
    return VNET_FAULT_NONE;
}

uint64_t pair_stop(struct pair *pair) {
    struct vnet_counters counters;
    pair->is_live = false;
    if (!pair_is_broken(pair)) {
        vnet_poll(&pair->device, 1); // takes back what the backend has sent
    }
    vnet_stop(&pair->device);
    vnet_read_counters(&pair->device, &counters);
    return counters.tx_lost;
}
