// SPDX-License-Identifier: BSD-2-Clause
// What event index and packed ring add: when each side hears of the other, laps, and what a device may not write.
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "fake_ring.h"
#include "host.h"

static const uint8_t FRAME[60];

static void start(enum host_mode mode, uint32_t options, uint16_t ring_size) {
    host_options = options;
    struct vnet_config config = host_config();
    config.ring_size = ring_size;
    host_options = 0;
    fake_make(FAKE_MMIO_2);
    host.mode = mode;
    CHECK(host_start(&config), VNET_OK);
    CHECK(vnet_options(&host.device), options);
    host_run();
}

static const uint32_t EVENT_RINGS[] = {VNET_OPTION_EVENT_INDEX, VNET_OPTION_EVENT_INDEX | VNET_OPTION_PACKED};

// The indices of both sides pass 65,536 and the rings wrap; no frame and no wake-up is lost.
static void indices_wrap(void) {
    for (unsigned index = 0; index < 2; index++) {
        start(HOST_ECHO, EVENT_RINGS[index], 16);
        unsigned expected = 0;
        for (unsigned round = 0; round < 30000; round++) {
            for (unsigned count = 0; count <= round % 4; count++) {
                CHECK(fake_receive(FRAME, sizeof(FRAME)), true);
                expected++;
            }
            CHECK(fake.isr, 1);
            host_run();
            CHECK(fake_transmit(16), 1 + round % 4);
            CHECK(fake.queues[1].notifications, round + 1);
        }
        CHECK(host.received, expected);
        CHECK(host.device.counters.restarts, 0);
    }
}

// The device interrupts once for a batch, and the driver notifies only when the device has named an entry.
static void both_sides_hear_once(void) {
    for (unsigned index = 0; index < 2; index++) {
        start(HOST_FREE, EVENT_RINGS[index], 64);
        for (unsigned count = 0; count < 4; count++) {
            CHECK(fake_receive(FRAME, sizeof(FRAME)), true);
            CHECK(fake.isr, count == 0);
            vnet_interrupt(&host.device);
        }
        unsigned notifications = fake.queues[1].notifications;
        fake_want_notifications(1, false);
        struct vnet_buffer *buffers[4];
        for (unsigned count = 0; count < 4; count++) {
            buffers[count] = host_buffer(60, 0);
            CHECK(vnet_send(&host.device, buffers[count]), VNET_OK);
        }
        CHECK(fake.queues[1].notifications, notifications);
        CHECK(fake_transmit(4), 4);
        fake_want_notifications(1, true);
        CHECK(vnet_send(&host.device, buffers[0]), VNET_ERROR_OWNER); // not taken back yet
        host_run();
        CHECK(vnet_send(&host.device, buffers[0]), VNET_OK);
        CHECK(vnet_send(&host.device, buffers[1]), VNET_OK);
        CHECK(fake.queues[1].notifications, notifications + 1); // the entry was named, and then passed
        CHECK(vnet_stop(&host.device), VNET_OK);
        for (unsigned count = 0; count < 4; count++) {
            free(buffers[count]);
        }
    }
}

// While frames wait in the interface queue, each returned frame is asked for again.
static void waiting_frames_ask_again(void) {
    for (unsigned index = 0; index < 2; index++) {
        start(HOST_FREE, EVENT_RINGS[index], 64);
        struct vnet_buffer *buffers[20];
        for (unsigned count = 0; count < 20; count++) {
            buffers[count] = host_buffer(60, (uint8_t)count);
            CHECK(vnet_send(&host.device, buffers[count]), count < 16 ? VNET_OK : VNET_QUEUED);
        }
        for (unsigned count = 0; count < 4; count++) {
            CHECK(fake_transmit(1), 1);
            CHECK(fake.isr, 1);
            host_run();
            CHECK(host.device.pair.queue.count, 3 - count);
        }
        CHECK(fake_transmit(20), 16);
        CHECK(vnet_stop(&host.device), VNET_OK);
        for (unsigned count = 0; count < 20; count++) {
            free(buffers[count]);
        }
    }
}

