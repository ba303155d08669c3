// SPDX-License-Identifier: BSD-2-Clause
// QEMU's riscv64 `virt` machine under RTEMS (BSP riscv/rv64imac and its like): eight MMIO transports.
#include <bsp/irq.h>

#include "vnet_mmio.h"
#include "vnet_rtems.h"

#define MMIO UINT64_C(0x10001000)
enum { MMIO_STEP = 0x1000, MMIO_DEVICES = 8, MMIO_INTERRUPT = 1 };

struct vnet_transport *vnet_rtems_find(rtems_vector_number *vector) {
    static struct vnet_mmio mmio;
    for (unsigned index = 0; index < MMIO_DEVICES; index++) {
        if (vnet_mmio_open(&mmio, MMIO + MMIO_STEP * index) == VNET_OK) {
            *vector = RISCV_INTERRUPT_VECTOR_EXTERNAL(MMIO_INTERRUPT + index);
            return &mmio.transport;
        }
    }
    return NULL;
}
