// SPDX-License-Identifier: BSD-2-Clause
// What the device says in a frame's header: in how many buffers it is, and about its checksum.
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "host.h"

static uint8_t frame[3000];

static void start_with(enum fake_kind kind, enum host_mode mode, uint32_t options, uint16_t segment_octets) {
    for (unsigned octet = 0; octet < sizeof(frame); octet++) {
        frame[octet] = (uint8_t)(octet * 7 + octet / 256);
    }
    host_options |= options;
    struct vnet_config config = host_config();
    host_options &= ~options;
    config.segment_octets = segment_octets;
    config.rx_posted_min = config.rx_posted_max = 24;
    config.buffers = 30;
    fake_make(kind);
    host.mode = mode;
    CHECK(host_start(&config), VNET_OK);
    CHECK(vnet_options(&host.device) & options, options);
    host_run();
}

// Each length through segments of each length, on each kind of ring.
static void check_segments(void) {
    static const uint16_t SEGMENTS[] = {128, 200, 256, 700, 1518};
    for (unsigned index = 0; index < sizeof(SEGMENTS) / sizeof(SEGMENTS[0]); index++) {
        start_with(FAKE_PCI_MODERN, HOST_FREE, VNET_OPTION_MERGEABLE, SEGMENTS[index]);
        unsigned segmented = 0;
        for (uint16_t octets = VNET_FRAME_MIN; octets <= VNET_FRAME_MAX; octets += 3) {
            frame[0]++;
            CHECK(fake_receive(frame, octets), true);
            host_run();
            CHECK(host.last_octets, octets);
            CHECK(memcmp(host.last, frame, octets), 0);
            segmented += octets > SEGMENTS[index];
        }
        CHECK(host.segmented, segmented);
        CHECK(host.device.counters.restarts, 0);
        CHECK(host.device.counters.rx_frames, host.received);
        CHECK(host_count_buffers(), 30);
    }
}

static void frames_in_segments(void) {
    host_each_ring(check_segments);
}

// A legacy device's header has the number too, with header and frame in descriptors of their own or in one.
static void segments_of_legacy_devices(void) {
    for (unsigned layout = 0; layout < 2; layout++) {
        struct vnet_config config = host_config();
        config.options = VNET_OPTION_MERGEABLE;
        config.segment_octets = 256;
        fake_make(FAKE_PCI_LEGACY);
        if (layout == 1) {
            fake.offered &= ~FAKE_FEATURE_ANY_LAYOUT;
        }
        host.mode = HOST_FREE;
        CHECK(host_start(&config), VNET_OK);
        CHECK(host.device.header, 12);
        for (unsigned round = 0; round < 100; round++) {
            CHECK(fake_receive(frame, 1500), true);
            host_run();
            CHECK(host.last_octets, 1500);
            CHECK(memcmp(host.last, frame, 1500), 0);
        }
        CHECK(host.segmented, 100);
        struct vnet_buffer *buffer = host_buffer(60, 3);
        CHECK(vnet_send(&host.device, buffer), VNET_OK);
        CHECK(fake_transmit(1), 1);
        CHECK(fake.sent[0].octets, 60);
        CHECK(vnet_stop(&host.device), VNET_OK);
        free(buffer);
    }
}

static void frames_longer_than_a_buffer(void) {
    start_with(FAKE_MMIO_2, HOST_FREE, VNET_OPTION_MERGEABLE, 0);
    CHECK(fake_receive(frame, 3000), true);
    host_run();
    CHECK(host.last_octets, 3000);
    CHECK(memcmp(host.last, frame, 3000), 0);
    // More segments than the driver hands up: dropped, and the ring stays good.
    start_with(FAKE_MMIO_2, HOST_FREE, VNET_OPTION_MERGEABLE, 128);
    CHECK(fake_receive(frame, 2600), true);
    CHECK(fake_receive(frame, 60), true);
    host_run();
    CHECK(host.received, 1);
    CHECK(host.last_octets, 60);
    CHECK(host.device.counters.rx_long, 1);
    CHECK(host.device.counters.rx_frames, 1);
    CHECK(host.device.counters.restarts, 0);
    CHECK(host_count_buffers(), 30);
}

