// SPDX-License-Identifier: Apache-2.0
// A listener that states the period of what it receives.
//   arrivals-few HOW [count=4] [period=NANOS]   receives so many numbers, 50 ms apart, and then waits in vain until standard input ends
//   period-option              the socket option of a period, right and wrong
#include "steps_arrivals.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>

// libktsn's own option: its level, and its name.
#define KT_SOL_KTSN 0x4b54534e
#define KT_RECEIVE_PERIOD 1

static long set_period(int fd, const void *nanos, socklen_t octets)
{
	return setsockopt(fd, KT_SOL_KTSN, KT_RECEIVE_PERIOD, nanos, octets) ? -errno : 0;
}

// What the option says; a negative errno without it.
static long get_period(int fd, socklen_t octets)
{
	uint64_t nanos[2] = {0x55, 0x55};
	socklen_t got = octets;

	if (getsockopt(fd, KT_SOL_KTSN, KT_RECEIVE_PERIOD, nanos, &got))
		return -errno;
	return got == 8 && nanos[1] == 0x55 ? (long)nanos[0] : LONG_MIN;
}

static void arrivals_few(const struct step *step)
{
	const char *how = step->word[1];
	int fd = listen_anywhere();
	struct sender sender = {name_of(fd), numeric(step, "count", 4), 50000000};
	uint64_t value = 0, nanos = (uint64_t)numeric(step, "period", 0);
	struct pollfd end = {0, POLLIN, 0};
	pthread_t thread;
	long received = 0;

	prepare(how, fd, 20);
	if (nanos)
		show("stated", set_period(fd, &nanos, sizeof(nanos)));
	// These attach.
	for (int i = 0; i < 5; i++)
		receive_by(how, fd, &value, sizeof(value), 20);
	pthread_create(&thread, NULL, send_in_thread, &sender);
	while (received < sender.count)
		received += receive_by(how, fd, &value, sizeof(value), 20) == sizeof(value);
	pthread_join(thread, NULL);
	// A call that expects an arrival asks for a grant.
	for (int i = 0; i < 5; i++)
		receive_by(how, fd, &value, sizeof(value), 20);
	show("received", received);
	while (poll(&end, 1, 0) == 0)
		receive_by(how, fd, &value, sizeof(value), 20);
}

static void period_option(const struct step *step)
{
	static const uint64_t good[] = {50000, 1000000, 10000000000, 0},
			      bad[] = {1, 49999, 10000000001, UINT64_MAX, 1ull << 63};
	int fd = listen_anywhere(), same = dup(fd), stream = socket(AF_INET, SOCK_STREAM, 0), local = socket(AF_UNIX, SOCK_DGRAM, 0);
	int v6 = socket(AF_INET6, SOCK_DGRAM, 0);
	uint64_t other = 7000000;
	char shifted[9] = "";

	(void)step;
	show("at_first", get_period(fd, 8));
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		memcpy(shifted + 1, &good[i], 8);
		show("good", set_period(fd, shifted + 1, 8));
		show("read", get_period(same, 16) == (long)good[i]);
	}
	set_period(fd, &other, 8);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		show("bad", set_period(fd, &bad[i], 8));
	show("short", set_period(fd, &other, 4));
	show("long", set_period(fd, bad, 16));
	show("null", set_period(fd, NULL, 8));
	show("nowhere", set_period(fd, (void *)0x10, 8));
	show("no_room", get_period(fd, 4));
	show("name", setsockopt(fd, KT_SOL_KTSN, 2, &other, 8) ? -errno : 0);
	show("kept", get_period(fd, 8));
	show("version_6", set_period(v6, &other, 8));
	show("stream", set_period(stream, &other, 8));
	show("local", set_period(local, &other, 8));
	show("none", set_period(999, &other, 8));
	close(fd);
	show("duplicate", get_period(same, 8));
	close(same);
	fd = listen_anywhere();
	show("new", get_period(fd, 8));
}

const struct verb period_verbs[] = {{"arrivals-few", arrivals_few}, {"period-option", period_option}, {0}};
