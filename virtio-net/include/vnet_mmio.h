// SPDX-License-Identifier: BSD-2-Clause
// The transport of devices in memory: VIRTIO 1.1, clause 4.2, version 2, and version 1 of legacy devices
// (clause 4.2.4).
#ifndef VNET_MMIO_H
#define VNET_MMIO_H

#include "vnet_transport.h"

struct vnet_mmio {
    struct vnet_transport transport; // pass its address to vnet_init
    uintptr_t base;
};

// Context: task. Looks at the registers at `base` (512 octets, mapped as device memory). Returns VNET_OK, or
// VNET_ERROR_DEVICE if no network device of version 1 or 2 is there.
int vnet_mmio_open(struct vnet_mmio *mmio, uintptr_t base);

#endif
