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

// For pci.c: configuration space (`function`: bus, slot and function, of 8, 5 and 3 bits), and I/O space.
uint32_t machine_pci_read(unsigned function, unsigned offset, unsigned octets);
void machine_pci_write(unsigned function, unsigned offset, unsigned octets, uint32_t value);
uint32_t machine_io_read(uint32_t port, unsigned octets);
void machine_io_write(uint32_t port, unsigned octets, uint32_t value);
// For pci.c: where the guest may put BARs. All 0: firmware has assigned them.
struct machine_range {
    uint32_t start, end; // the first that is not free any more
};
extern const struct machine_range machine_pci_memory, machine_pci_io;

// Looks for a network device on PCI and opens it. `line` (0 to 3): the host bridge's, on which it interrupts.
struct vnet_transport *pci_find_network(unsigned *function, unsigned *line);

#endif
