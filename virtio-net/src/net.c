// SPDX-License-Identifier: BSD-2-Clause
// The way of a frame: interrupt, bottom half, sending. Negotiation is in start.c, the rings are in ring.c.
#include "net.h"
#include "receive.h"
#include "ring.h"

void vnet_report(struct vnet_device *device, enum vnet_event event, unsigned value) {
    if (device->platform->log != NULL) {
        device->platform->log(device->platform->context, event, value);
    }
}

void vnet_push(struct vnet_list *list, struct vnet_buffer *buffer) {
    buffer->next = NULL;
    if (list->first == NULL) {
        list->first = buffer;
    } else {
        list->last->next = buffer;
    }
    list->last = buffer;
    list->count++;
}

struct vnet_buffer *vnet_pop(struct vnet_list *list) {
    struct vnet_buffer *buffer = list->first;
    if (buffer != NULL) {
        list->first = buffer->next;
        list->count--;
    }
    return buffer;
}

#define PENDING_RUN 1u
#define PENDING_CONFIG 2u

void vnet_wake(struct vnet_device *device) {
    if (!(atomic_fetch_or(&device->pending, PENDING_RUN) & PENDING_RUN)) {
        device->platform->wake(device->platform->context);
    }
}

bool vnet_interrupt(struct vnet_device *device) {
    uint32_t pending = device->transport->ops->acknowledge(device->transport);
    if (pending == 0) {
        device->interrupts_foreign++;
        return false;
    }
    vnet_fence_after_register();
    device->interrupts++;
    unsigned news = pending & VNET_INTERRUPT_CONFIG ? PENDING_RUN | PENDING_CONFIG : PENDING_RUN;
    // Once for all interrupts until the bottom half begins.
    if (!(atomic_fetch_or(&device->pending, news) & PENDING_RUN)) {
        device->wakes++;
        device->platform->wake(device->platform->context);
    }
    return true;
}

void vnet_return(struct vnet_device *device, struct vnet_buffer *buffer, bool is_sent) {
    if (buffer->is_pooled) {
        buffer->owner = VNET_OWNER_POOL;
        buffer->next = device->pool;
        device->pool = buffer;
    } else {
        buffer->is_sent = is_sent;
        vnet_push(&device->done, buffer);
    }
}

// Shows the device what was added to a ring, and notifies it if it wants that.
static inline void kick(struct vnet_device *device, struct vnet_pair *pair, unsigned which) {
    unsigned queue = HAS(QUEUES) ? 2 * pair->number + which : which;
    if (vnet_ring_publish(which == QUEUE_RX ? &pair->rx : &pair->tx)) {
        vnet_fence_device();
        device->transport->ops->notify(device->transport, queue);
    }
}

void vnet_refill(struct vnet_device *device) {
    for (unsigned index = 0; index < vnet_pairs(device); index++) {
        refill(device, vnet_pair(device, index));
        kick(device, vnet_pair(device, index), QUEUE_RX);
    }
    note_posted(device);
}

void vnet_drop_queued(struct vnet_device *device) {
    struct vnet_buffer *buffer;
    for (unsigned index = 0; index < vnet_pairs_made(device); index++) {
        while ((buffer = vnet_pop(&vnet_pair(device, index)->queue)) != NULL) {
            device->counters.tx_lost++;
            vnet_return(device, buffer, false);
        }
    }
}

void vnet_break_down(struct vnet_device *device, unsigned fault) {
    if (device->state == VNET_RUNNING) {
        device->state = VNET_BROKEN;
        device->counters.faults[fault]++;
        vnet_report(device, VNET_EVENT_FAULT, fault);
    }
}

// Takes back what the device has sent. Returns whether there was any. One look: what comes later is taken later.
static inline bool reclaim(struct vnet_device *device, struct vnet_pair *pair) {
    struct vnet_ring *ring = &pair->tx;
    if (ring->fault || !vnet_ring_read_index(ring)) {
        if (ring->fault) {
            vnet_break_down(device, ring->fault);
        }
        return false;
    }
    do {
        struct vnet_buffer *buffer = vnet_ring_take(ring, NULL, 0);
        if (buffer == NULL) {
            vnet_break_down(device, ring->fault);
            return false;
        }
        vnet_return(device, buffer, true);
    } while (ring->used_next != ring->used_seen);
    device->restarts_in_vain = 0;
    return true;
}

static inline bool add(struct vnet_device *device, struct vnet_ring *ring, struct vnet_buffer *buffer) {
    if (!vnet_ring_add(ring, buffer->bus + VNET_HEADROOM - ring->header, ring->header + buffer->length, buffer)) {
        return false;
    }
    // No offload: all fields are 0, in the short and in the long form.
    // A builtin, because a freestanding compiler would call the function for 12 octets.
    __builtin_memset((uint8_t *)__builtin_assume_aligned(buffer->start, 8) + VNET_HEADROOM - 12, 0, 12);
    if (HAS(CHECKSUM) && buffer->checksum == VNET_CHECKSUM_PARTIAL) {
        vnet_write_checksum(device, ring, buffer);
    }
    buffer->owner = VNET_OWNER_SENDING;
    device->counters.tx_frames++;
    return true;
}

