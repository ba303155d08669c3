// SPDX-License-Identifier: Apache-2.0
// An ordinary program with timed packet sockets (AF_PACKET, SO_TXTIME). It knows nothing of KTSN.
//
// packet_talker IFACE DESTINATION frames KIND COUNT LEAD_US GAP_US   frames that a listener can check
// packet_talker IFACE DESTINATION cost                               nanoseconds of a call, mean; few_calls.h
// packet_talker IFACE DESTINATION errnos                             what each odd call answers
//
// A frame's payload: "KTSP", kind u32, number u64, TxTime u64 (CLOCK_MONOTONIC, ns), then octets that follow from the
// number, 64 in all. Prints lines `what value`.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "few_calls.h"
#include "waited.h"

#ifndef SO_TXTIME
#define SO_TXTIME 61
#endif
#define MONOTONIC 1
#define PAYLOAD 64

enum kind { RAW, TAGGED, IPV4, DGRAM, BOUND, MANY, FOREIGN, SPLIT, SPOOFED, SPOOFED_TAGGED, SPOOFED_ARP };

static uint8_t own[6], destination[6];
static int device;

static void say(const char *what, long value)
{
	printf("%s %ld\n", what, value);
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int timed(int type, int protocol)
{
	struct {
		int32_t clock;
		uint32_t flags;
	} txtime = { MONOTONIC, 0 };
	int fd = socket(AF_PACKET, type, htons((uint16_t)protocol));

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_TXTIME, &txtime, sizeof(txtime))) {
		perror("packet socket");
		exit(2);
	}
	return fd;
}

static struct sockaddr_ll name(uint16_t ethertype)
{
	struct sockaddr_ll to;

	memset(&to, 0, sizeof(to));
	to.sll_family = AF_PACKET;
	to.sll_protocol = htons(ethertype);
	to.sll_ifindex = device;
	to.sll_halen = 6;
	memcpy(to.sll_addr, destination, 6);
	return to;
}

static struct msghdr message(struct iovec *iov, size_t pieces, char *control, uint64_t at)
{
	struct msghdr message;
	struct cmsghdr *item;

	memset(&message, 0, sizeof(message));
	memset(control, 0, CMSG_SPACE(sizeof(at)));
	message.msg_iov = iov;
	message.msg_iovlen = pieces;
	message.msg_control = control;
	message.msg_controllen = CMSG_SPACE(sizeof(at));
	item = CMSG_FIRSTHDR(&message);
	item->cmsg_level = SOL_SOCKET;
	item->cmsg_type = SO_TXTIME;
	item->cmsg_len = CMSG_LEN(sizeof(at));
	memcpy(CMSG_DATA(item), &at, sizeof(at));
	return message;
}

static long send_to(int fd, const void *octets, size_t count, const void *to, socklen_t to_octets, uint64_t at)
{
	char control[CMSG_SPACE(sizeof(uint64_t))];
	struct iovec iov = { (void *)(uintptr_t)octets, count };
	struct msghdr header = message(&iov, 1, control, at);
	long answer;

	header.msg_name = (void *)(uintptr_t)to;
	header.msg_namelen = to_octets;
	answer = sendmsg(fd, &header, 0);
	return answer < 0 ? -errno : answer;
}

static void fill(uint8_t *payload, uint32_t kind, uint64_t number, uint64_t at)
{
	memcpy(payload, "KTSP", 4);
	memcpy(payload + 4, &kind, 4);
	memcpy(payload + 8, &number, 8);
	memcpy(payload + 16, &at, 8);
	for (int i = 24; i < PAYLOAD; i++)
		payload[i] = (uint8_t)(number * 7 + (unsigned)i);
}

static size_t put(uint8_t *frame, size_t at, const void *octets, size_t count)
{
	memcpy(frame + at, octets, count);
	return at + count;
}

