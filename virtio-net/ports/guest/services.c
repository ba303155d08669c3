// SPDX-License-Identifier: BSD-2-Clause
// What the guest serves to the network: UDP port 7 echoes datagrams. TCP port 7 echoes octets (ping-pong), port 9 takes
// octets (sink), port 19 gives as many octets as the client's first eight say (source, little-endian number). Each TCP
// service is a task that serves one connection at a time, and says what it counted on the console afterwards.
//
// The sink answers the connection's first octets with one octet. A client that begins to count then does not measure
// that lwIP acknowledges a single segment 200 ms late, which a sender with a congestion window of one segment waits
// for.
//
// With the setting `check` the octets of sink and source have a known content: octet `at` is octet at % 4 of the
// little-endian word (at / 4) × 2654435761 modulo 2^32.
#include <string.h>

#include <lwip/api.h>
#include <lwip/tcp.h>
#include <lwip/udp.h>

#include "guest.h"

#define PORT_ECHO 7
#define PORT_SINK 9
#define PORT_SOURCE 19
#define MESSAGE 1448u // the paper's

static uint8_t content(uint64_t at) {
    return (uint8_t)((uint32_t)(at / 4) * UINT32_C(2654435761) >> 8 * (at % 4));
}

// What one connection did.
struct tally {
    uint64_t octets, wrong, began, first_interrupts;
};

static void begin(struct tally *tally) {
    struct vnet_counters counters;
    vnet_read_counters(guest_device, &counters);
    *tally = (struct tally){.began = guest_now(), .first_interrupts = counters.interrupts};
}

static void say(const char *kind, const struct tally *tally) {
    uint64_t nanoseconds = guest_now() - tally->began;
    struct vnet_counters counters;
    vnet_read_counters(guest_device, &counters);
    struct guest_line line;
    guest_say_begin(&line, kind);
    guest_say_number(&line, "octets", tally->octets);
    guest_say_number(&line, "wrong", tally->wrong);
    guest_say_number(&line, "nanoseconds", nanoseconds);
    guest_say_number(&line, "interrupts_here", counters.interrupts - tally->first_interrupts);
    guest_say_number(&line, "tcp_octets", guest_settings.tcp_octets);
    guest_say_counters(&line);
    guest_say_end(&line);
}

static void check(struct tally *tally, const struct pbuf *pbuf) {
    for (; pbuf != NULL; pbuf = pbuf->next) {
        const uint8_t *octets = pbuf->payload;
        for (unsigned at = 0; guest_settings.check && at < pbuf->len; at++) {
            tally->wrong += octets[at] != content(tally->octets + at);
        }
        tally->octets += pbuf->len;
    }
}

static void sink(struct netconn *connection) {
    struct tally tally;
    struct pbuf *pbuf;
    begin(&tally);
    while (netconn_recv_tcp_pbuf(connection, &pbuf) == ERR_OK) {
        if (tally.octets == 0 && netconn_write(connection, "+", 1, NETCONN_COPY) != ERR_OK) {
            (void)pbuf_free(pbuf);
            break;
        }
        check(&tally, pbuf);
        (void)pbuf_free(pbuf);
    }
    say("sink", &tally);
}

static void source(struct netconn *connection) {
    static uint8_t message[MESSAGE];
    struct tally tally;
    uint64_t wanted = 0;
    struct pbuf *pbuf;
    for (unsigned had = 0; had < 8;) {
        if (netconn_recv_tcp_pbuf(connection, &pbuf) != ERR_OK) {
            return;
        }
        for (u16_t at = 0; at < pbuf->tot_len && had < 8; at++, had++) {
            wanted |= (uint64_t)pbuf_get_at(pbuf, at) << 8 * had;
        }
        (void)pbuf_free(pbuf);
    }
    begin(&tally);
    while (tally.octets < wanted) {
        size_t octets = wanted - tally.octets < MESSAGE ? (size_t)(wanted - tally.octets) : MESSAGE;
        for (unsigned at = 0; guest_settings.check && at < octets; at++) {
            message[at] = content(tally.octets + at);
        }
        if (netconn_write(connection, message, octets, NETCONN_COPY) != ERR_OK) {
            break;
        }
        tally.octets += octets;
    }
    say("source", &tally);
}

static void echo(struct netconn *connection) {
    struct tally tally;
    struct pbuf *pbuf;
    begin(&tally);
    while (netconn_recv_tcp_pbuf(connection, &pbuf) == ERR_OK) {
        bool is_good = true;
        for (const struct pbuf *part = pbuf; part != NULL && is_good; part = part->next) {
            is_good = netconn_write(connection, part->payload, part->len, NETCONN_COPY) == ERR_OK;
            tally.octets += part->len;
        }
        (void)pbuf_free(pbuf);
        if (!is_good) {
            break;
        }
    }
    say("echo", &tally);
}

struct service {
    const char *name;
    u16_t port;
    void (*serve)(struct netconn *connection);
};

static void run(void *context) {
    const struct service *service = context;
    struct netconn *listener = netconn_new(NETCONN_TCP), *connection;
    if (listener == NULL || netconn_bind(listener, IP_ADDR_ANY, service->port) != ERR_OK ||
        netconn_listen(listener) != ERR_OK) {
        guest_stop("a service cannot listen", GUEST_NO_MEMORY);
    }
    for (;;) {
        if (netconn_accept(listener, &connection) == ERR_OK) {
            LOCK_TCPIP_CORE();
            tcp_nagle_disable(connection->pcb.tcp);
            UNLOCK_TCPIP_CORE();
            service->serve(connection);
            (void)netconn_close(connection);
            (void)netconn_delete(connection);
        }
    }
}

// Context: bottom half, with lwIP's core lock. The datagram goes back as it is.
static void echo_datagram(void *context, struct udp_pcb *pcb, struct pbuf *pbuf, const ip_addr_t *from, u16_t port) {
    (void)context;
    (void)udp_sendto(pcb, pbuf, from, port);
    (void)pbuf_free(pbuf);
}

void guest_start_services(void) {
    static const struct service SERVICES[] = {
        {"echo", PORT_ECHO, echo}, {"sink", PORT_SINK, sink}, {"source", PORT_SOURCE, source}};
    LOCK_TCPIP_CORE();
    struct udp_pcb *pcb = udp_new();
    bool is_good = pcb != NULL && udp_bind(pcb, IP_ADDR_ANY, PORT_ECHO) == ERR_OK;
    if (is_good) {
        udp_recv(pcb, echo_datagram, NULL);
    }
    UNLOCK_TCPIP_CORE();
    for (unsigned index = 0; index < sizeof(SERVICES) / sizeof(SERVICES[0]); index++) {
        (void)sys_thread_new(SERVICES[index].name, run, (void *)(uintptr_t)&SERVICES[index], DEFAULT_THREAD_STACKSIZE,
                             GUEST_PRIORITY_SERVICE);
    }
    if (!is_good) {
        guest_stop("no memory for the services", GUEST_NO_MEMORY);
    }
}
