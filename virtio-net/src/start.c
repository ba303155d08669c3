// SPDX-License-Identifier: BSD-2-Clause
// Reset, negotiation (VIRTIO 1.1, clause 3.1.1) and memory. Every answer of the device is checked; every wait is
// bounded.
#include "memory.h"
#include "net.h"

#define LEGACY_ALIGNMENT 4096u
#define MODERN_ALIGNMENT 16u
#define LEGACY_HEADER 10u
#define MODERN_HEADER 12u
#define CONFIG_MAC 0u
#define CONFIG_STATUS 6u
#define CONFIG_PAIRS 8u
#define CONFIG_MTU 10u
#define MTU_MIN 68u         // clause 5.1.4.1
#define HEADER_OCTETS 14u   // Ethernet's, without a VLAN tag
#define PAIRS_LIMIT 0x8000u // clause 5.1.4.1
#define CONFIG_READS_MAX 4u // while the device changes its configuration

static bool is_power_of_two(uint32_t value) {
    return value != 0 && (value & (value - 1)) == 0;
}

static bool are_segments_good(const struct vnet_config *config) {
    if (!HAS(MERGEABLE) || !(config->options & VNET_OPTION_MERGEABLE)) {
        return config->segment_octets == 0;
    }
    // The longest frame fits into what is posted at least.
    bool is_long_enough =
        config->segment_octets == 0 || (config->segment_octets >= VNET_SEGMENT_MIN &&
                                        config->segment_octets * config->rx_posted_min >= VNET_FRAME_MAX);
    return is_long_enough && config->segment_octets <= VNET_FRAME_MAX && config->receive_segments != NULL;
}

static bool are_classes_good(const struct vnet_config *config) {
    bool has_queues = HAS(QUEUES) && (config->options & VNET_OPTION_QUEUES);
    return config->tx_classes <= VNET_PAIRS_MAX &&
           (!has_queues || config->rx_posted_max * config->tx_classes <= config->buffers);
}

int vnet_init(struct vnet_device *device, const struct vnet_platform *platform, struct vnet_transport *transport,
              const struct vnet_config *config) {
    memset(device, 0, sizeof(*device));
    bool is_good = is_power_of_two(config->ring_size) && config->ring_size <= VNET_RING_SIZE_MAX &&
                   config->rx_posted_min > 0 && config->rx_posted_min <= config->rx_posted_max &&
                   config->rx_posted_max <= config->buffers && config->tx_slots > 0 &&
                   config->tx_slots <= VNET_RING_SIZE_MAX && config->rx_posted_max <= VNET_RING_SIZE_MAX &&
                   config->receive != NULL && (config->options & ~(uint32_t)VNET_OPTIONS) == 0 &&
                   platform->memory != NULL && platform->bus_address != NULL && platform->wake != NULL &&
                   platform->pause != NULL && (platform->lock == NULL) == (platform->unlock == NULL);
    if (!is_good || !are_segments_good(config) || !are_classes_good(config)) {
        return VNET_ERROR_ARGUMENT;
    }
    device->platform = platform;
    device->lock = platform->lock;
    device->unlock = platform->unlock;
    device->transport = transport;
    device->config = *config;
    if (device->config.tx_classes == 0) {
        device->config.tx_classes = 1;
    }
    device->pairs = 1;
    device->room = config->segment_octets != 0 ? config->segment_octets : VNET_FRAME_MAX;
    return VNET_OK;
}

static void *take_memory(struct vnet_device *device, size_t octets, size_t alignment) {
    return device->platform->memory(device->platform->context, octets, alignment);
}