static void check_lies(void) {
    for (int lie = -3; lie <= 3; lie++) {
        start_with(FAKE_MMIO_2, HOST_FREE, VNET_OPTION_MERGEABLE, 256);
        fake.lied_segments = (uint8_t)lie;
        CHECK(fake_receive(frame, 600), true); // 3 buffers
        host_run();
        // Too many: not there. None: not possible. Too few: the next buffer begins with data, which says anything.
        CHECK(host.device.counters.faults[VNET_FAULT_SEGMENTS], lie != 0);
        CHECK(host_count_buffers(), 30);
        fake.lied_segments = 0;
        unsigned received = host.received;
        CHECK(fake_receive(frame, 600), true);
        host_run();
        CHECK(host.received, received + 1);
    }
}

static void lies_about_the_number(void) {
    host_each_ring(check_lies);
}

// A further buffer with no octets, or with more than it has.
static void lies_about_a_further_length(void) {
    static const uint32_t LENGTHS[] = {0, 256 + 12 + 1, UINT32_MAX};
    for (unsigned index = 0; index < 3; index++) {
        start_with(FAKE_MMIO_2, HOST_FREE, VNET_OPTION_MERGEABLE, 256);
        struct vnet_descriptor *descriptor = fake_memory(fake.queues[0].descriptors, sizeof(*descriptor));
        uint8_t *number = fake_memory(descriptor->address + 10, 2);
        number[0] = 2;
        number[1] = 0;
        fake_put_used(0, 0, 268);
        fake_put_used(0, 1, LENGTHS[index]);
        fake.isr = VNET_INTERRUPT_QUEUE;
        host_run();
        CHECK(host.device.counters.faults[VNET_FAULT_LENGTH], 1);
        CHECK(host.received, 0);
        CHECK(host_count_buffers(), 30);
    }
}

static unsigned number_reads;

static uint32_t change_number(const volatile void *from, uint32_t value) {
    const struct vnet_descriptor *descriptor = fake_memory(fake.queues[0].descriptors, sizeof(*descriptor));
    bool is_number = from == fake_memory(descriptor->address + 10, 2);
    return is_number && ++number_reads > 1 ? 9 : value;
}

static void number_is_read_once(void) {
    start_with(FAKE_MMIO_2, HOST_FREE, VNET_OPTION_MERGEABLE, 256);
    number_reads = 0;
    fake.twist = change_number;
    CHECK(fake_receive(frame, 500), true);
    host_run();
    CHECK(number_reads, 1);
    CHECK(host.last_octets, 500);
}

static void short_buffers_need_the_feature(void) {
    struct vnet_config config = host_config();
    config.options = VNET_OPTION_MERGEABLE;
    config.segment_octets = 256;
    fake_make(FAKE_MMIO_2);
    fake.offered &= ~FAKE_FEATURE_MERGEABLE;
    CHECK(host_start(&config), VNET_ERROR_FEATURES);
    config.segment_octets = 0;
    CHECK(host_start(&config), VNET_OK);
    CHECK(vnet_options(&host.device), 0);
    config.segment_octets = 127;
    CHECK(host_start(&config), VNET_ERROR_ARGUMENT);
    config.segment_octets = 128; // 8 of them do not hold a frame
    CHECK(host_start(&config), VNET_ERROR_ARGUMENT);
    config.segment_octets = 1519;
    CHECK(host_start(&config), VNET_ERROR_ARGUMENT);
    config.segment_octets = 256;
    config.receive_segments = NULL;
    CHECK(host_start(&config), VNET_ERROR_ARGUMENT);
    config.options = 0;
    CHECK(host_start(&config), VNET_ERROR_ARGUMENT);
}

// A backend that drops must raise the bound before the posted buffers are all used.
static void too_few_for_a_frame_is_starved(void) {
    start_with(FAKE_MMIO_2, HOST_FREE, VNET_OPTION_MERGEABLE, 128);
    CHECK(fake_receive(frame, 1514), true); // 11 of 24; 13 are left, and the longest frame needs 11
    host_run();
    CHECK(host.device.counters.rx_starved, 0);
    CHECK(fake_receive(frame, 1514), true);
    CHECK(fake_receive(frame, 300), true); // 10 are left
    host_run();
    CHECK(host.device.counters.rx_starved, 1);
}

