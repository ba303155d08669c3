// SPDX-License-Identifier: BSD-2-Clause
// Devices that lie, break down or refuse, and platforms that refuse.
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "host.h"

static const uint8_t FRAME[60];

static void start(enum fake_kind kind, enum host_mode mode) {
    struct vnet_config config = host_config();
    fake_make(kind);
    host.mode = mode;
    CHECK(host_start(&config), VNET_OK);
    host_run();
}

// After a fault: counted, reset once, all buffers there, and frames go both ways again.
static void check_recovered(enum vnet_fault fault) {
    fake.isr |= VNET_INTERRUPT_QUEUE;
    host_run();
    CHECK(host.device.counters.faults[fault], 1);
    CHECK(host.device.counters.restarts, 1);
    CHECK(host.device.state, VNET_RUNNING);
    CHECK(host_count_buffers(), 12);
    CHECK(fake_waiting(0), 8);
    unsigned received = host.received;
    host.mode = HOST_ECHO;
    for (unsigned count = 0; count < 20; count++) {
        CHECK(fake_receive(FRAME, sizeof(FRAME)), true);
        host_run();
        CHECK(fake_transmit(1), 1);
    }
    CHECK(host.received, received + 20);
    CHECK(host.device.counters.restarts, 1);
}

static void check_index_jumps(void) {
    for (unsigned queue = 0; queue < 2; queue++) {
        // In a packed ring only descriptors can be marked.
        unsigned end = host_options & VNET_OPTION_PACKED ? 64 : 65536;
        for (unsigned jump = queue == 0 ? 9 : 1; jump < end; jump = jump * 3 + 1) {
            start(FAKE_MMIO_2, HOST_FREE);
            fake_move_used(queue, (uint16_t)jump);
            check_recovered(VNET_FAULT_INDEX);
        }
    }
}

static void index_jumps(void) {
    host_each_ring(check_index_jumps);
}

static void check_foreign_ids(void) {
    static const uint32_t IDS[] = {8, 9, 63, 64, 255, 256, 65535, 65536, 65537, 0x80000000, UINT32_MAX};
    for (unsigned index = 0; index < sizeof(IDS) / sizeof(IDS[0]); index++) {
        if ((host_options & VNET_OPTION_PACKED) && IDS[index] > UINT16_MAX) {
            continue; // an id has 16 bits there
        }
        start(FAKE_MMIO_2, HOST_FREE);
        fake_put_used(0, IDS[index], 100);
        check_recovered(VNET_FAULT_ID);
    }
}

static void foreign_ids(void) {
    host_each_ring(check_foreign_ids);
}

static void check_id_twice(void) {
    start(FAKE_MMIO_2, HOST_KEEP);
    fake_put_used(0, 3, 100);
    fake_put_used(0, 3, 100);
    fake.isr = VNET_INTERRUPT_QUEUE;
    host_run();
    CHECK(host.received, 1);
    CHECK(vnet_free(&host.device, host.kept[0]), VNET_OK);
    check_recovered(VNET_FAULT_ID);
}

static void id_twice(void) {
    host_each_ring(check_id_twice);
}

static void check_transmit_id_twice(void) {
    start(FAKE_MMIO_2, HOST_FREE);
    struct vnet_buffer *buffers[2] = {host_buffer(60, 1), host_buffer(60, 2)};
    CHECK(vnet_send(&host.device, buffers[0]), VNET_OK);
    CHECK(vnet_send(&host.device, buffers[1]), VNET_OK);
    fake_put_used(1, 0, 0);
    fake_put_used(1, 0, 0);
    check_recovered(VNET_FAULT_ID);
    CHECK(host.back_count, 2);
    CHECK(buffers[0]->is_sent, true);
    CHECK(buffers[1]->is_sent, false);
    CHECK(host.device.counters.tx_lost, 1);
    free(buffers[0]);
    free(buffers[1]);
}

static void transmit_id_twice(void) {
    host_each_ring(check_transmit_id_twice);
}

// With a descriptor each for header and frame, only the header's is a buffer's name.
static void id_inside_a_pair(void) {
    struct vnet_config config = host_config();
    fake_make(FAKE_MMIO_1);
    fake.offered &= ~FAKE_FEATURE_ANY_LAYOUT;
    host.mode = HOST_FREE;
    CHECK(host_start(&config), VNET_OK);
    host_run();
    fake_put_used(0, 5, 100);
    check_recovered(VNET_FAULT_ID);
}

