// SPDX-License-Identifier: Apache-2.0
// Scenarios with sendmmsg, UDP_SEGMENT, control messages beside SCM_TXTIME, and pointers that point nowhere.
#include "steps.h"

#include "few_calls.h"

#include <sys/mman.h>
#include <sys/time.h>

#define UDP_CORK 1
#define MANY 200

static void burst(const struct step *)
{
	static struct parcel parcels[MANY];
	static struct mmsghdr messages[MANY];
	static char texts[MANY][8];
	int fd = timed_socket(AF_INET, TAI);
	uint64_t at = now(TAI) + 200000000;
	for (int i = 0; i < MANY; i++) {
		parcels[i] = parcel_of(texts[i], (size_t)snprintf(texts[i], 8, "b%d", i));
		add_time(&parcels[i], at + (uint64_t)i * 1000);
		messages[i] = (struct mmsghdr){.msg_hdr = header_of(&parcels[i]), .msg_len = 99};
	}
	show("all", send_messages(fd, messages, 150, 0));
	long octets = 0;
	for (int i = 0; i < 150; i++)
		octets += messages[i].msg_len;
	show("all-octets", octets);
	show("none", send_messages(fd, messages, 0, 0));
	// In the midst: one for the kernel, one without a transmit time.
	((struct sockaddr_in *)&parcels[152].to)->sin_addr.s_addr = inet_addr("127.9.9.9");
	messages[154].msg_hdr.msg_controllen = 0, messages[154].msg_hdr.msg_control = NULL;
	show("mixed", send_messages(fd, messages + 150, 6, 0));
	show("mixed-len", messages[155].msg_len);
	// One that fails, in the midst and at the beginning.
	((struct cmsghdr *)parcels[162].control)->cmsg_len = 3;
	show("fails-third", send_messages(fd, messages + 160, 5, 0));
	show("untouched", messages[162].msg_len);
	show("fails-first", send_messages(fd, messages + 162, 2, 0));
	connect(fd, (void *)&parcels[0].to, parcels[0].to_octets);
	for (int i = 170; i < 174; i++)
		messages[i].msg_hdr.msg_name = NULL, messages[i].msg_hdr.msg_namelen = 0;
	show("peer", send_messages(fd, messages + 170, 4, MSG_DONTWAIT));
	parcels[181].parts[0].iov_base = (void *)8;
	show("bad-second", send_messages(fd, messages + 180, 4, 0));
}


static void segments(const struct step *)
{
	static char block[65536];
	int fd = timed_socket(AF_INET, TAI), value = 100;
	uint64_t at = now(TAI) + 200000000;
	for (size_t i = 0; i < sizeof(block); i++)
		block[i] = (char)('a' + i / 100 % 26);
	struct parcel parcel = parcel_of(block, 250);
	add_time(&parcel, at);
	show("option", setsockopt(fd, IPPROTO_UDP, KT_UDP_SEGMENT, &value, sizeof(value)));
	show("three", send_parcel(fd, &parcel));
	parcel.parts[0].iov_len = 200;
	show("two", send_parcel(fd, &parcel));
	parcel.parts[0].iov_len = 99;
	show("one", send_parcel(fd, &parcel));
	parcel.parts[0].iov_len = 0;
	show("empty", send_parcel(fd, &parcel));
	parcel = parcel_of(block, 250), add_segment(&parcel, 0), add_time(&parcel, at);
	show("none", send_parcel(fd, &parcel));
	parcel = parcel_of(block, 250), add_segment(&parcel, 125), add_time(&parcel, at);
	show("before", send_parcel(fd, &parcel));
	parcel = parcel_of(block, 250), add_time(&parcel, at), add_segment(&parcel, 200);
	show("after", send_parcel(fd, &parcel));
	parcel = parcel_of(block, 250), add_time(&parcel, at), add_int(&parcel, IPPROTO_UDP, KT_UDP_SEGMENT, 100);
	show("four-octets", send_parcel(fd, &parcel));
	parcel = parcel_of(block, 64 * 20), add_time(&parcel, at), add_segment(&parcel, 20);
	show("64", send_parcel(fd, &parcel));
	parcel.parts[0].iov_len = 128 * 20;
	show("128", send_parcel(fd, &parcel));
	parcel.parts[0].iov_len = 128 * 20 + 1;
	show("129", send_parcel(fd, &parcel));
	parcel = parcel_of(block, 65507), add_time(&parcel, at), add_segment(&parcel, 1400);
	show("longest", send_parcel(fd, &parcel));
	parcel.parts[0].iov_len = 65508;
	show("too-long", send_parcel(fd, &parcel));
	parcel = parcel_of(block, 3000), add_time(&parcel, at), add_segment(&parcel, 1401);
	show("over", send_parcel(fd, &parcel));
	parcel.parts[0].iov_len = 1000;
	show("short-of-long", send_parcel(fd, &parcel));
	struct iovec pieces[4] = {{block, 70}, {block + 70, 0}, {block + 70, 3}, {block + 73, 127}};
	parcel = parcel_of(block, 0), add_time(&parcel, at), add_segment(&parcel, 60);
	struct msghdr message = header_of(&parcel);
	message.msg_iov = pieces, message.msg_iovlen = 4;
	show("pieces", send_header(fd, &message, 0));
	value = 1, setsockopt(fd, SOL_SOCKET, SO_NO_CHECK, &value, sizeof(value));
	parcel = parcel_of(block, 250), add_time(&parcel, at);
	show("no-check", send_parcel(fd, &parcel));
	value = 0, setsockopt(fd, SOL_SOCKET, SO_NO_CHECK, &value, sizeof(value));
	value = 1, setsockopt(fd, IPPROTO_UDP, UDP_CORK, &value, sizeof(value));
	show("corked", send_parcel(fd, &parcel));
	value = 0, setsockopt(fd, IPPROTO_UDP, UDP_CORK, &value, sizeof(value));
	value = 70000;
	show("option-70000", setsockopt(fd, IPPROTO_UDP, KT_UDP_SEGMENT, &value, sizeof(value)) ? -errno : 0);
	value = 0, setsockopt(fd, IPPROTO_UDP, KT_UDP_SEGMENT, &value, sizeof(value));
	show("reset", send_parcel(fd, &parcel));
	int six = timed_socket(AF_INET6, TAI);
	struct sockaddr_in6 loop = to6("::1", default_port());
	parcel = parcel_of(block, 250), add_time(&parcel, at), add_segment(&parcel, 100);
	message = header_of(&parcel), message.msg_name = &loop, message.msg_namelen = sizeof(loop);
	show("v6", send_header(six, &message, 0));
}

