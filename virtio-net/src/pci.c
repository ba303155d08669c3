// SPDX-License-Identifier: BSD-2-Clause
// Identifies a PCI function; pci_legacy.c and pci_modern.c drive it.
#include "pci.h"

#include "vnet.h"

#define VENDOR_VIRTIO 0x1af4u
#define DEVICE_TRANSITIONAL_NETWORK 0x1000u
#define DEVICE_MODERN_NETWORK 0x1041u

int vnet_pci_open(struct vnet_pci *pci, const struct vnet_pci_access *access) {
    *pci = (struct vnet_pci){.access = access};
    uint32_t identity = access->config_read(access->context, 0, 4);
    uint32_t device = identity >> 16;
    if ((identity & 0xffff) != VENDOR_VIRTIO ||
        (device != DEVICE_TRANSITIONAL_NETWORK && device != DEVICE_MODERN_NETWORK)) {
        return VNET_ERROR_DEVICE;
    }
    if (vnet_pci_find_modern(pci)) {
        pci->transport.ops = &vnet_pci_modern;
        return VNET_OK;
    }
    if (device == DEVICE_TRANSITIONAL_NETWORK && access->io_read != NULL) {
        pci->transport.ops = &vnet_pci_legacy;
        return VNET_OK;
    }
    return VNET_ERROR_DEVICE;
}
