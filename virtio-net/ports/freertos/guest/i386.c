// SPDX-License-Identifier: BSD-2-Clause
// QEMU's `pc` machine under FreeRTOS, whose port uses the local APIC: the network device's interrupt goes through the
// I/O APIC. ports/bare/i386.c has all else.
#include "machine.h"
#include "system.h"
#include "vnet_freertos.h"

#define IO_APIC UINT32_C(0xfec00000)
enum { IO_APIC_SELECT = 0, IO_APIC_DATA = 0x10, IO_APIC_LINES = 0x10 };
enum { PIC_1_MASK = 0x21, PIC_2_MASK = 0xa1, PCI_INTERRUPT_LINE = 0x3c };
enum { HAS_COMMAND_LINE = 4, COMMAND_LINE_AT = 16 };
enum { VECTOR = 0x41, LEVEL = 1 << 15 }; // the level is high

void i386_freertos_interrupt_entry(void);

static void put(unsigned index, uint32_t value) {
    *(volatile uint32_t *)(IO_APIC + IO_APIC_SELECT) = index;
    *(volatile uint32_t *)(IO_APIC + IO_APIC_DATA) = value;
}

// The loader's information begins with flags. The command line begins with the program's name.
const char *system_command_line(void) {
    const uint32_t *flags = (const uint32_t *)machine_boot;
    if (!(*flags & HAS_COMMAND_LINE)) {
        return NULL;
    }
    const char *text = (const char *)*(const uint32_t *)(machine_boot + COMMAND_LINE_AT);
    while (*text != '\0' && *text != ' ') {
        text++;
    }
    return *text == ' ' ? text + 1 : NULL;
}

struct vnet_transport *system_find_network(void) {
    unsigned function, line;
    struct vnet_transport *transport = pci_find_network(&function, &line);
    if (transport != NULL) {
        machine_io_write(PIC_1_MASK, 1, 0xff);
        machine_io_write(PIC_2_MASK, 1, 0xff);
        (void)xPortInstallInterruptHandler(i386_freertos_interrupt_entry, VECTOR);
        line = machine_pci_read(function, PCI_INTERRUPT_LINE, 1) & 15;
        put(IO_APIC_LINES + 2 * line + 1, 0); // to the first processor
        put(IO_APIC_LINES + 2 * line, VECTOR | LEVEL);
    }
    return transport;
}
