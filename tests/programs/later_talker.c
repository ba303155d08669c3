// SPDX-License-Identifier: Apache-2.0
// An ordinary program that sends datagrams with a transmit time, each as a line of its standard input says:
//   NUMBER ADDRESS PORT OCTETS LEAD_MS [KEY[=VALUE]…]
//   mark        SO_MARK 7            netns=PATH  the socket belongs to that namespace
//   more        the second half follows by a second call, after MSG_MORE; without a transmit time
//   cork        the same by UDP_CORK              parts=N     in N pieces of memory
//   dontfrag    IP_MTU_DISCOVER is IP_PMTUDISC_DO, IPV6_MTU_DISCOVER is IPV6_PMTUDISC_DO
//   cmark       SO_MARK as a control message      nonblock    MSG_DONTWAIT
//   connect     the socket is connected, the datagram names no destination, and is connected elsewhere afterwards
//   close       the socket is closed at once      many=N      so many datagrams by one sendmmsg
//   raw=DEVICE  a frame of a packet socket there  oob         MSG_OOB
//   stop=PID    that process is stopped before the call
//   keys        SO_TIMESTAMPING with SOF_TIMESTAMPING_OPT_ID, and the keys that came
// Octet n of a payload is NUMBER + 7 n. For each line it prints "NUMBER RESULT TX_TIME AFTER": what sendmsg returned (an error is the
// negative errno), the transmit time, and the time after the call, both in nanoseconds of CLOCK_TAI. With "keys" more numbers follow.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <linux/if_packet.h>
#include <linux/net_tstamp.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_TXTIME
#define SO_TXTIME 61
#endif

#define MANY 64

static char words[1024];

static const char *word(const char *name)
{
	static char found[256];
	size_t length = strlen(name);
	for (const char *at = words; *at; at += strcspn(at, " "), at += strspn(at, " "))
		if (!strncmp(at, name, length) && strchr("= ", at[length])) {
			const char *value = at + length + (at[length] == '=');
			snprintf(found, sizeof(found), "%.*s", (int)strcspn(value, " "), value);
			return found;
		}
	return NULL;
}

static uint64_t now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_TAI, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static socklen_t destination(struct sockaddr_storage *to, const char *text, int port)
{
	struct sockaddr_in *four = (struct sockaddr_in *)to;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)to;
	memset(to, 0, sizeof(*to));
	if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
		four->sin_family = AF_INET, four->sin_port = htons((uint16_t)port);
		return sizeof(*four);
	}
	if (inet_pton(AF_INET6, text, &six->sin6_addr) != 1)
		exit(2);
	six->sin6_family = AF_INET6, six->sin6_port = htons((uint16_t)port);
	return sizeof(*six);
}

static void set(int fd, int level, int option, int value)
{
	if (setsockopt(fd, level, option, &value, sizeof(value))) {
		perror("setsockopt");
		exit(3);
	}
}

static int timed(int family)
{
	const char *device = word("raw");
	int fd = socket(family, device ? SOCK_RAW : SOCK_DGRAM, 0);
	struct {
		int32_t clock;
		uint32_t flags;
	} txtime = {CLOCK_TAI, 0};
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_TXTIME, &txtime, sizeof(txtime))) {
		perror("SO_TXTIME");
		exit(3);
	}
	return fd;
}

static struct msghdr header(struct iovec *parts, int count, void *control, uint64_t tx_time, int mark)
{
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count, .msg_control = control,
				 .msg_controllen = CMSG_SPACE(8) + (mark ? CMSG_SPACE(4) : 0)};
	struct cmsghdr *item = CMSG_FIRSTHDR(&message);
	item->cmsg_level = SOL_SOCKET, item->cmsg_type = SO_TXTIME, item->cmsg_len = CMSG_LEN(8);
	memcpy(CMSG_DATA(item), &tx_time, 8);
	if (mark) {
		item = CMSG_NXTHDR(&message, item);
		item->cmsg_level = SOL_SOCKET, item->cmsg_type = SO_MARK, item->cmsg_len = CMSG_LEN(4);
		memcpy(CMSG_DATA(item), &mark, 4);
	}
	return message;
}

static long answer(ssize_t result)
{
	return result < 0 ? -errno : (long)result;
}

// The keys of `count` software timestamps, in the order of the error queue.
static void print_keys(int fd, int count)
{
	struct pollfd poll_for = {fd, 0, 0};
	while (count > 0 && poll(&poll_for, 1, 20000) == 1) {
		_Alignas(8) char control[512];
		char data[2048];
		struct iovec iov = {data, sizeof(data)};
		struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
					 .msg_controllen = sizeof(control)};
		if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
			continue;
		for (struct cmsghdr *item = CMSG_FIRSTHDR(&message); item; item = CMSG_NXTHDR(&message, item))
			if (item->cmsg_level == SOL_IP && item->cmsg_type == IP_RECVERR) {
				struct sock_extended_err report;
				memcpy(&report, CMSG_DATA(item), sizeof(report));
				printf(" %u", report.ee_data);
				count--;
			}
	}
}

