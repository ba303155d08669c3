// SPDX-License-Identifier: BSD-2-Clause
// Frames between the driver and lwIP.
#include "vnet_netif.h"

#include <lwip/etharp.h>
#include <lwip/priv/tcp_priv.h>
#include <lwip/snmp.h>
#include <string.h>

// Context: any task; called by pbuf_free.
static void release(struct pbuf *pbuf) {
    struct vnet_held *held = (struct vnet_held *)(void *)pbuf;
    struct vnet_netif *interface = held->interface;
    struct vnet_buffer *buffer = held->buffer;
    SYS_ARCH_DECL_PROTECT(level);
    SYS_ARCH_PROTECT(level);
    held->next = interface->held_free;
    interface->held_free = held;
    interface->held_count--;
    SYS_ARCH_UNPROTECT(level);
    (void)vnet_free(interface->device, buffer);
}

static struct vnet_held *take_held(struct vnet_netif *interface) {
    SYS_ARCH_DECL_PROTECT(level);
    SYS_ARCH_PROTECT(level);
    struct vnet_held *held = interface->held_free;
    if (held != NULL) {
        interface->held_free = held->next;
        interface->held_count++;
        if (interface->held_count > interface->counters.held_peak) {
            interface->counters.held_peak = interface->held_count;
        }
    }
    SYS_ARCH_UNPROTECT(level);
    return held;
}

// Returns lwIP's view of the frame, or NULL. With a view the buffer is lwIP's or free; without, it is free.
static struct pbuf *view(struct vnet_netif *interface, struct vnet_buffer *buffer) {
    // ETH_PAD_SIZE octets in front of the frame are the device's header, which has been read.
    uint8_t *start = vnet_frame(buffer) - ETH_PAD_SIZE;
    u16_t octets = (u16_t)(buffer->length + ETH_PAD_SIZE);
    struct vnet_held *held = take_held(interface);
    struct pbuf *pbuf;
    if (held != NULL) {
        held->buffer = buffer;
        return pbuf_alloced_custom(PBUF_RAW, octets, PBUF_REF, &held->pbuf, start, octets);
    }
    pbuf = pbuf_alloc(PBUF_RAW, octets, PBUF_POOL);
    if (pbuf != NULL && pbuf_take(pbuf, start, octets) == ERR_OK) {
        interface->counters.rx_copied++;
    } else {
        interface->counters.rx_dropped++;
        if (pbuf != NULL) {
            (void)pbuf_free(pbuf);
            pbuf = NULL;
        }
    }
    (void)vnet_free(interface->device, buffer);
    return pbuf;
}

void vnet_netif_receive(void *context, struct vnet_buffer *buffer) {
    struct vnet_netif *interface = context;
    struct netif *netif = interface->netif;
    if (netif == NULL) { // a frame before vnet_netif_add
        (void)vnet_free(interface->device, buffer);
        return;
    }
    struct pbuf *pbuf = view(interface, buffer);
    if (pbuf != NULL && netif->input(pbuf, netif) != ERR_OK) {
        (void)pbuf_free(pbuf);
    }
}

// Context: a task that sends, with lwIP's core lock.
static struct vnet_buffer *take_tx(struct vnet_netif *interface) {
    SYS_ARCH_DECL_PROTECT(level);
    SYS_ARCH_PROTECT(level);
    struct vnet_buffer *buffer = interface->tx_free;
    if (buffer != NULL) {
        interface->tx_free = buffer->next;
    } else {
        interface->is_retry_wanted = true;
    }
    SYS_ARCH_UNPROTECT(level);
    return buffer;
}

static bool give_tx(struct vnet_netif *interface, struct vnet_buffer *buffer) {
    SYS_ARCH_DECL_PROTECT(level);
    SYS_ARCH_PROTECT(level);
    buffer->next = interface->tx_free;
    interface->tx_free = buffer;
    bool is_retry_wanted = interface->is_retry_wanted;
    interface->is_retry_wanted = false;
    SYS_ARCH_UNPROTECT(level);
    return is_retry_wanted;
}

// Sends again what was refused: data, and acknowledgements (tcp_txnow forgets these; they would wait for a timer).
// Context: lwIP's thread.
static void retry(void *context) {
    (void)context;
    for (struct tcp_pcb *pcb = tcp_active_pcbs; pcb != NULL; pcb = pcb->next) {
        if (pcb->flags & (TF_NAGLEMEMERR | TF_ACK_NOW)) {
            (void)tcp_output(pcb);
        }
    }
}