static void check_wrong_lengths(void) {
    static const uint32_t LENGTHS[] = {0, 1, 11, 12 + VNET_FRAME_MAX + 1, 65536, 0x80000000, UINT32_MAX};
    for (unsigned index = 0; index < sizeof(LENGTHS) / sizeof(LENGTHS[0]); index++) {
        start(FAKE_MMIO_2, HOST_FREE);
        fake_put_used(0, 0, LENGTHS[index]);
        check_recovered(VNET_FAULT_LENGTH);
    }
    // Below an Ethernet header, but as long as the device's: a short frame, no fault.
    start(FAKE_MMIO_2, HOST_FREE);
    fake_put_used(0, 0, 12);
    fake_put_used(0, 1, 12 + VNET_FRAME_MIN - 1);
    fake_put_used(0, 2, 12 + VNET_FRAME_MAX);
    fake.isr = VNET_INTERRUPT_QUEUE;
    host_run();
    CHECK(host.device.counters.rx_short, 2);
    CHECK(host.received, 1);
    CHECK(host.last_octets, VNET_FRAME_MAX);
    CHECK(host.device.counters.restarts, 0);
}

static void wrong_lengths(void) {
    host_each_ring(check_wrong_lengths);
}

static void check_frame_longer_than_the_buffer(void) {
    start(FAKE_MMIO_2, HOST_FREE);
    static const uint8_t LONG[1600];
    CHECK(fake_receive(LONG, sizeof(LONG)), true); // the device cuts it
    host_run();
    CHECK(host.last_octets, VNET_FRAME_MAX);
}

static void frame_longer_than_the_buffer(void) {
    host_each_ring(check_frame_longer_than_the_buffer);
}

// Every field of a used element is read once: what changes between two reads cannot deceive.
static unsigned reads[2];

static uint32_t count_reads(const volatile void *from, uint32_t value) {
    bool is_packed = host_options & VNET_OPTION_PACKED;
    const uint8_t *element = fake_memory(is_packed ? fake.queues[0].descriptors : fake.queues[0].used + 4, 16);
    const uint8_t *fields[2] = {element + (is_packed ? 12 : 0), element + (is_packed ? 8 : 4)}; // id and length
    for (unsigned field = 0; field < 2; field++) {
        if (from == fields[field] && ++reads[field] > 1) {
            return UINT32_MAX;
        }
    }
    return value;
}

static void check_fields_are_read_once(void) {
    start(FAKE_MMIO_2, HOST_FREE);
    reads[0] = reads[1] = 0;
    fake.twist = count_reads;
    CHECK(fake_receive(FRAME, sizeof(FRAME)), true);
    host_run();
    CHECK(reads[0], 1);
    CHECK(reads[1], 1);
    CHECK(host.last_octets, sizeof(FRAME));
}

static void fields_are_read_once(void) {
    host_each_ring(check_fields_are_read_once);
}

static void needs_reset(void) {
    for (int kind = 0; kind < FAKE_KINDS; kind++) {
        start((enum fake_kind)kind, HOST_FREE);
        fake.status |= VNET_STATUS_NEEDS_RESET;
        fake_change_config();
        check_recovered(VNET_FAULT_RESET);
    }
}

static void check_device_resets_itself_in_traffic(void) {
    start(FAKE_MMIO_2, HOST_FREE);
    struct vnet_buffer *buffer = host_buffer(60, 1);
    CHECK(vnet_send(&host.device, buffer), VNET_OK);
    CHECK(fake_receive(FRAME, sizeof(FRAME)), true);
    fake.status = 0;
    memset(fake.queues, 0, sizeof(fake.queues));
    fake_change_config();
    check_recovered(VNET_FAULT_RESET);
    CHECK(host.back_count, 1);
    free(buffer);
}

static void device_resets_itself_in_traffic(void) {
    host_each_ring(check_device_resets_itself_in_traffic);
}

static void check_device_that_finishes_no_reset_keeps_its_buffers(void) {
    start(FAKE_MMIO_2, HOST_FREE);
    fake.refuses_reset = true;
    fake_put_used(0, 77, 100);
    fake.isr = VNET_INTERRUPT_QUEUE;
    host_run();
    CHECK(host.device.state, VNET_FAILED);
    CHECK(fake.pauses, VNET_RESET_POLLS);
    CHECK(host.device.pair.rx.under_way_count, 8); // the device may still write there
    CHECK(host_count_buffers(), 12);
    CHECK(vnet_poll(&host.device, 16), false);
    CHECK(vnet_stop(&host.device), VNET_ERROR_TIMEOUT);
    CHECK(vnet_start(&host.device), VNET_ERROR_TIMEOUT);
    fake.refuses_reset = false;
    CHECK(vnet_start(&host.device), VNET_OK);
    host_run();
    CHECK(host_count_buffers(), 12);
    CHECK(fake_receive(FRAME, sizeof(FRAME)), true);
    host_run();
    CHECK(host.received, 1);
}

static void device_that_finishes_no_reset_keeps_its_buffers(void) {
    host_each_ring(check_device_that_finishes_no_reset_keeps_its_buffers);
}