// A packed ring's buffers come back in any order; ids are the buffers' names, positions are not.
static void packed_buffers_return_in_any_order(void) {
    start(HOST_FREE, VNET_OPTION_PACKED, 8);
    struct vnet_buffer *buffers[8];
    for (unsigned count = 0; count < 8; count++) {
        buffers[count] = host_buffer(60, 0);
    }
    unsigned back = 0;
    for (unsigned round = 0; round < 50; round++) {
        struct fake_chain chains[8];
        for (unsigned count = 0; count < 8; count++) {
            CHECK(vnet_send(&host.device, buffers[count]), VNET_OK);
            chains[count] = fake_take_chain(1);
            CHECK(chains[count].count, 1);
        }
        for (unsigned count = 0; count < 8; count++) {
            fake_put_used_chain(1, &chains[(count * 3 + round) % 8], 0);
        }
        fake.isr = VNET_INTERRUPT_QUEUE;
        host_run();
        CHECK(host.back_count, back += 8);
    }
    CHECK(host.device.counters.restarts, 0);
    for (unsigned count = 0; count < 8; count++) {
        free(buffers[count]);
    }
}

// The whole batch becomes visible with its first descriptor.
static void packed_batch_shows_at_once(void) {
    start(HOST_ECHO, VNET_OPTION_PACKED, 64);
    for (unsigned count = 0; count < 6; count++) {
        CHECK(fake_receive(FRAME, sizeof(FRAME)), true);
    }
    CHECK(vnet_interrupt(&host.device), true);
    host.budget = 3;
    unsigned notifications = fake.queues[1].notifications;
    CHECK(vnet_poll(&host.device, 3), true);
    CHECK(fake_waiting(1), 3);
    CHECK(fake.queues[1].notifications, notifications + 1);
    host_run();
    CHECK(fake_waiting(1), 6);
}

// A ring of one descriptor: every position is a lap of its own.
static void packed_ring_of_one(void) {
    start(HOST_ECHO, VNET_OPTION_PACKED | VNET_OPTION_EVENT_INDEX, 1);
    for (unsigned round = 0; round < 20; round++) {
        CHECK(fake_receive(FRAME, sizeof(FRAME)), true);
        host_run();
        CHECK(fake_receive(FRAME, sizeof(FRAME)), true);
        host_run();
        CHECK(fake_transmit(1), 1);
        host_run();
        CHECK(fake_transmit(1), 1);
    }
    CHECK(host.received, 40);
    CHECK(host.device.counters.restarts, 0);
}

// Wishes that no device may have, and events that lie anywhere: at worst the driver notifies or does not.
static void strange_wishes_do_no_harm(void) {
    start(HOST_ECHO, VNET_OPTION_PACKED | VNET_OPTION_EVENT_INDEX, 64);
    for (unsigned round = 0; round < 4096; round++) {
        uint16_t event[2] = {(uint16_t)(round * 977), (uint16_t)(round % 7)};
        memcpy(fake_memory(fake.queues[1].used, 4), event, sizeof(event));
        CHECK(fake_receive(FRAME, sizeof(FRAME)), true);
        host_run();
        fake.queues[1].is_quiet = true;
        CHECK(fake_transmit(1), 1);
    }
    CHECK(host.device.counters.restarts, 0);
}

// A used flag where nothing is under way is a lie that must not keep the bottom half busy.
static void used_flag_without_a_buffer(void) {
    start(HOST_FREE, VNET_OPTION_PACKED, 64);
    fake_move_used(1, 1);
    fake.isr = VNET_INTERRUPT_QUEUE;
    host_run();
    CHECK(host.device.counters.faults[VNET_FAULT_INDEX], 1);
    CHECK(host.device.state, VNET_RUNNING);
}

static void options_that_are_not_offered(void) {
    struct vnet_config config = host_config();
    config.options = VNET_OPTION_PACKED | VNET_OPTION_EVENT_INDEX;
    host.mode = HOST_ECHO;
    fake_make(FAKE_PCI_MODERN);
    fake.offered &= ~(FAKE_FEATURE_PACKED | FAKE_FEATURE_EVENT_INDEX);
    CHECK(host_start(&config), VNET_OK);
    CHECK(vnet_options(&host.device), 0);
    // A legacy device cannot offer the packed ring, whatever its bits say.
    fake_make(FAKE_MMIO_1);
    fake.offered |= FAKE_FEATURE_PACKED;
    CHECK(host_start(&config), VNET_OK);
    CHECK(vnet_options(&host.device), VNET_OPTION_EVENT_INDEX);
    // What is not compiled in is refused.
    config.options = 0x80000000;
    CHECK(host_start(&config), VNET_ERROR_ARGUMENT);
}

int main(void) {
    static const struct check_test TESTS[] = {
        TEST(indices_wrap),
        TEST(both_sides_hear_once),
        TEST(waiting_frames_ask_again),
        TEST(packed_buffers_return_in_any_order),
        TEST(packed_batch_shows_at_once),
        TEST(packed_ring_of_one),
        TEST(strange_wishes_do_no_harm),
        TEST(used_flag_without_a_buffer),
        TEST(options_that_are_not_offered),
    };
    return check_run(TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
