// SPDX-License-Identifier: BSD-2-Clause
// See host.h.
#include "host.h"

#include <stdlib.h>
#include <string.h>

struct host host;
uint32_t host_options;

void host_each_ring(void (*run)(void)) {
    static const uint32_t RINGS[] = {0, VNET_OPTION_EVENT_INDEX, VNET_OPTION_PACKED,
                                     VNET_OPTION_PACKED | VNET_OPTION_EVENT_INDEX};
    for (unsigned index = 0; index < sizeof(RINGS) / sizeof(RINGS[0]); index++) {
        if (!(RINGS[index] & ~(uint32_t)VNET_OPTIONS)) {
            host_options = RINGS[index];
            run();
        }
    }
    host_options = 0;
}

static void receive(void *context, struct vnet_buffer *buffer) {
    (void)context;
    host.received++;
    host.last_octets = (uint16_t)buffer->length;
    host.last_checksum = buffer->checksum;
    memcpy(host.last, vnet_frame(buffer), buffer->length);
    if (fake.lock_depth != 0) {
        abort(); // no lock is held in callbacks
    }
    if (host.mode == HOST_KEEP) {
        host.kept[host.kept_count++ % 64] = buffer;
    } else if (host.mode == HOST_FREE || vnet_send_class(&host.device, buffer, host.echo_class) < 0) {
        host.short_sends += host.mode == HOST_ECHO;
        if (vnet_free(&host.device, buffer) != VNET_OK) {
            abort();
        }
    }
}

static void receive_segments(void *context, const struct vnet_segment *segments, unsigned count) {
    (void)context;
    if (fake.lock_depth != 0 || count < 2 || count > VNET_SEGMENTS_MAX) {
        abort();
    }
    host.received++;
    host.segmented++;
    host.last_octets = 0;
    host.last_checksum = segments[0].buffer->checksum;
    if (HAS(CHECKSUM) && segments[0].buffer->checksum == VNET_CHECKSUM_PARTIAL) {
        vnet_finish_checksum(segments, count);
    }
    for (unsigned index = 0; index < count; index++) {
        if (segments[index].octets > sizeof(host.last) - host.last_octets) {
            abort(); // the tests send none so long
        }
        memcpy(host.last + host.last_octets, segments[index].data, segments[index].octets);
        host.last_octets += (uint16_t)segments[index].octets;
        if (host.mode == HOST_KEEP) {
            host.kept[host.kept_count++ % 64] = segments[index].buffer;
        } else if (vnet_free(&host.device, segments[index].buffer) != VNET_OK) {
            abort();
        }
    }
}

static void sent(void *context, struct vnet_buffer *buffer) {
    (void)context;
    host.back[host.back_count++ % 64] = buffer;
    if (fake.lock_depth != 0 || buffer->owner != VNET_OWNER_CALLER) {
        abort();
    }
}

static void link(void *context, bool is_up) {
    (void)context;
    host.link = is_up;
}

struct vnet_config host_config(void) {
    return (struct vnet_config){
        .ring_size = 64,
        .rx_posted_min = 8,
        .rx_posted_max = 8,
        .buffers = 12,
        .tx_slots = 16,
        .tx_queue_max = 8,
        .receive = receive,
        .sent = sent,
        .link = link,
        .options = host_options,
        .receive_segments = receive_segments,
    };
}

int host_start(const struct vnet_config *config) {
    enum host_mode mode = host.mode;
    memset(&host, 0, sizeof(host));
    host.mode = mode;
    host.budget = 16;
    host.link = -1;
    struct vnet_transport *transport = fake_open();
    if (transport == NULL) {
        return VNET_ERROR_DEVICE;
    }
    int result = vnet_init(&host.device, &fake_platform, transport, config);
    return result != VNET_OK ? result : vnet_start(&host.device);
}

void host_run(void) {
    for (unsigned round = 0; fake.isr != 0 || fake.is_woken; round++) {
        if (fake.is_lenient && round > 100) {
            return; // the interrupt register is not where the device says: nothing can silence it
        }
        if (round > 100000) {
            abort();
        }
        if (fake.isr != 0) {
            vnet_interrupt(&host.device);
        }
        if (fake.is_woken) {
            fake.is_woken = false;
            for (unsigned again = 0; vnet_poll(&host.device, host.budget); again++) {
                if (again > 100000) {
                    abort();
                }
            }
        }
    }
}

struct vnet_buffer *host_buffer(uint16_t octets, uint8_t fill) {
    struct vnet_buffer *buffer = calloc(1, sizeof(*buffer));
    if (buffer == NULL) {
        abort();
    }
    buffer->start = fake_allocate(VNET_BUFFER_OCTETS, 8);
    buffer->bus = fake_platform.bus_address(NULL, buffer->start, VNET_BUFFER_OCTETS);
    buffer->capacity = VNET_FRAME_MAX;
    buffer->length = octets;
    memset(vnet_frame(buffer), fill, octets);
    return buffer;
}

unsigned host_count_buffers(void) {
    unsigned listed = 0, owned[5] = {0};
    for (const struct vnet_buffer *buffer = host.device.pool; buffer != NULL; buffer = buffer->next) {
        if (buffer->owner != VNET_OWNER_POOL || ++listed > host.device.config.buffers) {
            abort();
        }
    }
    for (unsigned index = 0; host.device.buffers != NULL && index < host.device.config.buffers; index++) {
        owned[host.device.buffers[index].owner]++;
    }
    size_t posted = host.device.pair.rx.under_way_count;
    for (unsigned index = 1; host.device.more != NULL && index < host.device.config.tx_classes; index++) {
        posted += host.device.more[index - 1].rx.under_way_count;
    }
    if (owned[VNET_OWNER_POOL] != listed || owned[VNET_OWNER_POSTED] != posted) {
        abort();
    }
    return listed + owned[VNET_OWNER_POSTED];
}
