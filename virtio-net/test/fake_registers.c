// SPDX-License-Identifier: BSD-2-Clause
// The fake device's registers: MMIO 1 and 2, PCI legacy, PCI modern.
#include "fake_registers.h"

#include <stdlib.h>
#include <string.h>

#include "fake.h"
#include "fake_ring.h"
#include "registers.h"

// Where the driver sees the registers: numbers, not memory.
#define MMIO UINT64_C(0x10000)
#define BAR UINT64_C(0x20000)
enum {
    BAR_COMMON = 0x0,
    BAR_ISR = 0x1000,
    BAR_DEVICE = 0x2000,
    BAR_NOTIFY = 0x3000,
    BAR_OCTETS = 0x4000,
    NOTIFY_MULTIPLIER = 4
};

// The driver touched what is not there: its fault, unless the device lies about where its registers are.
static uint32_t unexpected(void) {
    if (!fake.is_lenient) {
        abort();
    }
    return 0;
}

static struct fake_queue *selected(void) {
    return &fake.queues[fake.queue_select % FAKE_QUEUES];
}

static void set_low(uint64_t *value, uint32_t half) {
    *value = (*value & ~UINT64_C(0xffffffff)) | half;
}

static void set_high(uint64_t *value, uint32_t half) {
    *value = (*value & UINT64_C(0xffffffff)) | (uint64_t)half << 32;
}

static void set_status(uint32_t status) {
    if (status != 0) {
        fake.status = (uint8_t)status;
        if ((status & VNET_STATUS_DRIVER_OK) && (fake.accepted & FAKE_FEATURE_QUEUES) && !fake.is_lenient) {
            fake.control_queue = 2 * (fake.config[8] | (unsigned)fake.config[9] << 8);
        }
        if (fake.refuses_features || (fake.required & ~fake.accepted)) {
            fake.status &= (uint8_t)~VNET_STATUS_FEATURES_OK;
        }
    } else if (!fake.refuses_reset) {
        fake.resets++;
        fake.is_stale = false;
        fake.status = 0;
        fake.isr = 0;
        fake.accepted = 0;
        fake.control_queue = fake.pairs = 0;
        memset(fake.queues, 0, sizeof(fake.queues));
    } else {
        fake.is_stale = true;
    }
}

static uint32_t size_max(void) {
    return fake.queue_select < FAKE_QUEUES ? fake.size_max[fake.queue_select] : 0;
}

static void start_legacy(uint32_t page, uint16_t size) {
    struct fake_queue *queue = selected();
    queue->size = size;
    queue->is_on = page != 0;
    queue->descriptors = (uint64_t)page * 4096;
    queue->available = queue->descriptors + (uint64_t)size * 16;
    queue->used = (queue->available + 6 + 2 * (uint64_t)size + 4095) & ~UINT64_C(4095);
    if (queue->is_on &&
        fake_memory(queue->descriptors, queue->used + 6 + 8 * (uint64_t)size - queue->descriptors) == NULL) {
        unexpected();
        queue->is_on = false;
    }
}

static void start_modern(void) {
    struct fake_queue *queue = selected();
    queue->is_on = true;
    queue->available_next = queue->used_next = queue->used_signalled = 0;
    bool is_packed = fake.accepted & FAKE_FEATURE_PACKED;
    size_t driver = is_packed ? 4 : 6 + (size_t)queue->size * 2, device = is_packed ? 4 : 6 + (size_t)queue->size * 8;
    if (queue->size == 0 || fake_memory(queue->descriptors, (size_t)queue->size * 16) == NULL ||
        queue->descriptors % 16 != 0 || fake_memory(queue->available, driver) == NULL ||
        queue->available % (is_packed ? 4 : 2) != 0 || fake_memory(queue->used, device) == NULL ||
        queue->used % 4 != 0) {
        unexpected();
        queue->is_on = false;
    }
}

static uint32_t read_isr(bool acknowledges) {
    uint32_t isr = fake.isr;
    if (acknowledges) {
        fake.isr = 0;
    }
    return isr;
}

static uint32_t generation(void) {
    return fake.changes_config ? fake.generation++ : fake.generation;
}

static void notify(uint32_t queue) {
    if (queue >= FAKE_QUEUES) {
        unexpected();
    } else {
        fake.queues[queue].notifications++;
        if (queue != 0 && queue == fake.control_queue) {
            fake_answer_command(queue);
        }
    }
}

// Whether octets of the configuration are a field of 16 bits that is not read as such.
static bool is_torn(unsigned offset, unsigned octets) {
    return fake.is_strict && octets != 2 && offset >= 6;
}

static uint32_t config16(unsigned offset) {
    return offset + 1 < sizeof(fake.config) ? fake.config[offset] | (uint32_t)fake.config[offset + 1] << 8 : 0;
}

