// SPDX-License-Identifier: BSD-2-Clause
// The device's side of a ring: split (VIRTIO 1.1, clause 2.6) and packed (clause 2.7), with flags or with an event
// index.
#include "fake_ring.h"

#include <stdlib.h>
#include <string.h>

#define FLAG_NEXT 1u
#define FLAG_WRITE 2u
#define PACKED_AVAILABLE 0x80u
#define PACKED_USED 0x8000u
#define NO_NOTIFY 1u
#define NO_INTERRUPT 1u
enum { EVENT_ON, EVENT_OFF, EVENT_AT };

// One side's wishes in a packed ring (clause 2.7.10).
struct event {
    uint16_t at, flags;
};

static bool has_event_index(void) {
    return fake.accepted & FAKE_FEATURE_EVENT_INDEX;
}

static bool is_packed(void) {
    return fake.accepted & FAKE_FEATURE_PACKED;
}

static struct vnet_available *available(const struct fake_queue *queue) {
    return fake_memory(queue->available, 6 + 2 * (size_t)queue->size);
}

static struct vnet_used *used(const struct fake_queue *queue) {
    return fake_memory(queue->used, 6 + 8 * (size_t)queue->size);
}

static struct vnet_packed_descriptor *packed(const struct fake_queue *queue, uint16_t counter) {
    struct vnet_packed_descriptor *ring = fake_memory(queue->descriptors, 16 * (size_t)queue->size);
    return &ring[counter % queue->size];
}

// The counter's lap, as the ring shows it: 1 in the first lap.
static bool wrap(const struct fake_queue *queue, uint16_t counter) {
    return counter / queue->size % 2 == 0;
}

// Counters of packed rings count to twice the ring's size, so that laps stay right.
static uint16_t forward(const struct fake_queue *queue, uint16_t counter, uint16_t count) {
    return (uint16_t)(is_packed() ? (counter + count) % (2u * queue->size) : (unsigned)counter + count);
}

static uint16_t event_at(const struct fake_queue *queue, uint16_t counter) {
    return (uint16_t)(counter % queue->size | wrap(queue, counter) << 15);
}

static bool is_available(const struct fake_queue *queue, uint16_t counter) {
    uint16_t flags = packed(queue, counter)->flags;
    return !!(flags & PACKED_AVAILABLE) == wrap(queue, counter) && !!(flags & PACKED_USED) != wrap(queue, counter);
}

uint16_t fake_waiting(unsigned index) {
    const struct fake_queue *queue = &fake.queues[index];
    if (!queue->is_on) {
        return 0;
    }
    if (!is_packed()) {
        return (uint16_t)(available(queue)->index - queue->available_next);
    }
    uint16_t count = 0;
    while (count < queue->size && is_available(queue, forward(queue, queue->available_next, count))) {
        count++;
    }
    return count;
}

void fake_want_notifications(unsigned index, bool on) {
    struct fake_queue *queue = &fake.queues[index];
    queue->is_quiet = !on;
    if (is_packed()) {
        struct event *event = fake_memory(queue->used, sizeof(*event));
        event->at = event_at(queue, queue->available_next);
        event->flags = !on ? EVENT_OFF : has_event_index() ? EVENT_AT : EVENT_ON;
    } else if (has_event_index()) {
        uint16_t *event = (uint16_t *)&used(queue)->ring[queue->size];
        *event = (uint16_t)(queue->available_next - !on);
    } else {
        used(queue)->flags = on ? 0 : NO_NOTIFY;
    }
}

struct fake_chain fake_take_chain(unsigned index) {
    struct fake_queue *queue = &fake.queues[index];
    struct fake_chain chain = {.id = UINT32_MAX};
    if (fake_waiting(index) == 0) {
        return chain;
    }
    if (is_packed()) {
        chain.first = queue->available_next;
        do {
            chain.id = packed(queue, forward(queue, chain.first, chain.count))->id;
        } while (packed(queue, forward(queue, chain.first, chain.count++))->flags & FLAG_NEXT &&
                 chain.count < queue->size);
        queue->available_next = forward(queue, chain.first, chain.count);
    } else {
        chain.id = available(queue)->ring[queue->available_next++ % queue->size];
        chain.count = 1;
    }
    if (has_event_index() && !queue->is_quiet) {
        fake_want_notifications(index, true);
    }
    return chain;
}

uint32_t fake_take_available(unsigned index) {
    return fake_take_chain(index).id;
}

static void mark_used(const struct fake_queue *queue, uint16_t counter) {
    struct vnet_packed_descriptor *descriptor = packed(queue, counter);
    uint16_t flags = descriptor->flags & (uint16_t) ~(PACKED_AVAILABLE | PACKED_USED);
    descriptor->flags = flags | (wrap(queue, counter) ? PACKED_AVAILABLE | PACKED_USED : 0);
}

