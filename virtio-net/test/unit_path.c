// SPDX-License-Identifier: BSD-2-Clause
// The way of frames with a well-behaved device, on each transport.
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "host.h"

static void (*each_run)(void);

static void run_each_transport(void) {
    for (int kind = 0; kind < FAKE_KINDS; kind++) {
        fake_make((enum fake_kind)kind);
        each_run();
    }
}

static void each_transport(void (*run)(void)) {
    each_run = run;
    host_each_ring(run_each_transport);
    // Legacy devices without ANY_LAYOUT: header and frame in descriptors of their own.
    fake_make(FAKE_PCI_LEGACY);
    fake.offered &= ~FAKE_FEATURE_ANY_LAYOUT;
    run();
}

static void start(enum host_mode mode, const struct vnet_config *config) {
    host.mode = mode;
    CHECK(host_start(config), VNET_OK);
    host_run();
}

static void check_start(void) {
    struct vnet_config config = host_config();
    start(HOST_FREE, &config);
    bool is_legacy = fake.kind == FAKE_MMIO_1 || fake.kind == FAKE_PCI_LEGACY;
    CHECK(fake.status, is_legacy ? 7 : 15);
    uint64_t asked = (host_options & VNET_OPTION_EVENT_INDEX ? FAKE_FEATURE_EVENT_INDEX : 0) |
                     (host_options & VNET_OPTION_PACKED ? FAKE_FEATURE_PACKED : 0);
    CHECK(fake.accepted, fake.offered & (FAKE_FEATURE_MAC | FAKE_FEATURE_STATUS | FAKE_FEATURE_ANY_LAYOUT |
                                         FAKE_FEATURE_VERSION_1 | asked));
    CHECK(vnet_options(&host.device), is_legacy ? host_options & ~VNET_OPTION_PACKED : host_options);
    CHECK(memcmp(host.device.mac, fake.config, 6), 0);
    CHECK(host.link, 1);
    CHECK(fake_waiting(0), 8);
    CHECK(fake.queues[0].notifications, 1);
    CHECK(fake.queues[0].size, fake.kind == FAKE_PCI_LEGACY ? 256 : 64);
    CHECK(host_count_buffers(), 12);
    CHECK(vnet_stop(&host.device), VNET_OK);
    CHECK(fake.status, 0);
    CHECK(host_count_buffers(), 12);
    unsigned allocations = fake.allocations;
    CHECK(vnet_start(&host.device), VNET_OK);
    CHECK(fake.allocations, allocations); // memory is taken once
    CHECK(fake_waiting(0), 8);
}

static void starts_and_stops(void) {
    each_transport(check_start);
}

static void check_echo(void) {
    struct vnet_config config = host_config();
    start(HOST_ECHO, &config);
    uint8_t frame[VNET_FRAME_MAX];
    unsigned expected = 0;
    for (unsigned round = 0; round < 3000; round++) {
        uint16_t octets = (uint16_t)(VNET_FRAME_MIN + round * 7 % (VNET_FRAME_MAX - VNET_FRAME_MIN + 1));
        for (unsigned copy = 0; copy <= round % 4; copy++) {
            memset(frame, (int)(round + copy), octets);
            CHECK(fake_receive(frame, octets), true);
        }
        host_run();
        for (unsigned copy = 0; copy <= round % 4; copy++) {
            CHECK(fake_transmit(1), 1);
            const struct fake_frame *got = &fake.sent[expected++ % FAKE_SENT_MAX];
            memset(frame, (int)(round + copy), octets);
            CHECK(got->octets, octets);
            CHECK(memcmp(got->data, frame, octets), 0);
        }
    }
    struct vnet_counters counters;
    vnet_read_counters(&host.device, &counters);
    CHECK(counters.rx_frames, expected);
    CHECK(counters.tx_frames, expected);
    CHECK(counters.wakes <= counters.interrupts, true);
    CHECK(counters.rx_posted_peak, 8);
    CHECK(counters.restarts, 0);
}

static void echoes_every_length(void) {
    each_transport(check_echo);
}

