// SPDX-License-Identifier: BSD-2-Clause
// QEMU's aarch64 `virt` machine with highmem=off: GICv2, 32 MMIO transports, PCI Express with an I/O window.
#include "machine.h"
#include "registers.h"
#include "vnet.h"
#include "vnet_mmio.h"

#define GIC_DISTRIBUTOR UINT64_C(0x8000000)
#define GIC_CPU UINT64_C(0x8010000)
#define UART UINT64_C(0x9000000)
#define MMIO UINT64_C(0xa000000)
#define PCI_IO UINT64_C(0x3eff0000)
#define PCI_CONFIG UINT64_C(0x3f000000)

enum { MMIO_STEP = 0x200, MMIO_DEVICES = 32, SHARED = 32, MMIO_INTERRUPT = SHARED + 16, PCI_INTERRUPT = SHARED + 3 };
enum {
    GICD_ENABLE = 0x100,
    GICD_PRIORITY = 0x400,
    GICD_TARGET = 0x800,
    GICC_PRIORITY_MASK = 4,
    GICC_CLAIM = 0xc,
    GICC_END = 0x10
};
enum { SEMIHOSTING_EXIT = 0x18, APPLICATION_EXIT = 0x20026, INTERRUPTS_NONE = 1020 };

const struct machine_range machine_pci_memory = {0x10000000, 0x3eff0000}, machine_pci_io = {0x1000, 0x10000};

static void put(uintptr_t address, uint32_t value) {
    vnet_register_write(address, 4, value);
}

_Noreturn void aarch64_trap(void) {
    machine_print("guest: trap\n");
    machine_exit(9);
}

// Context: interrupt.
void aarch64_interrupt(void) {
    uint32_t claim = vnet_register_read(GIC_CPU + GICC_CLAIM, 4);
    if ((claim & 0x3ff) < INTERRUPTS_NONE) {
        guest_interrupt();
        put(GIC_CPU + GICC_END, claim);
    }
}

void machine_init(void) {
    put(GIC_DISTRIBUTOR, 1);
    put(GIC_CPU + GICC_PRIORITY_MASK, 0xff);
    put(GIC_CPU, 1);
}

static void enable(unsigned interrupt) {
    vnet_register_write(GIC_DISTRIBUTOR + GICD_PRIORITY + interrupt, 1, 0x80);
    vnet_register_write(GIC_DISTRIBUTOR + GICD_TARGET + interrupt, 1, 1);
    put(GIC_DISTRIBUTOR + GICD_ENABLE + interrupt / 32 * 4, 1u << (interrupt % 32));
}

struct vnet_transport *machine_find_network(void) {
    static struct vnet_mmio mmio;
    unsigned function, line;
    struct vnet_transport *transport = pci_find_network(&function, &line);
    if (transport != NULL) {
        enable(PCI_INTERRUPT + line);
        return transport;
    }
    for (unsigned index = 0; index < MMIO_DEVICES; index++) {
        if (vnet_mmio_open(&mmio, MMIO + MMIO_STEP * index) == VNET_OK) {
            enable(MMIO_INTERRUPT + index);
            return &mmio.transport;
        }
    }
    return NULL;
}

void machine_print(const char *text) {
    while (*text != '\0') {
        put(UART, (uint8_t)*text++);
    }
}

_Noreturn void machine_exit(unsigned status) {
    const uint64_t arguments[2] = {APPLICATION_EXIT, status};
    register uint64_t operation __asm__("x0") = SEMIHOSTING_EXIT;
    register const uint64_t *block __asm__("x1") = arguments;
    __asm__ volatile("hlt #0xf000" : "+r"(operation) : "r"(block) : "memory");
    for (;;) {
    }
}

void machine_wait(const volatile unsigned *flag) {
    __asm__ volatile("msr daifset, #2" ::: "memory");
    while (*flag == 0) {
        __asm__ volatile("wfi; msr daifclr, #2; isb; msr daifset, #2" ::: "memory");
    }
    __asm__ volatile("msr daifclr, #2" ::: "memory");
}

uint64_t machine_instructions(void) {
    return 0;
}

uint64_t machine_nanoseconds(void) {
    uint64_t count, frequency;
    __asm__ volatile("mrs %0, cntvct_el0; mrs %1, cntfrq_el0" : "=r"(count), "=r"(frequency));
    return count * (1000000000 / frequency);
}

void machine_pause(void) {
    uint64_t end = machine_nanoseconds() + 100000;
    while (machine_nanoseconds() < end) {
    }
}

static uintptr_t config_at(unsigned function, unsigned offset) {
    return PCI_CONFIG + (uintptr_t)function * 0x1000 + offset;
}

uint32_t machine_pci_read(unsigned function, unsigned offset, unsigned octets) {
    return vnet_register_read(config_at(function, offset), octets);
}

void machine_pci_write(unsigned function, unsigned offset, unsigned octets, uint32_t value) {
    vnet_register_write(config_at(function, offset), octets, value);
}

uint32_t machine_io_read(uint32_t port, unsigned octets) {
    return vnet_register_read(PCI_IO + port, octets);
}

void machine_io_write(uint32_t port, unsigned octets, uint32_t value) {
    vnet_register_write(PCI_IO + port, octets, value);
}
