// SPDX-License-Identifier: Apache-2.0
// What the scenarios of listeners share (steps_arrivals.c).
#ifndef STEPS_ARRIVALS_H
#define STEPS_ARRIVALS_H

#include "steps.h"

// A UDP socket bound to a port of 127.0.0.1; ends the program if there is none.
int listen_anywhere(void);
// The socket's own address.
struct sockaddr_in name_of(int fd);
// Makes a socket ready to be received from by a call; `limit` in milliseconds for recv and its like, negative: none.
void prepare(const char *how, int fd, long limit);
// One datagram by a call: its octets, -1 with errno, 0 after `limit` milliseconds.
long receive_by(const char *how, int fd, void *data, size_t octets, long limit);
// Receives `count` numbers that a thread sends every millisecond; how many went wrong.
long take(const char *how, int fd, long count, long limit);
// Whether a thread is in one of the system calls that wait for datagrams.
int is_waiting(pid_t thread);
void send_number(int from, const struct sockaddr_in *to, uint64_t value);
// Sends numbers every `period` nanoseconds: `count` of them, or until standard input ends.
void send_numbers(const struct sockaddr_in *to, uint64_t first, long count, uint64_t period);

// What a thread of this process sends.
struct sender {
	struct sockaddr_in to;
	long count;
	uint64_t period;
};
void *send_in_thread(void *sender);

#endif