// The driver's own buffers, once.
static int make_buffers(struct vnet_device *device) {
    size_t count = device->config.buffers;
    // Frames begin at an address that is divisible by 8, plus VNET_HEADROOM.
    size_t step = (VNET_HEADROOM + device->room + 7) & ~(size_t)7;
    if (device->buffers != NULL) {
        return VNET_OK;
    }
    uint8_t *data = take_memory(device, count * step, 64);
    uint64_t bus =
        data == NULL ? VNET_NO_ADDRESS : device->platform->bus_address(device->platform->context, data, count * step);
    struct vnet_buffer *buffers =
        bus == VNET_NO_ADDRESS ? NULL : take_memory(device, count * sizeof(*buffers), _Alignof(struct vnet_buffer));
    if (buffers == NULL) {
        return VNET_ERROR_MEMORY;
    }
    for (size_t index = count; index-- > 0;) {
        struct vnet_buffer *buffer = &buffers[index];
        buffer->start = data + index * step;
        buffer->bus = bus + index * step;
        buffer->capacity = device->room;
        buffer->is_pooled = true;
        vnet_return(device, buffer, false);
    }
    device->buffers = buffers;
    return VNET_OK;
}

static bool reset(struct vnet_device *device) {
    const struct vnet_transport_ops *ops = device->transport->ops;
    ops->set_status(device->transport, 0);
    for (unsigned poll = 0; poll < VNET_RESET_POLLS; poll++) {
        if (ops->status(device->transport) == 0) {
            return true;
        }
        device->platform->pause(device->platform->context);
    }
    return false;
}

bool vnet_take_down(struct vnet_device *device) {
    if (!reset(device)) {
        device->state = VNET_FAILED;
        return false;
    }
    struct vnet_buffer *buffer;
    for (unsigned index = 0; index < vnet_pairs_made(device); index++) {
        struct vnet_pair *pair = vnet_pair(device, index);
        while ((buffer = vnet_ring_take_back(&pair->rx)) != NULL) {
            vnet_return(device, buffer, false);
        }
        while ((buffer = vnet_ring_take_back(&pair->tx)) != NULL) {
            device->counters.tx_lost++;
            vnet_return(device, buffer, false);
        }
    }
    device->state = VNET_STOPPED;
    return true;
}

uint16_t vnet_choose_size(const struct vnet_device *device, uint32_t size_max, uint16_t wanted) {
    if (device->transport->ops->is_size_fixed) {
        return is_power_of_two(size_max) && size_max <= VNET_RING_SIZE_FIXED_MAX ? (uint16_t)size_max : 0;
    }
    while (wanted > size_max) {
        wanted /= 2;
    }
    return wanted;
}

struct vnet_ring_shape vnet_shape(const struct vnet_device *device, uint16_t size, uint16_t slots, size_t room) {
    bool is_legacy = device->transport->ops->is_legacy;
    return (struct vnet_ring_shape){
        .size = size,
        .slots = slots,
        .header = (uint16_t)device->header,
        .alignment = is_legacy ? LEGACY_ALIGNMENT : MODERN_ALIGNMENT,
        .pair = is_legacy && !(device->features & FEATURE_ANY_LAYOUT),
        .event_index = (device->features & FEATURE_EVENT_INDEX) != 0,
        .packed = (device->features & FEATURE_PACKED) != 0,
        .room = room,
    };
}

struct vnet_queue vnet_place(const struct vnet_ring_shape *shape, uint64_t bus) {
    struct vnet_queue where = {
        .descriptors = bus,
        .available = bus + (uint64_t)shape->size * sizeof(struct vnet_descriptor),
        .used = bus + vnet_ring_used_offset(shape->size, shape->alignment),
        .size = shape->size,
    };
    if (shape->packed) {
        where.used = where.available + sizeof(struct vnet_packed_event);
    }
    return where;
}

