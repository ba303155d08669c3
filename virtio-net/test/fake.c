// SPDX-License-Identifier: BSD-2-Clause
// The fake device's rings and platform. Its registers are in fake_registers.c.
#include "fake.h"

#include <stdlib.h>
#include <string.h>

#include "fake_registers.h"
#include "fake_ring.h"

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
    static const uint8_t config[12] = {
        0x52, 0x54, 0, 0x12, 0x34, 0x56, 1, 0, FAKE_PAIRS_MAX, 0, FAKE_MTU & 0xff, FAKE_MTU >> 8};
    static bool is_poisoned; // all of it, but for what the last device had
    POISON(arena, is_poisoned ? fake.arena_used : sizeof(arena));
    is_poisoned = true;
    memset(&fake, 0, offsetof(struct fake, sent));
    fake.kind = kind;
    bool is_legacy = kind == FAKE_MMIO_1 || kind == FAKE_PCI_LEGACY;
    // As QEMU does.
    fake.offered = FAKE_FEATURE_MAC | FAKE_FEATURE_STATUS | FAKE_FEATURE_EVENT_INDEX | FAKE_FEATURE_MERGEABLE |
                   FAKE_FEATURE_CHECKSUM | FAKE_FEATURE_GUEST_CHECKSUM | FAKE_FEATURE_CONTROL | FAKE_FEATURE_QUEUES |
                   0x10002000u | (is_legacy ? FAKE_FEATURE_ANY_LAYOUT : FAKE_FEATURE_VERSION_1 | FAKE_FEATURE_PACKED);
    for (unsigned queue = 0; queue < FAKE_QUEUES; queue++) {
        fake.size_max[queue] = queue == FAKE_QUEUES - 1 ? 64 : 256;
    }
    fake.tx_queue = 1;
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

// Frames and news.

void fake_change_config(void) {
    fake.generation++;
    fake.isr |= VNET_INTERRUPT_CONFIG;
}

static struct fake_chain take(unsigned queue) {
    return fake.is_stale ? (struct fake_chain){.id = UINT32_MAX} : fake_take_chain(queue);
}

static uint32_t header_octets(void) {
    return fake.accepted & (FAKE_FEATURE_VERSION_1 | FAKE_FEATURE_MERGEABLE) ? 12 : 10;
}

// Takes chains with room for `octets`: one, or several if the driver has accepted that. Returns how many, or 0: then
// none is taken.
static unsigned take_room(struct fake_chain *chains, uint32_t *rooms, uint32_t octets) {
    uint16_t before = fake.queues[fake.rx_queue].available_next;
    uint32_t room = 0;
    for (unsigned count = 0; count < FAKE_CHAINS_MAX;) {
        chains[count] = take(fake.rx_queue);
        if (chains[count].id == UINT32_MAX) {
            break;
        }
        rooms[count] = fake_copy_chain(fake.rx_queue, &chains[count], NULL, 0, true);
        room += rooms[count++];
        if (room >= octets || !(fake.accepted & FAKE_FEATURE_MERGEABLE)) {
            return count;
        }
    }
    fake.queues[fake.rx_queue].available_next = before;
    return 0;
}

bool fake_receive_quietly(const uint8_t *frame, uint16_t octets) {
    struct fake_chain chains[FAKE_CHAINS_MAX];
    uint32_t rooms[FAKE_CHAINS_MAX], header = header_octets(), total = header + octets;
    unsigned count = take_room(chains, rooms, total);
    if (count == 0) {
        return false;
    }
    uint8_t data[4096] = {0};
    memcpy(data, fake.rx_header, sizeof(fake.rx_header));
    data[10] = (uint8_t)(count + fake.lied_segments); // where the header has it
    memcpy(data + header, frame, octets);
    uint8_t *at = data;
    for (unsigned index = 0; index < count; index++) {
        uint32_t part = total < rooms[index] ? total : rooms[index];
        fake_copy_chain(fake.rx_queue, &chains[index], at, part, true);
        fake_put_used_chain(fake.rx_queue, &chains[index], part);
        at += part;
        total -= part;
    }
    return true;
}

bool fake_receive(const uint8_t *frame, uint16_t octets) {
    bool is_there = fake_receive_quietly(frame, octets);
    if (is_there) {
        fake_interrupt_queue(fake.rx_queue);
    }
    return is_there;
}

bool fake_transmit_quietly(void) {
    struct fake_chain chain = take(fake.tx_queue);
    if (chain.id == UINT32_MAX) {
        return false;
    }
    uint8_t data[2048];
    uint32_t total = fake_copy_chain(fake.tx_queue, &chain, data, sizeof(data), false), header = header_octets();
    if (fake.is_lenient && total < header) {
        fake_put_used_chain(fake.tx_queue, &chain, 0);
        return true;
    }
    static const uint8_t zero[12];
    bool is_checksum_left = (fake.accepted & FAKE_FEATURE_CHECKSUM) && data[0] == 1;
    if (total < header || total - header > sizeof(fake.sent[0].data) ||
        (!is_checksum_left && !fake.has_lied && memcmp(data, zero, header) != 0)) {
        abort();
    }
    struct fake_frame *frame = &fake.sent[fake.sent_count++ % FAKE_SENT_MAX];
    memcpy(frame->header, data, sizeof(frame->header));
    frame->octets = (uint16_t)(total - header);
    memcpy(frame->data, data + header, frame->octets);
    fake_put_used_chain(fake.tx_queue, &chain, 0);
    return true;
}

unsigned fake_transmit(unsigned most) {
    unsigned count = 0;
    while (count < most && fake_transmit_quietly()) {
        count++;
    }
    if (count != 0) {
        fake_interrupt_queue(fake.tx_queue);
    }
    return count;
}

void fake_answer_command(unsigned queue) {
    struct fake_chain chain = fake.ignores_commands ? (struct fake_chain){.id = UINT32_MAX} : take(queue);
    if (chain.id == UINT32_MAX) {
        return;
    }
    uint8_t command[4] = {0};
    if (fake_copy_chain(queue, &chain, command, sizeof(command), false) != sizeof(command)) {
        abort();
    }
    // Class 4, command 0: the number of pairs.
    unsigned pairs = command[2] | (unsigned)command[3] << 8;
    if (command[0] != 4 || command[1] != 0 || pairs == 0 || pairs > fake.control_queue / 2) {
        abort();
    }
    if (fake.ack == 0) {
        fake.pairs = pairs;
    }
    if (fake_copy_chain(queue, &chain, &fake.ack, 1, true) != 1) {
        abort();
    }
    fake_put_used_chain(queue, &chain, 1);
    fake_interrupt_queue(queue);
}