static uint32_t mmio_read(unsigned offset, unsigned octets) {
    if (offset >= 0x100 && (octets == 2 || is_torn(offset - 0x100, octets))) {
        return octets == 2 ? config16(offset - 0x100) : 0xff;
    }
    if (offset >= 0x100) {
        return offset - 0x100 < sizeof(fake.config) ? fake.config[offset - 0x100] : 0;
    }
    if (octets != 4) {
        return unexpected();
    }
    switch (offset) {
    case 0x000: return fake.magic;
    case 0x004: return fake.version;
    case 0x008: return fake.device_id;
    case 0x010: return (uint32_t)(fake.feature_select == 0 ? fake.offered : fake.offered >> 32);
    case 0x034: return size_max();
    case 0x040: return fake.version == 1 && selected()->is_on;
    case 0x044: return fake.version == 2 && selected()->is_on;
    case 0x060: return read_isr(false);
    case 0x070: return fake.status;
    case 0x0fc: return generation();
    default: return unexpected();
    }
}

static void mmio_write(unsigned offset, uint32_t value) {
    struct fake_queue *queue = selected();
    switch (offset) {
    case 0x014: fake.feature_select = value; return;
    case 0x020: (fake.feature_select == 0 ? set_low : set_high)(&fake.accepted, value); return;
    case 0x024: fake.feature_select = value; return;
    case 0x028:
        if (value != 4096) {
            abort();
        }
        return;
    case 0x030: fake.queue_select = value; return;
    case 0x038: queue->size = (uint16_t)value; return;
    case 0x03c:
        if (value != 4096) {
            abort();
        }
        return;
    case 0x040: start_legacy(value, queue->size); return;
    case 0x044: start_modern(); return;
    case 0x050: notify(value); return;
    case 0x064: fake.isr &= ~value; return;
    case 0x070: set_status(value); return;
    case 0x080: set_low(&queue->descriptors, value); return;
    case 0x084: set_high(&queue->descriptors, value); return;
    case 0x090: set_low(&queue->available, value); return;
    case 0x094: set_high(&queue->available, value); return;
    case 0x0a0: set_low(&queue->used, value); return;
    case 0x0a4: set_high(&queue->used, value); return;
    default: unexpected();
    }
}

static uint32_t common_read(unsigned offset) {
    switch (offset) {
    case 4: return (uint32_t)(fake.feature_select == 0 ? fake.offered : fake.offered >> 32);
    case 18: return FAKE_QUEUES;
    case 20: return fake.status;
    case 21: return generation() & 0xff;
    case 24: return size_max() & 0xffff;
    case 28: return selected()->is_on;
    case 30: return fake.queue_select;
    default: return unexpected();
    }
}

static void common_write(unsigned offset, uint32_t value) {
    struct fake_queue *queue = selected();
    switch (offset) {
    case 0:
    case 8: fake.feature_select = value; return;
    case 12: (fake.feature_select == 0 ? set_low : set_high)(&fake.accepted, value); return;
    case 20: set_status(value); return;
    case 22: fake.queue_select = value; return;
    case 24: queue->size = (uint16_t)value; return;
    case 28: start_modern(); return;
    case 32: set_low(&queue->descriptors, value); return;
    case 36: set_high(&queue->descriptors, value); return;
    case 40: set_low(&queue->available, value); return;
    case 44: set_high(&queue->available, value); return;
    case 48: set_low(&queue->used, value); return;
    case 52: set_high(&queue->used, value); return;
    default: unexpected();
    }
}

uint32_t vnet_register_read(uintptr_t address, unsigned octets) {
    if (fake.step != NULL) {
        fake.step();
    }
    if (address >= MMIO && address < MMIO + 0x200) {
        return mmio_read((unsigned)(address - MMIO), octets);
    }
    if (address < BAR || address >= BAR + BAR_OCTETS) {
        return unexpected();
    }
    unsigned offset = (unsigned)(address - BAR);
    if (offset == BAR_ISR) {
        return read_isr(true);
    }
    if (offset >= BAR_DEVICE && (octets == 2 || is_torn(offset - BAR_DEVICE, octets))) {
        return octets == 2 ? config16(offset - BAR_DEVICE) : 0xff;
    }
    if (offset >= BAR_DEVICE) {
        return offset - BAR_DEVICE < sizeof(fake.config) ? fake.config[offset - BAR_DEVICE] : 0;
    }
    return common_read(offset);
}

void vnet_register_write(uintptr_t address, unsigned octets, uint32_t value) {
    (void)octets;
    if (address >= MMIO && address < MMIO + 0x200) {
        mmio_write((unsigned)(address - MMIO), value);
    } else if (address >= BAR + BAR_NOTIFY && address < BAR + BAR_OCTETS) {
        notify(value);
    } else if (address >= BAR && address < BAR + 56) {
        common_write((unsigned)(address - BAR), value);
    } else {
        unexpected();
    }
}

