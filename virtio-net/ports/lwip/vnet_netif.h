// SPDX-License-Identifier: BSD-2-Clause
// The driver as a network interface of lwIP (2.1 or later, with an operating system: NO_SYS 0, LWIP_TCPIP_CORE_LOCKING
// and LWIP_TCPIP_CORE_LOCKING_INPUT 1). lwIP takes each received frame inside the bottom half, under lwIP's core lock.
//
// Receiving copies nothing while lwIP holds fewer than `held_max` buffers. Beyond that a frame is copied into lwIP's
// own memory, so lwIP can never keep the device from getting buffers. Sending copies a frame once, into a buffer of the
// interface: lwIP's own buffers have no room for the device's header.
#ifndef VNET_NETIF_H
#define VNET_NETIF_H

#include <lwip/netif.h>
#include <lwip/pbuf.h>
#include <lwip/tcpip.h>

#include "vnet.h"

#if NO_SYS || !LWIP_TCPIP_CORE_LOCKING || !LWIP_TCPIP_CORE_LOCKING_INPUT || !LWIP_SUPPORT_CUSTOM_PBUF
#error "vnet_netif needs lwIP with core locking, core locking of input, and custom pbufs"
#endif
#if ETH_PAD_SIZE > 2
#error "vnet_netif needs ETH_PAD_SIZE 0 or 2"
#endif

// A received buffer while lwIP has it.
struct vnet_held {
    struct pbuf_custom pbuf;
    struct vnet_netif *interface;
    struct vnet_buffer *buffer;
    struct vnet_held *next;
};

struct vnet_netif_counters {
    uint32_t rx_copied;  // frames that lwIP got as a copy
    uint32_t rx_dropped; // frames that lwIP had no memory for
    uint32_t tx_refused; // frames for which no buffer was free; TCP sends them again
    uint16_t held_peak;  // buffers that lwIP held at most
};

// All fields are the interface's own, except `counters`, which may be read.
struct vnet_netif {
    struct netif *netif;
    struct vnet_device *device;
    struct vnet_held *held_free;
    struct vnet_buffer *tx_free;
    struct tcpip_callback_msg *retry, *link_news;
    bool is_retry_wanted, is_link_up;
    uint16_t held_count, tx_max;
    struct vnet_netif_counters counters;
};

// What vnet_netif_init gets. The memory must live for ever.
struct vnet_netif_setup {
    struct vnet_device *device;
    struct vnet_held *held; // `held_max` records
    uint16_t held_max;      // at most: the device's `buffers` - `rx_posted_max`
    struct vnet_buffer *tx; // `tx_max` records, set to 0
    uint16_t tx_max;        // at least the device's `tx_slots` - `tx_watermark`
    uint8_t *tx_memory;     // tx_max × VNET_BUFFER_OCTETS octets, divisible by 8, coherent
    uint64_t tx_memory_bus; // its bus address
};

// Context: task, after tcpip_init, before the device starts. Prepares the interface; vnet_netif_receive may be called
// after it.
err_t vnet_netif_init(struct vnet_netif *interface, const struct vnet_netif_setup *setup);

// Context: task with lwIP's core lock, after the device has started (it says the MAC address then). Adds the interface
// to lwIP and makes it the default.
err_t vnet_netif_add(struct vnet_netif *interface, struct netif *netif, const ip4_addr_t *address,
                     const ip4_addr_t *mask, const ip4_addr_t *gateway);

// For the device's vnet_config: functions and their `context`. Context: bottom half, `sent` also a task that sends.
void vnet_netif_receive(void *interface, struct vnet_buffer *buffer);
void vnet_netif_sent(void *interface, struct vnet_buffer *buffer);
void vnet_netif_link(void *interface, bool is_up);

#endif
