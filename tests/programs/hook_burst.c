// SPDX-License-Identifier: Apache-2.0
// Scenarios with sendmmsg, UDP_SEGMENT, control messages beside SCM_TXTIME, and pointers that point nowhere.
#include "hook_sender.h"
#include "few_calls.h"

#include <sys/mman.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#define MANY 200

// A datagram that is being put together: payload, destination, control messages.
struct parcel {
	_Alignas(8) char control[256];
	size_t control_octets;
	struct sockaddr_in to;
	struct iovec piece;
};

static void add(struct parcel *parcel, int level, int type, const void *data, size_t octets)
{
	struct cmsghdr *item = (void *)(parcel->control + parcel->control_octets);
	item->cmsg_level = level, item->cmsg_type = type, item->cmsg_len = CMSG_LEN(octets);
	memcpy(CMSG_DATA(item), data, octets);
	parcel->control_octets += CMSG_SPACE(octets);
}

static void add_int(struct parcel *parcel, int level, int type, int value)
{
	add(parcel, level, type, &value, sizeof(value));
}

static void add_time(struct parcel *parcel, uint64_t at)
{
	add(parcel, SOL_SOCKET, SO_TXTIME, &at, sizeof(at));
}

static void add_segment(struct parcel *parcel, uint16_t octets)
{
	add(parcel, IPPROTO_UDP, UDP_SEGMENT, &octets, sizeof(octets));
}

static struct parcel parcel_of(const char *text, size_t octets)
{
	return (struct parcel){.to = to4(port), .piece = {(void *)text, octets}};
}

static struct msghdr header_of(struct parcel *parcel)
{
	return (struct msghdr){.msg_name = &parcel->to, .msg_namelen = sizeof(parcel->to), .msg_iov = &parcel->piece,
		.msg_iovlen = 1, .msg_control = parcel->control_octets ? parcel->control : NULL, .msg_controllen = parcel->control_octets};
}

static long send_header(int fd, struct msghdr *message)
{
	errno = 77;
	long sent = sendmsg(fd, message, 0);
	return sent < 0 ? -errno : errno == 77 ? sent : -1000;
}

static long send_parcel(int fd, struct parcel *parcel)
{
	struct msghdr message = header_of(parcel);
	return send_header(fd, &message);
}

static long send_many(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
	errno = 77;
	long sent = sendmmsg(fd, messages, count, flags);
	// musl leaves the errno of the message that failed.
	return sent < 0 ? -errno : errno == 77 || sent < (long)count ? sent : -1000;
}

static void burst(void)
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
	say("all", send_many(fd, messages, 150, 0));
	long octets = 0;
	for (int i = 0; i < 150; i++)
		octets += messages[i].msg_len;
	say("all-octets", octets);
	say("none", send_many(fd, messages, 0, 0));
	// In the midst: one for the kernel, one without a transmit time.
	parcels[152].to.sin_addr.s_addr = inet_addr("127.9.9.9");
	messages[154].msg_hdr.msg_controllen = 0, messages[154].msg_hdr.msg_control = NULL;
	say("mixed", send_many(fd, messages + 150, 6, 0));
	say("mixed-len", messages[155].msg_len);
	// One that fails, in the midst and at the beginning.
	((struct cmsghdr *)parcels[162].control)->cmsg_len = 3;
	say("fails-third", send_many(fd, messages + 160, 5, 0));
	say("untouched", messages[162].msg_len);
	say("fails-first", send_many(fd, messages + 162, 2, 0));
	connect(fd, (void *)&parcels[0].to, sizeof(parcels[0].to));
	for (int i = 170; i < 174; i++)
		messages[i].msg_hdr.msg_name = NULL, messages[i].msg_hdr.msg_namelen = 0;
	say("peer", send_many(fd, messages + 170, 4, MSG_DONTWAIT));
	parcels[181].piece.iov_base = (void *)8;
	say("bad-second", send_many(fd, messages + 180, 4, 0));
}

// MSG_MORE: the pieces of one datagram belong together, wherever the first one went.
static void corked(void)
{
	int fd = timed_socket(AF_INET, TAI);
	struct sockaddr_in to = to4(port);
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)))
		exit(3);
	uint64_t at = now(TAI) + 200000000;
	say("begun", send_at(fd, NULL, 0, "one-", at, MSG_MORE));
	say("more", send_at(fd, NULL, 0, "and-", at, MSG_MORE));
	say("ended", send_at(fd, NULL, 0, "the-same", at, 0));
	say("whole", send_at(fd, NULL, 0, "another", at, 0));
}