// Where the capability of message interrupts lies, and the octet of its message control that turns them on.
enum { MESSAGES = 0xa0, MSI = 0x05, MSIX = 0x11 };

static bool is_msix_on(void) {
    return fake.pci[MESSAGES] == MSIX && (fake.pci[MESSAGES + 3] & 0x80);
}

bool fake_has_messages_on(void) {
    return is_msix_on() || (fake.pci[MESSAGES] == MSI && (fake.pci[MESSAGES + 2] & 1));
}

void fake_leave_messages_on(uint8_t capability) {
    fake.pci[6] = 0x10;
    fake.pci[MESSAGES] = capability;
    fake.pci[MESSAGES + 1] = fake.pci[0x34];
    fake.pci[MESSAGES + 2] = capability == MSI ? 0x81 : 2;
    fake.pci[MESSAGES + 3] = capability == MSI ? 0 : 0x80;
    fake.pci[0x34] = MESSAGES;
}

static uint32_t io_read(void *context, unsigned offset, unsigned octets) {
    (void)context;
    (void)octets;
    if (fake.step != NULL) {
        fake.step();
    }
    if (offset >= 20 && is_msix_on()) {
        if (offset < 24) {
            return UINT32_MAX; // no vector
        }
        offset -= 4;
    }
    switch (offset) {
    case 0: return (uint32_t)fake.offered;
    case 8: return selected()->is_on;
    case 12: return size_max() & 0xffff;
    case 18: return fake.status;
    case 19: return read_isr(true);
    default: return offset >= 20 && offset - 20 < sizeof(fake.config) ? fake.config[offset - 20] : 0;
    }
}

static void io_write(void *context, unsigned offset, unsigned octets, uint32_t value) {
    (void)context;
    (void)octets;
    switch (offset) {
    case 4: fake.accepted = value; return;
    case 8: start_legacy(value, (uint16_t)size_max()); return;
    case 14: fake.queue_select = value; return;
    case 16: notify(value); return;
    case 18: set_status(value); return;
    default: unexpected();
    }
}

static uint32_t config_read(void *context, unsigned offset, unsigned octets) {
    (void)context;
    uint32_t value = 0;
    if (offset + octets > sizeof(fake.pci)) {
        abort();
    }
    memcpy(&value, fake.pci + offset, octets);
    return value;
}

static void config_write(void *context, unsigned offset, unsigned octets, uint32_t value) {
    (void)context;
    if (octets != 2 || (offset != MESSAGES + 2 && !fake.is_lenient)) {
        abort(); // the driver writes nothing else
    }
    memcpy(fake.pci + offset, &value, octets);
}

static uintptr_t map(void *context, unsigned bar, uint32_t offset, uint32_t octets) {
    (void)context;
    return bar == 4 && offset < BAR_OCTETS && octets <= BAR_OCTETS - offset ? (uintptr_t)(BAR + offset) : 0;
}

static void put_capability(unsigned at, unsigned next, uint8_t type, uint32_t offset, uint32_t octets) {
    uint8_t head[8] = {9, (uint8_t)next, (uint8_t)(type == 2 ? 20 : 16), type, 4};
    uint32_t multiplier = NOTIFY_MULTIPLIER;
    memcpy(fake.pci + at, head, sizeof(head));
    memcpy(fake.pci + at + 8, &offset, 4);
    memcpy(fake.pci + at + 12, &octets, 4);
    if (type == 2) {
        memcpy(fake.pci + at + 16, &multiplier, 4);
    }
}

void fake_fill_pci(void) {
    bool is_modern = fake.kind == FAKE_PCI_MODERN;
    uint8_t identity[8] = {0xf4, 0x1a, is_modern ? 0x41 : 0x00, 0x10, 0, 0, is_modern ? 0x10 : 0, 0};
    memcpy(fake.pci, identity, sizeof(identity));
    if (is_modern) {
        fake.pci[0x34] = 0x40;
        put_capability(0x40, 0x54, 1, BAR_COMMON, 56);
        put_capability(0x54, 0x68, 2, BAR_NOTIFY, 0x1000);
        put_capability(0x68, 0x7c, 3, BAR_ISR, 0x1000);
        put_capability(0x7c, 0, 4, BAR_DEVICE, 0x1000);
    }
}

struct vnet_transport *fake_open(void) {
    static struct vnet_mmio mmio;
    static struct vnet_pci pci;
    static struct vnet_pci_access access = {
        .config_read = config_read, .map = map, .io_read = io_read, .io_write = io_write};
    access.config_write = fake.is_port_silent ? NULL : config_write;
    if (fake.kind == FAKE_MMIO_1 || fake.kind == FAKE_MMIO_2) {
        return vnet_mmio_open(&mmio, MMIO) == VNET_OK ? &mmio.transport : NULL;
    }
    return vnet_pci_open(&pci, &access) == VNET_OK ? &pci.transport : NULL;
}
