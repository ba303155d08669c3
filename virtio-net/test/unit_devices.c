// SPDX-License-Identifier: BSD-2-Clause
// Devices that are allowed, and rare: features that a device may insist on, fields that are read in one way only, an
// MTU, what earlier software left on, and rings as large as a legacy device wants.
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "host.h"

static uint8_t frame[1600] = {1, 2, 3};

static int start(void) {
    struct vnet_config config = host_config();
    host.mode = HOST_FREE;
    int result = host_start(&config);
    if (result == VNET_OK) {
        host_run();
    }
    return result;
}

// A frame in each direction, by interrupts.
static void check_frames(void) {
    CHECK(fake_receive(frame, 60), true);
    host_run();
    CHECK(host.received, 1);
    struct vnet_buffer *buffer = host_buffer(60, 3);
    CHECK(vnet_send(&host.device, buffer), VNET_OK);
    CHECK(fake_transmit(1), 1);
    CHECK(vnet_stop(&host.device), VNET_OK);
    free(buffer);
}

static void features_that_a_device_insists_on(void) {
    static const uint64_t FEATURES[] = {FAKE_FEATURE_ACCESS_PLATFORM, FAKE_FEATURE_ORDER_PLATFORM,
                                        FAKE_FEATURE_ACCESS_PLATFORM | FAKE_FEATURE_ORDER_PLATFORM};
    for (unsigned index = 0; index < 3; index++) {
        for (int kind = FAKE_MMIO_2; kind <= FAKE_PCI_MODERN; kind += FAKE_PCI_MODERN - FAKE_MMIO_2) {
            fake_make((enum fake_kind)kind);
            fake.offered |= FEATURES[index];
            fake.required = FEATURES[index];
            CHECK(start(), VNET_OK);
            CHECK((fake.accepted & FEATURES[index]) == FEATURES[index], true);
            check_frames();
        }
    }
    // What the driver does not know is not accepted, however the device insists.
    fake_make(FAKE_MMIO_2);
    fake.offered |= UINT64_C(1) << 37;
    fake.required = UINT64_C(1) << 37;
    CHECK(start(), VNET_ERROR_FEATURES);
}

static void fields_of_16_bits(void) {
    for (int kind = 0; kind < FAKE_KINDS; kind++) {
        for (unsigned up = 0; up < 2; up++) {
            fake_make((enum fake_kind)kind);
            fake.is_strict = true; // not PCI legacy, which has octets
            fake.config[6] = (uint8_t)up;
            host_options = VNET_OPTION_QUEUES & (uint32_t)VNET_OPTIONS;
            struct vnet_config config = host_config();
            host_options = 0;
            config.tx_classes = 3;
            config.rx_posted_min = config.rx_posted_max = 2;
            host.mode = HOST_FREE;
            CHECK(host_start(&config), VNET_OK);
            host_run();
            CHECK(host.link, (int)up);
            CHECK(host.device.pairs, HAS(QUEUES) ? 3 : 1);
            CHECK(memcmp(host.device.mac, fake.config, 6), 0);
            fake.config[6] ^= 1;
            fake_change_config();
            host_run();
            CHECK(host.link, (int)!up);
        }
    }
}

// Sends a frame of this length, with this type. Returns what vnet_send says.
static int send_typed(struct vnet_buffer *buffer, size_t octets, uint16_t type) {
    buffer->length = octets;
    vnet_frame(buffer)[12] = (uint8_t)(type >> 8);
    vnet_frame(buffer)[13] = (uint8_t)type;
    int result = vnet_send(&host.device, buffer);
    if (result >= 0) {
        CHECK(fake_transmit(1), 1);
        vnet_poll(&host.device, 16); // takes the buffer back
    }
    return result;
}

