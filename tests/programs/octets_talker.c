/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends the datagrams of one case a line, each from a new socket with SO_TXTIME. Standard input: words of a case; standard output:
 * a line for each case with what the calls answered. What a case means is in tests/tests/octets.rs.
 *
 *   case=N kind=4|6|raw|dgram count=N size=N port=N to=ADDRESS,PORT[,SCOPE[,FLOWINFO]] from=ADDRESS connect=0|1 flags=N
 *   o=LEVEL:NAME:HEX (in order; after connect where written as O=)   m=LEVEL:TYPE:HEX   frame=HEX (what stands before the payload)
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <linux/net_tstamp.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PAYLOAD_MAX = 65536, LINE_MAX_OCTETS = 4096, WORDS_MAX = 64, LEAD = 2000000 };

static int word_count;
static char *words[WORDS_MAX];

static const char *value_of(const char *key, const char *otherwise)
{
	size_t length = strlen(key);
	for (int i = 0; i < word_count; i++)
		if (!strncmp(words[i], key, length) && words[i][length] == '=')
			return words[i] + length + 1;
	return otherwise;
}

static long number_of(const char *key, long otherwise)
{
	const char *text = value_of(key, NULL);
	return text ? strtol(text, NULL, 0) : otherwise;
}

static size_t from_hex(const char *text, uint8_t *octets, size_t most)
{
	size_t count = 0;
	unsigned value;
	while (count < most && sscanf(text, "%2x", &value) == 1) {
		octets[count++] = (uint8_t)value;
		text += 2;
	}
	return count;
}

/* "LEVEL:NAME:HEX" */
static size_t triple(const char *text, int *level, int *name, uint8_t *octets, size_t most)
{
	int at = 0;
	if (sscanf(text, "%d:%d:%n", level, name, &at) < 2 || !at)
		exit(3);
	return from_hex(text + at, octets, most);
}

/* Sets the options of this key; an errno for each that failed. */
static void set_options(int fd, char key)
{
	uint8_t octets[512];
	int level, name;
	for (int i = 0; i < word_count; i++) {
		if (words[i][0] != key || words[i][1] != '=')
			continue;
		size_t length = triple(words[i] + 2, &level, &name, octets, sizeof(octets));
		if (setsockopt(fd, level, name, octets, (socklen_t)length))
			printf(" option=%d", errno);
	}
}

static socklen_t address_of(const char *text, int is_v6, struct sockaddr_storage *storage)
{
	char host[64] = "";
	unsigned port = 0, scope = 0, flow = 0;
	memset(storage, 0, sizeof(*storage));
	sscanf(text, "%63[^,],%u,%u,%x", host, &port, &scope, &flow);
	if (is_v6) {
		struct sockaddr_in6 *six = (void *)storage;
		six->sin6_family = AF_INET6;
		six->sin6_port = htons((uint16_t)port);
		six->sin6_scope_id = scope;
		six->sin6_flowinfo = htonl(flow);
		if (inet_pton(AF_INET6, host, &six->sin6_addr) != 1)
			exit(3);
		return sizeof(*six);
	}
	struct sockaddr_in *four = (void *)storage;
	four->sin_family = AF_INET;
	four->sin_port = htons((uint16_t)port);
	if (inet_pton(AF_INET, host, &four->sin_addr) != 1)
		exit(3);
	return sizeof(*four);
}

static int open_socket(const char *kind)
{
	int is_packet = !strcmp(kind, "raw") || !strcmp(kind, "dgram");
	int family = is_packet ? AF_PACKET : *kind == '6' ? AF_INET6 : AF_INET;
	int fd = socket(family, !strcmp(kind, "raw") ? SOCK_RAW : SOCK_DGRAM, 0);
	struct sock_txtime txtime = { .clockid = CLOCK_MONOTONIC };
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_TXTIME, &txtime, sizeof(txtime)))
		exit(4);
	return fd;
}

