// SPDX-License-Identifier: BSD-2-Clause
// What guest.c needs of a machine without an operating system. One file for each machine; pci.c serves all three.
#ifndef MACHINE_H
#define MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vnet_transport.h"

// Called once, with interrupts off: prepares the console and the interrupt controller.
void machine_init(void);

// Finds a network device, opens it and lets its interrupt through. Returns NULL if there is none.
struct vnet_transport *machine_find_network(void);

void machine_print(const char *text);

// Ends the machine; 0: all is well.
_Noreturn void machine_exit(unsigned status);

// Sleeps until *flag is not 0, with interrupts on while it sleeps and after it.
void machine_wait(const volatile unsigned *flag);

// Instructions that the processor has executed; 0 where the machine does not say.
uint64_t machine_instructions(void);

// Nanoseconds since the machine was switched on; 0 where the machine does not say.
uint64_t machine_nanoseconds(void);

// Waits for about 100 microseconds.
void machine_pause(void);

// In guest.c: the network device interrupts. Context: interrupt.
void guest_interrupt(void);
// In guest.c: where each machine's start ends.
_Noreturn void guest_main(void);
// What the loader hands over: riscv64 the address of the device tree, i386 that of the multiboot information.
extern const uintptr_t machine_boot;

// For pci.c: configuration space of bus 0, I/O space, and where the guest may put BARs (0: firmware has assigned them).
uint32_t machine_pci_read(unsigned device, unsigned offset, unsigned octets);
void machine_pci_write(unsigned device, unsigned offset, unsigned octets, uint32_t value);
uint32_t machine_io_read(uint32_t port, unsigned octets);
void machine_io_write(uint32_t port, unsigned octets, uint32_t value);
extern const uint32_t machine_pci_memory, machine_pci_io;

// Looks for a network device on PCI bus 0 and opens it. `device` and `pin` (1 to 4) say where it interrupts.
struct vnet_transport *pci_find_network(unsigned *device, unsigned *pin);

#endif
