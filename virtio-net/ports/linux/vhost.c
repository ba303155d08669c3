// SPDX-License-Identifier: BSD-2-Clause
// See vnet_vhost.h.
#include "vnet_vhost.h"

#include <stddef.h>
#include <string.h>

#define FEATURE_VERSION_1 (UINT64_C(1) << 32)
#define QUEUES 2u

static struct vnet_vhost *of(struct vnet_transport *transport) {
    return (struct vnet_vhost *)transport;
}

static uint8_t status(struct vnet_transport *transport) {
    return of(transport)->status;
}

// A reset ends at once: the front end gives each connection memory of its own, and a backend that writes to the memory
// of an earlier connection reaches nothing that the driver still uses.
static void set_status(struct vnet_transport *transport, uint8_t value) {
    struct vnet_vhost *vhost = of(transport);
    vhost->status = value;
    if (value == 0) {
        vhost->accepted = 0;
        memset(vhost->is_started, 0, sizeof(vhost->is_started));
    }
}

static uint64_t features(struct vnet_transport *transport) {
    return of(transport)->offered;
}

static void set_features(struct vnet_transport *transport, uint64_t value) {
    of(transport)->accepted = value;
}

static uint32_t queue_size_max(struct vnet_transport *transport, unsigned queue) {
    const struct vnet_vhost *vhost = of(transport);
    return queue >= QUEUES || vhost->is_started[queue] ? 0 : vhost->size_max;
}

static bool start_queue(struct vnet_transport *transport, unsigned queue, const struct vnet_queue *ring) {
    struct vnet_vhost *vhost = of(transport);
    if (queue >= QUEUES) {
        return false;
    }
    vhost->queues[queue] = *ring;
    vhost->is_started[queue] = true;
    return true;
}

// Without FEATURE_MAC and FEATURE_STATUS the driver reads nothing.
static void read_config(struct vnet_transport *transport, unsigned offset, uint8_t *to, unsigned octets) {
    (void)transport;
    (void)offset;
    memset(to, 0, octets);
}

static uint32_t config_generation(struct vnet_transport *transport) {
    (void)transport;
    return 0;
}

static void notify(struct vnet_transport *transport, unsigned queue) {
    const struct vnet_vhost *vhost = of(transport);
    vhost->kick(vhost->context, queue);
}

// The rings are polled: there is no interrupt.
static uint32_t acknowledge(struct vnet_transport *transport) {
    (void)transport;
    return 0;
}

static const struct vnet_transport_ops OPS = {
    .name = "vhost-user",
    .status = status,
    .set_status = set_status,
    .features = features,
    .set_features = set_features,
    .queue_size_max = queue_size_max,
    .start_queue = start_queue,
    .read_config = read_config,
    .config_generation = config_generation,
    .notify = notify,
    .acknowledge = acknowledge,
};

void vnet_vhost_open(struct vnet_vhost *vhost, uint64_t offered, uint16_t size_max, void *context,
                     void (*kick)(void *context, unsigned queue)) {
    memset(vhost, 0, sizeof(*vhost));
    vhost->transport.ops = &OPS;
    vhost->offered = offered & FEATURE_VERSION_1;
    vhost->size_max = size_max;
    vhost->context = context;
    vhost->kick = kick;
}
