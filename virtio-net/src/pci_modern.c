// SPDX-License-Identifier: BSD-2-Clause
// PCI modern: structures in memory BARs, named by vendor capabilities (VIRTIO 1.1, clause 4.1.4). The device's words
// about where they are and how long are checked: by length here, by the BAR's size in the port's `map`.
#include <stddef.h>

#include "pci.h"
#include "registers.h"

enum {
    PCI_STATUS = 0x06,
    PCI_CAPABILITIES = 0x34,
    PCI_STATUS_CAPABILITIES = 1 << 4,
    CAPABILITY_MSI = 0x05,
    CAPABILITY_VENDOR = 0x09,
    CAPABILITY_MSIX = 0x11,
    MESSAGE_CONTROL = 2, // in the capabilities of MSI and MSI-X
    MSI_ENABLE = 1,
    MSIX_ENABLE = 1 << 15,
    CAPABILITIES_MAX = 48, // what fits into 256 octets: a list that is longer is a circle
};

// Offsets in struct virtio_pci_cap.
enum { CAP_NEXT = 1, CAP_TYPE = 3, CAP_BAR = 4, CAP_OFFSET = 8, CAP_OCTETS = 12, CAP_NOTIFY_MULTIPLIER = 16 };
enum { TYPE_COMMON = 1, TYPE_NOTIFY = 2, TYPE_ISR = 3, TYPE_DEVICE = 4 };

// Offsets in struct virtio_pci_common_cfg.
enum {
    DEVICE_FEATURE_SELECT = 0,
    DEVICE_FEATURE = 4,
    DRIVER_FEATURE_SELECT = 8,
    DRIVER_FEATURE = 12,
    NUM_QUEUES = 18,
    DEVICE_STATUS = 20,
    CONFIG_GENERATION = 21,
    QUEUE_SELECT = 22,
    QUEUE_SIZE = 24,
    QUEUE_ENABLE = 28,
    QUEUE_NOTIFY_OFF = 30,
    QUEUE_DESC = 32,
    QUEUE_DRIVER = 40,
    QUEUE_DEVICE = 48,
    COMMON_OCTETS = 56,
    HIGH = 4, // from the lower to the upper half of an address
};

static uint32_t get(struct vnet_transport *transport, unsigned offset, unsigned octets) {
    return vnet_register_read(((struct vnet_pci *)transport)->common.address + offset, octets);
}

static void put(struct vnet_transport *transport, unsigned offset, unsigned octets, uint32_t value) {
    vnet_register_write(((struct vnet_pci *)transport)->common.address + offset, octets, value);
}

static uint8_t status(struct vnet_transport *transport) {
    return (uint8_t)get(transport, DEVICE_STATUS, 1);
}

static void set_status(struct vnet_transport *transport, uint8_t value) {
    put(transport, DEVICE_STATUS, 1, value);
}

static uint64_t features(struct vnet_transport *transport) {
    put(transport, DEVICE_FEATURE_SELECT, 4, 1);
    uint64_t high = get(transport, DEVICE_FEATURE, 4);
    put(transport, DEVICE_FEATURE_SELECT, 4, 0);
    return high << 32 | get(transport, DEVICE_FEATURE, 4);
}

static void set_features(struct vnet_transport *transport, uint64_t value) {
    put(transport, DRIVER_FEATURE_SELECT, 4, 1);
    put(transport, DRIVER_FEATURE, 4, (uint32_t)(value >> 32));
    put(transport, DRIVER_FEATURE_SELECT, 4, 0);
    put(transport, DRIVER_FEATURE, 4, (uint32_t)value);
}

static uint32_t queue_size_max(struct vnet_transport *transport, unsigned queue) {
    if (queue >= get(transport, NUM_QUEUES, 2)) {
        return 0;
    }
    put(transport, QUEUE_SELECT, 2, queue);
    return get(transport, QUEUE_ENABLE, 2) ? 0 : get(transport, QUEUE_SIZE, 2);
}

// The driver uses one queue beyond the pairs: the control queue.
static unsigned place(unsigned queue) {
    return queue < VNET_QUEUES_MAX ? queue : VNET_QUEUES_MAX - 1;
}

static void put_address(struct vnet_transport *transport, unsigned offset, uint64_t address) {
    put(transport, offset, 4, (uint32_t)address);
    put(transport, offset + HIGH, 4, (uint32_t)(address >> 32));
}

static bool start_queue(struct vnet_transport *transport, unsigned queue, const struct vnet_queue *ring) {
    struct vnet_pci *pci = (struct vnet_pci *)transport;
    put(transport, QUEUE_SELECT, 2, queue);
    put(transport, QUEUE_SIZE, 2, ring->size);
    uint64_t offset = (uint64_t)(get(transport, QUEUE_NOTIFY_OFF, 2) & 0xffff) * pci->notify_multiplier;
    if (offset + 2 > pci->notify.octets) {
        return false;
    }
    pci->notify_at[place(queue)] = pci->notify.address + (uintptr_t)offset;
    put_address(transport, QUEUE_DESC, ring->descriptors);
    put_address(transport, QUEUE_DRIVER, ring->available);
    put_address(transport, QUEUE_DEVICE, ring->used);
    put(transport, QUEUE_ENABLE, 2, 1);
    return true;
}

