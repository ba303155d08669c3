// SPDX-License-Identifier: BSD-2-Clause
// The transports of PCI devices: VIRTIO 1.1, clause 4.1 (modern: registers in memory, found through capabilities) and
// clause 4.1.4.8 (legacy: registers in I/O space behind BAR 0). Both use the INTx interrupt; MSI and MSI-X are turned
// off.
#ifndef VNET_PCI_H
#define VNET_PCI_H

#include "vnet_transport.h"

// How the port reaches one PCI function. It has assigned the BARs, and switched on I/O space, memory space, bus
// mastering and INTx. Context of all functions: as in vnet_transport.h; those for I/O also in interrupt context.
struct vnet_pci_access {
    void *context;
    // Reads 1, 2 or 4 octets of configuration space at `offset` < 256.
    uint32_t (*config_read)(void *context, unsigned offset, unsigned octets);
    // Writes 2 octets of configuration space, to turn message interrupts off. NULL: the port has turned them off, or
    // needs no interrupts because it polls.
    void (*config_write)(void *context, unsigned offset, unsigned octets, uint32_t value);
    // Where `octets` octets at `offset` of memory BAR `bar` (0 to 5) are mapped, or 0 if they are not all inside it.
    uintptr_t (*map)(void *context, unsigned bar, uint32_t offset, uint32_t octets);
    // Read and write 1, 2 or 4 octets at `offset` of BAR 0 in I/O space. NULL: the machine has no I/O space.
    uint32_t (*io_read)(void *context, unsigned offset, unsigned octets);
    void (*io_write)(void *context, unsigned offset, unsigned octets, uint32_t value);
};

// Where a structure of a modern device is mapped (clause 4.1.4), and how long it is.
struct vnet_pci_window {
    uintptr_t address;
    uint32_t octets;
};

struct vnet_pci {
    struct vnet_transport transport; // pass its address to vnet_init
    const struct vnet_pci_access *access;
    struct vnet_pci_window common, notify, interrupt, device;
    uint32_t notify_multiplier;
    unsigned legacy_config;               // where the configuration begins in I/O space
    uintptr_t notify_at[VNET_QUEUES_MAX]; // of each queue; the last is the control queue's, if its number is higher
};

// Context: task. Looks at the function's identity. A device that is modern and legacy at once is driven as modern.
// Returns VNET_OK, or VNET_ERROR_DEVICE if the function is no virtio network device or lacks a structure that it must
// have.
int vnet_pci_open(struct vnet_pci *pci, const struct vnet_pci_access *access);

#endif
