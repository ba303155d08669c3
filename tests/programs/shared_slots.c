// SPDX-License-Identifier: Apache-2.0
// Two timed sockets of one process: shared_slots DEST PORT BURST; it knows nothing of KTSN. The first one sends as far ahead as it can
// without waiting, then the other one; later the first one alone, when the other one is closed.
// Prints "what value" lines: greedy, modest, alone (datagrams that were taken before the first EAGAIN).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
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

static struct sockaddr_in to;

static int timed_socket(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct {
		int32_t clock;
		uint32_t flags;
	} txtime = {CLOCK_MONOTONIC, 0};
	if (setsockopt(fd, SOL_SOCKET, SO_TXTIME, &txtime, sizeof(txtime))) {
		perror("SO_TXTIME");
		exit(3);
	}
	if (connect(fd, (struct sockaddr *)&to, sizeof(to))) {
		perror("connect");
		exit(4);
	}
	return fd;
}

// `burst`: so many messages in one call of sendmmsg.
static int until_full(int fd, long ahead_ms, unsigned burst)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	uint64_t at = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + (uint64_t)ahead_ms * 1000000u;
	_Alignas(8) char control[CMSG_SPACE(8)] = {0};
	struct iovec iov = {&at, sizeof(at)};
	struct mmsghdr messages[64] = {0};
	for (unsigned i = 0; i < burst; i++)
		messages[i].msg_hdr = (struct msghdr){.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
						      .msg_controllen = sizeof(control)};
	struct cmsghdr *item = CMSG_FIRSTHDR(&messages[0].msg_hdr);
	item->cmsg_level = SOL_SOCKET, item->cmsg_type = SO_TXTIME, item->cmsg_len = CMSG_LEN(8);
	memcpy(CMSG_DATA(item), &at, 8);
	for (int sent = 0;;) {
		int taken = sendmmsg(fd, messages, burst, MSG_DONTWAIT);
		if (taken < 0) {
			if (errno != EAGAIN) {
				perror("sendmmsg");
				exit(5);
			}
			return sent;
		}
		sent += taken;
	}
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	unsigned burst = (unsigned)atoi(argv[3]);
	to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
	if (inet_pton(AF_INET, argv[1], &to.sin_addr) != 1)
		return 2;
	int greedy = timed_socket(), modest = timed_socket();
	printf("greedy %d\n", until_full(greedy, 3000, burst));
	printf("modest %d\n", until_full(modest, 3000, burst));
	close(modest);
	sleep(4);
	printf("alone %d\n", until_full(greedy, 100, burst));
	return 0;
}
