// SPDX-License-Identifier: Apache-2.0
// What a send may ask of the kernel is not measured but forbidden: nobody's processor time changes that.
#ifndef FEW_CALLS_H
#define FEW_CALLS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

// As <linux/filter.h> and <linux/seccomp.h> have it, which musl has not: load a word, jump if it is equal, return.
struct filter_step {
	uint16_t code;
	uint8_t if_equal, otherwise;
	uint32_t value;
};
#define LOAD(offset) { 0x20, 0, 0, offset }
#define EQUAL(word, skipped_else) { 0x15, 0, skipped_else, word }
#define ALLOW { 0x06, 0, 0, 0x7fff0000 }
#define KILL { 0x06, 0, 0, 0x80000000 }

// From here on this thread may read clocks, ring a doorbell (a sendmsg with both MSG_DONTWAIT and MSG_NOSIGNAL, which the
// program's own never have), print and end. Any other system call ends the program with SIGSYS.
static inline void only_few_calls(void)
{
	static struct filter_step steps[] = {
		LOAD(0), // the call's number
		EQUAL(SYS_clock_gettime, 1), ALLOW,
		EQUAL(SYS_write, 1), ALLOW,
		EQUAL(SYS_writev, 1), ALLOW,
		EQUAL(SYS_exit_group, 1), ALLOW,
		EQUAL(SYS_sendmsg, 3),
		LOAD(16 + 2 * 8), // the third argument, on a little-endian machine
		EQUAL(MSG_DONTWAIT | MSG_NOSIGNAL, 1), ALLOW,
		KILL,
	};
	struct {
		unsigned short count;
		struct filter_step *steps;
	} filter = { sizeof(steps) / sizeof(steps[0]), steps };

	printf("few-calls 1\n"); // the buffer is there now
	fflush(stdout);
	if (prctl(38 /* PR_SET_NO_NEW_PRIVS */, 1, 0, 0, 0) || prctl(22 /* PR_SET_SECCOMP */, 2, &filter)) {
		perror("seccomp");
		exit(2);
	}
}

#endif