static void check_lying_without_end_is_given_up(void) {
    start(FAKE_MMIO_2, HOST_FREE);
    for (unsigned round = 0; round <= VNET_RESTARTS_MAX; round++) {
        CHECK(host.device.state, VNET_RUNNING);
        fake_put_used(0, 77, 100);
        fake.isr = VNET_INTERRUPT_QUEUE;
        host_run();
    }
    CHECK(host.device.state, VNET_FAILED);
    CHECK(host.device.counters.restarts, VNET_RESTARTS_MAX);
    CHECK(fake.status, 0);
    CHECK(host_count_buffers(), 12);
    CHECK(vnet_start(&host.device), VNET_OK);
}

static void lying_without_end_is_given_up(void) {
    host_each_ring(check_lying_without_end_is_given_up);
}

static void check_interrupt_storm(void) {
    start(FAKE_MMIO_2, HOST_FREE);
    // The first run after the start had nothing to do either.
    for (unsigned count = 1; count < VNET_IDLE_WAKES_MAX; count++) {
        fake.isr = VNET_INTERRUPT_QUEUE;
        host_run();
    }
    CHECK(host.device.counters.restarts, 0);
    check_recovered(VNET_FAULT_INTERRUPTS);
}

static void interrupt_storm(void) {
    host_each_ring(check_interrupt_storm);
}

static int start_with(enum fake_kind kind, void (*change)(void)) {
    struct vnet_config config = host_config();
    fake_make(kind);
    change();
    int result = host_start(&config);
    if (result != VNET_OK && result != VNET_ERROR_DEVICE) {
        CHECK(fake.status, 0);
        CHECK(host.device.state, VNET_STOPPED);
        // The next start meets the same device, and nothing is left over from the first.
        CHECK(vnet_start(&host.device), result);
    }
    return result;
}

static void lose_version_1(void) {
    fake.offered &= ~FAKE_FEATURE_VERSION_1;
}
static void refuse_features(void) {
    fake.refuses_features = true;
}
static void offer_all_features(void) {
    fake.offered = UINT64_MAX;
}
static void no_queue(void) {
    fake.size_max[1] = 0;
}
static void odd_size(void) {
    fake.size_max[0] = 100;
}
static void huge_size(void) {
    fake.size_max[0] = 0xffff;
}
static void size_one(void) {
    fake.size_max[0] = 1;
}
static void wrong_magic(void) {
    fake.magic++;
}
static void wrong_version(void) {
    fake.version = 3;
}
static void wrong_device(void) {
    fake.device_id = 2;
}
static void no_mac(void) {
    fake.offered &= ~FAKE_FEATURE_MAC;
}
static void group_mac(void) {
    fake.config[0] |= 1;
}
static void changing_config(void) {
    fake.changes_config = true;
}

static void refusing_devices(void) {
    CHECK(start_with(FAKE_MMIO_2, lose_version_1), VNET_ERROR_FEATURES);
    CHECK(start_with(FAKE_PCI_MODERN, refuse_features), VNET_ERROR_FEATURES);
    CHECK(start_with(FAKE_MMIO_2, no_queue), VNET_ERROR_QUEUE);
    CHECK(start_with(FAKE_PCI_MODERN, no_queue), VNET_ERROR_QUEUE);
    CHECK(start_with(FAKE_PCI_LEGACY, no_queue), VNET_ERROR_QUEUE);
    CHECK(start_with(FAKE_PCI_LEGACY, odd_size), VNET_ERROR_QUEUE);
    CHECK(start_with(FAKE_PCI_LEGACY, huge_size), VNET_ERROR_QUEUE);
    CHECK(start_with(FAKE_MMIO_1, wrong_magic), VNET_ERROR_DEVICE);
    CHECK(start_with(FAKE_MMIO_1, wrong_version), VNET_ERROR_DEVICE);
    CHECK(start_with(FAKE_MMIO_1, wrong_device), VNET_ERROR_DEVICE);
    CHECK(start_with(FAKE_MMIO_2, no_mac), VNET_ERROR_CONFIG);
    CHECK(start_with(FAKE_MMIO_2, group_mac), VNET_ERROR_CONFIG);
}

