// SPDX-License-Identifier: BSD-2-Clause
// Accesses to a device's registers in memory. With VNET_TEST_REGISTERS a test stands behind them.
#ifndef VNET_REGISTERS_H
#define VNET_REGISTERS_H

#include <stdint.h>

#ifdef VNET_TEST_REGISTERS
uint32_t vnet_register_read(uintptr_t address, unsigned octets);
void vnet_register_write(uintptr_t address, unsigned octets, uint32_t value);
#else
static inline uint32_t vnet_register_read(uintptr_t address, unsigned octets) {
    switch (octets) {
    case 1: return *(volatile uint8_t *)address;
    case 2: return *(volatile uint16_t *)address;
    default: return *(volatile uint32_t *)address;
    }
}

static inline void vnet_register_write(uintptr_t address, unsigned octets, uint32_t value) {
    switch (octets) {
    case 1: *(volatile uint8_t *)address = (uint8_t)value; break;
    case 2: *(volatile uint16_t *)address = (uint16_t)value; break;
    default: *(volatile uint32_t *)address = value; break;
    }
}
#endif

#endif