static void segments(void)
{
	static char block[65536];
	int fd = timed_socket(AF_INET, TAI), value = 100;
	uint64_t at = now(TAI) + 200000000;
	for (size_t i = 0; i < sizeof(block); i++)
		block[i] = (char)('a' + i / 100 % 26);
	struct parcel parcel = parcel_of(block, 250);
	add_time(&parcel, at);
	say("option", setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &value, sizeof(value)));
	say("three", send_parcel(fd, &parcel));
	parcel.piece.iov_len = 200;
	say("two", send_parcel(fd, &parcel));
	parcel.piece.iov_len = 99;
	say("one", send_parcel(fd, &parcel));
	parcel.piece.iov_len = 0;
	say("empty", send_parcel(fd, &parcel));
	parcel = parcel_of(block, 250), add_segment(&parcel, 0), add_time(&parcel, at);
	say("none", send_parcel(fd, &parcel));
	parcel = parcel_of(block, 250), add_segment(&parcel, 125), add_time(&parcel, at);
	say("before", send_parcel(fd, &parcel));
	parcel = parcel_of(block, 250), add_time(&parcel, at), add_segment(&parcel, 200);
	say("after", send_parcel(fd, &parcel));
	parcel = parcel_of(block, 250), add_time(&parcel, at), add_int(&parcel, IPPROTO_UDP, UDP_SEGMENT, 100);
	say("four-octets", send_parcel(fd, &parcel));
	parcel = parcel_of(block, 64 * 20), add_time(&parcel, at), add_segment(&parcel, 20);
	say("64", send_parcel(fd, &parcel));
	parcel.piece.iov_len = 128 * 20;
	say("128", send_parcel(fd, &parcel));
	parcel.piece.iov_len = 128 * 20 + 1;
	say("129", send_parcel(fd, &parcel));
	parcel = parcel_of(block, 65507), add_time(&parcel, at), add_segment(&parcel, 1400);
	say("longest", send_parcel(fd, &parcel));
	parcel.piece.iov_len = 65508;
	say("too-long", send_parcel(fd, &parcel));
	parcel = parcel_of(block, 3000), add_time(&parcel, at), add_segment(&parcel, 1401);
	say("over", send_parcel(fd, &parcel));
	parcel.piece.iov_len = 1000;
	say("short-of-long", send_parcel(fd, &parcel));
	struct iovec pieces[4] = {{block, 70}, {block + 70, 0}, {block + 70, 3}, {block + 73, 127}};
	parcel = parcel_of(block, 0), add_time(&parcel, at), add_segment(&parcel, 60);
	struct msghdr message = header_of(&parcel);
	message.msg_iov = pieces, message.msg_iovlen = 4;
	say("pieces", send_header(fd, &message));
	value = 1, setsockopt(fd, SOL_SOCKET, SO_NO_CHECK, &value, sizeof(value));
	parcel = parcel_of(block, 250), add_time(&parcel, at);
	say("no-check", send_parcel(fd, &parcel));
	value = 0, setsockopt(fd, SOL_SOCKET, SO_NO_CHECK, &value, sizeof(value));
	value = 1, setsockopt(fd, IPPROTO_UDP, UDP_CORK, &value, sizeof(value));
	say("corked", send_parcel(fd, &parcel));
	value = 0, setsockopt(fd, IPPROTO_UDP, UDP_CORK, &value, sizeof(value));
	value = 70000;
	say("option-70000", setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &value, sizeof(value)) ? -errno : 0);
	value = 0, setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &value, sizeof(value));
	say("reset", send_parcel(fd, &parcel));
	int six = timed_socket(AF_INET6, TAI);
	struct sockaddr_in6 loop = to6("::1", port);
	parcel = parcel_of(block, 250), add_time(&parcel, at), add_segment(&parcel, 100);
	message = header_of(&parcel), message.msg_name = &loop, message.msg_namelen = sizeof(loop);
	say("v6", send_header(six, &message));
}