// Moves frames from the interface queue into the ring.
static inline void flush(struct vnet_device *device, struct vnet_pair *pair) {
    while (pair->queue.first != NULL && device->state == VNET_RUNNING && add(device, &pair->tx, pair->queue.first)) {
        // `next` is the list's: vnet_ring_add does not touch it.
        vnet_pop(&pair->queue);
    }
}

// Asks for interrupts of transmitted frames if something waits for them. Returns whether frames were finished in
// between.
static bool judge_tx_interrupts(struct vnet_device *device, struct vnet_pair *pair) {
    size_t under_way = pair->tx.under_way_count;
    bool is_rx_short = device->pool == NULL && lacks_buffers(device);
    bool wanted = under_way >= pair->tx_busy || ((pair->queue.count > 0 || is_rx_short) && under_way > 0);
    // With an event index each interrupt is asked for.
    if (wanted == pair->tx_interrupts && !(wanted && has_event_index(&pair->tx))) {
        return false;
    }
    pair->tx_interrupts = wanted;
    vnet_ring_want_interrupts(&pair->tx, wanted);
    return wanted && vnet_ring_is_pending_after_enable(&pair->tx);
}

static void look_at_config(struct vnet_device *device) {
    uint8_t status = device->transport->ops->status(device->transport);
    if ((status & VNET_STATUS_NEEDS_RESET) || !(status & VNET_STATUS_DRIVER_OK)) {
        vnet_break_down(device, VNET_FAULT_RESET);
        return;
    }
    device->is_link_new |= vnet_read_link(device);
}

static void restart(struct vnet_device *device) {
    int result = VNET_ERROR_DEVICE;
    if (device->restarts_in_vain < VNET_RESTARTS_MAX) {
        device->restarts_in_vain++;
        device->counters.restarts++;
        result = vnet_bring_up(device);
    } else {
        vnet_take_down(device);
    }
    if (result == VNET_OK) {
        vnet_report(device, VNET_EVENT_RESTART, device->counters.restarts);
        return;
    }
    device->state = VNET_FAILED;
    vnet_drop_queued(device);
    vnet_report(device, VNET_EVENT_FAILED, (unsigned)-result);
}

// What is rare: news of the device's configuration, and a device that broke a rule.
static void attend(struct vnet_device *device, unsigned pending) {
    if ((pending & PENDING_CONFIG) && device->state == VNET_RUNNING) {
        look_at_config(device);
    }
    if (device->state == VNET_BROKEN) {
        restart(device);
    }
}

// The part of a run before frames are taken. Returns whether the device runs.
static inline bool begin(struct vnet_device *device, unsigned pending, bool *has_worked) {
    vnet_lock(device);
    if ((pending & PENDING_CONFIG) || device->state != VNET_RUNNING) {
        *has_worked = true;
        attend(device, pending);
    }
    if (device->state == VNET_RUNNING) {
        device->is_polling = true;
        for (unsigned index = 0; index < vnet_pairs(device); index++) {
            struct vnet_pair *pair = vnet_pair(device, index);
            vnet_ring_want_interrupts(&pair->rx, false);
            *has_worked |= reclaim(device, pair);
            flush(device, pair);
        }
    }
    bool runs = device->state == VNET_RUNNING;
    vnet_unlock(device);
    return runs;
}

static void count(struct vnet_device *device, const struct vnet_batch *batch) {
    device->counters.rx_frames += batch->taken;
    if (HAS(MERGEABLE) || HAS(CHECKSUM)) {
        device->counters.rx_frames -= batch->longs + batch->bad_checksums;
        device->counters.rx_long += (uint32_t)batch->longs;
        device->counters.rx_bad_checksums += (uint32_t)batch->bad_checksums;
    }
    if (batch->shorts > 0) {
        device->counters.rx_frames -= batch->shorts;
        device->counters.rx_short += (uint32_t)batch->shorts;
    } else if (batch->taken > 0) {
        device->restarts_in_vain = 0;
    }
}

// Hands frames up, in turn from each ring, until the budget is spent. Returns how many.
static inline size_t receive_all(struct vnet_device *device, struct vnet_batch *batches, unsigned budget) {
    if (!HAS(QUEUES)) {
        receive(device, &device->pair.rx, budget, &batches[0]);
        return batches[0].taken;
    }
    size_t taken = 0;
    unsigned pairs = device->pairs;
    for (unsigned count = 0; count < pairs && taken < budget && device->state == VNET_RUNNING; count++) {
        unsigned index = (device->turn + count) % pairs;
        receive(device, &vnet_pair(device, index)->rx, budget - (unsigned)taken, &batches[index]);
        taken += batches[index].taken;
    }
    device->turn = (device->turn + 1) % pairs;
    return taken;
}