// Sets up the receive queue or the transmit queue (`which`) of a pair.
static int set_up_queue(struct vnet_device *device, struct vnet_pair *pair, unsigned which) {
    const struct vnet_transport_ops *ops = device->transport->ops;
    unsigned queue = 2 * pair->number + which;
    uint16_t wanted = which == QUEUE_RX ? device->config.rx_posted_max : device->config.tx_slots;
    uint16_t size = vnet_choose_size(device, ops->queue_size_max(device->transport, queue), device->config.ring_size);
    struct vnet_ring_shape shape = vnet_shape(device, size, 0, which == QUEUE_RX ? device->header + device->room : 0);
    shape.slots = (uint16_t)(size >> shape.pair);
    if (shape.slots == 0) {
        return VNET_ERROR_QUEUE;
    }
    shape.slots = shape.slots < wanted ? shape.slots : wanted;
    if (pair->ring_shared[which] == NULL) {
        uint16_t largest = ops->is_size_fixed ? size : device->config.ring_size;
        pair->ring_octets[which] = vnet_ring_octets(largest, shape.alignment);
        pair->ring_shared[which] = take_memory(device, pair->ring_octets[which], shape.alignment);
    }
    if (pair->ring_own[which] == NULL) {
        pair->ring_own[which] = take_memory(device, vnet_ring_own_octets(wanted, true), sizeof(void *));
    }
    void *shared = pair->ring_shared[which];
    if (shared == NULL || pair->ring_own[which] == NULL) {
        return VNET_ERROR_MEMORY;
    }
    size_t octets = vnet_ring_octets(size, shape.alignment);
    if (octets > pair->ring_octets[which]) {
        return VNET_ERROR_QUEUE; // the device has a larger ring than at the first start
    }
    uint64_t bus = device->platform->bus_address(device->platform->context, shared, octets);
    if (bus == VNET_NO_ADDRESS) {
        return VNET_ERROR_MEMORY;
    }
    vnet_ring_reset(which == QUEUE_RX ? &pair->rx : &pair->tx, shared, pair->ring_own[which], &shape);
    const struct vnet_queue where = vnet_place(&shape, bus);
    return ops->start_queue(device->transport, queue, &where) ? VNET_OK : VNET_ERROR_QUEUE;
}

// Reads a part of the configuration that does not change meanwhile. If the device changes it without end, the last
// reading counts.
static void read_config(struct vnet_device *device, unsigned offset, uint8_t *to, unsigned octets) {
    const struct vnet_transport_ops *ops = device->transport->ops;
    for (unsigned read = 0; read < CONFIG_READS_MAX; read++) {
        uint32_t before = ops->config_generation(device->transport);
        ops->read_config(device->transport, offset, to, octets);
        if (ops->config_generation(device->transport) == before) {
            return;
        }
    }
}

// Fields of 16 bits are read as such: a device need not answer otherwise (clauses 4.1.3.1 and 4.2.2.2). PCI legacy has
// octets.
static unsigned read_config16(struct vnet_device *device, unsigned offset) {
    uint8_t octets[2];
    read_config(device, offset, octets, sizeof(octets));
    return octets[0] | (unsigned)octets[1] << 8;
}

bool vnet_read_link(struct vnet_device *device) {
    bool was_up = device->is_link_up;
    device->is_link_up = !(device->features & FEATURE_STATUS) || (read_config16(device, CONFIG_STATUS) & 1);
    size_t longest = device->features & FEATURE_MTU ? HEADER_OCTETS + device->mtu : SIZE_MAX;
    device->tx_longest = device->is_link_up ? longest : 0;
    return device->is_link_up != was_up;
}

static bool is_station(const uint8_t *mac) {
    return !(mac[0] & 1) && (mac[0] | mac[1] | mac[2] | mac[3] | mac[4] | mac[5]) != 0;
}

static int read_mac(struct vnet_device *device) {
    if (device->features & FEATURE_MAC) {
        read_config(device, CONFIG_MAC, device->mac, sizeof(device->mac));
        if (is_station(device->mac)) {
            return VNET_OK;
        }
    }
    memcpy(device->mac, device->config.mac, sizeof(device->mac));
    return is_station(device->mac) ? VNET_OK : VNET_ERROR_CONFIG;
}

