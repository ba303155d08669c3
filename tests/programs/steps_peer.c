// SPDX-License-Identifier: Apache-2.0
// The listening side. In: a port, perhaps a multicast group of eth0. Out: one line for each datagram or frame of the
// packet sockets' protocol: "got FILL octets N from ADDRESS tos N ttl N", "frame FILL octets N vlan N to MAC". It ends
// when standard input does, after everything that has arrived is printed.
#include "steps.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <poll.h>

#define AUXILIARY 8

static void listen_to(int fd, int family, const char *port)
{
	char text[64];
	struct sockaddr_storage name;
	socklen_t octets;
	int one = 1, room = 4 << 20;

	snprintf(text, sizeof(text), "%s,%s", family == AF_INET ? "0.0.0.0" : "::", port);
	octets = address(text, &name);
	if (family == AF_INET) {
		setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &one, sizeof(one));
		setsockopt(fd, IPPROTO_IP, IP_RECVTTL, &one, sizeof(one));
	} else {
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
		setsockopt(fd, IPPROTO_IPV6, 66, &one, sizeof(one));
		setsockopt(fd, IPPROTO_IPV6, 51, &one, sizeof(one));
	}
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
	if (bind(fd, (struct sockaddr *)&name, octets)) {
		perror("bind");
		exit(1);
	}
}

static void join(int fd, const char *group)
{
	struct group_req request = {.gr_interface = if_nametoindex("eth0")};
	struct sockaddr_storage name;
	char text[80];

	snprintf(text, sizeof(text), "%s,0", group);
	address(text, &name);
	memcpy(&request.gr_group, &name, sizeof(name));
	if (setsockopt(fd, name.ss_family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6, MCAST_JOIN_GROUP, &request, sizeof(request)))
		perror("join");
}

static void hear(int fd)
{
	static char data[70000];
	char control[256], host[64];
	struct sockaddr_storage name;
	struct iovec part = {data, sizeof(data)};
	struct msghdr message = {.msg_name = &name, .msg_namelen = sizeof(name), .msg_iov = &part, .msg_iovlen = 1,
				 .msg_control = control, .msg_controllen = sizeof(control)};
	ssize_t octets = recvmsg(fd, &message, MSG_DONTWAIT);
	int tos = -1, ttl = -1, is_same = 1;
	uint16_t port;

	if (octets < 0)
		return;
	for (struct cmsghdr *item = CMSG_FIRSTHDR(&message); item; item = CMSG_NXTHDR(&message, item)) {
		int number_of = 0;

		memcpy(&number_of, CMSG_DATA(item), item->cmsg_len - CMSG_LEN(0) < 4 ? 1 : 4);
		if (item->cmsg_type == 1 || item->cmsg_type == 67)
			tos = number_of;
		else
			ttl = number_of;
	}
	for (ssize_t i = 1; i < octets; i++)
		is_same &= data[i] == data[0];
	if (name.ss_family == AF_INET) {
		struct sockaddr_in *four = (struct sockaddr_in *)&name;

		inet_ntop(AF_INET, &four->sin_addr, host, sizeof(host));
		port = ntohs(four->sin_port);
	} else {
		struct sockaddr_in6 *six = (struct sockaddr_in6 *)&name;

		inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof(host));
		port = ntohs(six->sin6_port);
		if (!strncmp(host, "fe80", 4))
			strcpy(host, "fe80::");
	}
	printf("got %c octets %zd from %s,%s tos %d ttl %d%s\n", octets ? data[0] : '-', octets, host,
	       port >= 32768 ? "any" : "own", tos, ttl, is_same ? "" : " MIXED");
	fflush(stdout);
	if (octets && data[0] == 'e') {
		data[0] = 'E';
		sendto(fd, data, (size_t)octets, 0, (struct sockaddr *)&name, message.msg_namelen);
	}
}

struct auxiliary {
	uint32_t status, length, captured;
	uint16_t mac, net, vlan, vlan_protocol;
};

static void hear_frame(int fd)
{
	unsigned char data[4096];
	char control[256];
	struct iovec part = {data, sizeof(data)};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	ssize_t octets = recvmsg(fd, &message, MSG_DONTWAIT);
	int vlan = 0, at = 14;

	for (struct cmsghdr *item = octets > 18 ? CMSG_FIRSTHDR(&message) : NULL; item; item = CMSG_NXTHDR(&message, item)) {
		struct auxiliary more;

		memcpy(&more, CMSG_DATA(item), sizeof(more));
		if (more.status & 16)
			vlan = more.vlan;
	}
	if (octets > 18 && data[12] == 0x81 && data[13] == 0) {
		vlan = data[14] << 8 | data[15];
		at = 18;
	}
	if (octets <= 18 || data[at - 2] != PACKET_SOCKETS_PROTOCOL >> 8 || data[at - 1] != (PACKET_SOCKETS_PROTOCOL & 0xff))
		return;
	printf("frame %c octets %zd vlan %d to %02x:%02x:%02x:%02x:%02x:%02x\n", isprint(data[at]) ? data[at] : '?', octets - at, vlan,
	       data[0], data[1], data[2], data[3], data[4], data[5]);
	fflush(stdout);
}

void be_peer(const char *port, const char *group)
{
	int one = 1;
	struct pollfd sockets[4] = {
		{.events = POLLIN, .fd = socket(AF_INET, SOCK_DGRAM, 0)},
		{.events = POLLIN, .fd = socket(AF_INET6, SOCK_DGRAM, 0)},
		{.events = POLLIN, .fd = socket(AF_PACKET, SOCK_RAW, htons(3))},
		{.events = POLLIN, .fd = 0},
	};
	struct sockaddr_ll link = {.sll_family = AF_PACKET, .sll_protocol = htons(3), .sll_ifindex = (int)if_nametoindex("eth0")};

	listen_to(sockets[0].fd, AF_INET, port);
	listen_to(sockets[1].fd, AF_INET6, port);
	if (group)
		join(sockets[strchr(group, ':') ? 1 : 0].fd, group);
	setsockopt(sockets[2].fd, 263, AUXILIARY, &one, sizeof(one));
	setsockopt(sockets[2].fd, 263, 23, &one, sizeof(one));
	if (bind(sockets[2].fd, (struct sockaddr *)&link, sizeof(link)))
		perror("bind");
	puts("ready");
	fflush(stdout);
	while (poll(sockets, 4, -1) > 0) {
		if (sockets[0].revents & POLLIN)
			hear(sockets[0].fd);
		if (sockets[1].revents & POLLIN)
			hear(sockets[1].fd);
		if (sockets[2].revents & POLLIN)
			hear_frame(sockets[2].fd);
		else if (!((sockets[0].revents | sockets[1].revents) & POLLIN) && sockets[3].revents)
			return;
	}
}
