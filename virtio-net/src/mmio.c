// SPDX-License-Identifier: BSD-2-Clause
// MMIO transports, version 1 (legacy) and 2. The register's names are the standard's, clause 4.2.2.
#include "vnet_mmio.h"

#include "registers.h"
#include "vnet.h"

enum {
    MAGIC_VALUE = 0x000,
    VERSION = 0x004,
    DEVICE_ID = 0x008,
    DEVICE_FEATURES = 0x010,
    DEVICE_FEATURES_SEL = 0x014,
    DRIVER_FEATURES = 0x020,
    DRIVER_FEATURES_SEL = 0x024,
    GUEST_PAGE_SIZE = 0x028, // version 1
    QUEUE_SEL = 0x030,
    QUEUE_NUM_MAX = 0x034,
    QUEUE_NUM = 0x038,
    QUEUE_ALIGN = 0x03c, // version 1
    QUEUE_PFN = 0x040,   // version 1
    QUEUE_READY = 0x044,
    QUEUE_NOTIFY = 0x050,
    INTERRUPT_STATUS = 0x060,
    INTERRUPT_ACK = 0x064,
    STATUS = 0x070,
    QUEUE_DESC_LOW = 0x080,
    QUEUE_DRIVER_LOW = 0x090,
    QUEUE_DEVICE_LOW = 0x0a0,
    CONFIG_GENERATION = 0x0fc,
    CONFIG = 0x100,
    HIGH = 4, // from the lower to the upper half of an address
};

#define MAGIC 0x74726976u
#define DEVICE_ID_NETWORK 1u
#define PAGE 4096u

static uint32_t get(struct vnet_transport *transport, unsigned offset) {
    return vnet_register_read(((struct vnet_mmio *)transport)->base + offset, 4);
}

static void put(struct vnet_transport *transport, unsigned offset, uint32_t value) {
    vnet_register_write(((struct vnet_mmio *)transport)->base + offset, 4, value);
}

static uint8_t status(struct vnet_transport *transport) {
    return (uint8_t)get(transport, STATUS);
}

static void set_status(struct vnet_transport *transport, uint8_t value) {
    put(transport, STATUS, value);
}

static uint64_t features(struct vnet_transport *transport) {
    put(transport, DEVICE_FEATURES_SEL, 1);
    uint64_t high = get(transport, DEVICE_FEATURES);
    put(transport, DEVICE_FEATURES_SEL, 0);
    return high << 32 | get(transport, DEVICE_FEATURES);
}

static uint64_t legacy_features(struct vnet_transport *transport) {
    put(transport, DEVICE_FEATURES_SEL, 0);
    return get(transport, DEVICE_FEATURES);
}

static void set_features(struct vnet_transport *transport, uint64_t value) {
    put(transport, DRIVER_FEATURES_SEL, 1);
    put(transport, DRIVER_FEATURES, (uint32_t)(value >> 32));
    put(transport, DRIVER_FEATURES_SEL, 0);
    put(transport, DRIVER_FEATURES, (uint32_t)value);
}

static void legacy_set_features(struct vnet_transport *transport, uint64_t value) {
    put(transport, DRIVER_FEATURES_SEL, 0);
    put(transport, DRIVER_FEATURES, (uint32_t)value);
    put(transport, GUEST_PAGE_SIZE, PAGE);
}

static uint32_t queue_size_max(struct vnet_transport *transport, unsigned queue) {
    put(transport, QUEUE_SEL, queue);
    return get(transport, QUEUE_READY) ? 0 : get(transport, QUEUE_NUM_MAX);
}

static uint32_t legacy_queue_size_max(struct vnet_transport *transport, unsigned queue) {
    put(transport, QUEUE_SEL, queue);
    return get(transport, QUEUE_PFN) ? 0 : get(transport, QUEUE_NUM_MAX);
}

static void put_address(struct vnet_transport *transport, unsigned offset, uint64_t address) {
    put(transport, offset, (uint32_t)address);
    put(transport, offset + HIGH, (uint32_t)(address >> 32));
}

static bool start_queue(struct vnet_transport *transport, unsigned queue, const struct vnet_queue *ring) {
    put(transport, QUEUE_SEL, queue);
    put(transport, QUEUE_NUM, ring->size);
    put_address(transport, QUEUE_DESC_LOW, ring->descriptors);
    put_address(transport, QUEUE_DRIVER_LOW, ring->available);
    put_address(transport, QUEUE_DEVICE_LOW, ring->used);
    put(transport, QUEUE_READY, 1);
    return true;
}

static bool legacy_start_queue(struct vnet_transport *transport, unsigned queue, const struct vnet_queue *ring) {
    uint64_t page = ring->descriptors / PAGE;
    if (ring->descriptors % PAGE != 0 || page > UINT32_MAX) {
        return false;
    }
    put(transport, QUEUE_SEL, queue);
    put(transport, QUEUE_NUM, ring->size);
    put(transport, QUEUE_ALIGN, PAGE);
    put(transport, QUEUE_PFN, (uint32_t)page);
    return true;
}

static void read_config(struct vnet_transport *transport, unsigned offset, uint8_t *to, unsigned octets) {
    uintptr_t at = ((struct vnet_mmio *)transport)->base + CONFIG + offset;
    if (octets == 2) {
        uint32_t value = vnet_register_read(at, 2);
        to[0] = (uint8_t)value;
        to[1] = (uint8_t)(value >> 8);
        return;
    }
    for (unsigned octet = 0; octet < octets; octet++) {
        to[octet] = (uint8_t)vnet_register_read(at + octet, 1);
    }
}

static uint32_t config_generation(struct vnet_transport *transport) {
    return get(transport, CONFIG_GENERATION);
}

static uint32_t legacy_config_generation(struct vnet_transport *transport) {
    (void)transport;
    return 0;
}

static void notify(struct vnet_transport *transport, unsigned queue) {
    put(transport, QUEUE_NOTIFY, queue);
}

// Bits that the standard does not know are acknowledged too: else they would interrupt without end.
static uint32_t acknowledge(struct vnet_transport *transport) {
    uint32_t pending = get(transport, INTERRUPT_STATUS);
    if (pending != 0) {
        put(transport, INTERRUPT_ACK, pending);
    }
    return pending & (VNET_INTERRUPT_QUEUE | VNET_INTERRUPT_CONFIG);
}

static const struct vnet_transport_ops MODERN = {
    .name = "mmio 2",
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

static const struct vnet_transport_ops LEGACY = {
    .name = "mmio 1",
    .is_legacy = true,
    .status = status,
    .set_status = set_status,
    .features = legacy_features,
    .set_features = legacy_set_features,
    .queue_size_max = legacy_queue_size_max,
    .start_queue = legacy_start_queue,
    .read_config = read_config,
    .config_generation = legacy_config_generation,
    .notify = notify,
    .acknowledge = acknowledge,
};

int vnet_mmio_open(struct vnet_mmio *mmio, uintptr_t base) {
    mmio->base = base;
    struct vnet_transport *transport = &mmio->transport;
    if (get(transport, MAGIC_VALUE) != MAGIC || get(transport, DEVICE_ID) != DEVICE_ID_NETWORK) {
        return VNET_ERROR_DEVICE;
    }
    switch (get(transport, VERSION)) {
    case 1: transport->ops = &LEGACY; return VNET_OK;
    case 2: transport->ops = &MODERN; return VNET_OK;
    default: return VNET_ERROR_DEVICE;
    }
}
