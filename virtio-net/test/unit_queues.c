// SPDX-License-Identifier: BSD-2-Clause
// A queue pair for each traffic class, and the command that asks for them.
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "host.h"

static const uint8_t FRAME[60];
static enum fake_kind kind;

static struct vnet_config config_for(uint16_t classes) {
    struct vnet_config config = host_config();
    config.options |= VNET_OPTION_QUEUES;
    config.tx_classes = classes;
    config.rx_posted_min = config.rx_posted_max = 4;
    config.buffers = 20;
    return config;
}

static void start(enum host_mode mode, uint16_t classes) {
    struct vnet_config config = config_for(classes);
    host.mode = mode;
    CHECK(host_start(&config), VNET_OK);
    host_run();
}

static unsigned pairs_in_use(void) {
    struct vnet_counters counters;
    vnet_read_counters(&host.device, &counters);
    return counters.pairs;
}

// Each class has its queue, and frames arrive on each pair.
static void check_classes(void) {
    for (int index = 0; index <= FAKE_KINDS; index++) {
        kind = index == FAKE_KINDS ? FAKE_PCI_LEGACY : (enum fake_kind)index;
        fake_make(kind);
        if (index == FAKE_KINDS) {
            fake.offered &= ~FAKE_FEATURE_ANY_LAYOUT;
        }
        start(HOST_ECHO, 4);
        CHECK(fake.pairs, 4);
        CHECK(pairs_in_use(), 4);
        CHECK(vnet_options(&host.device) & VNET_OPTION_QUEUES, VNET_OPTION_QUEUES);
        CHECK(host_count_buffers(), 20);
        for (unsigned round = 0; round < 400; round++) {
            fake.rx_queue = round % 4 * 2;
            fake.tx_queue = round / 4 % 4 * 2 + 1;
            host.echo_class = round / 4 % 4;
            CHECK(fake_receive(FRAME, sizeof(FRAME)), true);
            CHECK(fake.isr, 1);
            host_run();
            CHECK(fake_waiting(fake.tx_queue), 1);
            CHECK(fake_transmit(2), 1);
        }
        host_run();
        CHECK(host.received, 400);
        CHECK(host.device.counters.restarts, 0);
        CHECK(host.device.rx_peak, 16);
        CHECK(vnet_stop(&host.device), VNET_OK);
        CHECK(host_count_buffers(), 20);
        unsigned allocations = fake.allocations;
        CHECK(vnet_start(&host.device), VNET_OK);
        CHECK(fake.allocations, allocations);
        CHECK(fake.pairs, 4);
    }
}

static void each_class_has_its_queue(void) {
    host_each_ring(check_classes);
}

static void fewer_pairs_than_classes(void) {
    static const unsigned QUEUES[3][4] = {{1, 1, 1, 1}, {1, 1, 3, 3}, {1, 1, 3, 5}};
    for (unsigned pairs = 1; pairs <= 3; pairs++) {
        fake_make(FAKE_MMIO_2);
        fake.config[8] = (uint8_t)pairs;
        start(HOST_FREE, 4);
        CHECK(pairs_in_use(), pairs);
        CHECK(fake.pairs, pairs == 1 ? 0 : pairs); // one pair needs no command
        for (unsigned class = 0; class < 4; class ++) {
            struct vnet_buffer *buffer = host_buffer(60, 0);
            CHECK(vnet_send_class(&host.device, buffer, class), VNET_OK);
            CHECK(fake_waiting(QUEUES[pairs - 1][class]), 1);
            fake.tx_queue = QUEUES[pairs - 1][class];
            CHECK(fake_transmit(1), 1);
            CHECK(vnet_send_class(&host.device, buffer, 4), VNET_ERROR_ARGUMENT);
            CHECK(vnet_stop(&host.device), VNET_OK);
            CHECK(vnet_start(&host.device), VNET_OK);
            free(buffer);
        }
    }
}

// More pairs than wanted, none, and more than there can be.
static void strange_numbers_of_pairs(void) {
    static const uint8_t OCTETS[][2] = {{0, 0}, {1, 0x80}, {0xff, 0xff}};
    for (unsigned index = 0; index < 3; index++) {
        fake_make(FAKE_PCI_MODERN);
        memcpy(fake.config + 8, OCTETS[index], 2);
        start(HOST_FREE, 4);
        CHECK(pairs_in_use(), 1);
    }
    fake_make(FAKE_PCI_MODERN);
    start(HOST_FREE, 2);
    CHECK(pairs_in_use(), 2);
    // The device names pairs, and has no queues for them, or no control queue.
    for (unsigned queue = 2; queue < FAKE_QUEUES; queue++) {
        fake_make(FAKE_PCI_MODERN);
        fake.size_max[queue] = 0;
        struct vnet_config config = config_for(4);
        CHECK(host_start(&config), VNET_ERROR_QUEUE);
        CHECK(fake.status, 0);
    }
    fake_make(FAKE_MMIO_2);
    fake.size_max[8] = 3; // the command needs three descriptors, a ring has a power of two
    struct vnet_config config = config_for(4);
    CHECK(host_start(&config), VNET_ERROR_QUEUE);
    // Several queues without the queue to ask for them.
    fake_make(FAKE_MMIO_2);
    fake.offered &= ~FAKE_FEATURE_CONTROL;
    CHECK(host_start(&config), VNET_OK);
    CHECK(fake.accepted & FAKE_FEATURE_QUEUES, 0);
    config.tx_classes = VNET_PAIRS_MAX + 1;
    CHECK(host_start(&config), VNET_ERROR_ARGUMENT);
    config.tx_classes = 6; // 6 × 4 buffers
    CHECK(host_start(&config), VNET_ERROR_ARGUMENT);
}

