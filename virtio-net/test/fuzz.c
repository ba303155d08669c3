// SPDX-License-Identifier: BSD-2-Clause
// A hostile device, driven by a fuzzer. An input is a program: its first octets choose the device, each further octet
// (with its operands) is a step of the device or of the program above the driver. After every input all buffers must be
// accounted for, and the driver must have come to rest in a bounded number of steps. With a file name as argument and
// without libFuzzer it runs that one input.
#include <stdlib.h>
#include <string.h>

#include "host.h"

struct input {
    const uint8_t *data;
    size_t left;
};

static unsigned next(struct input *input) {
    if (input->left == 0) {
        return 0;
    }
    input->left--;
    return *input->data++;
}

static uint32_t next32(struct input *input) {
    uint32_t value = next(input);
    // Most numbers of interest are small; some are not.
    if (value >= 0xe0) {
        value = value << 24 | next(input) << 16 | next(input) << 8;
        value |= next(input);
    }
    return value;
}

static struct input twists;

// What the device changes behind the driver's back, at each read.
static uint32_t twist(const volatile void *from, uint32_t value) {
    (void)from;
    return next(&twists) % 8 == 7 ? value ^ next32(&twists) : value;
}

static void scribble(struct input *input) {
    const struct fake_queue *queue = &fake.queues[next(input) % FAKE_QUEUES];
    size_t octets = queue->size == 0 ? 0 : (size_t)(queue->used - queue->descriptors) + 6 + 8 * (size_t)queue->size;
    uint8_t *memory = queue->is_on ? fake_memory(queue->descriptors, octets) : NULL;
    uint32_t at = next32(input), value = next(input);
    if (memory != NULL && octets != 0) {
        memory[at % octets] = (uint8_t)value;
    }
}

// The fake device follows no chain that was scribbled on, until the rings are made again.
static unsigned scribbled_at;

static bool is_scribbled(void) {
    return scribbled_at == fake.resets + 1;
}

static void note_scribble(void) {
    scribbled_at = fake.resets + 1;
}

// In a packed ring what the device says it has used lies where the driver's descriptors are.
static void note_lie(void) {
    fake.has_lied = true;
    if (fake.accepted & FAKE_FEATURE_PACKED) {
        note_scribble();
    }
}

static void send_own(struct input *input, struct vnet_buffer **own) {
    struct vnet_buffer *buffer = own[next(input) % 4];
    if (buffer->owner == VNET_OWNER_CALLER) {
        buffer->length = VNET_FRAME_MIN + next(input) % 100;
        buffer->checksum = buffer->length % 4 == 3 ? VNET_CHECKSUM_PARTIAL : VNET_CHECKSUM_NONE;
        buffer->checksum_start = (uint16_t)(buffer->length / 2);
        vnet_send_class(&host.device, buffer, next(input) % host.device.config.tx_classes);
    }
}

static void use_kept(struct input *input) {
    if (host.kept_count != 0) {
        struct vnet_buffer *buffer = host.kept[--host.kept_count % 64];
        if (!(next(input) & 1) || vnet_send(&host.device, buffer) < 0) {
            vnet_free(&host.device, buffer);
        }
    }
}

static void step(struct input *input, struct vnet_buffer **own) {
    static const uint8_t FRAME[2048] = {1, 2, 3};
    unsigned queue;
    switch (next(input) % 23) {
    case 0:
    case 1:
        if (!is_scribbled()) {
            unsigned octets = next(input);
            fake.rx_header[0] = octets >> 6;
            fake.rx_header[6] = (uint8_t)(octets * 3);
            fake.lied_segments = octets % 16 == 15 ? (uint8_t)next(input) : 0;
            fake_receive(FRAME, (uint16_t)(octets % 64 * (octets >= 128 ? 32 : 1)));
        }
        break;
    case 2:
        if (!is_scribbled()) {
            fake_transmit(next(input) % 8);
        }
        break;
    case 3:
        queue = next(input) % FAKE_QUEUES;
        fake_put_used(queue, next32(input), next32(input));
        note_lie();
        break;
    case 4:
        queue = next(input) % FAKE_QUEUES;
        fake_move_used(queue, (uint16_t)next32(input));
        note_lie();
        break;
    case 5: fake_interrupt_queue(next(input) % FAKE_QUEUES); break;
    case 6: fake.isr = next(input); break;
    case 7:
    case 8: host_run(); break;
    case 9: vnet_poll(&host.device, 1 + next(input) % 32); break;
    case 10: send_own(input, own); break;
    case 11: use_kept(input); break;
    case 12:
        fake.status = (uint8_t)next(input);
        fake_change_config();
        break;
    case 13:
        fake.config[next(input) % sizeof(fake.config)] = (uint8_t)next(input);
        fake_change_config();
        break;
    case 14:
        scribble(input);
        note_scribble();
        break;
    case 21:
        fake.rx_queue = next(input) % FAKE_PAIRS_MAX * 2;
        fake.tx_queue = next(input) % FAKE_PAIRS_MAX * 2 + 1;
        break;
    case 22: fake.ignores_commands = next(input) % 4 == 0; break;
    case 15: fake.refuses_reset = next(input) % 4 == 0; break;
    case 16: fake.size_max[next(input) % FAKE_QUEUES] = next32(input); break;
    case 17: fake.offered ^= (uint64_t)1 << next(input) % 64; break;
    case 18: vnet_stop(&host.device); break;
    case 19: vnet_start(&host.device); break;
    case 20:
        queue = next(input) % FAKE_QUEUES;
        if (fake.queues[queue].is_on) {
            fake_want_notifications(queue, next(input) & 1);
        }
        break;
    }
}

