// SPDX-License-Identifier: Apache-2.0
// Attacks with what a pod's root may do in its own namespace, and with messages that cost ktsnd more than a frame: see attack_main.c.
#define _GNU_SOURCE
#include "attack_main.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROUTES_A_CALL = 500 };

struct route {
	struct nlmsghdr header;
	struct rtmsg route;
	struct rtattr to_head;
	uint32_t to;
	struct rtattr by_head;
	int by;
};

static struct route one_route(uint16_t type, uint32_t to, int by)
{
	struct route route = {
		.header = {.nlmsg_len = sizeof(route), .nlmsg_type = type, .nlmsg_flags = NLM_F_REQUEST},
		.route = {.rtm_family = AF_INET, .rtm_dst_len = 32, .rtm_table = RT_TABLE_MAIN, .rtm_type = RTN_UNICAST},
		.to_head = {.rta_len = RTA_LENGTH(4), .rta_type = RTA_DST},
		.to = htonl(to),
		.by_head = {.rta_len = RTA_LENGTH(4), .rta_type = RTA_OIF},
		.by = by,
	};
	route.route.rtm_protocol = RTPROT_STATIC;
	route.route.rtm_scope = type == RTM_NEWROUTE ? RT_SCOPE_LINK : RT_SCOPE_NOWHERE;
	if (type == RTM_NEWROUTE)
		route.header.nlmsg_flags |= NLM_F_CREATE;
	return route;
}

static int interface(void)
{
	int index = (int)if_nametoindex("eth0");
	if (!index)
		fail("eth0");
	return index;
}

// Routes of hosts from 100.0.0.0 on.
static int fill(long count, int by)
{
	static struct route many[ROUTES_A_CALL];
	int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE), room = 1 << 20;
	setsockopt(netlink, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	for (long done = 0; done < count;) {
		size_t part = 0;
		for (; part < ROUTES_A_CALL && done < count; part++, done++)
			many[part] = one_route(RTM_NEWROUTE, (100u << 24) + (uint32_t)done, by);
		if (send(netlink, many, part * sizeof(*many), 0) < 0)
			fail("routes");
	}
	return netlink;
}

static void pause_of(const char *name, long otherwise)
{
	long micros = key(name, otherwise);
	if (micros)
		usleep((useconds_t)micros);
}

static void *flap(void *netlink)
{
	long flaps = 0;
	int by = interface();
	for (; !atomic_load(&stop); flaps++) {
		struct route both[] = {one_route(RTM_NEWROUTE, 99u << 24 | 1, by), one_route(RTM_DELROUTE, 99u << 24 | 1, by)};
		if (send((int)(long)netlink, both, sizeof(both), 0) < 0)
			fail("a route");
		pause_of("gap_us", 500);
	}
	say_value("flaps", flaps);
	return NULL;
}

static void change(int fd, struct ifreq *request, bool is_up)
{
	request->ifr_flags = is_up ? IFF_UP : 0;
	if (ioctl(fd, SIOCSIFFLAGS, request) < 0)
		fail("up or down");
}

static void *rename_it(void *unused)
{
	long renames = 0;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	char name[IFNAMSIZ] = "eth0";
	for (; !atomic_load(&stop); renames++) {
		struct ifreq request = {0};
		memcpy(request.ifr_name, name, IFNAMSIZ);
		change(fd, &request, false);
		snprintf(name, IFNAMSIZ, "n%u", (unsigned)renames % 100000);
		memcpy(request.ifr_newname, name, IFNAMSIZ);
		if (ioctl(fd, SIOCSIFNAME, &request) < 0)
			fail("rename");
		memcpy(request.ifr_name, name, IFNAMSIZ);
		change(fd, &request, true);
		pause_of("gap_us", 1000);
	}
	struct ifreq back = {0};
	memcpy(back.ifr_name, name, IFNAMSIZ);
	change(fd, &back, false);
	memcpy(back.ifr_newname, "eth0", 5);
	if (ioctl(fd, SIOCSIFNAME, &back) < 0)
		fail("rename back");
	say_value("renames", renames);
	return unused;
}

// With the namespace's own rights.
static void as_root(void *(*run)(void *), void *argument)
{
	pthread_t running;
	ready();
	if (pthread_create(&running, NULL, run, argument))
		fail("thread");
	until_end();
	pthread_join(running, NULL);
}

void attack_flap(void)
{
	as_root(flap, (void *)(long)fill(key("routes", 0), interface()));
}

void attack_names(void)
{
	as_root(rename_it, NULL);
}

void *attack_later(void *unused)
{
	struct frame frame = {.clock = 1, .payload_octets = (uint16_t)key("payload", 60000)};
	long pushed = 0;
	inet_pton(AF_INET, word_key("to", "10.244.1.5"), &frame.to);
	for (long at = 0; !atomic_load(&stop); at++) {
		frame.tx_time = now_on(CLOCK_MONOTONIC) + (uint64_t)key("ahead_us", 0) * 1000;
		pushed += client_later(client_of((unsigned)at), &frame) == 0;
		pause_of("gap_us", 0);
	}
	say_value("pushed", pushed);
	return unused;
}

void *attack_expect(void *unused)
{
	long pushed = 0;
	for (long at = 0; !atomic_load(&stop); at++) {
		pushed += client_expect(client_of((unsigned)at)) == 0;
		pause_of("gap_us", 0);
	}
	say_value("pushed", pushed);
	return unused;
}
