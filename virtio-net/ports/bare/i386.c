// SPDX-License-Identifier: BSD-2-Clause
// QEMU's `pc` machine, the platform of the paper: two 8259 interrupt controllers, PCI by I/O ports; firmware has placed
// the BARs.
#include "machine.h"

enum {
    PIC_1 = 0x20,
    PIC_2 = 0xa0,
    UART = 0x3f8,
    DEBUG_EXIT = 0xf4,
    PCI_ADDRESS = 0xcf8,
    PCI_DATA = 0xcfc,
    DELAY = 0x80
};
enum { VECTOR_BASE = 32, INTERRUPTS = 16, PCI_INTERRUPT_LINE = 0x3c, END_OF_INTERRUPT = 0x20, CASCADE = 2 };

const struct machine_range machine_pci_memory = {0, 0}, machine_pci_io = {0, 0};

struct __attribute__((packed)) gate {
    uint16_t low, selector, kind, high;
};

static struct gate gates[256];

void i386_interrupt_entry(void);
void i386_trap_entry(void);

static void out8(uint16_t port, uint8_t value) {
    __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port) : "memory");
}

static uint8_t in8(uint16_t port) {
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port) : "memory");
    return value;
}

uint32_t machine_io_read(uint32_t port, unsigned octets) {
    uint16_t word;
    uint32_t value;
    switch (octets) {
    case 1: return in8((uint16_t)port);
    case 2: __asm__ volatile("inw %1, %0" : "=a"(word) : "Nd"((uint16_t)port) : "memory"); return word;
    default: __asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"((uint16_t)port) : "memory"); return value;
    }
}

void machine_io_write(uint32_t port, unsigned octets, uint32_t value) {
    switch (octets) {
    case 1: out8((uint16_t)port, (uint8_t)value); break;
    case 2: __asm__ volatile("outw %0, %1" ::"a"((uint16_t)value), "Nd"((uint16_t)port) : "memory"); break;
    default: __asm__ volatile("outl %0, %1" ::"a"(value), "Nd"((uint16_t)port) : "memory"); break;
    }
}

static void select_config(unsigned function, unsigned offset) {
    machine_io_write(PCI_ADDRESS, 4, 0x80000000u | function << 8 | (offset & 0xfc));
}

uint32_t machine_pci_read(unsigned function, unsigned offset, unsigned octets) {
    select_config(function, offset);
    return machine_io_read(PCI_DATA + (offset & 3), octets);
}

void machine_pci_write(unsigned function, unsigned offset, unsigned octets, uint32_t value) {
    select_config(function, offset);
    machine_io_write(PCI_DATA + (offset & 3), octets, value);
}

void i386_trap(void) {
    machine_print("guest: trap\n");
    machine_exit(9);
}

// Only the network device's line is let through. Context: interrupt.
void i386_interrupt(void) {
    guest_interrupt();
    out8(PIC_2, END_OF_INTERRUPT);
    out8(PIC_1, END_OF_INTERRUPT);
}

static void set_gate(unsigned vector, void (*entry)(void)) {
    uintptr_t address = (uintptr_t)entry;
    gates[vector] = (struct gate){(uint16_t)address, 8, 0x8e00, (uint16_t)(address >> 16)};
}

void machine_init(void) {
    for (unsigned vector = 0; vector < 256; vector++) {
        bool is_interrupt = vector >= VECTOR_BASE && vector < VECTOR_BASE + INTERRUPTS;
        set_gate(vector, is_interrupt ? i386_interrupt_entry : i386_trap_entry);
    }
    struct __attribute__((packed)) {
        uint16_t limit;
        uint32_t start;
    } pointer = {sizeof(gates) - 1, (uint32_t)(uintptr_t)gates};
    __asm__ volatile("lidt %0" ::"m"(pointer));
    static const uint8_t WORDS[2][4] = {{0x11, VECTOR_BASE, 1 << CASCADE, 1}, {0x11, VECTOR_BASE + 8, CASCADE, 1}};
    for (unsigned word = 0; word < 4; word++) {
        out8(PIC_1 + (word != 0), WORDS[0][word]);
        out8(PIC_2 + (word != 0), WORDS[1][word]);
    }
    out8(PIC_1 + 1, 0xff & ~(1 << CASCADE));
    out8(PIC_2 + 1, 0xff);
}

struct vnet_transport *machine_find_network(void) {
    unsigned function, line;
    struct vnet_transport *transport = pci_find_network(&function, &line);
    if (transport != NULL) {
        line = machine_pci_read(function, PCI_INTERRUPT_LINE, 1) & 15;
        uint16_t mask = (uint16_t)(line < 8 ? PIC_1 + 1 : PIC_2 + 1);
        out8(mask, (uint8_t)(in8(mask) & ~(1u << line % 8)));
    }
    return transport;
}

void machine_print(const char *text) {
    while (*text != '\0') {
        out8(UART, (uint8_t)*text++);
    }
}

_Noreturn void machine_exit(unsigned status) {
    out8(DEBUG_EXIT, (uint8_t)status);
    for (;;) {
        __asm__ volatile("cli; hlt");
    }
}

void machine_wait(const volatile unsigned *flag) {
    __asm__ volatile("cli" ::: "memory");
    while (*flag == 0) {
        // `sti` takes effect after the next instruction: no interrupt is lost in between.
        __asm__ volatile("sti; hlt; cli" ::: "memory");
    }
    __asm__ volatile("sti" ::: "memory");
}

uint64_t machine_instructions(void) {
    return 0;
}

uint64_t machine_nanoseconds(void) {
    return 0;
}

// A write to this port takes about a microsecond on the old bus, and at least as long in a virtual machine.
void machine_pause(void) {
    for (unsigned count = 0; count < 100; count++) {
        out8(DELAY, 0);
    }
}