static void check_buffers(struct vnet_buffer **own) {
    unsigned in_use = 0;
    host_count_buffers();
    for (unsigned index = 0; host.device.buffers != NULL && index < host.device.config.buffers; index++) {
        in_use += host.device.buffers[index].owner == VNET_OWNER_SENDING;
    }
    for (unsigned index = 0; index < 4; index++) {
        in_use += own[index]->owner == VNET_OWNER_SENDING;
    }
    size_t sending = host.device.pair.tx.under_way_count;
    for (unsigned index = 1; host.device.more != NULL && index < host.device.config.tx_classes; index++) {
        sending += host.device.more[index - 1].tx.under_way_count;
    }
    if (in_use != sending) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t octets) {
    struct input input = {data, octets};
    struct vnet_config config = host_config();
    unsigned first = next(&input);
    fake_make((enum fake_kind)(first % FAKE_KINDS));
    config.rx_posted_min = 1 + next(&input) % 8;
    config.tx_slots = 1 + next(&input) % 16;
    config.options = next(&input) & VNET_OPTIONS;
    if (config.options & VNET_OPTION_QUEUES) {
        config.tx_classes = (uint16_t)(1 + next(&input) % 4);
        config.rx_posted_max = 3;
        config.rx_posted_min = config.rx_posted_min > 3 ? 3 : config.rx_posted_min;
        fake.config[8] = (uint8_t)(next(&input) % 8 + 1);
        fake.ack = next(&input) % 8 == 7;
    } else if (config.options & VNET_OPTION_MERGEABLE) {
        config.segment_octets = (uint16_t)(VNET_SEGMENT_MIN + next(&input));
        config.rx_posted_min = config.rx_posted_max = config.buffers = 12;
    }
    if ((first & 4) && fake.kind >= FAKE_PCI_LEGACY) { // earlier software has left MSI-X on
        fake_leave_messages_on(0x11);
        fake.is_port_silent = (first & 16) != 0;
    }
    if (first & 16) {
        fake.offered |= FAKE_FEATURE_MTU;
        fake.offered &= ~FAKE_FEATURE_ANY_LAYOUT;
    }
    if (first & 32) { // a strange configuration space
        fake.is_lenient = true;
        for (unsigned count = next(&input) % 16; count > 0; count--) {
            unsigned at = next(&input);
            fake.pci[at] = (uint8_t)next(&input);
        }
    }
    host.mode = (enum host_mode)(first / 64 % 3);
    if (host_start(&config) == VNET_ERROR_DEVICE) {
        return 0;
    }
    struct vnet_buffer *own[4];
    for (unsigned index = 0; index < 4; index++) {
        own[index] = host_buffer(60, 1);
    }
    // The second half is what the device changes at each read, if the input wants that.
    if (first & 8) {
        twists = (struct input){data + octets / 2, octets - octets / 2};
        fake.twist = twist;
        fake.has_lied = true; // the driver may take a buffer back that the device has not used
    }
    scribbled_at = 0;
    while (input.left > 0) {
        step(&input, own);
        check_buffers(own);
    }
    fake.twist = NULL;
    fake.refuses_reset = false;
    host_run();
    vnet_stop(&host.device);
    check_buffers(own);
    for (unsigned index = 0; index < 4; index++) {
        if (own[index]->owner != VNET_OWNER_CALLER) {
            abort(); // lost
        }
        free(own[index]);
    }
    return 0;
}