// A batch costs one wake-up and one notification, however many frames it has.
static void check_wakes_and_notifies_once_a_batch(void) {
    struct vnet_config config = host_config();
    fake_make(FAKE_MMIO_2);
    start(HOST_ECHO, &config);
    uint8_t frame[60] = {0};
    unsigned wakes = fake.wakes, notifications = fake.queues[1].notifications;
    for (unsigned count = 0; count < 8; count++) {
        CHECK(fake_receive(frame, sizeof(frame)), true);
        // With an event index the device interrupts for the first only.
        CHECK(vnet_interrupt(&host.device), count == 0 || !(host_options & VNET_OPTION_EVENT_INDEX));
    }
    CHECK(fake.wakes, wakes + 1);
    host_run();
    CHECK(host.received, 8);
    CHECK(fake.queues[1].notifications, notifications + 1);
    unsigned foreign = host.device.interrupts_foreign;
    CHECK(vnet_interrupt(&host.device), false); // nothing pending: another device's
    CHECK(host.device.interrupts_foreign, foreign + 1);
}

static void wakes_and_notifies_once_a_batch(void) {
    host_each_ring(check_wakes_and_notifies_once_a_batch);
}

// While the bottom half works it asks for no interrupts; a run with a spent budget leaves them off.
static void check_budget_bounds_a_run(void) {
    struct vnet_config config = host_config();
    fake_make(FAKE_MMIO_2);
    start(HOST_FREE, &config);
    uint8_t frame[60] = {0};
    for (unsigned count = 0; count < 8; count++) {
        fake_receive(frame, sizeof(frame));
    }
    CHECK(fake.isr, 1);
    CHECK(vnet_interrupt(&host.device), true);
    CHECK(vnet_poll(&host.device, 3), true);
    CHECK(host.received, 3);
    CHECK(fake_receive(frame, sizeof(frame)), true);
    CHECK(fake.isr, 0);
    CHECK(vnet_poll(&host.device, 3), true);
    CHECK(vnet_poll(&host.device, 4), false);
    CHECK(host.received, 9);
    CHECK(fake_receive(frame, sizeof(frame)), true);
    CHECK(fake.isr, 1);
}

static void budget_bounds_a_run(void) {
    host_each_ring(check_budget_bounds_a_run);
}

static void check_queue(void) {
    struct vnet_config config = host_config();
    start(HOST_FREE, &config);
    // 16 in the ring, 8 in the interface queue, then no more.
    for (unsigned count = 0; count < 25; count++) {
        struct vnet_buffer *buffer = host_buffer((uint16_t)(60 + count), (uint8_t)count);
        CHECK(vnet_send(&host.device, buffer), count < 16 ? VNET_OK : count < 24 ? VNET_QUEUED : VNET_ERROR_FULL);
        if (count == 24) {
            CHECK(buffer->owner, VNET_OWNER_CALLER);
            free(buffer);
        } else {
            CHECK(vnet_send(&host.device, buffer), VNET_ERROR_OWNER);
        }
    }
    CHECK(fake_transmit(4), 4);
    CHECK(fake.isr, 1); // the queue waits: it wanted the interrupt
    host_run();
    CHECK(host.device.pair.queue.count, 4);
    CHECK(host.back_count, 4);
    while (fake_transmit(3) != 0) {
        host_run();
    }
    host_run();
    CHECK(fake.sent_count, 24);
    for (unsigned count = 0; count < 24; count++) {
        CHECK(fake.sent[count].octets, 60 + count);
        CHECK(fake.sent[count].data[59], count);
    }
    // The last frames came back without an interrupt: by sending.
    struct vnet_buffer *last = host_buffer(60, 0);
    CHECK(vnet_send(&host.device, last), VNET_OK);
    CHECK(host.back_count, 24);
    for (unsigned count = 0; count < 24; count++) {
        CHECK(host.back[count]->is_sent, true);
        free(host.back[count]);
    }
    CHECK(vnet_stop(&host.device), VNET_OK);
    CHECK(host.back_count, 25);
    CHECK(last->is_sent, false);
    free(last);
}

static void full_ring_uses_the_interface_queue(void) {
    each_transport(check_queue);
}