// Posts, sends, and only then asks for interrupts. Returns whether there is more to do.
static bool finish(struct vnet_device *device, const struct vnet_batch *batches, bool is_spent) {
    if (device->state != VNET_RUNNING) {
        return device->state == VNET_BROKEN; // the next run resets the device
    }
    bool is_more = is_spent;
    for (unsigned index = 0; index < vnet_pairs(device); index++) {
        struct vnet_pair *pair = vnet_pair(device, index);
        judge_rx(device, pair, &batches[index], is_spent);
        refill(device, pair);
        kick(device, pair, QUEUE_TX);
        kick(device, pair, QUEUE_RX);
    }
    note_posted(device);
    for (unsigned index = 0; index < vnet_pairs(device); index++) {
        struct vnet_pair *pair = vnet_pair(device, index);
        is_more |= judge_tx_interrupts(device, pair);
        if (!is_spent) {
            // Interrupts on, then fence, then the look: what the device finishes after the look interrupts.
            vnet_ring_want_interrupts(&pair->rx, true);
            is_more |= vnet_ring_is_pending_after_enable(&pair->rx);
        }
    }
    return is_more;
}

bool vnet_poll(struct vnet_device *device, unsigned budget) {
    if (budget == 0) {
        return false;
    }
    // Before any look at the rings: an interrupt after this wakes the bottom half once more.
    unsigned pending = atomic_exchange(&device->pending, 0);
    bool has_worked = false, is_more = false;
    struct vnet_batch batches[HAS(QUEUES) ? VNET_PAIRS_MAX : 1] = {{0}};
    size_t taken = 0;
    if (begin(device, pending, &has_worked)) {
        taken = receive_all(device, batches, budget);
    }
    vnet_lock(device);
    device->is_polling = false;
    for (unsigned index = 0; index < vnet_pairs(device); index++) {
        count(device, &batches[index]);
        if (vnet_pair(device, index)->rx.fault) {
            vnet_break_down(device, vnet_pair(device, index)->rx.fault);
        }
    }
    if (taken > 0 || has_worked || pending == 0) {
        device->idle_wakes = 0;
    } else if (++device->idle_wakes > VNET_IDLE_WAKES_MAX) {
        vnet_break_down(device, VNET_FAULT_INTERRUPTS);
    }
    is_more = finish(device, batches, taken == budget);
    bool has_news = device->done.first != NULL || device->is_link_new;
    vnet_unlock(device);
    if (has_news) {
        vnet_deliver(device);
    }
    return is_more;
}

void vnet_deliver(struct vnet_device *device) {
    vnet_lock(device);
    struct vnet_list done = device->done;
    device->done = (struct vnet_list){0};
    bool is_link_new = device->is_link_new, is_up = device->is_link_up && device->state == VNET_RUNNING;
    device->is_link_new = false;
    vnet_unlock(device);
    struct vnet_buffer *buffer;
    while ((buffer = vnet_pop(&done)) != NULL) {
        buffer->owner = VNET_OWNER_CALLER;
        if (device->config.sent != NULL) {
            device->config.sent(device->config.context, buffer);
        }
    }
    if (is_link_new && device->config.link != NULL) {
        device->config.link(device->config.context, is_up);
    }
}

// A frame that is longer than `tx_longest`: the link is down, or the device has an MTU. A VLAN tag is no part of that.
static int judge_long(const struct vnet_device *device, const struct vnet_buffer *buffer) {
    if (!device->is_link_up) {
        return VNET_ERROR_LINK;
    }
    uint16_t type; // 0x8100 or 0x88a8, in the frame's order
    __builtin_memcpy(&type, __builtin_assume_aligned(vnet_frame(buffer) + 12, 2), 2);
    return (type == 0x0081 || type == 0xa888) && buffer->length - 4 <= device->tx_longest ? VNET_OK : VNET_ERROR_LENGTH;
}

