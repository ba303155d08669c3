// SPDX-License-Identifier: Apache-2.0
// A listener whose tracer injects signals into its calls (tests/src/tracer).
//   arrivals-traced HOW [restart=1]
// It stops by a trap instruction where a round begins, where its call begins, where the call has ended, and where what the call left was
// taken. The tracer reads the numbers of a stop from the registers: rdi says where, rsi and rdx are below. A round: datagrams numbered
// from 0 on are received, of which the last one has the top bit set; then the call may receive one more, of the number 4711.
#include "steps_arrivals.h"

#include <signal.h>

#define LAST (UINT64_C(1) << 63)

enum place {
	// rsi: the socket's port.
	ROUND = 1,
	CALL = 2,
	// rsi: octets or negative errno; rdx: the datagram's number.
	ENDED = 3,
	// rsi: how many datagrams were left; rdx: how many handlers ran so far.
	TAKEN = 4,
};

static volatile sig_atomic_t handled;

static void count_signal(int signal)
{
	(void)signal;
	handled = handled + 1;
}

static void stop(enum place place, int64_t first, uint64_t second)
{
#ifdef __x86_64__
	__asm__ volatile("int3" : : "D"((uint64_t)place), "S"(first), "d"(second) : "memory");
#else
	(void)place, (void)first, (void)second;
	exit(6);
#endif
}

static void traced(const struct step *step)
{
	const char *how = step->word[1];
	struct sigaction action = {.sa_handler = count_signal, .sa_flags = numeric(step, "restart", 0) ? SA_RESTART : 0};
	int fd = listen_anywhere();
	char line[8];

	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGUSR2, &action, NULL);
	prepare(how, fd, -1);
	// The tracer is there.
	if (read(0, line, sizeof(line)) <= 0)
		return;
	for (;;) {
		uint64_t value = 0;
		int64_t left = 0;

		stop(ROUND, ntohs(name_of(fd).sin_port), 0);
		for (uint64_t i = 0; !(value & LAST); i++)
			if (receive_by(how, fd, &value, sizeof(value), -1) != sizeof(value) || (value & ~LAST) != i)
				exit(7);
		errno = 0;
		value = 0;
		stop(CALL, 0, 0);
		long answer = receive_by(how, fd, &value, sizeof(value), -1);
		stop(ENDED, answer < 0 ? -errno : answer, value);
		while (recv(fd, &value, sizeof(value), MSG_DONTWAIT) > 0)
			left++;
		stop(TAKEN, left, (uint64_t)handled);
	}
}

const struct verb traced_verbs[] = {{"arrivals-traced", traced}, {0}};