static void step(int number, const char *address, int port, size_t octets, uint64_t lead_ms)
{
	static unsigned char payload[70000];
	static _Alignas(8) char control[MANY][CMSG_SPACE(8) + CMSG_SPACE(4)];
	static struct iovec parts[MANY][1024];
	struct mmsghdr messages[MANY];
	struct sockaddr_storage to;
	const char *netns = word("netns"), *device = word("raw");
	int home = -1;
	if (netns) {
		int there = open(netns, O_RDONLY | O_CLOEXEC);
		home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
		if (setns(there, CLONE_NEWNET))
			exit(4);
		close(there);
	}
	socklen_t to_octets = destination(&to, address, port);
	int is_v4 = to.ss_family == AF_INET;
	int fd = timed(device ? AF_PACKET : to.ss_family);
	if (netns && setns(home, CLONE_NEWNET))
		exit(4);
	if (netns)
		close(home);
	if (word("mark"))
		set(fd, SOL_SOCKET, SO_MARK, 7);
	if (word("dontfrag"))
		set(fd, is_v4 ? SOL_IP : SOL_IPV6, is_v4 ? IP_MTU_DISCOVER : IPV6_MTU_DISCOVER, IP_PMTUDISC_DO);
	if (word("connect") && connect(fd, (struct sockaddr *)&to, to_octets))
		exit(5);
	if (word("keys"))
		set(fd, SOL_SOCKET, SO_TIMESTAMPING,
		    SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_OPT_TSONLY);
	if (device) {
		struct sockaddr_ll *link = (struct sockaddr_ll *)&to;
		memset(&to, 0, sizeof(to));
		link->sll_family = AF_PACKET, link->sll_ifindex = (int)if_nametoindex(device);
		link->sll_protocol = htons(0x88b5), link->sll_halen = 6;
		to_octets = sizeof(*link);
	}
	for (size_t n = 0; n < octets; n++)
		payload[n] = (unsigned char)((size_t)number + 7 * n);
	if (device)
		memset(payload, 0xff, 6), payload[6] = 2, payload[12] = 0x88, payload[13] = 0xb5;
	int many = word("many") ? atoi(word("many")) : 1, count = word("parts") ? atoi(word("parts")) : 1;
	int is_halved = word("more") || word("cork");
	size_t whole = is_halved ? octets / 2 : octets;
	uint64_t tx_time = now() + lead_ms * 1000000u;
	memset(messages, 0, sizeof(messages));
	for (int each = 0; each < many; each++) {
		for (int part = 0; part < count; part++) {
			size_t from = whole * (size_t)part / (size_t)count, end = whole * (size_t)(part + 1) / (size_t)count;
			parts[each][part] = (struct iovec){payload + from, end - from};
		}
		messages[each].msg_hdr = header(parts[each], count, control[each], tx_time, word("cmark") ? 9 : 0);
		if (!word("connect"))
			messages[each].msg_hdr.msg_name = &to, messages[each].msg_hdr.msg_namelen = to_octets;
	}
	int flags = (word("nonblock") ? MSG_DONTWAIT : 0) | (word("more") ? MSG_MORE : 0) | (word("oob") ? MSG_OOB : 0);
	if (word("cork"))
		set(fd, SOL_UDP, UDP_CORK, 1);
	if (word("stop"))
		kill(atoi(word("stop")), SIGSTOP);
	long result = many > 1 ? answer(sendmmsg(fd, messages, (unsigned)many, flags))
			       : answer(sendmsg(fd, &messages[0].msg_hdr, flags));
	if (is_halved && result >= 0)
		result += answer(sendto(fd, payload + whole, octets - whole, 0, (struct sockaddr *)&to, to_octets));
	if (word("cork"))
		set(fd, SOL_UDP, UDP_CORK, 0);
	uint64_t after = now();
	if (word("connect")) {
		destination(&to, is_v4 ? "127.0.0.1" : "::1", 9);
		connect(fd, (struct sockaddr *)&to, to_octets);
	}
	printf("%d %ld %llu %llu", number, result, (unsigned long long)tx_time, (unsigned long long)after);
	if (word("keys"))
		print_keys(fd, many);
	printf("\n");
	fflush(stdout);
	if (word("close"))
		close(fd);
}

int main(void)
{
	char line[1024], address[64];
	while (fgets(line, sizeof(line), stdin)) {
		int number, port, read = 0;
		unsigned long octets, lead_ms;
		if (sscanf(line, "%d %63s %d %lu %lu %n", &number, address, &port, &octets, &lead_ms, &read) != 5)
			return 2;
		snprintf(words, sizeof(words), "%.*s ", (int)strcspn(line + read, "\n"), line + read);
		step(number, address, port, octets, lead_ms);
	}
	return 0;
}