static void check_transmit_interrupts_from_the_watermark_on(void) {
    struct vnet_config config = host_config();
    config.tx_watermark = 4;
    fake_make(FAKE_MMIO_2);
    start(HOST_FREE, &config);
    struct vnet_buffer *buffers[12];
    for (unsigned count = 0; count < 12; count++) {
        buffers[count] = host_buffer(60, 0);
        CHECK(host.device.pair.tx_interrupts, false);
        CHECK(vnet_send(&host.device, buffers[count]), VNET_OK);
    }
    CHECK(host.device.pair.tx_interrupts, true); // 4 are free
    CHECK(fake_transmit(12), 12);
    host_run();
    CHECK(host.back_count, 12);
    CHECK(host.device.pair.tx_interrupts, false);
    for (unsigned count = 0; count < 12; count++) {
        free(buffers[count]);
    }
}

static void transmit_interrupts_from_the_watermark_on(void) {
    host_each_ring(check_transmit_interrupts_from_the_watermark_on);
}

// All buffers are on their way out: their return must cause an interrupt, or nothing would ever be received again.
static void check_buffers_in_the_transmit_ring_come_back(void) {
    struct vnet_config config = host_config();
    config.buffers = 8;
    fake_make(FAKE_MMIO_2);
    start(HOST_ECHO, &config);
    uint8_t frame[60] = {0};
    for (unsigned count = 0; count < 8; count++) {
        CHECK(fake_receive(frame, sizeof(frame)), true);
    }
    host_run();
    CHECK(fake_waiting(0), 0);
    CHECK(fake_transmit(8), 8);
    CHECK(fake.isr, 1);
    host_run();
    CHECK(fake_waiting(0), 8);
}

static void buffers_in_the_transmit_ring_come_back(void) {
    host_each_ring(check_buffers_in_the_transmit_ring_come_back);
}

// A send takes back the only receive buffer before the device has interrupted for it: the bottom half must post it.
static void check_buffers_that_a_send_takes_back_are_posted(void) {
    struct vnet_config config = host_config();
    config.buffers = config.rx_posted_min = config.rx_posted_max = 1;
    fake_make(FAKE_MMIO_2);
    start(HOST_KEEP, &config);
    uint8_t frame[60] = {0};
    CHECK(fake_receive(frame, sizeof(frame)), true);
    host_run();
    CHECK(vnet_send(&host.device, host.kept[0]), VNET_OK);
    CHECK(fake_transmit_quietly(), true);
    struct vnet_buffer *own = host_buffer(60, 0);
    CHECK(vnet_send(&host.device, own), VNET_OK);
    host_run();
    CHECK(fake_waiting(0), 1);
    CHECK(vnet_stop(&host.device), VNET_OK);
    free(own);
}

static void buffers_that_a_send_takes_back_are_posted(void) {
    host_each_ring(check_buffers_that_a_send_takes_back_are_posted);
}

static void unknown_interrupts_are_acknowledged(void) {
    struct vnet_config config = host_config();
    fake_make(FAKE_MMIO_2);
    start(HOST_FREE, &config);
    fake.isr = 0x3c;
    CHECK(vnet_interrupt(&host.device), false);
    CHECK(fake.isr, 0);
}

static void check_kept_buffers_are_posted_when_freed(void) {
    struct vnet_config config = host_config();
    config.buffers = 8;
    fake_make(FAKE_MMIO_2);
    start(HOST_KEEP, &config);
    uint8_t frame[60] = {0};
    for (unsigned count = 0; count < 8; count++) {
        CHECK(fake_receive(frame, sizeof(frame)), true);
    }
    host_run();
    CHECK(fake_receive(frame, sizeof(frame)), false); // exhausted
    CHECK((uintptr_t)vnet_take(&host.device), 0);
    CHECK(vnet_free(&host.device, host.kept[0]), VNET_OK);
    CHECK(vnet_free(&host.device, host.kept[0]), VNET_ERROR_OWNER);
    CHECK(vnet_send(&host.device, host.kept[0]), VNET_ERROR_OWNER);
    host_run();
    CHECK(fake_waiting(0), 1);
    CHECK(host.device.counters.rx_starved, 1);
}

static void kept_buffers_are_posted_when_freed(void) {
    host_each_ring(check_kept_buffers_are_posted_when_freed);
}