static void check_refusal(void) {
    fake_make(FAKE_PCI_MODERN);
    fake.ack = 1;
    start(HOST_ECHO, 4);
    CHECK(pairs_in_use(), 1);
    CHECK(fake_receive(FRAME, sizeof(FRAME)), true);
    host_run();
    CHECK(fake_transmit(1), 1);
    // No answer: a bounded wait, an error, and the device is reset.
    fake_make(FAKE_PCI_MODERN);
    fake.ignores_commands = true;
    struct vnet_config config = config_for(4);
    CHECK(host_start(&config), VNET_ERROR_TIMEOUT);
    CHECK(fake.pauses, VNET_CONTROL_POLLS);
    CHECK(fake.status, 0);
    CHECK(host_count_buffers(), 20);
    fake.ignores_commands = false;
    CHECK(vnet_start(&host.device), VNET_OK);
    CHECK(pairs_in_use(), 4);
}

static void refused_and_ignored_commands(void) {
    host_each_ring(check_refusal);
}

// A class whose ring and interface queue are full holds up no other.
static void full_class_holds_up_no_other(void) {
    fake_make(FAKE_MMIO_2);
    start(HOST_FREE, 4);
    struct vnet_buffer *buffers[26];
    for (unsigned count = 0; count < 26; count++) {
        buffers[count] = host_buffer(60, 0);
        unsigned class = count == 25 ? 3 : 0;
        int wanted = count < 16 || count == 25 ? VNET_OK : count < 24 ? VNET_QUEUED : VNET_ERROR_FULL;
        CHECK(vnet_send_class(&host.device, buffers[count], class), wanted);
    }
    fake.tx_queue = 7;
    CHECK(fake_transmit(8), 1);
    fake.tx_queue = 1;
    while (fake_transmit(4) != 0) {
        host_run();
    }
    CHECK(fake.sent_count, 25);
    CHECK(vnet_stop(&host.device), VNET_OK);
    for (unsigned count = 0; count < 26; count++) {
        free(buffers[count]);
    }
}

// A ring that is always full takes no more than its turn.
static void rings_take_turns(void) {
    fake_make(FAKE_MMIO_2);
    start(HOST_FREE, 4);
    fake.rx_queue = 6;
    CHECK(fake_receive(FRAME, sizeof(FRAME)), true);
    unsigned runs = 0;
    for (; host.received == 0 || host.device.more[2].rx.used_next == 0; runs++) {
        fake.rx_queue = 0;
        while (fake_receive(FRAME, sizeof(FRAME))) {
        }
        CHECK(runs < 4, true);
        CHECK(vnet_poll(&host.device, 2), true);
    }
    CHECK(runs > 0, true);
}

// A broken rule on any ring resets the device; frames that wait survive, with as many pairs as there are then.
static void faults_on_further_rings(void) {
    for (unsigned queue = 2; queue < 8; queue++) {
        fake_make(FAKE_MMIO_2);
        start(HOST_FREE, 4);
        struct vnet_buffer *buffers[18];
        for (unsigned count = 0; count < 18; count++) {
            buffers[count] = host_buffer(60, 0);
            CHECK(vnet_send_class(&host.device, buffers[count], 3), count < 16 ? VNET_OK : VNET_QUEUED);
        }
        fake.config[8] = queue % 2 == 0 ? 1 : FAKE_PAIRS_MAX;
        fake_put_used(queue, 63, 60);
        fake.isr = VNET_INTERRUPT_QUEUE;
        host_run();
        // A used element of a ring with nothing under way is an index too far.
        bool is_busy = queue % 2 == 0 || queue == 7;
        CHECK(host.device.counters.faults[is_busy ? VNET_FAULT_ID : VNET_FAULT_INDEX], 1);
        CHECK(host.device.state, VNET_RUNNING);
        CHECK(pairs_in_use(), fake.config[8]);
        CHECK(host_count_buffers(), 20);
        CHECK(host.back_count, 16); // what the device had
        fake.tx_queue = queue % 2 == 0 ? 1 : 7;
        CHECK(fake_transmit(4), 2);
        CHECK(vnet_stop(&host.device), VNET_OK);
        for (unsigned count = 0; count < 18; count++) {
            free(buffers[count]);
        }
    }
}

static void refusing_platforms(void) {
    struct vnet_config config = config_for(4);
    for (unsigned left = 0; left < 21; left++) {
        fake_make(FAKE_PCI_MODERN);
        fake.memory_left = left;
        CHECK(host_start(&config), VNET_ERROR_MEMORY);
        CHECK(fake.status, 0);
        fake.memory_left = 1000;
        CHECK(vnet_start(&host.device), VNET_OK);
        CHECK(pairs_in_use(), 4);
    }
    for (unsigned left = 0; left < 11; left++) {
        fake_make(FAKE_PCI_MODERN);
        fake.addresses_left = left;
        CHECK(host_start(&config), VNET_ERROR_MEMORY);
        fake.addresses_left = 1000;
        CHECK(vnet_start(&host.device), VNET_OK);
    }
}

int main(void) {
    static const struct check_test TESTS[] = {
        TEST(each_class_has_its_queue),     TEST(fewer_pairs_than_classes),     TEST(strange_numbers_of_pairs),
        TEST(refused_and_ignored_commands), TEST(full_class_holds_up_no_other), TEST(rings_take_turns),
        TEST(faults_on_further_rings),      TEST(refusing_platforms),
    };
    return check_run(TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
