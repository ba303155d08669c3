// SPDX-License-Identifier: BSD-2-Clause
// The way of a frame: interrupt, bottom half, sending. Negotiation is in start.c, the rings are in ring.c.
#include "net.h"
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

void vnet_kick(struct vnet_device *device, unsigned queue) {
    if (vnet_ring_publish(queue == QUEUE_RX ? &device->rx : &device->tx)) {
        vnet_fence_device();
        device->transport->ops->notify(device->transport, queue);
    }
}

static inline void refill(struct vnet_device *device) {
    struct vnet_ring *ring = &device->rx;
    struct vnet_buffer *buffer;
    while (ring->under_way_count < device->rx_target && (buffer = device->pool) != NULL) {
        if (!vnet_ring_add(ring, buffer->bus + VNET_HEADROOM - ring->header, ring->room, buffer)) {
            break;
        }
        device->pool = buffer->next;
        buffer->owner = VNET_OWNER_POSTED;
    }
    if (ring->under_way_count > device->rx_peak) {
        device->rx_peak = ring->under_way_count;
    }
}

void vnet_refill(struct vnet_device *device) {
    refill(device);
}

static void break_down(struct vnet_device *device, unsigned fault) {
    if (device->state == VNET_RUNNING) {
        device->state = VNET_BROKEN;
        device->counters.faults[fault]++;
        vnet_report(device, VNET_EVENT_FAULT, fault);
    }
}

// Takes back what the device has sent. Returns whether there was any. One look: what comes later is taken later.
static inline bool reclaim(struct vnet_device *device) {
    struct vnet_ring *ring = &device->tx;
    if (ring->fault || !vnet_ring_read_index(ring)) {
        if (ring->fault) {
            break_down(device, ring->fault);
        }
        return false;
    }
    do {
        struct vnet_buffer *buffer = vnet_ring_take(ring, NULL);
        if (buffer == NULL) {
            break_down(device, ring->fault);
            return false;
        }
        vnet_return(device, buffer, true);
    } while (ring->used_next != ring->used_seen);
    device->restarts_in_vain = 0;
    return true;
}

static inline bool add(struct vnet_device *device, struct vnet_buffer *buffer) {
    struct vnet_ring *ring = &device->tx;
    if (!vnet_ring_add(ring, buffer->bus + VNET_HEADROOM - ring->header, ring->header + buffer->length, buffer)) {
        return false;
    }
    // No offload: all fields are 0, in the short and in the long form.
    // A builtin, because a freestanding compiler would call the function for 12 octets.
    __builtin_memset((uint8_t *)__builtin_assume_aligned(buffer->start, 8) + VNET_HEADROOM - 12, 0, 12);
    buffer->owner = VNET_OWNER_SENDING;
    device->counters.tx_frames++;
    return true;
}

// Moves frames from the interface queue into the ring.
static inline void flush(struct vnet_device *device) {
    while (device->queue.first != NULL && device->state == VNET_RUNNING && add(device, device->queue.first)) {
        // `next` is the list's: vnet_ring_add does not touch it.
        vnet_pop(&device->queue);
    }
}

// Asks for interrupts of transmitted frames if something waits for them. Returns whether frames were finished in
// between.
static bool judge_tx_interrupts(struct vnet_device *device) {
    size_t under_way = device->tx.under_way_count;
    bool is_rx_short = device->pool == NULL && device->rx.under_way_count < device->rx_target;
    bool wanted = under_way >= device->tx_busy || ((device->queue.count > 0 || is_rx_short) && under_way > 0);
    if (wanted == device->tx_interrupts) {
        return false;
    }
    device->tx_interrupts = wanted;
    vnet_ring_want_interrupts(&device->tx, wanted);
    return wanted && vnet_ring_is_pending_after_enable(&device->tx);
}

