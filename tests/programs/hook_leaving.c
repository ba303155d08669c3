// SPDX-License-Identifier: Apache-2.0
// Where datagrams are to leave, by the program's word: IP_PKTINFO and its relatives.
#include "hook_sender.h"

// One datagram to this address with IP_PKTINFO (IPv6: IPV6_PKTINFO) and a transmit time.
static long send_from(int fd, const void *name, socklen_t octets, const char *text, int interface, const char *source)
{
	_Alignas(8) char control[CMSG_SPACE(8) + CMSG_SPACE(20)] = {0};
	struct iovec iov = {(void *)text, strlen(text)};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control};
	uint64_t at = now(TAI) + 200000000;
	struct cmsghdr *item = (void *)control;
	item->cmsg_level = SOL_SOCKET, item->cmsg_type = SO_TXTIME, item->cmsg_len = CMSG_LEN(8);
	memcpy(CMSG_DATA(item), &at, 8);
	int is_v6 = *(const sa_family_t *)name == AF_INET6;
	size_t used = CMSG_SPACE(8);
	item = (void *)(control + used);
	message.msg_name = (void *)name, message.msg_namelen = octets;
	message.msg_controllen = used + (is_v6 ? CMSG_SPACE(20) : CMSG_SPACE(12));
	item->cmsg_level = is_v6 ? IPPROTO_IPV6 : IPPROTO_IP, item->cmsg_type = is_v6 ? IPV6_PKTINFO : IP_PKTINFO;
	item->cmsg_len = is_v6 ? CMSG_LEN(20) : CMSG_LEN(12);
	char *value = (char *)CMSG_DATA(item);
	memcpy(is_v6 ? value + 16 : value, &interface, 4);
	inet_pton(is_v6 ? AF_INET6 : AF_INET, source, is_v6 ? value : value + 4);
	return sendmsg(fd, &message, 0);
}

// What is asked for is what happens anyway (interface 1 is lo), or the kernel's.
static void leaving(void)
{
	int fd = timed_socket(AF_INET, TAI), six = timed_socket(AF_INET6, TAI), own = 1;
	struct sockaddr_in to = to4(port), group = to4(port);
	struct sockaddr_in6 loop = to6("::1", port);
	struct ip_mreqn by = {.imr_ifindex = 1};
	inet_pton(AF_INET, "239.1.2.3", &group.sin_addr);
	say("interface", send_from(fd, &to, sizeof(to), "interface", 1, "0.0.0.0"));
	say("source", send_from(fd, &to, sizeof(to), "source", 0, "127.0.0.1"));
	say("both", send_from(fd, &to, sizeof(to), "both", 1, "127.0.0.1"));
	say("foreign", send_from(fd, &to, sizeof(to), "foreign", 0, "127.0.0.2"));
	say("nowhere", send_from(fd, &to, sizeof(to), "nowhere", 999999, "0.0.0.0"));
	say("six", send_from(six, &loop, sizeof(loop), "six", 1, "::"));
	say("six-foreign", send_from(six, &loop, sizeof(loop), "six-foreign", 0, "::1"));
	setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof(by));
	say("group", send_at(fd, &group, sizeof(group), "group", now(TAI) + 200000000, 0));
	by = (struct ip_mreqn){.imr_address.s_addr = htonl(0x7f000001)};
	setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &by.imr_address, 4);
	say("group-source", send_at(fd, &group, sizeof(group), "group-source", now(TAI) + 200000000, 0));
	by.imr_address.s_addr = htonl(0x7f000002);
	setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &by, 8);
	by = (struct ip_mreqn){.imr_ifindex = 1, .imr_address.s_addr = htonl(0x7f000002)};
	setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof(by));
	say("group-foreign", send_at(fd, &group, sizeof(group), "group-foreign", now(TAI) + 200000000, 0));
	say("not-group", send_at(fd, &to, sizeof(to), "not-group", now(TAI) + 200000000, 0));
	struct sockaddr_in6 six_group = to6("ff0e::1", port);
	setsockopt(six, IPPROTO_IPV6, IPV6_MULTICAST_IF, &own, sizeof(own));
	say("six-group", send_at(six, &six_group, sizeof(six_group), "six-group", now(TAI) + 200000000, 0));
}

int run_leaving_scenario(const char *name)
{
	if (strcmp(name, "leaving"))
		return 0;
	leaving();
	return 1;
}