static void marks(void)
{
	int fd = timed_socket(AF_INET, TAI), six = timed_socket(AF_INET6, TAI), value = 3;
	uint64_t at = now(TAI) + 200000000;
	struct sockaddr_in6 loop = to6("::1", port), mapped = to6("::ffff:127.0.0.1", port);
	setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &value, sizeof(value));
	struct parcel parcel = parcel_of("tos-ttl", 7);
	add_int(&parcel, IPPROTO_IP, IP_TTL, 7), add_time(&parcel, at), add_int(&parcel, IPPROTO_IP, IP_TOS, 0xb8);
	say("tos-ttl", send_parcel(fd, &parcel));
	parcel = parcel_of("octet", 5);
	add(&parcel, IPPROTO_IP, IP_TOS, "\x10", 1), add_time(&parcel, at);
	say("octet", send_parcel(fd, &parcel));
	parcel = parcel_of("priority", 8);
	add_time(&parcel, at), add_int(&parcel, SOL_SOCKET, SO_PRIORITY, 5);
	say("priority", send_parcel(fd, &parcel));
	parcel = parcel_of("tos-last", 8);
	add_time(&parcel, at), add_int(&parcel, SOL_SOCKET, SO_PRIORITY, 5), add_int(&parcel, IPPROTO_IP, IP_TOS, 8);
	say("tos-last", send_parcel(fd, &parcel));
	parcel = parcel_of("two-times", 9);
	add_time(&parcel, 5), add_time(&parcel, at);
	say("two-times", send_parcel(fd, &parcel));
	parcel = parcel_of("six", 3);
	add_int(&parcel, IPPROTO_IPV6, IPV6_TCLASS, 0x20), add_time(&parcel, at), add_int(&parcel, IPPROTO_IPV6, IPV6_HOPLIMIT, 9);
	struct msghdr message = header_of(&parcel);
	message.msg_name = &loop, message.msg_namelen = sizeof(loop);
	say("six", send_header(six, &message));
	message.msg_name = &mapped, parcel.piece = (struct iovec){"mapped", 6};
	say("mapped", send_header(six, &message));
	parcel = parcel_of("default", 7);
	add_int(&parcel, IPPROTO_IPV6, IPV6_TCLASS, -1), add_time(&parcel, at), add_int(&parcel, IPPROTO_IPV6, IPV6_HOPLIMIT, -1);
	add_int(&parcel, IPPROTO_IP, IP_TTL, 0);
	message = header_of(&parcel), message.msg_name = &loop, message.msg_namelen = sizeof(loop);
	say("default", send_header(six, &message));
	// The kernel's to refuse, or to ignore.
	const int wrong[][3] = {{IPPROTO_IP, IP_TTL, 0}, {IPPROTO_IP, IP_TTL, 256}, {IPPROTO_IP, IP_TOS, 256}, {IPPROTO_IP, IP_TOS, -1},
		{IPPROTO_IP, 99, 0}, {IPPROTO_IPV6, IPV6_TCLASS, 256}, {IPPROTO_IPV6, IPV6_HOPLIMIT, -2}, {IPPROTO_IPV6, 99, 0},
		{SOL_SOCKET, SO_MARK, 0}, {SOL_SOCKET, 99, 0}, {SOL_SOCKET, SO_PRIORITY, 7}, {SOL_SOCKET, SO_PRIORITY, -1},
		{IPPROTO_UDP, 99, 0}, {77, 1, 0}};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		char name[32];
		parcel = parcel_of("odd", 3), add_time(&parcel, at), add_int(&parcel, wrong[i][0], wrong[i][1], wrong[i][2]);
		message = header_of(&parcel);
		snprintf(name, sizeof(name), "v4-%d-%d-%d", wrong[i][0], wrong[i][1], wrong[i][2]), say(name, send_header(fd, &message));
		message.msg_name = &loop, message.msg_namelen = sizeof(loop);
		snprintf(name, sizeof(name), "v6-%d-%d-%d", wrong[i][0], wrong[i][1], wrong[i][2]), say(name, send_header(six, &message));
	}
	static char thousands[CMSG_SPACE(4) * 3000];
	for (size_t i = 0; i < 3000; i++) {
		struct cmsghdr *item = (void *)(thousands + i * CMSG_SPACE(4));
		*item = (struct cmsghdr){.cmsg_len = CMSG_LEN(4), .cmsg_level = IPPROTO_IP, .cmsg_type = IP_TTL};
		value = 3, memcpy(CMSG_DATA(item), &value, 4);
	}
	message = header_of(&parcel), message.msg_control = thousands;
	for (size_t count = 30; count <= 3000; count *= 10)
		message.msg_controllen = count * CMSG_SPACE(4), say("thousands", send_header(fd, &message));
	drop_rights();
	parcel = parcel_of("refused", 7), add_time(&parcel, at), add_int(&parcel, SOL_SOCKET, SO_PRIORITY, 7);
	say("refused", send_parcel(fd, &parcel));
}

// A page that can be read and written, and behind it one that cannot.
static char *edge(void)
{
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED || mprotect(pages + 4096, 4096, PROT_NONE))
		exit(6);
	return pages + 4096;
}