// Headers for a kind; how many octets.
static size_t headers(uint8_t *frame, enum kind kind)
{
	static const uint8_t foreign[6] = { 2, 0, 0, 0, 0xee, 0xee };
	static const uint8_t plain[] = { 0x22, 0xf0 };
	static const uint8_t tagged[] = { 0x81, 0x00, 0xa0, 0x07, 0x88, 0x92 };
	// Protocol 253 (RFC 3692) from 10.244.0.5 to 10.244.0.6; 20 + 64 octets.
	static const uint8_t packet[] = { 0x08, 0x00, 0x45, 0, 0, 84, 0, 0, 0x40, 0, 1, 253, 0, 0,
					  10,   244,  0,    5, 10, 244, 0, 6 };
	// From 10.244.0.99, which no pod has; the ARP packet says that it is here.
	static const uint8_t tag[] = { 0x81, 0x00, 0xa0, 0x07 };
	static const uint8_t spoofed[] = { 0x08, 0x00, 0x45, 0, 0, 84, 0, 0, 0x40, 0, 1, 253, 0, 0,
					   10,	 244,  0,    99, 10, 244, 0, 6 };
	static const uint8_t arp[] = { 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0,
				       0,    5,	   10, 244, 0, 99, 2, 0, 0, 0, 0, 6, 10, 244, 0, 6 };
	size_t at = put(frame, 0, destination, 6);

	at = put(frame, at, kind == FOREIGN ? foreign : own, 6);
	if (kind == TAGGED)
		return put(frame, at, tagged, sizeof(tagged));
	if (kind == IPV4)
		return put(frame, at, packet, sizeof(packet));
	if (kind == SPOOFED_TAGGED)
		at = put(frame, at, tag, sizeof(tag));
	if (kind == SPOOFED || kind == SPOOFED_TAGGED)
		return put(frame, at, spoofed, sizeof(spoofed));
	if (kind == SPOOFED_ARP)
		return put(frame, at, arp, sizeof(arp));
	return put(frame, at, plain, sizeof(plain));
}

static void rest_until(uint64_t at)
{
	struct timespec until = { (time_t)(at / 1000000000u), (long)(at % 1000000000u) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL))
		;
}

// One call of sendmmsg for eight frames.
static long send_many(int fd, uint64_t number, uint64_t at, uint64_t gap)
{
	static uint8_t frames[8][14 + PAYLOAD];
	static char controls[8][CMSG_SPACE(sizeof(uint64_t))];
	static struct iovec pieces[8];
	struct sockaddr_ll to = name(0);
	struct mmsghdr all[8];
	int sent;

	for (unsigned i = 0; i < 8; i++) {
		size_t octets = headers(frames[i], MANY);

		fill(frames[i] + octets, MANY, number + i, at + i * gap);
		pieces[i].iov_base = frames[i];
		pieces[i].iov_len = octets + PAYLOAD;
		all[i].msg_hdr = message(&pieces[i], 1, controls[i], at + i * gap);
		all[i].msg_hdr.msg_name = &to;
		all[i].msg_hdr.msg_namelen = sizeof(to);
		all[i].msg_len = 0;
	}
	sent = sendmmsg(fd, all, 8, 0);
	for (int i = 0; i < sent; i++)
		if (all[i].msg_len != 14 + PAYLOAD)
			return -EPROTO;
	return sent < 0 ? -errno : sent;
}

// Header and payload in three pieces, the first shorter than a header.
static long send_split(int fd, const uint8_t *frame, size_t octets, uint64_t at)
{
	char control[CMSG_SPACE(sizeof(uint64_t))];
	struct iovec pieces[3] = { { (void *)(uintptr_t)frame, 5 },
				   { (void *)(uintptr_t)(frame + 5), 11 },
				   { (void *)(uintptr_t)(frame + 16), octets - 16 } };
	struct msghdr header = message(pieces, 3, control, at);
	struct sockaddr_ll to = name(0);
	long answer;

	header.msg_name = &to;
	header.msg_namelen = sizeof(to);
	answer = sendmsg(fd, &header, 0);
	return answer < 0 ? -errno : answer;
}

static void frames(enum kind kind, uint64_t count, uint64_t lead, uint64_t gap)
{
	int fd = timed(kind == DGRAM ? SOCK_DGRAM : SOCK_RAW, 0);
	struct sockaddr_ll to = name(kind == DGRAM ? 0x22f0 : 0);
	uint64_t at = now() + lead;
	long sent = 0, failed = 0, last = 0, waits = 0;

	if (kind == BOUND && bind(fd, (struct sockaddr *)&to, sizeof(to)))
		last = -errno;
	if (kind != DGRAM)
		to.sll_halen = 0; // as programs do that say all in the frame
	for (uint64_t number = 0; number < count; number += kind == MANY ? 8 : 1, at += gap) {
		uint8_t frame[64 + PAYLOAD];
		size_t octets = kind == DGRAM ? 0 : headers(frame, kind);
		long answer, waited_before;

		if (now() + lead < at)
			rest_until(at - lead); // paced where the gap is longer than the work
		fill(frame + octets, kind, number, at);
		octets += PAYLOAD;
		waited_before = waited();
		if (kind == MANY) {
			answer = send_many(fd, number, at, gap);
			at += 7 * gap;
		} else if (kind == SPLIT) {
			answer = send_split(fd, frame, octets, at);
		} else {
			answer = send_to(fd, frame, octets, kind == BOUND ? NULL : &to, kind == BOUND ? 0 : sizeof(to), at);
		}
		waits += number > 0 && waited() > waited_before; // the first one attaches
		if (answer == (kind == MANY ? 8 : (long)octets))
			sent += kind == MANY ? 8 : 1;
		else
			failed++, last = answer;
	}
	say("sent", sent);
	say("failed", failed);
	say("last", last);
	say("waits", waits);
}