// The features that the driver accepts of those that are offered. ACCESS_PLATFORM: a port gives bus addresses anyway.
// ORDER_PLATFORM: all fences are those for hardware (shared.h). MTU: if every frame that it allows fits into a buffer.
static uint64_t choose_features(struct vnet_device *device, uint64_t offered) {
    bool is_legacy = device->transport->ops->is_legacy;
    uint32_t options = device->config.options;
    uint64_t known = FEATURE_MAC | FEATURE_STATUS | (is_legacy ? FEATURE_ANY_LAYOUT : FEATURE_VERSION_1) |
                     FEATURE_ACCESS_PLATFORM | FEATURE_ORDER_PLATFORM;
    device->mtu = VNET_MTU_MAX;
    unsigned mtu = offered & FEATURE_MTU ? read_config16(device, CONFIG_MTU) : 0;
    if (mtu >= MTU_MIN && mtu <= VNET_MTU_MAX) {
        device->mtu = (uint16_t)mtu;
        known |= FEATURE_MTU;
    }
    if (HAS(EVENT_INDEX) && (options & VNET_OPTION_EVENT_INDEX)) {
        known |= FEATURE_EVENT_INDEX;
    }
    if (HAS(PACKED) && (options & VNET_OPTION_PACKED) && !is_legacy) {
        known |= FEATURE_PACKED;
    }
    if (HAS(MERGEABLE) && (options & VNET_OPTION_MERGEABLE)) {
        known |= FEATURE_MERGEABLE;
    }
    if (HAS(CHECKSUM) && (options & VNET_OPTION_CHECKSUM)) {
        known |= FEATURE_CHECKSUM | FEATURE_GUEST_CHECKSUM;
    }
    if (HAS(QUEUES) && (options & VNET_OPTION_QUEUES) && (offered & FEATURE_CONTROL)) {
        known |= FEATURE_CONTROL | FEATURE_QUEUES;
    }
    return offered & known;
}

// Chooses how many pairs there are to be. Takes memory for as many as the configuration wants, once. Returns how many
// the device has.
static unsigned choose_pairs(struct vnet_device *device) {
    unsigned wanted = device->config.tx_classes;
    device->pairs = 1;
    device->turn = 0;
    if (!(device->features & FEATURE_QUEUES) || wanted < 2) {
        return 1;
    }
    unsigned most = read_config16(device, CONFIG_PAIRS);
    if (device->more == NULL) {
        device->more = take_memory(device, (wanted - 1) * sizeof(*device->more), sizeof(uint64_t));
        for (unsigned index = 1; device->more != NULL && index < wanted; index++) {
            device->more[index - 1].number = index;
        }
    }
    device->pairs = most == 0 || most > PAIRS_LIMIT ? 1 : most < wanted ? most : wanted;
    return most;
}

static int set_up_queues(struct vnet_device *device) {
    unsigned most = HAS(QUEUES) ? choose_pairs(device) : 1;
    if (device->pairs > 1 && device->more == NULL) {
        return VNET_ERROR_MEMORY;
    }
    int result = VNET_OK;
    for (unsigned index = 0; index < vnet_pairs(device) && result == VNET_OK; index++) {
        result = set_up_queue(device, vnet_pair(device, index), QUEUE_RX);
        if (result == VNET_OK) {
            result = set_up_queue(device, vnet_pair(device, index), QUEUE_TX);
        }
    }
    if (HAS(QUEUES) && device->pairs > 1 && result == VNET_OK) {
        result = vnet_set_up_control(device, 2 * most);
    }
    return result;
}

// Tells the running device how many pairs are used. One that refuses is used with one pair.
static int use_pairs(struct vnet_device *device) {
    if (!HAS(QUEUES) || device->pairs == 1) {
        return VNET_OK;
    }
    int result = vnet_set_pairs(device, device->pairs);
    if (result == VNET_ERROR_DEVICE) {
        device->pairs = 1;
        result = VNET_OK;
    }
    return result;
}

// Frames that waited for a pair that is no more.
static void move_queued(struct vnet_device *device) {
    struct vnet_buffer *buffer;
    for (unsigned index = device->pairs; index < vnet_pairs_made(device); index++) {
        while ((buffer = vnet_pop(&vnet_pair(device, index)->queue)) != NULL) {
            vnet_push(&device->pair.queue, buffer);
        }
    }
}

