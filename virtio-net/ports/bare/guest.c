// SPDX-License-Identifier: BSD-2-Clause
// A guest that echoes: raw frames with swapped MAC addresses, UDP datagrams to port 7, and answers to ARP requests
// for 10.0.2.15. Frames of Ethertype 0x88b5 carry an operation in their first octet: 'H' is the guest's first frame,
// 'S' asks for its figures, 'Q' ends the machine; everything else is echoed. No frame is copied: a buffer goes from the
// receive ring to the transmit ring.
#include "machine.h"
#include "vnet.h"

#ifndef VNET_OPTIONS
#define VNET_OPTIONS 0u
#endif
// With mergeable buffers a long frame arrives in segments of 256 octets.
#define IS_MERGEABLE ((VNET_OPTIONS & VNET_OPTION_MERGEABLE) != 0)
// With several queues the second octet of a test frame's payload chooses the class.
#define CLASSES ((VNET_OPTIONS & VNET_OPTION_QUEUES) ? 4 : 1)
#ifndef RX_POSTED_MIN
#define RX_POSTED_MIN (IS_MERGEABLE ? 16 : 8)
#endif
#ifndef RX_POSTED_MAX
#define RX_POSTED_MAX RX_POSTED_MIN
#endif
#ifndef BUFFERS
#define BUFFERS (CLASSES * (IS_MERGEABLE ? 32 : 13))
#endif
#define SEGMENT_OCTETS (IS_MERGEABLE ? 256 : 0)
#define BUFFER_OCTETS (IS_MERGEABLE ? (VNET_HEADROOM + SEGMENT_OCTETS + 7) / 8 * 8 : VNET_BUFFER_OCTETS)
#define OWN_BUFFERS (IS_MERGEABLE ? 12 : 1) // for the answers to long frames

#define BUDGET 16u
#ifndef MEMORY_OCTETS
#define MEMORY_OCTETS (512u * 1024)
#endif
#define TYPE_TEST 0x88b5u
#define TYPE_ARP 0x0806u
#define TYPE_IP 0x0800u
#define PAYLOAD 14u

void *memcpy(void *restrict to, const void *restrict from, size_t octets);

static struct vnet_device device;
static _Alignas(4096) uint8_t memory[MEMORY_OCTETS];
static size_t memory_used;
static volatile unsigned is_woken;
static uint64_t instructions, partial_frames, segmented_frames;
static struct vnet_buffer own[OWN_BUFFERS], *own_free;
static const uint8_t ADDRESS[4] = {10, 0, 2, 15};