// With the lock held.
static inline int send(struct vnet_device *device, struct vnet_buffer *buffer, unsigned class) {
    if (buffer->owner != VNET_OWNER_CALLER) {
        return VNET_ERROR_OWNER;
    }
    if (buffer->length < VNET_FRAME_MIN || buffer->length > buffer->capacity) {
        return VNET_ERROR_LENGTH;
    }
    if (HAS(CHECKSUM) && buffer->checksum == VNET_CHECKSUM_PARTIAL &&
        !vnet_is_checksum_inside(buffer, buffer->length)) {
        return VNET_ERROR_LENGTH;
    }
    if (device->state != VNET_RUNNING) {
        return VNET_ERROR_DOWN;
    }
    if (buffer->length > device->tx_longest) {
        int verdict = judge_long(device, buffer);
        if (verdict != VNET_OK) {
            return verdict;
        }
    }
    struct vnet_pair *pair = vnet_pair(device, HAS(QUEUES) ? class * device->pairs / device->config.tx_classes : 0);
    // The bottom half has just taken back what was sent.
    if (!device->is_polling || vnet_ring_is_full(&pair->tx)) {
        reclaim(device, pair);
        flush(device, pair);
        if (device->state != VNET_RUNNING) {
            vnet_wake(device);
            return VNET_ERROR_DOWN;
        }
    }
    int result = VNET_OK;
    if (pair->queue.count > 0 || !add(device, &pair->tx, buffer)) {
        if (pair->queue.count >= device->config.tx_queue_max) {
            device->counters.tx_full++;
            result = VNET_ERROR_FULL;
        } else {
            buffer->owner = VNET_OWNER_QUEUED;
            vnet_push(&pair->queue, buffer);
            device->counters.tx_queued++;
            result = VNET_QUEUED;
        }
    }
    // Inside a run of the bottom half the run's end does this once for all frames.
    if (!device->is_polling) {
        kick(device, pair, QUEUE_TX);
        // Buffers that came back just now are posted by the bottom half.
        bool is_rx_waiting = device->pool != NULL && lacks_buffers(device);
        if (judge_tx_interrupts(device, pair) || is_rx_waiting) {
            vnet_wake(device);
        }
    }
    return result;
}

static inline int send_class(struct vnet_device *device, struct vnet_buffer *buffer, unsigned class) {
    vnet_lock(device);
    int result = send(device, buffer, class);
    // The end of a run delivers what the run took back.
    bool has_done = !device->is_polling && device->done.first != NULL;
    vnet_unlock(device);
    if (has_done) {
        vnet_deliver(device);
    }
    return result;
}

int vnet_send(struct vnet_device *device, struct vnet_buffer *buffer) {
    return send_class(device, buffer, 0);
}

int vnet_send_class(struct vnet_device *device, struct vnet_buffer *buffer, unsigned class) {
    if (class >= device->config.tx_classes) {
        return VNET_ERROR_ARGUMENT;
    }
    return send_class(device, buffer, class);
}

struct vnet_buffer *vnet_take(struct vnet_device *device) {
    vnet_lock(device);
    struct vnet_buffer *buffer = device->pool;
    if (buffer != NULL) {
        device->pool = buffer->next;
        buffer->owner = VNET_OWNER_CALLER;
        if (HAS(CHECKSUM)) {
            buffer->checksum = VNET_CHECKSUM_NONE;
        }
    }
    vnet_unlock(device);
    return buffer;
}

int vnet_free(struct vnet_device *device, struct vnet_buffer *buffer) {
    if (!buffer->is_pooled || buffer->owner != VNET_OWNER_CALLER) {
        return VNET_ERROR_OWNER;
    }
    vnet_lock(device);
    vnet_return(device, buffer, false);
    // The bottom half had no buffer to post: it posts this one.
    bool is_short = device->state == VNET_RUNNING && !device->is_polling && lacks_buffers(device);
    vnet_unlock(device);
    if (is_short) {
        vnet_wake(device);
    }
    return VNET_OK;
}

uint32_t vnet_options(struct vnet_device *device) {
    vnet_lock(device);
    uint64_t features = device->features;
    vnet_unlock(device);
    return (features & FEATURE_EVENT_INDEX ? VNET_OPTION_EVENT_INDEX : 0) |
           (features & FEATURE_PACKED ? VNET_OPTION_PACKED : 0) |
           (features & FEATURE_MERGEABLE ? VNET_OPTION_MERGEABLE : 0) |
           (features & (FEATURE_CHECKSUM | FEATURE_GUEST_CHECKSUM) ? VNET_OPTION_CHECKSUM : 0) |
           (features & FEATURE_QUEUES ? VNET_OPTION_QUEUES : 0);
}

void vnet_read_counters(struct vnet_device *device, struct vnet_counters *counters) {
    vnet_lock(device);
    *counters = device->counters;
    counters->interrupts = device->interrupts;
    counters->wakes = device->wakes;
    counters->interrupts_foreign = device->interrupts_foreign;
    counters->rx_target = counters->rx_posted = 0;
    for (unsigned index = 0; index < vnet_pairs(device); index++) {
        counters->rx_target += (uint16_t)vnet_pair(device, index)->rx_target;
        counters->rx_posted += (uint16_t)vnet_pair(device, index)->rx.under_way_count;
    }
    counters->pairs = (uint16_t)vnet_pairs(device);
    counters->rx_posted_peak = (uint16_t)device->rx_peak;
    vnet_unlock(device);
}