static void strange_devices_that_can_be_used(void) {
    CHECK(start_with(FAKE_MMIO_2, offer_all_features), VNET_OK);
    CHECK(fake.accepted, FAKE_FEATURE_MAC | FAKE_FEATURE_STATUS | FAKE_FEATURE_VERSION_1 | FAKE_FEATURE_MTU |
                             FAKE_FEATURE_ACCESS_PLATFORM | FAKE_FEATURE_ORDER_PLATFORM);
    CHECK(start_with(FAKE_MMIO_2, odd_size), VNET_OK);
    CHECK(fake.queues[0].size, 64);
    CHECK(start_with(FAKE_MMIO_2, huge_size), VNET_OK);
    CHECK(start_with(FAKE_MMIO_2, size_one), VNET_OK);
    CHECK(fake_waiting(0), 1);
    CHECK(start_with(FAKE_MMIO_2, changing_config), VNET_OK);
    struct vnet_config config = host_config();
    config.mac[0] = 2;
    fake_make(FAKE_MMIO_2);
    group_mac();
    CHECK(host_start(&config), VNET_OK);
    CHECK(host.device.mac[0], 2);
}

static void ring_that_grows_is_refused(void) {
    start(FAKE_PCI_LEGACY, HOST_FREE);
    CHECK(vnet_stop(&host.device), VNET_OK);
    fake.size_max[1] = 512;
    CHECK(vnet_start(&host.device), VNET_ERROR_QUEUE);
    fake.size_max[1] = 128;
    CHECK(vnet_start(&host.device), VNET_OK);
}

static void refusing_platforms(void) {
    struct vnet_config config = host_config();
    for (int kind = 0; kind < FAKE_KINDS; kind++) {
        for (unsigned left = 0; left < 6; left++) {
            fake_make((enum fake_kind)kind);
            fake.memory_left = left;
            CHECK(host_start(&config), VNET_ERROR_MEMORY);
            CHECK(fake.status, 0);
            fake.memory_left = 1000;
            CHECK(vnet_start(&host.device), VNET_OK);
        }
        for (unsigned left = 0; left < 3; left++) {
            fake_make((enum fake_kind)kind);
            fake.addresses_left = left;
            CHECK(host_start(&config), VNET_ERROR_MEMORY);
            fake.addresses_left = 1000;
            CHECK(vnet_start(&host.device), VNET_OK);
            host_run();
            CHECK(fake_waiting(0), 8);
        }
    }
}

// What a PCI function says about its structures.
static bool opens_with(unsigned at, uint32_t value, unsigned octets) {
    fake_make(FAKE_PCI_MODERN);
    memcpy(fake.pci + at, &value, octets);
    return fake_open() != NULL;
}

static void pci_capabilities(void) {
    CHECK(opens_with(0, 0x10411af4, 4), true);
    CHECK(opens_with(0, 0x10411af5, 4), false);    // another vendor
    CHECK(opens_with(2, 0x1042, 2), false);        // a block device
    CHECK(opens_with(6, 0, 2), false);             // no list
    CHECK(opens_with(0x34, 0, 1), false);          // an empty list
    CHECK(opens_with(0x34, 0x3c, 1), false);       // a list inside the header
    CHECK(opens_with(0x7d, 0x40, 1), true);        // a circle after all are found
    CHECK(opens_with(0x55, 0x40, 1), false);       // a circle before
    CHECK(opens_with(0x34, 0xf8, 1), false);       // a capability that would end beyond 256 octets
    CHECK(opens_with(0x43, 9, 1), false);          // an unknown type
    CHECK(opens_with(0x44, 6, 1), false);          // BAR 6
    CHECK(opens_with(0x44, 0, 1), false);          // a BAR that is not mapped
    CHECK(opens_with(0x48, 2, 4), false);          // not aligned
    CHECK(opens_with(0x48, 0xfffffff0, 4), false); // beyond the BAR
    CHECK(opens_with(0x4c, 55, 4), false);         // too short
    CHECK(opens_with(0x4c, UINT32_MAX, 4), false); // too long
    CHECK(opens_with(0x64, 3, 4), false);          // an odd multiplier
    struct vnet_config config = host_config();
    CHECK(opens_with(0x64, 0x80000000, 4), true); // queue 1 would be notified beyond the structure
    CHECK(host_start(&config), VNET_ERROR_QUEUE);
    CHECK(opens_with(0x60, 4, 4), true);
    CHECK(host_start(&config), VNET_ERROR_QUEUE);
}

int main(void) {
    static const struct check_test TESTS[] = {
        TEST(index_jumps),
        TEST(foreign_ids),
        TEST(id_twice),
        TEST(transmit_id_twice),
        TEST(id_inside_a_pair),
        TEST(wrong_lengths),
        TEST(frame_longer_than_the_buffer),
        TEST(fields_are_read_once),
        TEST(needs_reset),
        TEST(device_resets_itself_in_traffic),
        TEST(device_that_finishes_no_reset_keeps_its_buffers),
        TEST(lying_without_end_is_given_up),
        TEST(interrupt_storm),
        TEST(refusing_devices),
        TEST(strange_devices_that_can_be_used),
        TEST(ring_that_grows_is_refused),
        TEST(refusing_platforms),
        TEST(pci_capabilities),
    };
    return check_run(TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
