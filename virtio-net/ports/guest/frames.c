// SPDX-License-Identifier: BSD-2-Clause
// Frames of Ethertype 0x88b5, which test/peer.py sends. Their first octet is the operation: 'E' is echoed by the bottom
// half, 'T' by a task of low priority, 'S' asks for the figures, 'Q' ends the machine; 'H' is the guest's first frame.
#include <string.h>

#include <lwip/sys.h>

#include "guest.h"

#define TYPE_TEST 0x88b5u
#define PAYLOAD 14u
#define WAITING_MAX 64u

static sys_mbox_t waiting;

static void put64(uint8_t *to, uint64_t value) {
    for (unsigned octet = 0; octet < 8; octet++) {
        to[octet] = (uint8_t)(value >> 8 * octet);
    }
}

// The order is test/peer.py's FIGURES.
static size_t put_figures(uint8_t *to) {
    struct vnet_counters counters;
    vnet_read_counters(guest_device, &counters);
    const struct vnet_config *config = &guest_device->config;
    const uint64_t figures[] = {
        0, // instructions: not taken here
        counters.rx_frames,
        counters.interrupts,
        counters.wakes,
        counters.rx_starved,
        counters.rx_posted_peak,
        counters.tx_queued,
        counters.restarts,
        (uint64_t)config->buffers * VNET_BUFFER_OCTETS,
        guest_driver_memory(),
        sizeof(*guest_device),
        counters.tx_frames,
        counters.rx_short,
        counters.interrupts_foreign,
        vnet_options(guest_device),
        0, // partial checksums: not negotiated here
        0, // frames in segments: not negotiated here
        counters.pairs,
    };
    for (unsigned index = 0; index < sizeof(figures) / sizeof(figures[0]); index++) {
        put64(to + 8 * index, figures[index]);
    }
    return sizeof(figures);
}

static void turn_round(struct vnet_buffer *buffer) {
    uint8_t *frame = vnet_frame(buffer), other[6];
    memcpy(other, frame, 6);
    memcpy(frame, frame + 6, 6);
    memcpy(frame + 6, other, 6);
    if (vnet_send(guest_device, buffer) < 0) {
        (void)vnet_free(guest_device, buffer);
    }
}

// Context: bottom half.
bool guest_take_frame(struct vnet_buffer *buffer) {
    uint8_t *frame = vnet_frame(buffer);
    if (frame[12] != TYPE_TEST >> 8 || frame[13] != (TYPE_TEST & 0xff)) {
        return false;
    }
    switch (frame[PAYLOAD]) {
    case 'T':
        if (sys_mbox_trypost(&waiting, buffer) != ERR_OK) {
            (void)vnet_free(guest_device, buffer);
        }
        return true;
    case 'S': buffer->length = PAYLOAD + 2 + put_figures(frame + PAYLOAD + 2); break;
    case 'Q': guest_exit(guest_device->counters.restarts != 0);
    default: break;
    }
    turn_round(buffer);
    return true;
}

// The task that answers 'T': the bottom half and lwIP may send at the same time.
static void send_waiting(void *context) {
    (void)context;
    for (;;) {
        void *buffer;
        if (sys_arch_mbox_fetch(&waiting, &buffer, 0) != SYS_ARCH_TIMEOUT) {
            turn_round(buffer);
        }
    }
}

void guest_greet(const char *transport) {
    struct vnet_buffer *buffer = vnet_take(guest_device);
    if (buffer == NULL) {
        guest_stop("no buffer for the first frame", GUEST_NO_MEMORY);
    }
    uint8_t *frame = vnet_frame(buffer);
    memset(frame, 0xff, 6);
    memcpy(frame + 6, guest_device->mac, 6);
    frame[12] = TYPE_TEST >> 8;
    frame[13] = TYPE_TEST & 0xff;
    frame[PAYLOAD] = 'H';
    frame[PAYLOAD + 1] = 0;
    put64(frame + PAYLOAD + 2, guest_now());
    size_t length = strlen(transport);
    memcpy(frame + PAYLOAD + 10, transport, length);
    buffer->length = PAYLOAD + 10 + length;
    if (vnet_send(guest_device, buffer) < 0) {
        guest_stop("the first frame was not sent", GUEST_NOT_SENT);
    }
}

void guest_start_frames(void) {
    if (sys_mbox_new(&waiting, WAITING_MAX) != ERR_OK) {
        guest_stop("no memory for the sender", GUEST_NO_MEMORY);
    }
    (void)sys_thread_new("sender", send_waiting, NULL, DEFAULT_THREAD_STACKSIZE, GUEST_PRIORITY_SENDER);
}
