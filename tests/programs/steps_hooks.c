// SPDX-License-Identifier: Apache-2.0
// The scenario counted: every hook many times, while a library counts what is asked of the C library (count_library.c).
#include "steps.h"

#include <sys/ioctl.h>

// Of the library that counts, where it is there.
extern long counted_calls(void) __attribute__((weak));

static long all_hooks(int fd, int rounds)
{
	long failed = 0;
	int value = 3, pending;
	struct txtime read;
	struct sockaddr_in to = to4(default_port()), any = {.sin_family = AF_INET};
	struct mmsghdr none;
	for (int i = 0; i < rounds; i++) {
		socklen_t octets = sizeof(read);
		int other = socket(AF_INET, SOCK_DGRAM, 0), third;
		failed += bind(other, (struct sockaddr *)&any, sizeof(any)) != 0;
		failed += set_txtime(other, TAI) != 0;
		failed += send_text(other, "o") != 1;
		failed += connect(other, (struct sockaddr *)&to, sizeof(to)) != 0;
		failed += send_at(other, NULL, 0, "c", now(TAI) + 200000000, 0) != 1;
		failed += setsockopt(other, SOL_SOCKET, SO_PRIORITY, &value, sizeof(value)) != 0;
		failed += getsockopt(other, SOL_SOCKET, KT_SO_TXTIME, &read, &octets) != 0;
		failed += send_text(fd, "f") != 1;
		failed += sendmmsg(fd, &none, 0, 0) != 0;
		third = dup(other);
		failed += dup2(other, 30) != 30 || dup3(other, 31, O_CLOEXEC) != 31;
		failed += fcntl(other, F_DUPFD, 32) != 32 || ioctl(other, FIONREAD, &pending) != 0;
		failed += close(32) || close(31) || close(30) || close(third);
#ifdef __GLIBC__
		failed += close_range((unsigned)other, (unsigned)other, 0) != 0;
#else
		failed += close(other) != 0;
#endif
		failed += close(other) != -1;
	}
	return failed;
}

static void counted(const struct step *)
{
	int fd = timed_socket(AF_INET, TAI);
	show("first", all_hooks(fd, 1));
	// What is counted at all.
	void *volatile block = malloc(10);
	free(block);
	long before = counted_calls ? counted_calls() : -1;
	long failed = all_hooks(fd, 200);
	long after = counted_calls ? counted_calls() : -1;
	show("failed", failed);
	show("before", before);
	show("calls", after - before);
}

const struct verb hook_verbs[] = {
	{"counted", counted}, {0},
};
