// SPDX-License-Identifier: Apache-2.0
// An ordinary listener: periodic_listener PORT. It writes "ready", then waits in recv for datagrams that are numbered from 0 on (32 bits,
// network order). An empty datagram ends it: it writes "received N in order". Exit status 1: a datagram is missing, twice or out of order.
// periodic_listener PORT MICROSECONDS [ADDRESS]: the talker to 127.0.0.1 or that address, one datagram each so many microseconds, until
// its standard input ends. It keeps its phase when the machine stalls: no datagram is sent for what has passed.
#include <arpa/inet.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

static uint64_t now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int talk(const struct sockaddr_in *to, uint64_t period)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	uint32_t number = 0;
	if (fd < 0 || connect(fd, (const struct sockaddr *)to, sizeof(*to)))
		return 3;
	for (struct pollfd input = {0, POLLIN, 0}; poll(&input, 1, 0) == 0; number++) {
		uint64_t at = (now() / period + 1) * period;
		struct timespec until = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		uint32_t payload = htonl(number);
		if (send(fd, &payload, sizeof(payload), 0) != sizeof(payload))
			return 4;
	}
	return send(fd, "", 0, 0) ? 4 : 0;
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
	if (argc > 2) {
		if (inet_pton(AF_INET, argc > 3 ? argv[3] : "127.0.0.1", &name.sin_addr) != 1)
			return 2;
		return talk(&name, (uint64_t)atol(argv[2]) * 1000);
	}
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	// A listener that gets little CPU loses nothing.
	int octets_max = 8 << 20;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &octets_max, sizeof(octets_max));
	if (fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof(name))) {
		perror("bind");
		return 3;
	}
	puts("ready");
	fflush(stdout);
	for (uint32_t expected = 0;; expected++) {
		uint32_t number;
		ssize_t octets = recv(fd, &number, sizeof(number), 0);
		if (octets == 0) {
			printf("received %u in order\n", expected);
			return 0;
		}
		if (octets != sizeof(number) || ntohl(number) != expected) {
			printf("%zd octets, number %u, expected %u\n", octets, ntohl(number), expected);
			return 1;
		}
	}
}