static void look_at_config(struct vnet_device *device) {
    uint8_t status = device->transport->ops->status(device->transport);
    if ((status & VNET_STATUS_NEEDS_RESET) || !(status & VNET_STATUS_DRIVER_OK)) {
        break_down(device, VNET_FAULT_RESET);
        return;
    }
    bool is_up = vnet_read_link(device);
    device->is_link_new |= is_up != device->is_link_up;
    device->is_link_up = is_up;
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
    struct vnet_buffer *buffer;
    while ((buffer = vnet_pop(&device->queue)) != NULL) {
        device->counters.tx_lost++;
        vnet_return(device, buffer, false);
    }
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
        vnet_ring_want_interrupts(&device->rx, false);
        *has_worked |= reclaim(device);
        flush(device);
    }
    bool runs = device->state == VNET_RUNNING;
    vnet_unlock(device);
    return runs;
}

struct batch {
    size_t taken, shorts; // frames, and those of them that were too short
};

// Hands up one frame that the device has finished. Returns false if the device broke a rule.
static inline bool receive_one(struct vnet_device *device, struct batch *batch) {
    size_t octets;
    struct vnet_buffer *buffer = vnet_ring_take(&device->rx, &octets);
    if (buffer == NULL) {
        return false;
    }
    batch->taken++;
    octets -= device->rx.header;
    buffer->owner = VNET_OWNER_CALLER;
    if (octets < VNET_FRAME_MIN) {
        batch->shorts++;
        vnet_free(device, buffer);
        return true;
    }
    buffer->length = octets;
    device->config.receive(device->config.context, buffer);
    return true;
}

