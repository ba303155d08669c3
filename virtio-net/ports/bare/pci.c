// SPDX-License-Identifier: BSD-2-Clause
// Finds a virtio network device on PCI and opens it: among all functions of all slots, and behind bridges. Where no
// firmware did so, each function gets addresses of its own first, and each bridge a bus number and windows. Of the
// functions only the network device that is found may access memory.
#include "machine.h"
#include "vnet.h"
#include "vnet_pci.h"

enum { COMMAND = 0x04, HEADER_TYPE = 0x0e, BAR_0 = 0x10, INTERRUPT_PIN = 0x3d };
enum { COMMAND_IO = 1, COMMAND_MEMORY = 2, COMMAND_MASTER = 4, BAR_IS_IO = 1, BAR_IS_64 = 4, BARS = 6 };
// Of a bridge.
enum {
    BUS_PRIMARY = 0x18,
    BUS_SECONDARY = 0x19,
    BUS_SUBORDINATE = 0x1a,
    IO_WINDOW = 0x1c, // first and last, of 4,096 octets each
    MEMORY_WINDOW = 0x20,
    PREFETCHABLE_WINDOW = 0x24,
    IO_WINDOW_HIGH = 0x30,
    BRIDGE_BARS = 2
};
enum { TYPE_FUNCTION = 0, TYPE_BRIDGE = 1, IS_MULTIFUNCTION = 0x80, PLACES = 256, BUSES = 16, DEPTH_MAX = 8 };
enum { IO_STEP = 0x1000, MEMORY_STEP = 0x100000 }; // of the windows

struct bar {
    uint32_t start, octets; // octets 0: none, or out of reach
    bool is_placed;         // there is none, or it has an address
};

static struct vnet_pci pci;
static unsigned found, found_line;
static struct bar bars[BARS];
// While addresses are given: what is free, and the last bus that has a number.
static bool is_assigning;
static struct machine_range memory, io;
static unsigned last_bus;

static uint32_t config_read(void *context, unsigned offset, unsigned octets) {
    (void)context;
    return machine_pci_read(found, offset, octets);
}