static void put16(uint8_t *to, uint16_t value) {
    to[0] = (uint8_t)value;
    to[1] = (uint8_t)(value >> 8);
}

// The sum of what a partial checksum covers, with the field as it stands.
static uint16_t sum_from(const uint8_t *data, unsigned octets) {
    uint32_t sum = 0;
    for (unsigned octet = 0; octet < octets; octet++) {
        sum += octet % 2 == 0 ? (uint32_t)data[octet] << 8 : data[octet];
    }
    while (sum >> 16) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    return (uint16_t)sum;
}

static void received_checksums(void) {
    start_with(FAKE_MMIO_2, HOST_FREE, VNET_OPTION_CHECKSUM, 0);
    static const uint8_t FLAGS[] = {0, 2, 1, 3};
    static const uint8_t FOUND[] = {VNET_CHECKSUM_NONE, VNET_CHECKSUM_VALID, VNET_CHECKSUM_PARTIAL,
                                    VNET_CHECKSUM_PARTIAL};
    for (unsigned index = 0; index < 4; index++) {
        fake.rx_header[0] = FLAGS[index];
        put16(fake.rx_header + 6, 34);
        put16(fake.rx_header + 8, 6);
        CHECK(fake_receive(frame, 60), true);
        host_run();
        CHECK(host.last_checksum, FOUND[index]);
    }
    // The field's end may be the frame's, not more; a device that says so is not at fault, but the sender of the frame.
    static const uint16_t STARTS[] = {52, 53, 60, 0xffff};
    for (unsigned index = 0; index < 4; index++) {
        fake.rx_header[0] = 1;
        put16(fake.rx_header + 6, STARTS[index]);
        CHECK(fake_receive(frame, 60), true);
        host_run();
        CHECK(host.received, 5);
        CHECK(host.device.counters.rx_bad_checksums, index);
    }
    CHECK(host.device.counters.rx_frames, 5);
    CHECK(host.device.counters.restarts, 0);
    CHECK(host_count_buffers(), 30);
    // Without the feature the header says nothing.
    start_with(FAKE_MMIO_2, HOST_FREE, 0, 0);
    fake.rx_header[0] = 1;
    CHECK(fake_receive(frame, 60), true);
    host_run();
    CHECK(host.last_checksum, VNET_CHECKSUM_NONE);
}

static void sent_checksums_are_left_to_the_device(void) {
    start_with(FAKE_MMIO_2, HOST_FREE, VNET_OPTION_CHECKSUM, 0);
    struct vnet_buffer *buffer = host_buffer(60, 1);
    buffer->checksum = VNET_CHECKSUM_PARTIAL;
    buffer->checksum_start = 34;
    buffer->checksum_offset = 25;
    CHECK(vnet_send(&host.device, buffer), VNET_ERROR_LENGTH);
    buffer->checksum_offset = 6;
    CHECK(vnet_send(&host.device, buffer), VNET_OK);
    CHECK(fake_transmit(1), 1);
    static const uint8_t HEADER[10] = {1, 0, 0, 0, 0, 0, 34, 0, 6, 0};
    CHECK(memcmp(fake.sent[0].header, HEADER, 10), 0);
    CHECK(fake.sent[0].data[40], 1); // as it was
    CHECK(vnet_stop(&host.device), VNET_OK);
    free(buffer);
}

// An echo keeps what was said of the frame; a buffer from the pool says nothing.
static void partial_frames_go_on(void) {
    start_with(FAKE_MMIO_2, HOST_ECHO, VNET_OPTION_CHECKSUM, 0);
    fake.rx_header[0] = 1;
    put16(fake.rx_header + 6, 34);
    put16(fake.rx_header + 8, 6);
    for (unsigned round = 0; round < 30; round++) {
        CHECK(fake_receive(frame, 60), true);
        host_run();
        CHECK(fake_transmit(1), 1);
        CHECK(fake.sent[round].header[0], 1);
        CHECK(fake.sent[round].header[6], 34);
    }
    host_run();
    struct vnet_buffer *buffer = vnet_take(&host.device);
    CHECK(buffer->checksum, VNET_CHECKSUM_NONE);
    CHECK(vnet_free(&host.device, buffer), VNET_OK);
}

