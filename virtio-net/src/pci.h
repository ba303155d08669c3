// SPDX-License-Identifier: BSD-2-Clause
// What the files of the PCI transports share.
#ifndef VNET_PCI_INTERNAL_H
#define VNET_PCI_INTERNAL_H

#include "vnet_pci.h"

extern const struct vnet_transport_ops vnet_pci_legacy, vnet_pci_modern;

// Finds the structures of a modern device through the list of capabilities, and turns message interrupts off. Returns
// false if a structure is missing or cannot be mapped.
bool vnet_pci_find_modern(struct vnet_pci *pci);

#endif