static void config_write(void *context, unsigned offset, unsigned octets, uint32_t value) {
    (void)context;
    machine_pci_write(found, offset, octets, value);
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

static void align(struct machine_range *range, uint32_t step) {
    range->start = (range->start + step - 1) & ~(step - 1);
}

// Takes addresses that are divisible by their number, a power of two. Returns 0 if so many are not free.
static uint32_t take(struct machine_range *range, uint32_t octets) {
    struct machine_range rest = *range;
    if (octets == 0 || octets > rest.end) {
        return 0;
    }
    align(&rest, octets);
    if (rest.start > rest.end || rest.end - rest.start < octets) {
        return 0;
    }
    range->start = rest.start + octets;
    return rest.start;
}

// Sizes one BAR of a function that is switched off, and gives it an address if no firmware did. Returns how many
// registers it has.
static unsigned read_bar(unsigned function, unsigned bar, struct bar *result) {
    unsigned at = BAR_0 + 4 * bar;
    uint32_t before = machine_pci_read(function, at, 4);
    machine_pci_write(function, at, 4, UINT32_MAX);
    uint32_t mask = machine_pci_read(function, at, 4);
    bool is_io = mask & BAR_IS_IO, is_64 = !is_io && (mask & BAR_IS_64);
    uint32_t flags = is_io ? 3 : 15;
    uint32_t octets = (~(mask & ~flags) + 1) & (is_io ? UINT32_C(0xffff) : UINT32_MAX);
    uint32_t start = is_assigning ? take(is_io ? &io : &memory, octets) : before & ~flags;
    machine_pci_write(function, at, 4, start);
    if (is_64 && is_assigning) {
        machine_pci_write(function, at + 4, 4, 0);
    }
    bool is_far = is_64 && machine_pci_read(function, at + 4, 4) != 0;
    *result = (struct bar){start, start == 0 || is_far ? 0 : octets, mask == 0 || start != 0};
    return is_64 ? 2 : 1;
}

// Returns whether all have addresses.
static bool read_bars(unsigned function, unsigned count) {
    bool are_placed = true;
    for (unsigned bar = 0, next; bar < count; bar = next) {
        next = bar + read_bar(function, bar, &bars[bar]);
        are_placed &= bars[bar].is_placed;
    }
    return are_placed;
}

// Opens a function if it is a virtio network device. What is none stays as it is.
static bool open(unsigned function, unsigned slots) {
    static const struct vnet_pci_access ACCESS = {
        .config_read = config_read, .config_write = config_write, .map = map, .io_read = io_read, .io_write = io_write};
    uint32_t identity = machine_pci_read(function, 0, 4);
    if (identity != 0x10001af4 && identity != 0x10411af4) {
        return false;
    }
    uint32_t command = machine_pci_read(function, COMMAND, 2);
    machine_pci_write(function, COMMAND, 2, 0);
    (void)read_bars(function, BARS);
    machine_pci_write(function, COMMAND, 2, COMMAND_IO | COMMAND_MEMORY | COMMAND_MASTER);
    found = function;
    // Each bridge turns the lines by the number of the slot.
    found_line = (slots + machine_pci_read(function, INTERRUPT_PIN, 1) - 1) % 4;
    if (vnet_pci_open(&pci, &ACCESS) == VNET_OK) {
        return true;
    }
    machine_pci_write(function, COMMAND, 2, command);
    return false;
}

static void begin_bridge(unsigned bridge) {
    machine_pci_write(bridge, COMMAND, 2, 0);
    (void)read_bars(bridge, BRIDGE_BARS);
    machine_pci_write(bridge, BUS_PRIMARY, 1, bridge >> 8);
    machine_pci_write(bridge, BUS_SECONDARY, 1, ++last_bus);
    machine_pci_write(bridge, BUS_SUBORDINATE, 1, 0xff);
    align(&memory, MEMORY_STEP);
    align(&io, IO_STEP);
}

// Lets through what was given behind the bridge. A window whose end is below its beginning is closed.
static void finish_bridge(unsigned bridge, uint32_t memory_start, uint32_t io_start) {
    align(&memory, MEMORY_STEP);
    align(&io, IO_STEP);
    uint32_t memory_last = memory.start - 1, io_last = io.start - 1;
    bool has_memory = memory.start != memory_start, has_io = io.start != io_start;
    machine_pci_write(bridge, BUS_SUBORDINATE, 1, last_bus);
    machine_pci_write(bridge, MEMORY_WINDOW, 2, has_memory ? memory_start >> 16 : 0xfff0);
    machine_pci_write(bridge, MEMORY_WINDOW + 2, 2, has_memory ? memory_last >> 16 & 0xfff0 : 0);
    machine_pci_write(bridge, PREFETCHABLE_WINDOW, 2, 0xfff0);
    machine_pci_write(bridge, PREFETCHABLE_WINDOW + 2, 2, 0);
    machine_pci_write(bridge, IO_WINDOW, 1, has_io ? io_start >> 8 : 0xf0);
    machine_pci_write(bridge, IO_WINDOW + 1, 1, has_io ? io_last >> 8 & 0xf0 : 0);
    machine_pci_write(bridge, IO_WINDOW_HIGH, 4, 0);
    machine_pci_write(bridge, COMMAND, 2, COMMAND_IO | COMMAND_MEMORY | COMMAND_MASTER);
}

static bool scan(unsigned bus, unsigned slots, unsigned depth);

static bool scan_behind(unsigned bridge, unsigned slots, unsigned depth) {
    if (depth == DEPTH_MAX || (is_assigning && last_bus == BUSES - 1)) {
        return false;
    }
    if (is_assigning) {
        begin_bridge(bridge);
    }
    uint32_t memory_start = memory.start, io_start = io.start;
    unsigned bus = machine_pci_read(bridge, BUS_SECONDARY, 1);
    // A bus number that is not higher would lead back.
    bool is_found = bus > bridge >> 8 && scan(bus, slots, depth + 1);
    if (is_assigning) {
        finish_bridge(bridge, memory_start, io_start);
    }
    return is_found;
}

// Looks at each function of a bus, and behind its bridges. `slots`: the sum of the bridges' slots. Returns whether a
// network device was opened.
static bool scan(unsigned bus, unsigned slots, unsigned depth) {
    bool is_multifunction = false;
    for (unsigned place = 0; place < PLACES; place++) { // slot and function
        unsigned function = bus << 8 | place;
        if ((place % 8 != 0 && !is_multifunction) || (machine_pci_read(function, 0, 4) & 0xffff) == 0xffff) {
            is_multifunction &= place % 8 != 0;
            continue;
        }
        unsigned type = machine_pci_read(function, HEADER_TYPE, 1);
        is_multifunction = place % 8 != 0 || (type & IS_MULTIFUNCTION);
        type &= ~(unsigned)IS_MULTIFUNCTION;
        if (type == TYPE_BRIDGE && scan_behind(function, slots + place / 8, depth)) {
            return true;
        }
        if (type == TYPE_FUNCTION && is_assigning) {
            machine_pci_write(function, COMMAND, 2, 0);
            if (read_bars(function, BARS)) {
                machine_pci_write(function, COMMAND, 2, COMMAND_IO | COMMAND_MEMORY);
            }
        } else if (type == TYPE_FUNCTION && open(function, slots + place / 8)) {
            return true;
        }
    }
    return false;
}

struct vnet_transport *pci_find_network(unsigned *function, unsigned *line) {
    memory = machine_pci_memory;
    io = machine_pci_io;
    if (memory.start != 0) {
        last_bus = 0;
        is_assigning = true;
        (void)scan(0, 0, 0);
        is_assigning = false;
    }
    if (!scan(0, 0, 0)) {
        return NULL;
    }
    *function = found;
    *line = found_line;
    return &pci.transport;
}