static void an_mtu_is_obeyed(void) {
    for (int kind = 0; kind < FAKE_KINDS; kind++) {
        fake_make((enum fake_kind)kind);
        fake.offered |= FAKE_FEATURE_MTU;
        fake.is_strict = true;
        CHECK(start(), VNET_OK);
        CHECK((fake.accepted & FAKE_FEATURE_MTU) != 0, true);
        CHECK(host.device.mtu, FAKE_MTU);
        struct vnet_buffer *buffer = host_buffer(60, 1);
        CHECK(send_typed(buffer, FAKE_MTU + 14, 0x0800), VNET_OK);
        CHECK(send_typed(buffer, FAKE_MTU + 15, 0x0800), VNET_ERROR_LENGTH);
        // A VLAN tag is no part of the MTU.
        CHECK(send_typed(buffer, FAKE_MTU + 18, 0x8100), VNET_OK);
        CHECK(send_typed(buffer, FAKE_MTU + 18, 0x88a8), VNET_OK);
        CHECK(send_typed(buffer, FAKE_MTU + 19, 0x8100), VNET_ERROR_LENGTH);
        CHECK(buffer->owner, VNET_OWNER_CALLER);
        // A link that is down is said first, and does not change the MTU.
        fake.config[6] = 0;
        fake_change_config();
        host_run();
        CHECK(send_typed(buffer, 60, 0x0800), VNET_ERROR_LINK);
        fake.config[6] = 1;
        fake_change_config();
        host_run();
        CHECK(send_typed(buffer, FAKE_MTU + 15, 0x0800), VNET_ERROR_LENGTH);
        CHECK(send_typed(buffer, FAKE_MTU + 14, 0x0800), VNET_OK);
        CHECK(vnet_stop(&host.device), VNET_OK);
        free(buffer);
    }
}

// Not accepted: below the standard's least, and above what a buffer holds. The largest that fits is.
static void an_mtu_that_cannot_be(void) {
    static const struct {
        uint16_t mtu;
        bool is_accepted;
    } CASES[] = {{0, false}, {67, false}, {68, true}, {1500, true}, {1501, false}, {9000, false}, {65535, false}};
    for (unsigned index = 0; index < sizeof(CASES) / sizeof(CASES[0]); index++) {
        fake_make(FAKE_PCI_MODERN);
        fake.offered |= FAKE_FEATURE_MTU;
        fake.config[10] = (uint8_t)CASES[index].mtu;
        fake.config[11] = (uint8_t)(CASES[index].mtu >> 8);
        CHECK(start(), VNET_OK);
        CHECK((fake.accepted & FAKE_FEATURE_MTU) != 0, CASES[index].is_accepted);
        CHECK(host.device.mtu, CASES[index].is_accepted ? CASES[index].mtu : 1500);
        struct vnet_buffer *buffer = host_buffer(60, 1);
        CHECK(send_typed(buffer, 1514, 0x0800), host.device.mtu == 1500 ? VNET_OK : VNET_ERROR_LENGTH);
        CHECK(send_typed(buffer, 1518, 0x8100), host.device.mtu == 1500 ? VNET_OK : VNET_ERROR_LENGTH);
        CHECK(vnet_stop(&host.device), VNET_OK);
        free(buffer);
    }
}

static void message_interrupts_are_turned_off(void) {
    static const uint8_t CAPABILITIES[] = {0x05, 0x11};
    for (unsigned index = 0; index < 2; index++) {
        for (int kind = FAKE_PCI_LEGACY; kind <= FAKE_PCI_MODERN; kind++) {
            fake_make((enum fake_kind)kind);
            fake_leave_messages_on(CAPABILITIES[index]);
            CHECK(fake_has_messages_on(), true);
            CHECK(start(), VNET_OK);
            CHECK(fake_has_messages_on(), false);
            CHECK(memcmp(host.device.mac, fake.config, 6), 0);
            CHECK(host.link, 1);
            check_frames();
        }
    }
}