// Where the device does not offer it, the driver computes; then the sum over all is 0xffff.
static void checksums_in_software(void) {
    fake_make(FAKE_MMIO_2);
    fake.offered &= ~(FAKE_FEATURE_CHECKSUM | FAKE_FEATURE_GUEST_CHECKSUM);
    struct vnet_config config = host_config();
    config.options = VNET_OPTION_CHECKSUM;
    host.mode = HOST_FREE;
    CHECK(host_start(&config), VNET_OK);
    CHECK(vnet_options(&host.device), 0);
    for (unsigned octets = 60; octets < 120; octets++) {
        struct vnet_buffer *buffer = host_buffer((uint16_t)octets, 0);
        memcpy(vnet_frame(buffer), frame, octets);
        buffer->checksum = VNET_CHECKSUM_PARTIAL;
        buffer->checksum_start = 34;
        buffer->checksum_offset = 6;
        CHECK(vnet_send(&host.device, buffer), VNET_OK);
        CHECK(fake_transmit(1), 1);
        const struct fake_frame *got = &fake.sent[(octets - 60) % FAKE_SENT_MAX];
        // What stood in the field is part of the sum: as if it were outside.
        uint16_t pseudo = (uint16_t)(frame[40] << 8 | frame[41]);
        CHECK((sum_from(got->data + 34, octets - 34) + pseudo) % 0xffff, 0);
        CHECK(memcmp(got->data, frame, 40), 0);
        CHECK(memcmp(got->data + 42, frame + 42, octets - 42), 0);
        CHECK(vnet_stop(&host.device), VNET_OK);
        CHECK(vnet_start(&host.device), VNET_OK);
        free(buffer);
    }
    // All octets 0: the result is 0, which UDP writes as 0xffff.
    struct vnet_buffer *buffer = host_buffer(60, 0xff);
    buffer->checksum = VNET_CHECKSUM_PARTIAL;
    buffer->checksum_start = 34;
    buffer->checksum_offset = 6;
    CHECK(vnet_send(&host.device, buffer), VNET_OK);
    CHECK(fake_transmit(1), 1);
    CHECK(fake.sent[60].data[40], 0xff);
    CHECK(fake.sent[60].data[41], 0xff);
    CHECK(vnet_stop(&host.device), VNET_OK);
    free(buffer);
}

// A partial checksum over several segments, with the field across two of them.
static void checksums_over_segments(void) {
    start_with(FAKE_MMIO_2, HOST_FREE, VNET_OPTION_CHECKSUM | VNET_OPTION_MERGEABLE, 128);
    for (uint16_t offset = 80; offset < 104; offset += 2) {
        fake.rx_header[0] = 1;
        put16(fake.rx_header + 6, 35);
        put16(fake.rx_header + 8, offset);
        CHECK(fake_receive(frame, 801), true);
        host_run();
        CHECK(host.last_octets, 801);
        CHECK(host.last_checksum, VNET_CHECKSUM_PARTIAL);
        unsigned field = 35 + offset;
        unsigned pseudo = (unsigned)frame[field] << 8 | frame[field + 1];
        CHECK((sum_from(host.last + 35, 801 - 35) + pseudo) % 0xffff, 0);
        CHECK(memcmp(host.last, frame, field), 0);
        CHECK(memcmp(host.last + field + 2, frame + field + 2, 801 - field - 2), 0);
    }
}

int main(void) {
    static const struct check_test TESTS[] = {
        TEST(frames_in_segments),
        TEST(segments_of_legacy_devices),
        TEST(frames_longer_than_a_buffer),
        TEST(lies_about_the_number),
        TEST(lies_about_a_further_length),
        TEST(number_is_read_once),
        TEST(short_buffers_need_the_feature),
        TEST(too_few_for_a_frame_is_starved),
        TEST(received_checksums),
        TEST(sent_checksums_are_left_to_the_device),
        TEST(partial_frames_go_on),
        TEST(checksums_in_software),
        TEST(checksums_over_segments),
    };
    return check_run(TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
