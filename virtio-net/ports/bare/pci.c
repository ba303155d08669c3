// SPDX-License-Identifier: BSD-2-Clause
// Finds a virtio network device on PCI bus 0, gives its BARs addresses where no firmware did, and opens it.
#include "machine.h"
#include "vnet.h"
#include "vnet_pci.h"

enum { COMMAND = 0x04, BAR_0 = 0x10, INTERRUPT_PIN = 0x3d };
enum { COMMAND_IO = 1, COMMAND_MEMORY = 2, COMMAND_MASTER = 4, BAR_IS_IO = 1, BAR_IS_64 = 4, BARS = 6, DEVICES = 32 };

static unsigned found;
static struct { uint32_t start, octets; } bars[BARS];

static uint32_t config_read(void *context, unsigned offset, unsigned octets) {
    (void)context;
    return machine_pci_read(found, offset, octets);
}

static uintptr_t map(void *context, unsigned bar, uint32_t offset, uint32_t octets) {
    (void)context;
    bool is_inside = offset < bars[bar].octets && octets <= bars[bar].octets - offset;
    return is_inside ? (uintptr_t)bars[bar].start + offset : 0;
}

static uint32_t io_read(void *context, unsigned offset, unsigned octets) {
    (void)context;
    return machine_io_read(bars[0].start + offset, octets);
}

static void io_write(void *context, unsigned offset, unsigned octets, uint32_t value) {
    (void)context;
    machine_io_write(bars[0].start + offset, octets, value);
}

// Sizes and places one BAR. Returns how many registers it has.
static unsigned place_bar(unsigned bar, uint32_t *memory, uint32_t *io) {
    unsigned at = BAR_0 + 4 * bar;
    uint32_t before = machine_pci_read(found, at, 4);
    machine_pci_write(found, at, 4, UINT32_MAX);
    uint32_t mask = machine_pci_read(found, at, 4);
    bool is_io = before & BAR_IS_IO;
    uint32_t *next = is_io ? io : memory, octets = ~(mask & (is_io ? ~UINT32_C(3) : ~UINT32_C(15))) + 1;
    if (is_io) {
        octets &= 0xffff;
    }
    uint32_t start = before & (is_io ? ~UINT32_C(3) : ~UINT32_C(15));
    if (mask != 0 && *next != 0) {
        start = (*next + octets - 1) & ~(octets - 1);
        *next = start + octets;
    }
    machine_pci_write(found, at, 4, start);
    bool is_64 = !is_io && (before & BAR_IS_64);
    bars[bar].start = start;
    bars[bar].octets = mask == 0 ? 0 : octets;
    if (is_64 && *next != 0) {
        machine_pci_write(found, at + 4, 4, 0);
    } else if (is_64 && machine_pci_read(found, at + 4, 4) != 0) {
        bars[bar].octets = 0; // beyond what this guest can reach
    }
    return is_64 ? 2 : 1;
}

struct vnet_transport *pci_find_network(unsigned *device, unsigned *pin) {
    static struct vnet_pci pci;
    static const struct vnet_pci_access access = {
        .config_read = config_read, .map = map, .io_read = io_read, .io_write = io_write};
    for (found = 0; found < DEVICES; found++) {
        if ((machine_pci_read(found, 0, 4) & 0xffff) != 0x1af4) {
            continue;
        }
        uint32_t memory = machine_pci_memory, io = machine_pci_io;
        machine_pci_write(found, COMMAND, 2, 0);
        for (unsigned bar = 0; bar < BARS; bar += place_bar(bar, &memory, &io)) {
        }
        machine_pci_write(found, COMMAND, 2, COMMAND_IO | COMMAND_MEMORY | COMMAND_MASTER);
        if (vnet_pci_open(&pci, &access) == VNET_OK) {
            *device = found;
            *pin = machine_pci_read(found, INTERRUPT_PIN, 1);
            return &pci.transport;
        }
    }
    return NULL;
}