static void marks(const struct step *)
{
	int fd = timed_socket(AF_INET, TAI), six = timed_socket(AF_INET6, TAI), value = 3;
	uint64_t at = now(TAI) + 200000000;
	struct sockaddr_in6 loop = to6("::1", default_port()), mapped = to6("::ffff:127.0.0.1", default_port());
	setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &value, sizeof(value));
	struct parcel parcel = parcel_of("tos-ttl", 7);
	add_int(&parcel, IPPROTO_IP, IP_TTL, 7), add_time(&parcel, at), add_int(&parcel, IPPROTO_IP, IP_TOS, 0xb8);
	show("tos-ttl", send_parcel(fd, &parcel));
	parcel = parcel_of("octet", 5);
	add(&parcel, IPPROTO_IP, IP_TOS, "\x10", 1), add_time(&parcel, at);
	show("octet", send_parcel(fd, &parcel));
	parcel = parcel_of("priority", 8);
	add_time(&parcel, at), add_int(&parcel, SOL_SOCKET, SO_PRIORITY, 5);
	show("priority", send_parcel(fd, &parcel));
	parcel = parcel_of("tos-last", 8);
	add_time(&parcel, at), add_int(&parcel, SOL_SOCKET, SO_PRIORITY, 5), add_int(&parcel, IPPROTO_IP, IP_TOS, 8);
	show("tos-last", send_parcel(fd, &parcel));
	parcel = parcel_of("two-times", 9);
	add_time(&parcel, 5), add_time(&parcel, at);
	show("two-times", send_parcel(fd, &parcel));
	parcel = parcel_of("six", 3);
	add_int(&parcel, IPPROTO_IPV6, IPV6_TCLASS, 0x20), add_time(&parcel, at), add_int(&parcel, IPPROTO_IPV6, IPV6_HOPLIMIT, 9);
	struct msghdr message = header_of(&parcel);
	message.msg_name = &loop, message.msg_namelen = sizeof(loop);
	show("six", send_header(six, &message, 0));
	message.msg_name = &mapped, parcel.parts[0] = (struct iovec){"mapped", 6};
	show("mapped", send_header(six, &message, 0));
	parcel = parcel_of("default", 7);
	add_int(&parcel, IPPROTO_IPV6, IPV6_TCLASS, -1), add_time(&parcel, at), add_int(&parcel, IPPROTO_IPV6, IPV6_HOPLIMIT, -1);
	add_int(&parcel, IPPROTO_IP, IP_TTL, 0);
	message = header_of(&parcel), message.msg_name = &loop, message.msg_namelen = sizeof(loop);
	show("default", send_header(six, &message, 0));
	// The kernel's to refuse, or to ignore.
	const int wrong[][3] = {{IPPROTO_IP, IP_TTL, 0}, {IPPROTO_IP, IP_TTL, 256}, {IPPROTO_IP, IP_TOS, 256}, {IPPROTO_IP, IP_TOS, -1},
		{IPPROTO_IP, 99, 0}, {IPPROTO_IPV6, IPV6_TCLASS, 256}, {IPPROTO_IPV6, IPV6_HOPLIMIT, -2}, {IPPROTO_IPV6, 99, 0},
		{SOL_SOCKET, SO_MARK, 0}, {SOL_SOCKET, 99, 0}, {SOL_SOCKET, SO_PRIORITY, 7}, {SOL_SOCKET, SO_PRIORITY, -1},
		{IPPROTO_UDP, 99, 0}, {77, 1, 0}};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		char name[32];
		parcel = parcel_of("odd", 3), add_time(&parcel, at), add_int(&parcel, wrong[i][0], wrong[i][1], wrong[i][2]);
		message = header_of(&parcel);
		snprintf(name, sizeof(name), "v4-%d-%d-%d", wrong[i][0], wrong[i][1], wrong[i][2]), show(name, send_header(fd, &message, 0));
		message.msg_name = &loop, message.msg_namelen = sizeof(loop);
		snprintf(name, sizeof(name), "v6-%d-%d-%d", wrong[i][0], wrong[i][1], wrong[i][2]), show(name, send_header(six, &message, 0));
	}
	static char thousands[CMSG_SPACE(4) * 3000];
	for (size_t i = 0; i < 3000; i++) {
		struct cmsghdr *item = (void *)(thousands + i * CMSG_SPACE(4));
		*item = (struct cmsghdr){.cmsg_len = CMSG_LEN(4), .cmsg_level = IPPROTO_IP, .cmsg_type = IP_TTL};
		value = 3, memcpy(CMSG_DATA(item), &value, 4);
	}
	message = header_of(&parcel), message.msg_control = thousands;
	for (size_t count = 30; count <= 3000; count *= 10)
		message.msg_controllen = (__typeof__(message.msg_controllen))(count * CMSG_SPACE(4)), show("thousands", send_header(fd, &message, 0));
	drop_rights();
	parcel = parcel_of("refused", 7), add_time(&parcel, at), add_int(&parcel, SOL_SOCKET, SO_PRIORITY, 7);
	show("refused", send_parcel(fd, &parcel));
}