// How long a send takes, the mean of `count`.
static long sends(int fd, int type, const struct sockaddr_ll *to, int count)
{
	uint64_t took = 0;
	uint8_t frame[64 + PAYLOAD];
	size_t octets = type == SOCK_RAW ? headers(frame, RAW) : 0;

	fill(frame + octets, 98, 0, 0);
	octets += PAYLOAD;
	for (int i = 0; i < count; i++) {
		uint64_t start = now();

		if (send_to(fd, frame, octets, to, sizeof(*to), start + 2000000000) != (long)octets)
			exit(5);
		took += now() - start;
	}
	return (long)took / count;
}

static void cost(void)
{
	struct sockaddr_ll to = name(0x22f0);
	int raw = timed(SOCK_RAW, 0), dgram = timed(SOCK_DGRAM, 0);

	sends(raw, SOCK_RAW, &to, 1); // the first one attaches
	sends(dgram, SOCK_DGRAM, &to, 1);
	only_few_calls();
	say("raw-ns", sends(raw, SOCK_RAW, &to, 399));
	say("dgram-ns", sends(dgram, SOCK_DGRAM, &to, 399));
}

static void odd_name(int fd, const uint8_t *frame, size_t octets)
{
	struct sockaddr_ll to = name(0x22f0);

	say("a-whole-name", send_to(fd, frame, octets, &to, sizeof(to), 0));
	say("no-name", send_to(fd, frame, octets, NULL, 0, 0));
	say("name-of-12", send_to(fd, frame, octets, &to, 12, 0));
	say("name-of-19", send_to(fd, frame, octets, &to, 19, 0));
	to.sll_halen = 8;
	say("address-of-8", send_to(fd, frame, octets, &to, sizeof(to), 0));
	to.sll_halen = 255;
	say("address-of-255", send_to(fd, frame, octets, &to, sizeof(to), 0));
	to.sll_halen = 3;
	say("address-of-3", send_to(fd, frame, octets, &to, sizeof(to), 0));
	to.sll_halen = 0;
	say("no-address", send_to(fd, frame, octets, &to, sizeof(to), 0));
	to = name(0x22f0);
	to.sll_family = AF_INET;
	say("family-inet", send_to(fd, frame, octets, &to, sizeof(to), 0));
	to = name(0x22f0);
	to.sll_ifindex = 0;
	say("interface-0", send_to(fd, frame, octets, &to, sizeof(to), 0));
	to.sll_ifindex = 9999;
	say("interface-9999", send_to(fd, frame, octets, &to, sizeof(to), 0));
	to.sll_ifindex = -1;
	say("interface-minus", send_to(fd, frame, octets, &to, sizeof(to), 0));
	to.sll_ifindex = (int)if_nametoindex("lo");
	say("interface-lo", send_to(fd, frame, octets, &to, sizeof(to), 0));
}

static void odd_option(const char *what, int level, int option, const uint8_t *frame, size_t octets)
{
	struct sockaddr_ll to = name(0);
	int fd = timed(SOCK_RAW, 0), one = 1;

	say(what, setsockopt(fd, level, option, &one, sizeof(one)) ? -errno : 0);
	say(what, send_to(fd, frame, octets, &to, sizeof(to), 0));
	close(fd);
}

