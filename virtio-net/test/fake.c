// SPDX-License-Identifier: BSD-2-Clause
// The fake device's rings and platform. Its registers are in fake_registers.c.
#include "fake.h"

#include <stdlib.h>
#include <string.h>

#include "fake_registers.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN
#endif
#ifdef HAS_ASAN
void __asan_poison_memory_region(const volatile void *start, size_t octets);
void __asan_unpoison_memory_region(const volatile void *start, size_t octets);
#define POISON(start, octets) __asan_poison_memory_region(start, octets)
#define UNPOISON(start, octets) __asan_unpoison_memory_region(start, octets)
#else
#define POISON(start, octets) ((void)(start), (void)(octets))
#define UNPOISON(start, octets) ((void)(start), (void)(octets))
#endif

#define GAP 64u // between two allocations; no access is allowed there
#define FLAG_NEXT 1u
#define FLAG_WRITE 2u

struct fake fake;
static _Alignas(4096) uint8_t arena[FAKE_ARENA_OCTETS];

void *fake_memory(uint64_t bus, size_t octets) {
    if (bus < FAKE_BUS || bus - FAKE_BUS > FAKE_ARENA_OCTETS || octets > FAKE_ARENA_OCTETS - (bus - FAKE_BUS)) {
        return NULL;
    }
    return arena + (bus - FAKE_BUS);
}

void *fake_allocate(size_t octets, size_t alignment) {
    size_t start = (fake.arena_used + GAP + alignment - 1) & ~(alignment - 1);
    if (start + octets > FAKE_ARENA_OCTETS) {
        return NULL;
    }
    fake.arena_used = start + octets;
    UNPOISON(arena + start, octets);
    memset(arena + start, 0, octets);
    return arena + start;
}

static void *platform_memory(void *context, size_t octets, size_t alignment) {
    (void)context;
    if (fake.memory_left == 0) {
        return NULL;
    }
    fake.memory_left--;
    fake.allocations++;
    return fake_allocate(octets, alignment);
}

static uint64_t platform_bus_address(void *context, const void *start, size_t octets) {
    (void)context;
    (void)octets;
    if (fake.addresses_left == 0) {
        return VNET_NO_ADDRESS;
    }
    fake.addresses_left--;
    return FAKE_BUS + (uint64_t)((const uint8_t *)start - arena);
}

static void platform_lock(void *context) {
    (void)context;
    if (fake.lock_depth++ != 0) {
        abort(); // the driver's lock does not nest
    }
}

static void platform_unlock(void *context) {
    (void)context;
    if (--fake.lock_depth != 0) {
        abort();
    }
}

static void platform_wake(void *context) {
    (void)context;
    fake.wakes++;
    fake.is_woken = true;
}

static void platform_pause(void *context) {
    (void)context;
    fake.pauses++;
}

const struct vnet_platform fake_platform = {
    .memory = platform_memory,
    .bus_address = platform_bus_address,
    .lock = platform_lock,
    .unlock = platform_unlock,
    .wake = platform_wake,
    .pause = platform_pause,
};

void fake_make(enum fake_kind kind) {
    static const uint8_t config[8] = {0x52, 0x54, 0, 0x12, 0x34, 0x56, 1, 0};
    static bool is_poisoned; // all of it, but for what the last device had
    POISON(arena, is_poisoned ? fake.arena_used : sizeof(arena));
    is_poisoned = true;
    memset(&fake, 0, offsetof(struct fake, sent));
    fake.kind = kind;
    bool is_legacy = kind == FAKE_MMIO_1 || kind == FAKE_PCI_LEGACY;
    // Of these the driver knows four; the rest is what QEMU offers.
    fake.offered = FAKE_FEATURE_MAC | FAKE_FEATURE_STATUS | 0x30002000u |
                   (is_legacy ? FAKE_FEATURE_ANY_LAYOUT : FAKE_FEATURE_VERSION_1);
    fake.size_max[0] = fake.size_max[1] = 256;
    fake.magic = 0x74726976;
    fake.version = kind == FAKE_MMIO_1 ? 1 : 2;
    fake.device_id = 1;
    fake.memory_left = fake.addresses_left = 1000;
    memcpy(fake.config, config, sizeof(config));
    fake_fill_pci();
}

// The driver's steps.

uint16_t vnet_load16(const volatile uint16_t *from) {
    if (fake.step != NULL) {
        fake.step();
    }
    return fake.twist != NULL ? (uint16_t)fake.twist(from, *from) : *from;
}

uint32_t vnet_load32(const volatile uint32_t *from) {
    return fake.twist != NULL ? fake.twist(from, *from) : *from;
}

void vnet_store16(volatile uint16_t *to, uint16_t value) {
    if (fake.store != NULL) {
        fake.store(to, value);
    } else {
        *to = value;
    }
    if (fake.step != NULL) {
        fake.step();
    }
}