// Hands frames up. The lock is not held: only the bottom half takes from this ring. It looks at the device's index once
// more after several frames, because more may have come; after a single frame the look at the run's end is soon enough.
static inline void receive(struct vnet_device *device, unsigned budget, struct batch *batch) {
    struct vnet_ring *ring = &device->rx;
    if (ring->fault) {
        return;
    }
    while (vnet_ring_look(ring)) {
        do {
            if (!receive_one(device, batch) || batch->taken == budget || device->state != VNET_RUNNING) {
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
static void adapt(struct vnet_device *device, size_t taken, bool is_starved) {
    size_t target = device->rx_target;
    if (is_starved) {
        target = target < device->rx_most / 2 ? target * 2 : device->rx_most;
    }
    if (taken > device->rx_taken_max) {
        device->rx_taken_max = taken;
    }
    if (++device->adapt_polls == VNET_ADAPT_POLLS) {
        if (device->rx_taken_max <= target / 2) {
            target = target / 2 > device->rx_least ? target / 2 : device->rx_least;
        }
        device->adapt_polls = 0;
        device->rx_taken_max = 0;
    }
    device->rx_target = target;
}

static inline void judge_rx(struct vnet_device *device, const struct batch *batch, unsigned budget) {
    // What the device had finished when it was last looked at, and is not taken yet.
    size_t finished = device->rx.used_seen - device->rx.used_next;
    bool is_starved = device->rx.under_way_count == finished && batch->taken > 0;
    if (is_starved) {
        device->counters.rx_starved++;
    }
    if (device->rx_least != device->rx_most) {
        // A whole budget: more may have waited.
        adapt(device, batch->taken == budget ? device->rx_target : batch->taken, is_starved);
    }
}

static void count(struct vnet_device *device, const struct batch *batch) {
    device->counters.rx_frames += batch->taken;
    if (batch->shorts > 0) {
        device->counters.rx_frames -= batch->shorts;
        device->counters.rx_short += (uint32_t)batch->shorts;
    } else if (batch->taken > 0) {
        device->restarts_in_vain = 0;
    }
    if (device->rx.fault) {
        break_down(device, device->rx.fault);
    }
}

// Posts, sends, and only then asks for interrupts. Returns whether there is more to do.
static bool finish(struct vnet_device *device, const struct batch *batch, unsigned budget) {
    if (device->state != VNET_RUNNING) {
        return device->state == VNET_BROKEN; // the next run resets the device
    }
    judge_rx(device, batch, budget);
    refill(device);
    vnet_kick(device, QUEUE_TX);
    vnet_kick(device, QUEUE_RX);
    bool is_tx_pending = judge_tx_interrupts(device);
    if (batch->taken == budget) {
        return true;
    }
    // Interrupts on, then fence, then the look: what the device finishes after the look interrupts.
    vnet_ring_want_interrupts(&device->rx, true);
    return vnet_ring_is_pending_after_enable(&device->rx) || is_tx_pending;
}

bool vnet_poll(struct vnet_device *device, unsigned budget) {
    if (budget == 0) {
        return false;
    }
    // Before any look at the rings: an interrupt after this wakes the bottom half once more.
    unsigned pending = atomic_exchange(&device->pending, 0);
    bool has_worked = false, is_more = false;
    struct batch batch = {0};
    if (begin(device, pending, &has_worked)) {
        receive(device, budget, &batch);
    }
    vnet_lock(device);
    device->is_polling = false;
    count(device, &batch);
    if (batch.taken > 0 || has_worked || pending == 0) {
        device->idle_wakes = 0;
    } else if (++device->idle_wakes > VNET_IDLE_WAKES_MAX) {
        break_down(device, VNET_FAULT_INTERRUPTS);
    }
    is_more = finish(device, &batch, budget);
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

// With the lock held.
static inline int send(struct vnet_device *device, struct vnet_buffer *buffer) {
    if (buffer->owner != VNET_OWNER_CALLER) {
        return VNET_ERROR_OWNER;
    }
    if (buffer->length < VNET_FRAME_MIN || buffer->length > buffer->capacity) {
        return VNET_ERROR_LENGTH;
    }
    if (device->state != VNET_RUNNING) {
        return VNET_ERROR_DOWN;
    }
    if (!device->is_link_up) {
        return VNET_ERROR_LINK;
    }
    // The bottom half has just taken back what was sent.
    if (!device->is_polling || vnet_ring_is_full(&device->tx)) {
        reclaim(device);
        flush(device);
        if (device->state != VNET_RUNNING) {
            vnet_wake(device);
            return VNET_ERROR_DOWN;
        }
    }
    int result = VNET_OK;
    if (device->queue.count > 0 || !add(device, buffer)) {
        if (device->queue.count >= device->config.tx_queue_max) {
            device->counters.tx_full++;
            result = VNET_ERROR_FULL;
        } else {
            buffer->owner = VNET_OWNER_QUEUED;
            vnet_push(&device->queue, buffer);
            device->counters.tx_queued++;
            result = VNET_QUEUED;
        }
    }
    // Inside a run of the bottom half the run's end does this once for all frames.
    if (!device->is_polling) {
        vnet_kick(device, QUEUE_TX);
        // Buffers that came back just now are posted by the bottom half.
        bool is_rx_waiting = device->rx.under_way_count < device->rx_target && device->pool != NULL;
        if (judge_tx_interrupts(device) || is_rx_waiting) {
            vnet_wake(device);
        }
    }
    return result;
}

int vnet_send(struct vnet_device *device, struct vnet_buffer *buffer) {
    vnet_lock(device);
    int result = send(device, buffer);
    // The end of a run delivers what the run took back.
    bool has_done = !device->is_polling && device->done.first != NULL;
    vnet_unlock(device);
    if (has_done) {
        vnet_deliver(device);
    }
    return result;
}

struct vnet_buffer *vnet_take(struct vnet_device *device) {
    vnet_lock(device);
    struct vnet_buffer *buffer = device->pool;
    if (buffer != NULL) {
        device->pool = buffer->next;
        buffer->owner = VNET_OWNER_CALLER;
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
    bool is_short =
        device->state == VNET_RUNNING && !device->is_polling && device->rx.under_way_count < device->rx_target;
    vnet_unlock(device);
    if (is_short) {
        vnet_wake(device);
    }
    return VNET_OK;
}

void vnet_read_counters(struct vnet_device *device, struct vnet_counters *counters) {
    vnet_lock(device);
    *counters = device->counters;
    counters->interrupts = device->interrupts;
    counters->wakes = device->wakes;
    counters->interrupts_foreign = device->interrupts_foreign;
    counters->rx_target = (uint16_t)device->rx_target;
    counters->rx_posted = (uint16_t)device->rx.under_way_count;
    counters->rx_posted_peak = (uint16_t)device->rx_peak;
    vnet_unlock(device);
}
