// SPDX-License-Identifier: Apache-2.0
// Scenarios under a filter of system calls, and a send before main.
#include "steps.h"

#include "few_calls.h"

#include <signal.h>
#include <sys/syscall.h>

enum { LOAD_WORD = 0x20, JUMP_EQUAL = 0x15, RETURN = 6 };
enum { RETURN_TRAP = 0x30000, RETURN_ERRNO = 0x50000, RETURN_ALLOW = 0x7fff0000 };

// After it these system calls pass and all others end as `otherwise` says.
static void allow(uint32_t otherwise, const long *allowed, unsigned count)
{
	// The number of the system call is the first word.
	struct instruction instructions[40] = {{LOAD_WORD, 0, 0, 0}};
	unsigned at = 1;
	for (unsigned i = 0; i < count; i++) {
		instructions[at++] = (struct instruction){JUMP_EQUAL, 0, 1, (uint32_t)allowed[i]};
		instructions[at++] = (struct instruction){RETURN, 0, 0, RETURN_ALLOW};
	}
	instructions[at++] = (struct instruction){RETURN, 0, 0, otherwise};
	filter_calls(instructions, at);
}

static volatile sig_atomic_t trapped, last_trapped = -1;

static void on_trap(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	trapped = trapped + 1;
	last_trapped = info->si_syscall;
}

// A timed send makes no system call at all: no lock, no allocation, no line of a log. The answer is how many it made, and the last
// one's number (-1: none).
static void no_calls(const struct step *)
{
	static const long allowed[] = {SYS_write, SYS_exit_group, SYS_rt_sigreturn};
	int fd = timed_socket(AF_INET, TAI);
	struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
	long failed = 0;
	uint64_t at = now(TAI) + 200000000000;
	struct sockaddr_in to = to4(default_port());
	show("first", send_text(fd, "first"));
	sigaction(SIGSYS, &action, NULL);
	allow(RETURN_TRAP, allowed, sizeof(allowed) / sizeof(allowed[0]));
	for (int i = 0; i < 100; i++)
		failed += send_at(fd, &to, sizeof(to), "silent", at, 0) != 6;
	int calls = trapped, number = last_trapped;
	char text[64];
	int octets = snprintf(text, sizeof(text), "failed %ld\ncalls %d\nnumber %d\n", failed, calls, number);
	syscall(SYS_write, 1, text, octets);
	syscall(SYS_exit_group, 0);
}

// A program that allows itself no more than sending.
static void sandboxed(const struct step *)
{
	static const long allowed[] = {SYS_write, SYS_exit_group, SYS_sendmsg, SYS_getsockopt, SYS_nanosleep, SYS_clock_nanosleep};
	int fd = timed_socket(AF_INET, TAI);
	long failed = 0;
	show("first", send_text(fd, "first"));
	allow(RETURN_ERRNO | EPERM, allowed, sizeof(allowed) / sizeof(allowed[0]));
	for (int i = 0; i < 200; i++) {
		struct timespec nap = {0, 1000000};
		failed += send_text(fd, "boxed") != 5;
		syscall(SYS_nanosleep, &nap, NULL);
	}
	char text[64];
	int octets = snprintf(text, sizeof(text), "failed %ld\n", failed);
	syscall(SYS_write, 1, text, octets);
	syscall(SYS_exit_group, 0);
}

// Sends before main, when the environment says where to.
__attribute__((constructor)) static void before_main(void)
{
	const char *to = getenv("HOOK_CONSTRUCTOR");
	if (!to)
		return;
	set_destination(to);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	errno = 78;
	if (set_txtime(fd, TAI) || errno != 78 || send_text(fd, "constructor") != 11)
		_exit(9);
}

const struct verb sandbox_verbs[] = {
	{"no-calls", no_calls}, {"sandboxed", sandboxed}, {0},
};