static void read_config(struct vnet_transport *transport, unsigned offset, uint8_t *to, unsigned octets) {
    const struct vnet_pci_window *device = &((struct vnet_pci *)transport)->device;
    if (octets == 2 && offset + 2 <= device->octets) {
        uint32_t value = vnet_register_read(device->address + offset, 2);
        to[0] = (uint8_t)value;
        to[1] = (uint8_t)(value >> 8);
        return;
    }
    for (unsigned octet = 0; octet < octets; octet++) {
        bool is_inside = offset + octet < device->octets;
        to[octet] = is_inside ? (uint8_t)vnet_register_read(device->address + offset + octet, 1) : 0;
    }
}

static uint32_t config_generation(struct vnet_transport *transport) {
    return get(transport, CONFIG_GENERATION, 1);
}

static void notify(struct vnet_transport *transport, unsigned queue) {
    vnet_register_write(((struct vnet_pci *)transport)->notify_at[place(queue)], 2, queue);
}

// Reading the register acknowledges.
static uint32_t acknowledge(struct vnet_transport *transport) {
    uint32_t pending = vnet_register_read(((struct vnet_pci *)transport)->interrupt.address, 1);
    return pending & (VNET_INTERRUPT_QUEUE | VNET_INTERRUPT_CONFIG);
}

const struct vnet_transport_ops vnet_pci_modern = {
    .name = "pci modern",
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

static uint32_t config(const struct vnet_pci *pci, unsigned offset, unsigned octets) {
    return pci->access->config_read(pci->access->context, offset, octets);
}

// Maps the structure of one capability. The first of each type that can be mapped counts.
static void map(struct vnet_pci *pci, unsigned at) {
    static const uint32_t OCTETS_MIN[] = {0, COMMON_OCTETS, 2, 1, 8};
    struct vnet_pci_window *const windows[] = {NULL, &pci->common, &pci->notify, &pci->interrupt, &pci->device};
    unsigned type = config(pci, at + CAP_TYPE, 1), bar = config(pci, at + CAP_BAR, 1);
    uint32_t offset = config(pci, at + CAP_OFFSET, 4), octets = config(pci, at + CAP_OCTETS, 4);
    if (type < TYPE_COMMON || type > TYPE_DEVICE || bar > 5 || windows[type]->address != 0 ||
        octets < OCTETS_MIN[type]) {
        return;
    }
    uint32_t multiplier = 0;
    if (type == TYPE_NOTIFY) {
        multiplier = at + CAP_NOTIFY_MULTIPLIER <= 252 ? config(pci, at + CAP_NOTIFY_MULTIPLIER, 4) : 1;
        if (multiplier % 2 != 0) {
            return; // clause 4.1.4.4: 0 or an even power of two
        }
    }
    uintptr_t address = pci->access->map(pci->access->context, bar, offset, octets);
    if (address != 0 && (type == TYPE_ISR || offset % (type == TYPE_NOTIFY ? 2 : 4) == 0)) {
        *windows[type] = (struct vnet_pci_window){address, octets};
        pci->notify_multiplier = type == TYPE_NOTIFY ? multiplier : pci->notify_multiplier;
    }
}

// Earlier software (firmware, a boot loader) may have left message interrupts on: the device would use no INTx then.
static void turn_off(const struct vnet_pci *pci, unsigned at, uint32_t enable) {
    const struct vnet_pci_access *access = pci->access;
    uint32_t control = config(pci, at + MESSAGE_CONTROL, 2);
    if ((control & enable) && access->config_write != NULL) {
        access->config_write(access->context, at + MESSAGE_CONTROL, 2, control & ~enable);
    }
}

bool vnet_pci_find_modern(struct vnet_pci *pci) {
    if (!(config(pci, PCI_STATUS, 2) & PCI_STATUS_CAPABILITIES)) {
        return false;
    }
    unsigned at = config(pci, PCI_CAPABILITIES, 1) & 0xfc;
    for (unsigned count = 0; at >= 0x40 && count < CAPABILITIES_MAX; count++) {
        uint32_t capability = config(pci, at, 1);
        if (capability == CAPABILITY_VENDOR && at <= 0x100 - 16) {
            map(pci, at);
        } else if (capability == CAPABILITY_MSI || capability == CAPABILITY_MSIX) {
            turn_off(pci, at, capability == CAPABILITY_MSI ? MSI_ENABLE : MSIX_ENABLE);
        }
        at = config(pci, at + CAP_NEXT, 1) & 0xfc;
    }
    return pci->common.address != 0 && pci->notify.address != 0 && pci->interrupt.address != 0 &&
           pci->device.address != 0;
}