// A page that can be read and written, and behind it one that cannot.
static char *edge(void)
{
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED || mprotect(pages + 4096, 4096, PROT_NONE))
		exit(6);
	return pages + 4096;
}

// faults [granted]: the same lines must come out of the kernel alone.
static void faults(const struct step *step)
{
	const void *nowhere[] = {(void *)8, (void *)4096, (void *)-4096L, (void *)((1L << 62) + 8), (void *)-1L};
	char *end = edge();
	if (step->count > 1)
		drop_rights();
	int fd = socket(AF_INET, SOCK_DGRAM, 0), plain = socket(AF_INET, SOCK_DGRAM, 0);
	set_txtime(fd, TAI);
	uint64_t at = now(TAI) + 200000000;
	struct parcel parcel = parcel_of("fault", 5);
	add_time(&parcel, at);
	show("good", send_parcel(fd, &parcel));
	for (int s = 0; s < 2; s++, fd = plain) {
		for (size_t i = 0; i < sizeof(nowhere) / sizeof(nowhere[0]); i++) {
			void *bad = (void *)nowhere[i];
			show("header", sendmsg(fd, bad, 0) < 0 ? -errno : 0);
			struct msghdr message = header_of(&parcel);
			message.msg_name = bad, show("name", send_header(fd, &message, 0));
			message = header_of(&parcel), message.msg_control = bad, show("control", send_header(fd, &message, 0));
			message = header_of(&parcel), message.msg_iov = bad, show("iov", send_header(fd, &message, 0));
			struct iovec pieces[2] = {{"x", 1}, {bad, 0}};
			message = header_of(&parcel), message.msg_iov = pieces, message.msg_iovlen = 2;
			show("no-octets", send_header(fd, &message, 0));
			pieces[1].iov_len = 5, show("base", send_header(fd, &message, 0));
			show("many", sendmmsg(fd, bad, 2, 0) < 0 ? -errno : 0);
		}
		struct msghdr message = header_of(&parcel);
		struct msghdr *split = (void *)(end - 16);
		memcpy(split, &message, 16);
		show("split", sendmsg(fd, split, 0) < 0 ? -errno : 0);
		struct iovec last = {end - 3, 3};
		message.msg_iov = &last, show("last-octets", send_header(fd, &message, 0));
		last.iov_len = 4, show("beyond", send_header(fd, &message, 0));
		last.iov_base = end - 4096, last.iov_len = 65000, show("far-beyond", send_header(fd, &message, 0));
		message = header_of(&parcel), message.msg_control = end - 8, show("control-beyond", send_header(fd, &message, 0));
		struct mmsghdr *two = (void *)(end - 64 - 56);
		*two = (struct mmsghdr){.msg_hdr = header_of(&parcel)};
		show("array-ends", send_messages(fd, two, 3, 0));
		struct mmsghdr *constant = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		constant[0] = constant[1] = (struct mmsghdr){.msg_hdr = header_of(&parcel)};
		mprotect(constant, 4096, PROT_READ);
		show("constant", send_messages(fd, constant, 2, 0));
		static char block[65508];
		last = (struct iovec){block, sizeof(block)}, message = header_of(&parcel), message.msg_iov = &last;
		show("too-long", send_header(fd, &message, 0));
		show("oob", sendmsg(fd, &message, MSG_OOB) < 0 ? -errno : 0);
	}
}