void vnet_fence_full(void) {
    if (fake.fence != NULL) {
        fake.fence();
    }
}

// The device's side of a ring.

static struct vnet_available *available(const struct fake_queue *queue) {
    return fake_memory(queue->available, 4 + 2 * (size_t)queue->size);
}

static struct vnet_used *used(const struct fake_queue *queue) {
    return fake_memory(queue->used, 4 + 8 * (size_t)queue->size);
}

uint16_t fake_waiting(unsigned index) {
    const struct fake_queue *queue = &fake.queues[index];
    return queue->is_on ? (uint16_t)(available(queue)->index - queue->available_next) : 0;
}

uint32_t fake_take_available(unsigned index) {
    struct fake_queue *queue = &fake.queues[index];
    if (fake_waiting(index) == 0) {
        return UINT32_MAX;
    }
    return available(queue)->ring[queue->available_next++ % queue->size];
}

void fake_put_used(unsigned index, uint32_t id, uint32_t length) {
    struct fake_queue *queue = &fake.queues[index];
    if (queue->is_on) {
        used(queue)->ring[queue->used_next % queue->size] = (struct vnet_used_element){id, length};
        fake_move_used(index, 1);
    }
}

void fake_move_used(unsigned index, uint16_t jump) {
    struct fake_queue *queue = &fake.queues[index];
    if (queue->is_on) {
        queue->used_next += jump;
        used(queue)->index = queue->used_next;
    }
}

void fake_interrupt_queue(unsigned index) {
    const struct fake_queue *queue = &fake.queues[index];
    if (queue->is_on && !(available(queue)->flags & 1)) {
        fake.isr |= VNET_INTERRUPT_QUEUE;
    }
}

void fake_change_config(void) {
    fake.generation++;
    fake.isr |= VNET_INTERRUPT_CONFIG;
}

// Copies between a chain of descriptors and linear memory, as a device does. Aborts where the driver's chain is not as
// the standard wants it: those are faults of the driver. Returns the chain's length.
static uint32_t copy_chain(const struct fake_queue *queue, uint32_t id, uint8_t *data, uint32_t octets,
                           bool to_driver) {
    uint32_t total = 0;
    for (unsigned links = 0;; links++) {
        struct vnet_descriptor *descriptor = fake_memory(queue->descriptors, (size_t)queue->size * sizeof(*descriptor));
        if (id >= queue->size || links > queue->size) {
            abort();
        }
        descriptor += id;
        uint8_t *memory = fake_memory(descriptor->address, descriptor->length);
        if (memory == NULL || !!(descriptor->flags & FLAG_WRITE) != to_driver) {
            abort();
        }
        uint32_t part = total >= octets ? 0 : octets - total < descriptor->length ? octets - total : descriptor->length;
        if (part != 0) {
            memcpy(to_driver ? memory : data + total, to_driver ? data + total : memory, part);
        }
        total += descriptor->length;
        if (!(descriptor->flags & FLAG_NEXT)) {
            return total;
        }
        id = descriptor->next;
    }
}

static uint32_t header_octets(void) {
    return fake.accepted & FAKE_FEATURE_VERSION_1 ? 12 : 10;
}

bool fake_receive_quietly(const uint8_t *frame, uint16_t octets) {
    uint32_t id = fake.is_stale ? UINT32_MAX : fake_take_available(0);
    if (id == UINT32_MAX) {
        return false;
    }
    uint8_t data[2048] = {0};
    uint32_t header = header_octets();
    data[10] = 1; // num_buffers, where the header has it
    memcpy(data + header, frame, octets);
    uint32_t room = copy_chain(&fake.queues[0], id, data, header + octets, true);
    fake_put_used(0, id, header + octets < room ? header + octets : room);
    return true;
}

bool fake_receive(const uint8_t *frame, uint16_t octets) {
    bool is_there = fake_receive_quietly(frame, octets);
    if (is_there) {
        fake_interrupt_queue(0);
    }
    return is_there;
}

bool fake_transmit_quietly(void) {
    uint32_t id = fake.is_stale ? UINT32_MAX : fake_take_available(1);
    if (id == UINT32_MAX) {
        return false;
    }
    uint8_t data[2048];
    uint32_t total = copy_chain(&fake.queues[1], id, data, sizeof(data), false), header = header_octets();
    static const uint8_t zero[12];
    if (total < header || total - header > sizeof(fake.sent[0].data) || memcmp(data, zero, header) != 0) {
        abort();
    }
    struct fake_frame *frame = &fake.sent[fake.sent_count++ % FAKE_SENT_MAX];
    frame->octets = (uint16_t)(total - header);
    memcpy(frame->data, data + header, frame->octets);
    fake_put_used(1, id, 0);
    return true;
}

unsigned fake_transmit(unsigned most) {
    unsigned count = 0;
    while (count < most && fake_transmit_quietly()) {
        count++;
    }
    if (count != 0) {
        fake_interrupt_queue(1);
    }
    return count;
}
