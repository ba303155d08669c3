// SPDX-License-Identifier: BSD-2-Clause
// QEMU's `pc` machine under RTEMS (BSP i386/pc686 and its like): PCI, legacy or modern; firmware has placed the BARs
// and chosen the interrupt line. ports/bare/pci.c finds the device.
#include "machine.h"
#include "vnet_rtems.h"

enum { PCI_ADDRESS = 0xcf8, PCI_DATA = 0xcfc, PCI_INTERRUPT_LINE = 0x3c };

const struct machine_range machine_pci_memory = {0, 0}, machine_pci_io = {0, 0};

uint32_t machine_io_read(uint32_t port, unsigned octets) {
    uint8_t octet;
    uint16_t word;
    uint32_t value;
    switch (octets) {
    case 1: __asm__ volatile("inb %1, %0" : "=a"(octet) : "Nd"((uint16_t)port) : "memory"); return octet;
    case 2: __asm__ volatile("inw %1, %0" : "=a"(word) : "Nd"((uint16_t)port) : "memory"); return word;
    default: __asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"((uint16_t)port) : "memory"); return value;
    }
}

void machine_io_write(uint32_t port, unsigned octets, uint32_t value) {
    switch (octets) {
    case 1: __asm__ volatile("outb %0, %1" ::"a"((uint8_t)value), "Nd"((uint16_t)port) : "memory"); break;
    case 2: __asm__ volatile("outw %0, %1" ::"a"((uint16_t)value), "Nd"((uint16_t)port) : "memory"); break;
    default: __asm__ volatile("outl %0, %1" ::"a"(value), "Nd"((uint16_t)port) : "memory"); break;
    }
}

// The address and the data are two accesses: interrupts are off between them, for others that read configurations.
uint32_t machine_pci_read(unsigned function, unsigned offset, unsigned octets) {
    rtems_interrupt_level level;
    rtems_interrupt_local_disable(level);
    machine_io_write(PCI_ADDRESS, 4, 0x80000000u | function << 8 | (offset & 0xfc));
    uint32_t value = machine_io_read(PCI_DATA + (offset & 3), octets);
    rtems_interrupt_local_enable(level);
    return value;
}

void machine_pci_write(unsigned function, unsigned offset, unsigned octets, uint32_t value) {
    rtems_interrupt_level level;
    rtems_interrupt_local_disable(level);
    machine_io_write(PCI_ADDRESS, 4, 0x80000000u | function << 8 | (offset & 0xfc));
    machine_io_write(PCI_DATA + (offset & 3), octets, value);
    rtems_interrupt_local_enable(level);
}

// RTEMS numbers the lines of the two interrupt controllers from 0.
struct vnet_transport *vnet_rtems_find(rtems_vector_number *vector) {
    unsigned function, line;
    struct vnet_transport *transport = pci_find_network(&function, &line);
    if (transport != NULL) {
        *vector = machine_pci_read(function, PCI_INTERRUPT_LINE, 1) & 15;
    }
    return transport;
}
