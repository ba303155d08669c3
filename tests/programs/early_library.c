// SPDX-License-Identifier: Apache-2.0
// A library of the program whose constructor may run before every other library's.
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static long sent;

__attribute__((constructor(101))) static void first(void)
{
	int32_t txtime[2] = {11, 0};
	struct timespec time;
	char control[CMSG_SPACE(8)] = {0};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(4321)};
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	struct iovec iov = {"early", 5};
	struct msghdr message = {.msg_name = &to, .msg_namelen = sizeof(to), .msg_iov = &iov, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof(control)};
	clock_gettime(11, &time);
	uint64_t at = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec + 200000000u;
	struct cmsghdr *item = CMSG_FIRSTHDR(&message);
	item->cmsg_level = SOL_SOCKET, item->cmsg_type = 61, item->cmsg_len = CMSG_LEN(8);
	memcpy(CMSG_DATA(item), &at, 8);
	if (setsockopt(fd, SOL_SOCKET, 61, txtime, sizeof(txtime)))
		return;
	sent = sendmsg(fd, &message, 0);
}

long early(void)
{
	return sent;
}
