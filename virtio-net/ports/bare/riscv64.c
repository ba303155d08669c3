// SPDX-License-Identifier: BSD-2-Clause
// QEMU's riscv64 `virt` machine: PLIC, CLINT, eight MMIO transports, PCI Express with an I/O window.
#include "machine.h"
#include "registers.h"
#include "vnet.h"
#include "vnet_mmio.h"

#define FINISHER UINT64_C(0x100000)
#define CLINT_TIME UINT64_C(0x200bff8) // 10 MHz
#define PCI_IO UINT64_C(0x3000000)
#define PLIC UINT64_C(0xc000000)
#define UART UINT64_C(0x10000000)
#define MMIO UINT64_C(0x10001000)
#define PCI_CONFIG UINT64_C(0x30000000)

enum { MMIO_STEP = 0x1000, MMIO_DEVICES = 8, MMIO_INTERRUPT = 1, PCI_INTERRUPT = 32 };
enum { PLIC_ENABLE = 0x2000, PLIC_THRESHOLD = 0x200000, PLIC_CLAIM = 0x200004 };
enum { MSTATUS_MIE = 8, MIE_EXTERNAL = 0x800 };

const struct machine_range machine_pci_memory = {0x40000000, 0x80000000}, machine_pci_io = {0x1000, 0x10000};

static volatile uint32_t *at(uintptr_t address) {
    return (volatile uint32_t *)address;
}

void riscv64_trap(uint64_t cause, uint64_t place) {
    (void)place;
    if (cause != (UINT64_C(1) << 63 | 11)) {
        machine_print("guest: trap\n");
        machine_exit(9);
    }
    uint32_t interrupt = *at(PLIC + PLIC_CLAIM);
    if (interrupt != 0) {
        guest_interrupt();
        *at(PLIC + PLIC_CLAIM) = interrupt;
    }
}

void machine_init(void) {
    *at(PLIC + PLIC_THRESHOLD) = 0;
    __asm__ volatile("csrw mie, %0" ::"r"((uint64_t)MIE_EXTERNAL));
}

static void enable(unsigned interrupt) {
    *at(PLIC + 4 * interrupt) = 1;
    *at(PLIC + PLIC_ENABLE + interrupt / 32 * 4) |= 1u << (interrupt % 32);
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
        *(volatile uint8_t *)UART = (uint8_t)*text++;
    }
}

_Noreturn void machine_exit(unsigned status) {
    *at(FINISHER) = status == 0 ? 0x5555 : status << 16 | 0x3333;
    for (;;) {
    }
}

void machine_wait(const volatile unsigned *flag) {
    __asm__ volatile("csrc mstatus, %0" ::"r"((uint64_t)MSTATUS_MIE) : "memory");
    while (*flag == 0) {
        __asm__ volatile("wfi");
        __asm__ volatile("csrs mstatus, %0" ::"r"((uint64_t)MSTATUS_MIE) : "memory");
        __asm__ volatile("csrc mstatus, %0" ::"r"((uint64_t)MSTATUS_MIE) : "memory");
    }
    __asm__ volatile("csrs mstatus, %0" ::"r"((uint64_t)MSTATUS_MIE) : "memory");
}

uint64_t machine_instructions(void) {
    uint64_t value;
    __asm__ volatile("csrr %0, minstret" : "=r"(value));
    return value;
}

uint64_t machine_nanoseconds(void) {
    return *(volatile uint64_t *)CLINT_TIME * 100;
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
