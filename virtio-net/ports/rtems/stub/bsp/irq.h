// SPDX-License-Identifier: BSD-2-Clause
// A stub: it only declares what this port uses of the BSP riscv/riscv of RTEMS 6, so that the port can be compiled
// where RTEMS is not installed. Nothing here is RTEMS' own text.
#ifndef STUB_BSP_IRQ_H
#define STUB_BSP_IRQ_H

#include <rtems.h>

#define RISCV_INTERRUPT_VECTOR_EXTERNAL(line) ((line) + 2)

#endif