// A port that cannot write configuration space polls: the configuration is found behind the vectors.
static void a_legacy_device_with_msix(void) {
    for (unsigned up = 0; up < 2; up++) {
        fake_make(FAKE_PCI_LEGACY);
        fake_leave_messages_on(0x11);
        fake.is_port_silent = true;
        fake.offered |= FAKE_FEATURE_MTU;
        fake.config[6] = (uint8_t)up;
        CHECK(start(), VNET_OK);
        CHECK(fake_has_messages_on(), true);
        CHECK(memcmp(host.device.mac, fake.config, 6), 0);
        CHECK(host.link, (int)up);
        CHECK(host.device.mtu, FAKE_MTU);
        CHECK(fake_receive(frame, 60), true);
        vnet_poll(&host.device, 16);
        CHECK(host.received, 1);
        CHECK(vnet_stop(&host.device), VNET_OK);
    }
}

// A device without a MAC address may have all ones where it would be.
static void a_legacy_device_without_a_mac(void) {
    fake_make(FAKE_PCI_LEGACY);
    fake.offered &= ~FAKE_FEATURE_MAC;
    memset(fake.config, 0, 6);
    struct vnet_config config = host_config();
    config.mac[0] = 2;
    host.mode = HOST_FREE;
    CHECK(host_start(&config), VNET_OK);
    host_run();
    CHECK(host.link, 1);
    CHECK(host.device.mac[0], 2);
}

static void rings_as_large_as_a_legacy_device_wants(void) {
    for (unsigned size = 64; size <= 32768; size *= 2) {
        for (unsigned layout = 0; layout < 2; layout++) {
            fake_make(FAKE_PCI_LEGACY);
            if (layout == 1) {
                fake.offered &= ~FAKE_FEATURE_ANY_LAYOUT;
            }
            for (unsigned queue = 0; queue < FAKE_QUEUES; queue++) {
                fake.size_max[queue] = size;
            }
            CHECK(start(), VNET_OK);
            CHECK(fake.queues[0].size, size);
            // Further than 16 bits of the indices, with few descriptors in use.
            for (unsigned round = 0; round < 70000; round += size < 32768 ? 7919 : 1) {
                CHECK(fake_receive(frame, 60), true);
                host_run();
            }
            CHECK(host.device.counters.restarts, 0);
            CHECK(host.device.counters.rx_frames, host.received);
            CHECK(host_count_buffers(), 12);
            CHECK(vnet_stop(&host.device), VNET_OK);
            CHECK(vnet_start(&host.device), VNET_OK);
        }
    }
    static const uint32_t WRONG[] = {0, 100, 32767, 65535};
    for (unsigned index = 0; index < sizeof(WRONG) / sizeof(WRONG[0]); index++) {
        fake_make(FAKE_PCI_LEGACY);
        fake.size_max[1] = WRONG[index];
        CHECK(start(), VNET_ERROR_QUEUE);
    }
}

// The platform is asked for what the ring needs, and says no.
static void a_large_ring_needs_memory(void) {
    fake_make(FAKE_PCI_LEGACY);
    fake.size_max[0] = 32768;
    fake.memory_left = 2; // buffers and their records
    CHECK(start(), VNET_ERROR_MEMORY);
    CHECK(vnet_ring_octets(32768, 4096), 840 * 1024);
    CHECK(vnet_ring_octets(4096, 4096), 112 * 1024);
    CHECK(vnet_ring_octets(256, 4096), 12 * 1024);
    fake.memory_left = 1000;
    CHECK(vnet_start(&host.device), VNET_OK);
}

int main(void) {
    static const struct check_test TESTS[] = {
        TEST(features_that_a_device_insists_on),
        TEST(fields_of_16_bits),
        TEST(an_mtu_is_obeyed),
        TEST(an_mtu_that_cannot_be),
        TEST(message_interrupts_are_turned_off),
        TEST(a_legacy_device_with_msix),
        TEST(a_legacy_device_without_a_mac),
        TEST(rings_as_large_as_a_legacy_device_wants),
        TEST(a_large_ring_needs_memory),
    };
    return check_run(TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
