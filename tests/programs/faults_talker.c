// SPDX-License-Identifier: Apache-2.0
// An ordinary program that sends with SO_TXTIME: faults_talker DEST PORT [KEY=VALUE…]; it knows nothing of KTSN.
//   sender=N  number in each payload           clock=11 (TAI) or 1 (MONOTONIC)
//   count=N period_us=N lead_us=N              one datagram a period, sent lead before its TxTime
//   burst=1   all at once, TxTimes a period apart, the first lead ahead
//   zero=1    TxTime 0      past=1  TxTime lead ago      octets=N  payload      connect=1      nonblock=1
//   flags=N   of SO_TXTIME (1 = SOF_TXTIME_DEADLINE_MODE)
//   untimed=1 no TxTime at all     priority=N  SO_PRIORITY     from=ADDRESS  the socket is bound to it
//   discover=N  IP_MTU_DISCOVER, IPV6_MTU_DISCOVER               device=NAME  SO_BINDTODEVICE
//   own=N     its port             tos=N  IP_TOS               uid=N  the user that the socket belongs to      mark=N  SO_MARK
//   source=ADDRESS  of each datagram, by IP_PKTINFO         again=1  each datagram has a socket of its own, closed at once
//   stay=1    exits when its standard input has ended
//   hold_ms=N sleeps so long before it exits   settle_ms=N  between the first datagram and the others
//   go=1      the first one is sent again each 100 ms, lead before its TxTime, until there is a line or the end of standard
//             input; then come the others
//   last=N    N more datagrams follow the end of standard input, which a test closes; `count` is the most in all
//   record=F  a file of one u64 for each datagram, written while it runs and readable after a kill: CLOCK_MONOTONIC before
//             the send << 2 | 1 in the call, 2 taken, 3 failed; 0 = not sent yet
// Prints "what value" lines: sent, failed, errno (last), port, waits (sends that waited for something, but for the
// first; one that was merely preempted does not count), firsts (how often the first was sent).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "waited.h"

#ifndef SO_TXTIME
#define SO_TXTIME 61
#endif

struct txtime {
	int32_t clock;
	uint32_t flags;
};

// At the start of each payload; read by the test on the same machine.
struct mark {
	char magic[4];
	uint32_t sender;
	uint64_t sequence;
	uint64_t tx_time;
	uint32_t clock;
	uint32_t zero;
};

static char **keys;

static long value(const char *name, long otherwise)
{
	size_t length = strlen(name);
	for (char **key = keys; *key; key++)
		if (!strncmp(*key, name, length) && (*key)[length] == '=')
			return atol(*key + length + 1);
	return otherwise;
}

static const char *text(const char *name)
{
	size_t length = strlen(name);
	for (char **key = keys; *key; key++)
		if (!strncmp(*key, name, length) && (*key)[length] == '=')
			return *key + length + 1;
	return NULL;
}

static uint64_t now(clockid_t clock)
{
	struct timespec time;
	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void sleep_until(clockid_t clock, uint64_t at)
{
	uint64_t here = now(clock);
	if (at > here) {
		struct timespec span = {(time_t)((at - here) / 1000000000u), (long)((at - here) % 1000000000u)};
		nanosleep(&span, NULL);
	}
}

static struct sockaddr_storage destination(const char *text, int port, socklen_t *octets)
{
	struct sockaddr_storage storage = {0};
	struct sockaddr_in *four = (struct sockaddr_in *)&storage;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)&storage;
	if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
		four->sin_family = AF_INET, four->sin_port = htons((uint16_t)port), *octets = sizeof(*four);
	} else if (inet_pton(AF_INET6, text, &six->sin6_addr) == 1) {
		six->sin6_family = AF_INET6, six->sin6_port = htons((uint16_t)port), *octets = sizeof(*six);
	} else {
		exit(2);
	}
	return storage;
}

static ssize_t send_at(int fd, struct sockaddr_storage *to, socklen_t to_octets, char *payload, size_t octets,
		       uint64_t tx_time)
{
	_Alignas(8) char control[CMSG_SPACE(8) + CMSG_SPACE(sizeof(struct in_pktinfo))] = {0};
	struct iovec iov = {payload, octets};
	struct msghdr message = {.msg_name = to, .msg_namelen = to_octets, .msg_iov = &iov, .msg_iovlen = 1,
				 .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *item = CMSG_FIRSTHDR(&message);
	item->cmsg_level = SOL_SOCKET, item->cmsg_type = SO_TXTIME, item->cmsg_len = CMSG_LEN(8);
	memcpy(CMSG_DATA(item), &tx_time, 8);
	message.msg_controllen = CMSG_SPACE(8);
	if (text("source")) {
		struct in_pktinfo info = {0};
		inet_pton(AF_INET, text("source"), &info.ipi_spec_dst);
		message.msg_controllen = sizeof(control);
		item = CMSG_NXTHDR(&message, item);
		item->cmsg_level = IPPROTO_IP, item->cmsg_type = IP_PKTINFO, item->cmsg_len = CMSG_LEN(sizeof(info));
		memcpy(CMSG_DATA(item), &info, sizeof(info));
	}
	if (value("untimed", 0))
		message.msg_control = NULL, message.msg_controllen = 0;
	return sendmsg(fd, &message, value("nonblock", 0) ? MSG_DONTWAIT : 0);
}

static void say(const char *what, long number)
{
	printf("%s %ld\n", what, number);
	fflush(stdout);
}

static int timed_socket(int family, clockid_t clock)
{
	int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct txtime txtime = {clock, (uint32_t)value("flags", 0)};
	if (setsockopt(fd, SOL_SOCKET, SO_TXTIME, &txtime, sizeof(txtime))) {
		perror("SO_TXTIME");
		exit(3);
	}
	// Unless it is told otherwise, a datagram over the MTU is to go out in pieces instead of failing.
	int discover = (int)value("discover", family == AF_INET ? IP_PMTUDISC_DONT : IPV6_PMTUDISC_WANT), broadcast = 1;
	if (family == AF_INET)
		setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof(discover));
	else
		setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &discover, sizeof(discover));
	setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &broadcast, sizeof(broadcast));
	int priority = (int)value("priority", 0);
	setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
	int tos = (int)value("tos", 0), mark = (int)value("mark", 0);
	if ((tos && setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos))) ||
	    (mark && setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof(mark))) ||
	    (text("device") && setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, text("device"), (socklen_t)strlen(text("device")))) ||
	    (value("uid", 0) && fchown(fd, (uid_t)value("uid", 0), (gid_t)-1))) {
		perror("a socket");
		exit(3);
	}
	return fd;
}

