// SPDX-License-Identifier: BSD-2-Clause
// Between fake.c and fake_registers.c.
#ifndef FAKE_REGISTERS_H
#define FAKE_REGISTERS_H

// Writes the configuration space of a PCI function of the device's kind.
void fake_fill_pci(void);

#endif
