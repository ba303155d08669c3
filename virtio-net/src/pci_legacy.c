// SPDX-License-Identifier: BSD-2-Clause
// PCI legacy: the registers of VIRTIO 1.1, clause 4.1.4.8, in I/O space. The ring's size is the device's choice.
#include "pci.h"

enum {
    DEVICE_FEATURES = 0,
    DRIVER_FEATURES = 4,
    QUEUE_ADDRESS = 8,
    QUEUE_SIZE = 12,
    QUEUE_SELECT = 14,
    QUEUE_NOTIFY = 16,
    DEVICE_STATUS = 18,
    ISR_STATUS = 19,
    CONFIG = 20,      // without MSI-X
    CONFIG_MSIX = 24, // behind two registers of 16 bits, which are all ones after a reset
};

#define PAGE 4096u

static uint32_t get(struct vnet_transport *transport, unsigned offset, unsigned octets) {
    const struct vnet_pci_access *access = ((struct vnet_pci *)transport)->access;
    return access->io_read(access->context, offset, octets);
}

static void put(struct vnet_transport *transport, unsigned offset, unsigned octets, uint32_t value) {
    const struct vnet_pci_access *access = ((struct vnet_pci *)transport)->access;
    access->io_write(access->context, offset, octets, value);
}

static uint8_t status(struct vnet_transport *transport) {
    return (uint8_t)get(transport, DEVICE_STATUS, 1);
}

static void set_status(struct vnet_transport *transport, uint8_t value) {
    put(transport, DEVICE_STATUS, 1, value);
}

// The first register that is read after a reset, so the place of the configuration is found here. MSI-X is off, unless
// the port cannot write configuration space. All ones are no MAC address: that octet says a group's.
static uint64_t features(struct vnet_transport *transport) {
    uint32_t vectors = get(transport, CONFIG, 2) & get(transport, CONFIG + 2, 2);
    ((struct vnet_pci *)transport)->legacy_config = (vectors & 0xff) == 0xff ? CONFIG_MSIX : CONFIG;
    return get(transport, DEVICE_FEATURES, 4);
}

static void set_features(struct vnet_transport *transport, uint64_t value) {
    put(transport, DRIVER_FEATURES, 4, (uint32_t)value);
}

static uint32_t queue_size_max(struct vnet_transport *transport, unsigned queue) {
    put(transport, QUEUE_SELECT, 2, queue);
    return get(transport, QUEUE_ADDRESS, 4) ? 0 : get(transport, QUEUE_SIZE, 2);
}

static bool start_queue(struct vnet_transport *transport, unsigned queue, const struct vnet_queue *ring) {
    uint64_t page = ring->descriptors / PAGE;
    if (ring->descriptors % PAGE != 0 || page > UINT32_MAX) {
        return false;
    }
    put(transport, QUEUE_SELECT, 2, queue);
    put(transport, QUEUE_ADDRESS, 4, (uint32_t)page);
    return true;
}

static void read_config(struct vnet_transport *transport, unsigned offset, uint8_t *to, unsigned octets) {
    for (unsigned octet = 0; octet < octets; octet++) {
        to[octet] = (uint8_t)get(transport, ((struct vnet_pci *)transport)->legacy_config + offset + octet, 1);
    }
}

static uint32_t config_generation(struct vnet_transport *transport) {
    (void)transport;
    return 0;
}

static void notify(struct vnet_transport *transport, unsigned queue) {
    put(transport, QUEUE_NOTIFY, 2, queue);
}

// Reading the register acknowledges.
static uint32_t acknowledge(struct vnet_transport *transport) {
    return get(transport, ISR_STATUS, 1) & (VNET_INTERRUPT_QUEUE | VNET_INTERRUPT_CONFIG);
}

const struct vnet_transport_ops vnet_pci_legacy = {
    .name = "pci legacy",
    .is_legacy = true,
    .is_size_fixed = true,
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