// hook_sender faults PORT [granted]: the same lines must come out of the kernel alone.
static void faults(int argc, char **argv)
{
	const void *nowhere[] = {(void *)8, (void *)4096, (void *)-4096L, (void *)((1L << 62) + 8), (void *)-1L};
	char *end = edge();
	if (argc > 3 && !strcmp(argv[3], "granted"))
		drop_rights();
	int fd = socket(AF_INET, SOCK_DGRAM, 0), plain = socket(AF_INET, SOCK_DGRAM, 0);
	set_txtime(fd, TAI);
	uint64_t at = now(TAI) + 200000000;
	struct parcel parcel = parcel_of("fault", 5);
	add_time(&parcel, at);
	say("good", send_parcel(fd, &parcel));
	for (int s = 0; s < 2; s++, fd = plain) {
		for (size_t i = 0; i < sizeof(nowhere) / sizeof(nowhere[0]); i++) {
			void *bad = (void *)nowhere[i];
			say("header", sendmsg(fd, bad, 0) < 0 ? -errno : 0);
			struct msghdr message = header_of(&parcel);
			message.msg_name = bad, say("name", send_header(fd, &message));
			message = header_of(&parcel), message.msg_control = bad, say("control", send_header(fd, &message));
			message = header_of(&parcel), message.msg_iov = bad, say("iov", send_header(fd, &message));
			struct iovec pieces[2] = {{"x", 1}, {bad, 0}};
			message = header_of(&parcel), message.msg_iov = pieces, message.msg_iovlen = 2;
			say("no-octets", send_header(fd, &message));
			pieces[1].iov_len = 5, say("base", send_header(fd, &message));
			say("many", sendmmsg(fd, bad, 2, 0) < 0 ? -errno : 0);
		}
		struct msghdr message = header_of(&parcel);
		struct msghdr *split = (void *)(end - 16);
		memcpy(split, &message, 16);
		say("split", sendmsg(fd, split, 0) < 0 ? -errno : 0);
		struct iovec last = {end - 3, 3};
		message.msg_iov = &last, say("last-octets", send_header(fd, &message));
		last.iov_len = 4, say("beyond", send_header(fd, &message));
		last.iov_base = end - 4096, last.iov_len = 65000, say("far-beyond", send_header(fd, &message));
		message = header_of(&parcel), message.msg_control = end - 8, say("control-beyond", send_header(fd, &message));
		struct mmsghdr *two = (void *)(end - 64 - 56);
		*two = (struct mmsghdr){.msg_hdr = header_of(&parcel)};
		say("array-ends", send_many(fd, two, 3, 0));
		struct mmsghdr *constant = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		constant[0] = constant[1] = (struct mmsghdr){.msg_hdr = header_of(&parcel)};
		mprotect(constant, 4096, PROT_READ);
		say("constant", send_many(fd, constant, 2, 0));
		static char block[65508];
		last = (struct iovec){block, sizeof(block)}, message = header_of(&parcel), message.msg_iov = &last;
		say("too-long", send_header(fd, &message));
		say("oob", sendmsg(fd, &message, MSG_OOB) < 0 ? -errno : 0);
	}
}

// The ring has 64 slots, and nobody takes.
static void burst_full(void)
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
	say("some", send_many(fd, messages, 60, MSG_DONTWAIT));
	struct parcel parcel = parcel_of(block, 1000);
	add_time(&parcel, at), add_segment(&parcel, 200);
	struct msghdr message = header_of(&parcel);
	say("five", sendmsg(fd, &message, MSG_DONTWAIT) < 0 ? -errno : 0);
	parcel.piece.iov_len = 600;
	say("three", sendmsg(fd, &message, MSG_DONTWAIT) < 0 ? -errno : 600);
	say("last", send_many(fd, messages + 60, 5, MSG_DONTWAIT));
	say("full", send_many(fd, messages + 61, 5, MSG_DONTWAIT));
	struct timeval wait = {0, 50000};
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	parcel.piece.iov_len = 1000;
	say("timeout", send_parcel(fd, &parcel));
	wait.tv_usec = 0, setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	// Line by line: the test lets slots go when it has read this.
	say("blocking", 1);
	say("waited", send_many(fd, messages, 70, 0));
	say("waited-five", send_parcel(fd, &parcel));
}

// The ring has 64 slots. 80 frames for one instant, each with a call of its own; then one of another socket for that instant, and one
// for an instant that has passed without a wait.
static void burst_waits(void)
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

// What a frame of 64 octets costs in a burst of 64 while slots are free and nobody must be woken: the mean.
static void burst_cost(void)
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
	say("frame-ns", (long)took / (60 * 64));
}

int run_burst_scenario(const char *name, int argc, char **argv)
{
	if (!strcmp(name, "burst"))
		burst();
	else if (!strcmp(name, "corked"))
		corked();
	else if (!strcmp(name, "segments"))
		segments();
	else if (!strcmp(name, "marks"))
		marks();
	else if (!strcmp(name, "faults"))
		faults(argc, argv);
	else if (!strcmp(name, "burst-cost"))
		burst_cost();
	else if (!strcmp(name, "burst-full"))
		burst_full();
	else if (!strcmp(name, "burst-waits"))
		burst_waits();
	else
		return 0;
	return 1;
}