void fake_move_used(unsigned index, uint16_t jump) {
    struct fake_queue *queue = &fake.queues[index];
    if (!queue->is_on) {
        return;
    }
    if (!is_packed()) {
        queue->used_next += jump;
        used(queue)->index = queue->used_next;
        return;
    }
    for (unsigned count = 0; count < jump && count < 2u * queue->size; count++) {
        mark_used(queue, queue->used_next);
        queue->used_next = forward(queue, queue->used_next, 1);
    }
}

void fake_put_used_chain(unsigned index, const struct fake_chain *chain, uint32_t length) {
    struct fake_queue *queue = &fake.queues[index];
    if (!queue->is_on) {
        return;
    }
    if (!is_packed()) {
        used(queue)->ring[queue->used_next % queue->size] = (struct vnet_used_element){chain->id, length};
        fake_move_used(index, 1);
        return;
    }
    packed(queue, queue->used_next)->id = (uint16_t)chain->id;
    packed(queue, queue->used_next)->length = length;
    mark_used(queue, queue->used_next);
    queue->used_next = forward(queue, queue->used_next, chain->count);
}

void fake_put_used(unsigned index, uint32_t id, uint32_t length) {
    fake_put_used_chain(index, &(struct fake_chain){.id = id, .count = 1}, length);
}

// Whether the entry that the driver has named lies among those that were used since the last look.
static bool has_passed(struct fake_queue *queue, uint16_t event, bool is_lap_same) {
    uint16_t now = queue->used_next, before = queue->used_signalled;
    if (is_packed()) {
        // On one line of numbers: the current lap begins at twice the size.
        uint16_t size = queue->size;
        uint16_t position = now % size + 2 * size, done = (uint16_t)((now + 2 * size - before) % (2 * size));
        uint16_t named = event + (is_lap_same ? 2 * size : size);
        return named < position && named >= position - done;
    }
    return (uint16_t)(now - event - 1) < (uint16_t)(now - before);
}

static bool wants_interrupt(struct fake_queue *queue) {
    if (is_packed()) {
        const struct event *event = fake_memory(queue->available, sizeof(*event));
        if (event->flags != EVENT_AT || !has_event_index()) {
            return event->flags == EVENT_ON;
        }
        return has_passed(queue, event->at & 0x7fff, event->at >> 15 == wrap(queue, queue->used_next));
    }
    if (has_event_index()) {
        return has_passed(queue, available(queue)->ring[queue->size], true);
    }
    return !(available(queue)->flags & NO_INTERRUPT);
}

void fake_interrupt_queue(unsigned index) {
    struct fake_queue *queue = &fake.queues[index];
    if (!queue->is_on) {
        return;
    }
    if (wants_interrupt(queue) && !fake_has_messages_on()) {
        fake.isr |= VNET_INTERRUPT_QUEUE;
    }
    queue->used_signalled = queue->used_next;
}

// A descriptor of either form.
struct part {
    uint64_t address;
    uint32_t length;
    uint16_t flags;
};

static struct part read_part(const struct fake_queue *queue, const struct fake_chain *chain, unsigned link,
                             uint32_t *id) {
    if (is_packed()) {
        const struct vnet_packed_descriptor *descriptor = packed(queue, forward(queue, chain->first, (uint16_t)link));
        return (struct part){descriptor->address, descriptor->length, descriptor->flags};
    }
    const struct vnet_descriptor *ring = fake_memory(queue->descriptors, 16 * (size_t)queue->size);
    if (*id >= queue->size) {
        abort();
    }
    const struct vnet_descriptor *descriptor = &ring[*id];
    *id = descriptor->next;
    return (struct part){descriptor->address, descriptor->length, descriptor->flags};
}

uint32_t fake_copy_chain(unsigned index, const struct fake_chain *chain, uint8_t *data, uint32_t octets,
                         bool to_driver) {
    const struct fake_queue *queue = &fake.queues[index];
    uint32_t total = 0, id = chain->id;
    for (unsigned links = 0;; links++) {
        struct part part = read_part(queue, chain, links, &id);
        uint8_t *memory = fake_memory(part.address, part.length);
        if (memory == NULL || links > queue->size) {
            if (fake.is_lenient) {
                return total; // the device lied about its registers: this is another queue's ring
            }
            abort();
        }
        // The device reads the first descriptors and writes the last ones.
        bool is_written = part.flags & FLAG_WRITE;
        if (is_written == to_driver) {
            uint32_t left = total >= octets ? 0 : octets - total, count = left < part.length ? left : part.length;
            if (count != 0) {
                memcpy(to_driver ? memory : data + total, to_driver ? data + total : memory, count);
            }
            total += part.length;
        } else if (index != fake.control_queue && !fake.is_lenient) {
            abort(); // frames go one way
        }
        if (!(part.flags & FLAG_NEXT)) {
            return total;
        }
    }
}
