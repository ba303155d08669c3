// SPDX-License-Identifier: BSD-2-Clause
// Starts all parts of the guest, in this order: lwIP, its interface, the driver, the first frame, the services.
#include "guest.h"

#include <string.h>

#include <lwip/def.h>
#include <lwip/tcpip.h>

struct vnet_netif guest_interface;
unsigned guest_tcp_octets = 65535;
static struct netif netif;
// Buffers of each kind at most, and octets of TCP at most: lwIP's heap bounds those.
enum { NUMBER_MAX = 1024, TCP_MAX = 256 * 1024 };

static void receive(void *context, struct vnet_buffer *buffer) {
    if (!guest_take_frame(buffer)) {
        vnet_netif_receive(context, buffer);
    }
}

static void link_changed(void *context, bool is_up) {
    vnet_netif_link(context, is_up);
    struct guest_line line;
    guest_say_begin(&line, "link");
    guest_say_number(&line, "is_up", is_up);
    guest_say_end(&line);
}

void guest_log(void *context, enum vnet_event event, unsigned value) {
    (void)context;
    static const char *const KINDS[] = {"fault", "restart", "failed"};
    struct guest_line line;
    guest_say_begin(&line, KINDS[event]);
    guest_say_number(&line, "value", value);
    guest_say_end(&line);
}

static void prepare_interface(void) {
    struct vnet_netif_setup setup = {
        .device = guest_device,
        .held = guest_take_memory(guest_settings.held_max * sizeof(struct vnet_held) + 1),
        .held_max = (uint16_t)guest_settings.held_max,
        .tx = guest_take_memory(guest_settings.tx_max * sizeof(struct vnet_buffer)),
        .tx_max = (uint16_t)guest_settings.tx_max,
        .tx_memory = guest_take_memory(guest_settings.tx_max * VNET_BUFFER_OCTETS),
    };
    if (setup.held == NULL || setup.tx == NULL || setup.tx_memory == NULL) {
        guest_stop("no memory for the interface", GUEST_NO_MEMORY);
    }
    setup.tx_memory_bus = (uintptr_t)setup.tx_memory;
    if (vnet_netif_init(&guest_interface, &setup) != ERR_OK) {
        guest_stop("the interface cannot be prepared", GUEST_NO_MEMORY);
    }
}

static void add_interface(void) {
    ip4_addr_t address = {lwip_htonl(guest_settings.address)}, mask = {lwip_htonl(guest_settings.mask)},
               gateway = {lwip_htonl(guest_settings.gateway)};
    LOCK_TCPIP_CORE();
    err_t result = vnet_netif_add(&guest_interface, &netif, &address, &mask, &gateway);
    UNLOCK_TCPIP_CORE();
    if (result != ERR_OK) {
        guest_stop("the interface cannot be added", GUEST_NO_MEMORY);
    }
}

void guest_start(struct vnet_transport *transport, const char *command_line) {
    guest_read_settings(&guest_settings, command_line);
    guest_tcp_octets = guest_settings.tcp_octets;
    if (guest_settings.rx_min > NUMBER_MAX || guest_settings.rx_max > NUMBER_MAX ||
        guest_settings.held_max > NUMBER_MAX || guest_settings.tx_max > NUMBER_MAX ||
        guest_settings.tcp_octets < TCP_MSS || guest_settings.tcp_octets > TCP_MAX) {
        guest_stop("a setting is out of range", GUEST_WRONG_SETTING);
    }
    if (transport == NULL) {
        guest_stop("no network device", GUEST_NO_DEVICE);
    }
    const struct vnet_config config = {
        .ring_size = 256,
        .rx_posted_min = (uint16_t)guest_settings.rx_min,
        .rx_posted_max = (uint16_t)guest_settings.rx_max,
        .buffers = (uint16_t)(guest_settings.rx_max + guest_settings.held_max + 1), // one for the first frame
        .tx_slots = (uint16_t)guest_settings.tx_max,
        .tx_queue_max = (uint16_t)guest_settings.tx_max,
        .context = &guest_interface,
        .receive = receive,
        .sent = vnet_netif_sent,
        .link = link_changed,
    };
    tcpip_init(NULL, NULL);
    guest_start_frames();
    prepare_interface();
    int result = guest_start_driver(transport, &config);
    if (result != VNET_OK) {
        guest_log(NULL, VNET_EVENT_FAILED, (unsigned)-result);
        guest_stop("the device did not start", GUEST_NOT_STARTED);
    }
    guest_greet(transport->ops->name);
    add_interface();
    guest_start_services();
    struct guest_line line;
    guest_say_begin(&line, "ready");
    guest_say_number(&line, "rx_min", guest_settings.rx_min);
    guest_say_number(&line, "rx_max", guest_settings.rx_max);
    guest_say_number(&line, "held_max", guest_settings.held_max);
    guest_say_number(&line, "tx_max", guest_settings.tx_max);
    guest_say_number(&line, "tcp_octets", guest_settings.tcp_octets);
    guest_say_number(&line, "check", guest_settings.check);
    guest_say_counters(&line);
    guest_say_end(&line);
}
