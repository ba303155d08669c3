// SPDX-License-Identifier: Apache-2.0
// Scenarios about what a send waits for and what it costs: full, cost, stream COUNT PERIOD_US [nonblocking].
#include "steps.h"

#include "few_calls.h"
#include "waited.h"

#include <signal.h>
#include <sys/time.h>

static void interrupt(int number)
{
	(void)number;
}

static void full(const struct step *)
{
	int fd = timed_socket(AF_INET, TAI), count = 0;
	struct sockaddr_in to = to4(default_port());
	long sent;
	while ((sent = send_at(fd, &to, sizeof(to), "fill", now(TAI) + 5000000000, MSG_DONTWAIT)) == 4 && count < 100000)
		count++;
	show("filled", count);
	show("full", sent);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	show("nonblocking", send_text(fd, "x"));
	fcntl(fd, F_SETFL, 0);
	struct timeval wait = {0, 50000};
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	uint64_t start = now(MONOTONIC);
	show("timeout", send_text(fd, "x"));
	show("waited-ms", (long)((now(MONOTONIC) - start) / 1000000));
	wait.tv_usec = 0;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	struct sigaction action = {.sa_handler = interrupt};
	sigaction(SIGALRM, &action, NULL);
	// Again and again: the first one may come before the send waits.
	struct itimerval timer = {{0, 20000}, {0, 20000}}, off = {{0, 0}, {0, 0}};
	setitimer(ITIMER_REAL, &timer, NULL);
	long interrupted = send_text(fd, "x");
	action.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &action, NULL);
	wait.tv_sec = 20;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	long with_timeout = send_text(fd, "x");
	wait.tv_sec = 0;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	show("interrupted", interrupted);
	show("with-timeout", with_timeout);
	// Line by line: the test lets slots go when it has read this, and some of the timer's signals have come.
	show("blocking", 1);
	long released = send_text(fd, "late");
	setitimer(ITIMER_REAL, &off, NULL);
	show("released", released);
}

// What one send of 64 octets costs while slots are free and no thread must be woken: the mean.
static void cost(const struct step *)
{
	uint64_t took = 0;
	int fd = timed_socket(AF_INET, TAI);
	char text[65];
	memset(text, 'c', 64), text[64] = 0;
	struct sockaddr_in to = to4(default_port());
	send_at(fd, &to, sizeof(to), text, now(TAI) + 5000000000, 0);
	only_few_calls();
	for (int i = 0; i < 4000; i++) {
		uint64_t at = now(TAI) + 5000000000, start = now(MONOTONIC);
		if (send_at(fd, &to, sizeof(to), text, at, 0) != 64)
			exit(5);
		took += now(MONOTONIC) - start;
	}
	show("send-ns", (long)took / 4000);
}

// stream COUNT PERIOD_US [nonblocking]: one frame a period, and how many sends after the first had to wait.
static void stream(const struct step *step)
{
	long count = word_number(step, 1), period = word_number(step, 2), waits = 0, failed = 0;
	int fd = timed_socket(AF_INET, MONOTONIC);
	struct sockaddr_in to = to4(default_port());
	if (step->count > 3)
		fcntl(fd, F_SETFL, O_NONBLOCK);
	show("ready", 1);
	for (long i = 0; i < count; i++) {
		char text[32];
		snprintf(text, sizeof(text), "s%ld", i);
		long waited_before = waited();
		long sent = send_at(fd, &to, sizeof(to), text, now(MONOTONIC) + 100000000, 0);
		waits += i > 0 && waited() > waited_before;
		failed += sent != (long)strlen(text);
		usleep((useconds_t)period);
	}
	show("failed", failed);
	show("waits", waits);
}

const struct verb cost_verbs[] = {
	{"full", full}, {"cost", cost}, {"stream", stream}, {0},
};