static void add_message(struct msghdr *header, size_t most, int level, int type, const void *data, size_t length)
{
	struct cmsghdr *message = (void *)((char *)header->msg_control + header->msg_controllen);
	if (header->msg_controllen + CMSG_SPACE(length) > most)
		exit(3);
	message->cmsg_level = level;
	message->cmsg_type = type;
	message->cmsg_len = CMSG_LEN(length);
	memcpy(CMSG_DATA(message), data, length);
	header->msg_controllen += CMSG_SPACE(length);
}

static void send_all(int fd, const char *kind, long number)
{
	static uint8_t payload[PAYLOAD_MAX], frame[PAYLOAD_MAX];
	struct sockaddr_storage to;
	struct sockaddr_ll link = { .sll_family = AF_PACKET, .sll_halen = 6, .sll_ifindex = (int)if_nametoindex("eth0") };
	socklen_t to_length = 0;
	const char *text = value_of("to", NULL);
	int is_connected = (int)number_of("connect", 0), is_packet = !strcmp(kind, "raw") || !strcmp(kind, "dgram");
	size_t size = (size_t)number_of("size", 64), before = from_hex(value_of("frame", ""), frame, 256);
	if (is_packet) {
		link.sll_protocol = htons(0x0800);
		memcpy(link.sll_addr, frame, 6);
	} else {
		to_length = address_of(text, *kind == '6', &to);
		if (is_connected && connect(fd, (void *)&to, to_length))
			printf(" connect=%d", errno);
	}
	set_options(fd, 'O');
	for (long i = 0; i < number_of("count", 3); i++) {
		_Alignas(8) char control[1024] = "";
		struct timespec now;
		struct { uint32_t number; uint64_t place, zero; } __attribute__((packed)) mark = { (uint32_t)number, (uint64_t)i, 0 };
		struct iovec parts[2] = { { frame, !strcmp(kind, "raw") ? before : before > 14 ? before - 14 : 0 }, { payload, size } };
		struct msghdr header = { .msg_iov = parts, .msg_iovlen = 2, .msg_control = control };
		if (!strcmp(kind, "dgram"))
			parts[0].iov_base = frame + 14;
		for (size_t at = 0; at < size; at++)
			payload[at] = (uint8_t)(at * 7 + (size_t)i);
		memcpy(payload, "KTSO", 4);
		memcpy(payload + 4, &mark, sizeof(mark));
		if (is_packet) {
			header.msg_name = &link;
			header.msg_namelen = sizeof(link);
		} else if (!is_connected) {
			header.msg_name = &to;
			header.msg_namelen = to_length;
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
		uint64_t at = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec + LEAD;
		add_message(&header, sizeof(control), SOL_SOCKET, SO_TXTIME, &at, sizeof(at));
		for (int w = 0; w < word_count; w++) {
			uint8_t octets[256];
			int level, type;
			if (strncmp(words[w], "m=", 2))
				continue;
			size_t length = triple(words[w] + 2, &level, &type, octets, sizeof(octets));
			add_message(&header, sizeof(control), level, type, octets, length);
		}
		ssize_t sent = sendmsg(fd, &header, (int)number_of("flags", 0));
		printf(" %zd", sent < 0 ? -(ssize_t)errno : sent);
	}
}

int main(void)
{
	static char line[LINE_MAX_OCTETS];
	while (fgets(line, sizeof(line), stdin)) {
		word_count = 0;
		for (char *word = strtok(line, " \n"); word && word_count < WORDS_MAX; word = strtok(NULL, " \n"))
			words[word_count++] = word;
		const char *kind = value_of("kind", "4"), *from = value_of("from", NULL);
		long number = number_of("case", 0);
		int fd = open_socket(kind);
		printf("%ld", number);
		set_options(fd, 'o');
		if (*kind == '4' || *kind == '6') {
			struct sockaddr_storage local;
			char address[96];
			snprintf(address, sizeof(address), "%s,%ld", from ? from : *kind == '6' ? "::" : "0.0.0.0", number_of("port", 0));
			socklen_t length = address_of(address, *kind == '6', &local);
			if (bind(fd, (void *)&local, length))
				printf(" bind=%d", errno);
		}
		send_all(fd, kind, number);
		printf("\n");
		fflush(stdout);
		/* What was handed over leaves all the same. */
		close(fd);
	}
	return 0;
}