static void check_bound_follows_the_load(void) {
    struct vnet_config config = host_config();
    config.rx_posted_min = 4;
    config.rx_posted_max = 32;
    config.buffers = 40;
    fake_make(FAKE_MMIO_2);
    start(HOST_FREE, &config);
    CHECK(fake_waiting(0), 4);
    uint8_t frame[60] = {0};
    static const unsigned TARGETS[] = {8, 16, 32, 32};
    for (unsigned round = 0; round < 4; round++) {
        while (fake_receive(frame, sizeof(frame))) {
        }
        host_run();
        CHECK(host.device.pair.rx_target, TARGETS[round]);
        CHECK(fake_waiting(0), TARGETS[round]);
    }
    CHECK(host.device.counters.rx_starved, 4);
    CHECK(host.device.rx_peak, 32);
    for (unsigned round = 0; round < 5 * VNET_ADAPT_POLLS; round++) {
        CHECK(fake_receive(frame, sizeof(frame)), true);
        host_run();
    }
    CHECK(host.device.pair.rx_target, 4);
    CHECK(fake_waiting(0), 4);
}

static void bound_follows_the_load(void) {
    host_each_ring(check_bound_follows_the_load);
}

static void link_goes_down_and_up(void) {
    struct vnet_config config = host_config();
    fake_make(FAKE_MMIO_2);
    start(HOST_FREE, &config);
    struct vnet_buffer *buffer = host_buffer(60, 0);
    fake.config[6] = 0;
    fake_change_config();
    host_run();
    CHECK(host.link, 0);
    CHECK(vnet_send(&host.device, buffer), VNET_ERROR_LINK);
    fake.config[6] = 1;
    fake_change_config();
    host_run();
    CHECK(host.link, 1);
    CHECK(vnet_send(&host.device, buffer), VNET_OK);
    CHECK(vnet_stop(&host.device), VNET_OK);
    free(buffer);
}

static void wrong_lengths_and_states_are_refused(void) {
    struct vnet_config config = host_config();
    fake_make(FAKE_MMIO_2);
    start(HOST_FREE, &config);
    struct vnet_buffer *buffer = host_buffer(VNET_FRAME_MIN - 1, 0);
    CHECK(vnet_send(&host.device, buffer), VNET_ERROR_LENGTH);
    buffer->length = VNET_FRAME_MAX + 1;
    CHECK(vnet_send(&host.device, buffer), VNET_ERROR_LENGTH);
    buffer->length = 60;
    CHECK(vnet_free(&host.device, buffer), VNET_ERROR_OWNER);
    CHECK(vnet_stop(&host.device), VNET_OK);
    CHECK(vnet_send(&host.device, buffer), VNET_ERROR_DOWN);
    CHECK(vnet_poll(&host.device, 16), false);
    free(buffer);
    struct vnet_device device;
    struct vnet_config bad = host_config();
    bad.ring_size = 48;
    CHECK(vnet_init(&device, &fake_platform, fake_open(), &bad), VNET_ERROR_ARGUMENT);
    CHECK(vnet_start(&device), VNET_ERROR_ARGUMENT);
    CHECK(vnet_poll(&device, 16), false);
    bad = host_config();
    bad.buffers = 7;
    CHECK(vnet_init(&device, &fake_platform, fake_open(), &bad), VNET_ERROR_ARGUMENT);
}

int main(void) {
    static const struct check_test TESTS[] = {
        TEST(starts_and_stops),
        TEST(echoes_every_length),
        TEST(wakes_and_notifies_once_a_batch),
        TEST(budget_bounds_a_run),
        TEST(full_ring_uses_the_interface_queue),
        TEST(transmit_interrupts_from_the_watermark_on),
        TEST(buffers_in_the_transmit_ring_come_back),
        TEST(buffers_that_a_send_takes_back_are_posted),
        TEST(unknown_interrupts_are_acknowledged),
        TEST(kept_buffers_are_posted_when_freed),
        TEST(bound_follows_the_load),
        TEST(link_goes_down_and_up),
        TEST(wrong_lengths_and_states_are_refused),
    };
    return check_run(TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