static int negotiate(struct vnet_device *device) {
    const struct vnet_transport_ops *ops = device->transport->ops;
    uint8_t status = VNET_STATUS_ACKNOWLEDGE | VNET_STATUS_DRIVER;
    ops->set_status(device->transport, VNET_STATUS_ACKNOWLEDGE);
    ops->set_status(device->transport, status);
    device->features = choose_features(device, ops->features(device->transport));
    device->is_mergeable = (device->features & FEATURE_MERGEABLE) != 0;
    bool is_short = device->room < VNET_FRAME_MAX && !device->is_mergeable;
    if (is_short || (!ops->is_legacy && !(device->features & FEATURE_VERSION_1))) {
        return VNET_ERROR_FEATURES;
    }
    ops->set_features(device->transport, device->features);
    if (!ops->is_legacy) {
        status |= VNET_STATUS_FEATURES_OK;
        ops->set_status(device->transport, status);
        if (!(ops->status(device->transport) & VNET_STATUS_FEATURES_OK)) {
            return VNET_ERROR_FEATURES;
        }
    }
    device->header = ops->is_legacy && !device->is_mergeable ? LEGACY_HEADER : MODERN_HEADER;
    int result = set_up_queues(device);
    if (result == VNET_OK) {
        result = read_mac(device);
    }
    if (result == VNET_OK) {
        ops->set_status(device->transport, status | VNET_STATUS_DRIVER_OK);
        result = use_pairs(device);
    }
    return result;
}

// The bounds of a pair with the rings that the device allows.
static void judge_pair(const struct vnet_device *device, struct vnet_pair *pair) {
    const struct vnet_config *config = &device->config;
    size_t slots = pair->rx.slots_count >> pair->rx.pair;
    pair->rx_most = config->rx_posted_max < slots ? config->rx_posted_max : slots;
    pair->rx_least = config->rx_posted_min < slots ? config->rx_posted_min : slots;
    pair->rx_target = pair->rx_least;
    pair->rx_frame = (device->header + VNET_FRAME_MAX + pair->rx.room - 1) / pair->rx.room;
    size_t tx_slots = pair->tx.slots_count >> pair->tx.pair, watermark = config->tx_watermark;
    pair->tx_busy = watermark < tx_slots ? tx_slots - watermark : 1;
    pair->tx_interrupts = false;
    pair->rx_taken_max = 0;
    pair->adapt_polls = 0;
}

int vnet_bring_up(struct vnet_device *device) {
    if (!vnet_take_down(device)) {
        return VNET_ERROR_TIMEOUT;
    }
    int result = make_buffers(device);
    if (result == VNET_OK) {
        result = negotiate(device);
    }
    if (result != VNET_OK) {
        // A device that fails even here keeps what it has: vnet_take_down says so in `state`.
        return vnet_take_down(device) ? result : VNET_ERROR_TIMEOUT;
    }
    if (HAS(QUEUES)) {
        move_queued(device);
    }
    for (unsigned index = 0; index < vnet_pairs(device); index++) {
        judge_pair(device, vnet_pair(device, index));
    }
    device->idle_wakes = 0;
    device->state = VNET_RUNNING;
    vnet_read_link(device);
    device->is_link_new = true;
    vnet_refill(device);
    vnet_wake(device); // its first run asks for interrupts
    return VNET_OK;
}

int vnet_start(struct vnet_device *device) {
    if (device->platform == NULL) {
        return VNET_ERROR_ARGUMENT;
    }
    vnet_lock(device);
    device->restarts_in_vain = 0;
    int result = vnet_bring_up(device);
    vnet_unlock(device);
    vnet_deliver(device);
    return result;
}

int vnet_stop(struct vnet_device *device) {
    if (device->platform == NULL) {
        return VNET_ERROR_ARGUMENT;
    }
    vnet_lock(device);
    bool is_down = vnet_take_down(device);
    vnet_drop_queued(device);
    vnet_unlock(device);
    vnet_deliver(device);
    return is_down ? VNET_OK : VNET_ERROR_TIMEOUT;
}