void vnet_netif_sent(void *context, struct vnet_buffer *buffer) {
    struct vnet_netif *interface = context;
    // lwIP may be sending right now, so it is not called from here.
    if (give_tx(interface, buffer) && tcpip_callbackmsg_trycallback(interface->retry) != ERR_OK) {
        interface->is_retry_wanted = true; // lwIP's mailbox is full: the next buffer tries again
    }
}

// Context: lwIP's thread.
static void follow_link(void *context) {
    struct vnet_netif *interface = context;
    if (interface->netif == NULL) {
        return;
    }
    interface->netif->mtu = interface->device->mtu; // the device was started again, perhaps with another one
    if (interface->is_link_up) {
        netif_set_link_up(interface->netif);
    } else {
        netif_set_link_down(interface->netif);
    }
}

void vnet_netif_link(void *context, bool is_up) {
    struct vnet_netif *interface = context;
    interface->is_link_up = is_up;
    (void)tcpip_callbackmsg_trycallback(interface->link_news);
}

static err_t send(struct netif *netif, struct pbuf *pbuf) {
    struct vnet_netif *interface = netif->state;
    size_t octets = pbuf->tot_len - ETH_PAD_SIZE;
    if (octets > VNET_FRAME_MAX) {
        return ERR_BUF;
    }
    struct vnet_buffer *buffer = take_tx(interface);
    if (buffer == NULL) {
        interface->counters.tx_refused++;
        return ERR_MEM;
    }
    buffer->length = pbuf_copy_partial(pbuf, vnet_frame(buffer), (u16_t)octets, ETH_PAD_SIZE);
    int result = vnet_send(interface->device, buffer);
    if (result >= 0) {
        return ERR_OK;
    }
    (void)give_tx(interface, buffer);
    return result == VNET_ERROR_LINK || result == VNET_ERROR_DOWN ? ERR_IF : ERR_MEM;
}

static err_t describe(struct netif *netif) {
    struct vnet_netif *interface = netif->state;
    netif->name[0] = 'v';
    netif->name[1] = 'n';
    netif->output = etharp_output;
    netif->linkoutput = send;
    netif->mtu = interface->device->mtu;
    netif->hwaddr_len = ETH_HWADDR_LEN;
    memcpy(netif->hwaddr, interface->device->mac, ETH_HWADDR_LEN);
    netif->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET;
    if (interface->is_link_up) {
        netif->flags |= NETIF_FLAG_LINK_UP;
    }
    return ERR_OK;
}

err_t vnet_netif_init(struct vnet_netif *interface, const struct vnet_netif_setup *setup) {
    memset(interface, 0, sizeof(*interface));
    if (setup->tx_max == 0 || ((uintptr_t)setup->tx_memory & 7) != 0) {
        return ERR_ARG;
    }
    interface->device = setup->device;
    interface->tx_max = setup->tx_max;
    interface->retry = tcpip_callbackmsg_new(retry, interface);
    interface->link_news = tcpip_callbackmsg_new(follow_link, interface);
    if (interface->retry == NULL || interface->link_news == NULL) {
        return ERR_MEM;
    }
    for (unsigned index = 0; index < setup->held_max; index++) {
        struct vnet_held *held = &setup->held[index];
        held->pbuf.custom_free_function = release;
        held->interface = interface;
        held->next = interface->held_free;
        interface->held_free = held;
    }
    for (unsigned index = 0; index < setup->tx_max; index++) {
        struct vnet_buffer *buffer = &setup->tx[index];
        buffer->start = setup->tx_memory + index * VNET_BUFFER_OCTETS;
        buffer->bus = setup->tx_memory_bus + index * VNET_BUFFER_OCTETS;
        buffer->capacity = VNET_FRAME_MAX;
        buffer->owner = VNET_OWNER_CALLER;
        (void)give_tx(interface, buffer);
    }
    return ERR_OK;
}

err_t vnet_netif_add(struct vnet_netif *interface, struct netif *netif, const ip4_addr_t *address,
                     const ip4_addr_t *mask, const ip4_addr_t *gateway) {
    const struct vnet_config *config = &interface->device->config;
    if (config->tx_slots - config->tx_watermark > interface->tx_max) {
        return ERR_ARG; // with all buffers under way the device would not interrupt
    }
    if (netif_add(netif, address, mask, gateway, interface, describe, tcpip_input) == NULL) {
        return ERR_IF;
    }
    netif_set_default(netif);
    netif_set_up(netif);
    interface->netif = netif; // frames are taken from here on
    return ERR_OK;
}