static void bind_own(int fd, int family)
{
	if (!text("from") && !value("own", 0))
		return;
	socklen_t octets = 0;
	const char *own = text("from") ? text("from") : family == AF_INET ? "0.0.0.0" : "::";
	struct sockaddr_storage from = destination(own, (int)value("own", 0), &octets);
	if (bind(fd, (struct sockaddr *)&from, octets)) {
		perror("bind");
		exit(5);
	}
}

// One word for each datagram, in the file of `record`; without that, none.
static _Atomic uint64_t *records(size_t count)
{
	if (!text("record"))
		return NULL;
	size_t octets = count * sizeof(uint64_t);
	int fd = open(text("record"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)octets))
		exit(6);
	void *words = mmap(NULL, octets, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (words == MAP_FAILED)
		exit(6);
	close(fd);
	return words;
}

int main(int argc, char **argv)
{
	static char payload[65536];
	socklen_t to_octets = 0;
	if (argc < 3)
		return 2;
	keys = argv + 3;
	struct sockaddr_storage to = destination(argv[1], atoi(argv[2]), &to_octets), *name = &to;
	clockid_t clock = (clockid_t)value("clock", 11);
	uint64_t period = (uint64_t)value("period_us", 1000) * 1000, lead = (uint64_t)value("lead_us", 100000) * 1000;
	long count = value("count", 1), sent = 0, failed = 0, error = 0, waits = 0, firsts = 1;
	size_t octets = (size_t)value("octets", 64);
	int fd = timed_socket(to.ss_family, clock), burst = (int)value("burst", 0);
	bind_own(fd, to.ss_family);
	if (value("connect", 0)) {
		if (connect(fd, (struct sockaddr *)&to, to_octets))
			return 4;
		name = NULL, to_octets = 0;
	}
	_Atomic uint64_t nowhere, *record = records((size_t)count);
	say("ready", 1);
	uint64_t start = now(clock) + lead;
	long last = value("last", 0);
	for (long i = 0; i < count; i++) {
		if (last && poll(&(struct pollfd){0, POLLIN, 0}, 1, 0) > 0)
			count = i + last < count ? i + last : count, last = 0;
		uint64_t due = start + (uint64_t)i * period, tx_time = due;
		if (!burst)
			sleep_until(clock, due - lead);
		if (i > 0 && value("again", 0)) {
			close(fd);
			fd = timed_socket(to.ss_family, clock);
			bind_own(fd, to.ss_family);
		}
		if (value("zero", 0))
			tx_time = 0;
		if (value("past", 0))
			tx_time = now(clock) - lead;
		struct mark mark = {{'K', 'T', 'S', 'F'}, (uint32_t)value("sender", 0), (uint64_t)i, tx_time,
				    (uint32_t)clock, 0};
		memcpy(payload, &mark, sizeof(mark));
		long before = waited();
		uint64_t at = now(CLOCK_MONOTONIC) << 2;
		_Atomic uint64_t *word = record ? &record[i] : &nowhere;
		*word = at | 1;
		ssize_t result = send_at(fd, name, to_octets, payload, octets, tx_time);
		*word = at | (result == (ssize_t)octets ? 2 : 3);
		if (result == (ssize_t)octets)
			sent++;
		else
			failed++, error = errno;
		// The first send may attach the program; the others must not wait for anybody.
		if (i > 0 && waited() > before)
			waits++;
		if (i == 0)
			usleep((useconds_t)value("settle_ms", 0) * 1000);
		if (i == 0 && value("go", 0)) {
			struct pollfd input = {0, POLLIN, 0};
			for (; poll(&input, 1, 100) == 0; firsts++) {
				mark.tx_time = now(clock) + lead;
				memcpy(payload, &mark, sizeof(mark));
				send_at(fd, name, to_octets, payload, octets, mark.tx_time);
			}
			start = now(clock) + lead;
		}
	}
	struct sockaddr_in6 local = {0};
	socklen_t local_octets = sizeof(local);
	getsockname(fd, (struct sockaddr *)&local, &local_octets);
	say("sent", sent), say("failed", failed), say("errno", error), say("waits", waits), say("firsts", firsts);
	say("port", ntohs(local.sin6_port));
	usleep((useconds_t)value("hold_ms", 0) * 1000);
	if (value("stay", 0))
		poll(&(struct pollfd){0, POLLIN, 0}, 1, -1);
	return 0;
}