// The ring has 64 slots, and no daemon takes frames.
static void burst_full(const struct step *)
{
	static struct parcel parcels[70];
	static struct mmsghdr messages[70];
	static char block[1000];
	int fd = timed_socket(AF_INET, TAI);
	uint64_t at = now(TAI) + 5000000000;
	for (int i = 0; i < 70; i++) {
		parcels[i] = parcel_of("full", 4), add_time(&parcels[i], at);
		messages[i] = (struct mmsghdr){.msg_hdr = header_of(&parcels[i])};
	}
	show("some", send_messages(fd, messages, 60, MSG_DONTWAIT));
	struct parcel parcel = parcel_of(block, 1000);
	add_time(&parcel, at), add_segment(&parcel, 200);
	struct msghdr message = header_of(&parcel);
	show("five", sendmsg(fd, &message, MSG_DONTWAIT) < 0 ? -errno : 0);
	parcel.parts[0].iov_len = 600;
	show("three", sendmsg(fd, &message, MSG_DONTWAIT) < 0 ? -errno : 600);
	show("last", send_messages(fd, messages + 60, 5, MSG_DONTWAIT));
	show("full", send_messages(fd, messages + 61, 5, MSG_DONTWAIT));
	struct timeval wait = {0, 50000};
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	parcel.parts[0].iov_len = 1000;
	show("timeout", send_parcel(fd, &parcel));
	wait.tv_usec = 0, setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	// Line by line: the test lets slots go when it has read this.
	show("blocking", 1);
	show("waited", send_messages(fd, messages, 70, 0));
	show("waited-five", send_parcel(fd, &parcel));
}

// The ring has 64 slots. 80 frames for one instant, each with a call of its own; then one of another socket for that instant, and one
// for an instant that has passed without a wait.
static void burst_waits(const struct step *)
{
	int fd = timed_socket(AF_INET, TAI), other = -1;
	uint64_t at = now(TAI) + 1000000000;
	for (int i = 0; i < 82; i++) {
		struct parcel parcel = parcel_of("wait", 4);
		if (i == 80)
			other = timed_socket(AF_INET, TAI);
		if (i == 81)
			usleep(100000);
		add_time(&parcel, i < 81 ? at : now(TAI) - 1000);
		if (send_parcel(i < 80 ? fd : other, &parcel) != 4)
			exit(5);
	}
}

// What a frame of 64 octets costs in a burst of 64 while slots are free and no thread must be woken: the mean.
static void burst_cost(const struct step *)
{
	static struct parcel parcels[64];
	static struct mmsghdr messages[64];
	static char block[64];
	int fd = timed_socket(AF_INET, TAI);
	uint64_t took = 0;
	for (int burst = 0; burst < 61; burst++) {
		for (int i = 0; i < 64; i++) {
			parcels[i] = parcel_of(block, 64), add_time(&parcels[i], now(TAI) + 5000000000);
			messages[i] = (struct mmsghdr){.msg_hdr = header_of(&parcels[i])};
		}
		uint64_t start = now(MONOTONIC);
		if (sendmmsg(fd, messages, 64, 0) != 64)
			exit(5);
		if (burst == 0)
			only_few_calls();
		else
			took += now(MONOTONIC) - start;
	}
	show("frame-ns", (long)took / (60 * 64));
}

const struct verb burst_verbs[] = {
	{"burst", burst}, {"segments", segments}, {"marks", marks}, {"faults", faults}, {"burst-full", burst_full},
	{"burst-waits", burst_waits}, {"burst-cost", burst_cost}, {0},
};