static void print_number(unsigned value) {
    char text[12] = "";
    char *end = text + sizeof(text) - 1;
    do {
        *--end = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    machine_print(end);
}

static void *take_memory(void *context, size_t octets, size_t alignment) {
    (void)context;
    size_t start = (memory_used + alignment - 1) & ~(alignment - 1);
    if (start > MEMORY_OCTETS || octets > MEMORY_OCTETS - start) {
        machine_print("guest: the driver needs ");
        print_number((unsigned)octets);
        machine_print(" octets more; of MEMORY_OCTETS are left ");
        print_number((unsigned)(MEMORY_OCTETS - memory_used));
        machine_print("\n");
        return NULL;
    }
    memory_used = start + octets;
    return memory + start;
}

static uint64_t bus_address(void *context, const void *start, size_t octets) {
    (void)context;
    (void)octets;
    return (uintptr_t)start;
}

static void wake(void *context) {
    (void)context;
    is_woken = 1;
}

static void pause_100_us(void *context) {
    (void)context;
    machine_pause();
}

static void log_event(void *context, enum vnet_event event, unsigned value) {
    (void)context;
    static const char *const TEXTS[] = {"guest: fault ", "guest: restart ", "guest: failed "};
    machine_print(TEXTS[event]);
    print_number(value);
    machine_print("\n");
}

static const struct vnet_platform PLATFORM = {
    .memory = take_memory,
    .bus_address = bus_address,
    .wake = wake,
    .pause = pause_100_us,
    .log = log_event,
};

void guest_interrupt(void) {
    vnet_interrupt(&device);
}

static void put64(uint8_t *to, uint64_t value) {
    for (unsigned octet = 0; octet < 8; octet++) {
        to[octet] = (uint8_t)(value >> 8 * octet);
    }
}

// The order is test/peer.py's FIGURES.
static uint16_t put_figures(uint8_t *to) {
    struct vnet_counters counters;
    vnet_read_counters(&device, &counters);
    const uint64_t figures[] = {
        instructions,
        counters.rx_frames,
        counters.interrupts,
        counters.wakes,
        counters.rx_starved,
        counters.rx_posted_peak,
        counters.tx_queued,
        counters.restarts,
        BUFFERS * BUFFER_OCTETS,
        memory_used,
        sizeof(device),
        counters.tx_frames,
        counters.rx_short,
        counters.interrupts_foreign,
        vnet_options(&device),
        partial_frames,
        segmented_frames,
        counters.pairs,
    };
    for (unsigned index = 0; index < sizeof(figures) / sizeof(figures[0]); index++) {
        put64(to + 8 * index, figures[index]);
    }
    return sizeof(figures);
}

// `first` and `second` are even, and so is `octets`.
static inline void swap(uint8_t *first, uint8_t *second, unsigned octets) {
    for (unsigned at = 0; at < octets; at += 2) {
        uint16_t one, two;
        __builtin_memcpy(&one, __builtin_assume_aligned(first + at, 2), 2);
        __builtin_memcpy(&two, __builtin_assume_aligned(second + at, 2), 2);
        __builtin_memcpy(__builtin_assume_aligned(first + at, 2), &two, 2);
        __builtin_memcpy(__builtin_assume_aligned(second + at, 2), &one, 2);
    }
}

static void operate(struct vnet_buffer *buffer, uint8_t *frame) {
    if (frame[PAYLOAD] == 'S') {
        buffer->length = (uint16_t)(PAYLOAD + 2 + put_figures(frame + PAYLOAD + 2));
    } else if (frame[PAYLOAD] == 'Q') {
        machine_exit(device.counters.restarts != 0);
    }
}

static bool is_for_us(const uint8_t *address) {
    return address[0] == ADDRESS[0] && address[1] == ADDRESS[1] && address[2] == ADDRESS[2] && address[3] == ADDRESS[3];
}

// Returns whether the frame, changed to its answer, is to be sent.
static __attribute__((noinline)) bool answer(struct vnet_buffer *buffer, uint8_t *frame) {
    unsigned type = (unsigned)frame[12] << 8 | frame[13];
    uint8_t *payload = frame + PAYLOAD;
    if (type == TYPE_ARP) {
        if (buffer->length < 42 || payload[7] != 1 || !is_for_us(payload + 24)) {
            return false;
        }
        payload[7] = 2;
        swap(payload + 8, payload + 18, 10);
        memcpy(payload + 8, device.mac, 6);
        memcpy(frame, frame + 6, 6);
        memcpy(frame + 6, device.mac, 6);
        return true;
    }
    if (type == TYPE_IP) {
        if (buffer->length < 42 || payload[0] != 0x45 || payload[9] != 17 || payload[22] != 0 || payload[23] != 7) {
            return false;
        }
        // The checksums are sums: they stay right.
        swap(payload + 12, payload + 16, 4);
        swap(payload + 20, payload + 22, 2);
    } else if (type == TYPE_TEST) {
        operate(buffer, frame);
    }
    swap(frame, frame + 6, 6);
    return true;
}

// Makes a frame its own answer and sends it. Returns false if the buffer is still the guest's.
static inline bool turn_round(struct vnet_buffer *buffer) {
    uint8_t *frame = vnet_frame(buffer);
    if ((VNET_OPTIONS & VNET_OPTION_CHECKSUM) && buffer->checksum == VNET_CHECKSUM_PARTIAL) {
        partial_frames++;
    }
    // Most frames only turn round.
    uint16_t type;
    __builtin_memcpy(&type, __builtin_assume_aligned(frame + 12, 2), 2);
    bool is_plain = type == (uint16_t)(TYPE_TEST << 8 | TYPE_TEST >> 8) && frame[PAYLOAD] == 'E';
    if (is_plain) {
        swap(frame, frame + 6, 6);
    }
    if (!is_plain && !answer(buffer, frame)) {
        return false;
    }
    return (CLASSES == 1 ? vnet_send(&device, buffer)
                         : vnet_send_class(&device, buffer, frame[PAYLOAD + 1] % CLASSES)) >= 0;
}

static void receive(void *context, struct vnet_buffer *buffer) {
    (void)context;
    if (!turn_round(buffer)) {
        vnet_free(&device, buffer);
    }
}

// A frame in several buffers is put together in a buffer of the guest's own.
static void receive_segments(void *context, const struct vnet_segment *segments, unsigned count) {
    (void)context;
    struct vnet_buffer *buffer = own_free;
    size_t octets = 0;
    segmented_frames++;
    for (unsigned index = 0; index < count; index++) {
        if (buffer != NULL && octets + segments[index].octets <= buffer->capacity) {
            memcpy(vnet_frame(buffer) + octets, segments[index].data, segments[index].octets);
            octets += segments[index].octets;
        }
        vnet_free(&device, segments[index].buffer);
    }
    if (buffer == NULL) {
        machine_print("guest: no buffer for an answer\n");
        return;
    }
    own_free = buffer->next;
    buffer->length = octets;
    buffer->checksum = segments[0].buffer->checksum;
    buffer->checksum_start = segments[0].buffer->checksum_start;
    buffer->checksum_offset = segments[0].buffer->checksum_offset;
    if (!turn_round(buffer)) {
        buffer->next = own_free;
        own_free = buffer;
    }
}

static void sent(void *context, struct vnet_buffer *buffer) {
    (void)context;
    buffer->next = own_free;
    own_free = buffer;
}

static void make_own_buffers(void) {
    for (unsigned index = 0; index < OWN_BUFFERS; index++) {
        own[index].start = take_memory(NULL, VNET_BUFFER_OCTETS, 8);
        own[index].bus = bus_address(NULL, own[index].start, VNET_BUFFER_OCTETS);
        own[index].capacity = VNET_FRAME_MAX;
        sent(NULL, &own[index]);
    }
}

// The first frame says when it was sent and through which transport.
static void greet(const char *transport) {
    struct vnet_buffer *buffer = vnet_take(&device);
    if (buffer == NULL) {
        machine_exit(3);
    }
    uint8_t *frame = vnet_frame(buffer);
    for (unsigned octet = 0; octet < 6; octet++) {
        frame[octet] = 0xff;
        frame[6 + octet] = device.mac[octet];
    }
    frame[12] = TYPE_TEST >> 8;
    frame[13] = TYPE_TEST & 0xff;
    frame[PAYLOAD] = 'H';
    put64(frame + PAYLOAD + 2, machine_nanoseconds());
    uint16_t octets = PAYLOAD + 10;
    while (*transport != '\0') {
        frame[octets++] = (uint8_t)*transport++;
    }
    buffer->length = octets;
    if (vnet_send(&device, buffer) < 0) {
        machine_exit(4);
    }
}

_Noreturn void guest_main(void) {
    static const struct vnet_config CONFIG = {
        .ring_size = 64,
        .rx_posted_min = RX_POSTED_MIN,
        .rx_posted_max = RX_POSTED_MAX,
        .buffers = BUFFERS,
        .tx_slots = 32,
        .tx_queue_max = 32,
        .receive = receive,
        .options = VNET_OPTIONS,
        .segment_octets = SEGMENT_OCTETS,
        .receive_segments = receive_segments,
        .sent = sent,
        .tx_classes = CLASSES,
    };
    machine_init();
    struct vnet_transport *transport = machine_find_network();
    if (transport == NULL) {
        machine_print("guest: no network device\n");
        machine_exit(1);
    }
    if (IS_MERGEABLE) {
        make_own_buffers();
    }
    int result = vnet_init(&device, &PLATFORM, transport, &CONFIG);
    if (result == VNET_OK) {
        result = vnet_start(&device);
    }
    if (result != VNET_OK) {
        log_event(NULL, VNET_EVENT_FAILED, (unsigned)-result);
        machine_exit(2);
    }
    greet(transport->ops->name);
    for (;;) {
        machine_wait(&is_woken);
        uint64_t begin = machine_instructions();
        is_woken = 0;
        while (vnet_poll(&device, BUDGET)) {
        }
        instructions += machine_instructions() - begin;
    }
}