static void lengths(int mtu)
{
	static uint8_t frame[70000];
	struct sockaddr_ll to = name(0);
	int fd = timed(SOCK_RAW, 0);
	size_t most = (size_t)mtu + 14;
	char what[40];

	for (int tagged = 0; tagged < 2; tagged++) {
		headers(frame, tagged ? TAGGED : RAW);
		for (size_t octets = most - 1; octets <= most + 6; octets++) {
			snprintf(what, sizeof(what), "raw-%d-mtu+%ld", tagged, (long)octets - mtu);
			say(what, send_to(fd, frame, octets, &to, sizeof(to), 0));
		}
	}
	for (size_t octets = 0; octets < 20; octets++) {
		snprintf(what, sizeof(what), "raw-of-%zu", octets);
		say(what, send_to(fd, frame, octets, &to, sizeof(to), 0));
	}
	say("raw-of-70000", send_to(fd, frame, 70000, &to, sizeof(to), 0));
	close(fd);
	fd = timed(SOCK_DGRAM, 0);
	for (unsigned type = 0; type < 5; type++) {
		static const uint16_t types[] = { 0x22f0, 0x8100, 0, 1, 60 };

		to = name(types[type]);
		for (size_t octets = (size_t)mtu - 1; octets <= (size_t)mtu + 6; octets++) {
			snprintf(what, sizeof(what), "dgram-%x-mtu+%ld", types[type], (long)octets - mtu);
			say(what, send_to(fd, frame + 14, octets, &to, sizeof(to), 0));
		}
	}
	say("dgram-of-0", send_to(fd, frame, 0, &to, sizeof(to), 0));
	close(fd);
}

static void errnos(const char *interface)
{
	uint8_t frame[256], reserved[6] = { 1, 0x80, 0xc2, 0, 0, 0x0e };
	struct sockaddr_ll to = name(0);
	struct ifreq request;
	int fd = timed(SOCK_RAW, 0);
	size_t octets = headers(frame, RAW);

	fill(frame + octets, 99, 0, 0);
	octets += PAYLOAD;
	odd_name(fd, frame, octets);
	say("frame-unread", send_to(fd, (void *)16, 60, &to, sizeof(to), 0));
	memcpy(frame, reserved, 6);
	say("reserved-group", send_to(fd, frame, octets, &to, sizeof(to), 0));
	headers(frame, FOREIGN);
	say("foreign-source", send_to(fd, frame, octets, &to, sizeof(to), 0));
	headers(frame, RAW);
	memset(&request, 0, sizeof(request));
	strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
	if (ioctl(fd, SIOCGIFMTU, &request))
		exit(2);
	close(fd);
	lengths(request.ifr_mtu);
	fd = timed(SOCK_DGRAM, 0);
	odd_name(fd, frame + 14, PAYLOAD);
	close(fd);
	odd_option("qdisc-bypass", SOL_PACKET, PACKET_QDISC_BYPASS, frame, octets);
	odd_option("vnet-header", SOL_PACKET, PACKET_VNET_HDR, frame, octets);
	odd_option("loss", SOL_PACKET, PACKET_LOSS, frame, octets);
	odd_option("mark", SOL_SOCKET, SO_MARK, frame, octets);
	odd_option("broadcast", SOL_SOCKET, SO_BROADCAST, frame, octets);
	fd = timed(SOCK_RAW, 0);
	to = name(0);
	say("bind", bind(fd, (struct sockaddr *)&to, sizeof(to)) ? -errno : 0);
	say("bound-no-name", send_to(fd, frame, octets, NULL, 0, 0));
	say("connect", connect(fd, (struct sockaddr *)&to, sizeof(to)) ? -errno : 0);
	close(fd);
}

int main(int argc, char **argv)
{
	struct ifreq request;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (argc < 4 || fd < 0)
		return 2;
	memset(&request, 0, sizeof(request));
	strncpy(request.ifr_name, argv[1], IFNAMSIZ - 1);
	device = (int)if_nametoindex(argv[1]);
	if (!device || ioctl(fd, SIOCGIFHWADDR, &request))
		return 2;
	close(fd);
	memcpy(own, request.ifr_hwaddr.sa_data, 6);
	for (int i = 0; i < 6; i++)
		destination[i] = (uint8_t)strtoul(argv[2] + 3 * i, NULL, 16);
	if (!strcmp(argv[3], "errnos"))
		errnos(argv[1]);
	else if (!strcmp(argv[3], "cost"))
		cost();
	else if (!strcmp(argv[3], "frames") && argc == 8)
		frames((enum kind)atoi(argv[4]), strtoull(argv[5], NULL, 10), strtoull(argv[6], NULL, 10) * 1000,
		       strtoull(argv[7], NULL, 10) * 1000);
	else
		return 2;
	return 0;
}
