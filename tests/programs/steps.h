// SPDX-License-Identifier: Apache-2.0
// An ordinary program whose system calls are written on its command line, one step an argument: what its parts
// share. It knows nothing of KTSN. Every step prints one line "NUMBER verb: result"; errors are printed by name.
#ifndef STEPS_H
#define STEPS_H

#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

// musl-gcc does not see the kernel's headers.
#define KT_SO_TXTIME 61
#define KT_SO_TIMESTAMPING 37
#define KT_UDP_SEGMENT 103
#define KT_CLOCK_TAI 11
#define KT_MSG_ERRQUEUE 0x2000

#define SOCKETS 16
#define WORDS 32
#define PACKET_SOCKETS_PROTOCOL 0x88b5

struct txtime {
	int32_t clock;
	uint32_t flags;
};

// One step, split at its spaces.
struct step {
	int count;
	char *word[WORDS];
	char text[1024];
};

extern int fds[SOCKETS];
// The transmit time that each socket asked for last.
extern uint64_t asked[SOCKETS];
extern int number;

// The value of "key=value" in a step, or `fallback`.
const char *value(const struct step *step, const char *key, const char *fallback);
long numeric(const struct step *step, const char *key, long fallback);
// "host,port" into `name`; its octets. Port only: 127.0.0.1.
socklen_t address(const char *text, struct sockaddr_storage *name);
// Prints "NUMBER verb: text"; a negative result is printed as its error's name.
void say(const struct step *step, const char *format, ...) __attribute__((format(printf, 2, 3)));
void say_result(const struct step *step, long result);
const char *error_name(int error);
uint64_t now(int clock);
int slot(const struct step *step, int index);

void send_step(const struct step *step);
void flood_step(const struct step *step);
void receive_step(const struct step *step);
void wait_step(const struct step *step);
void errors_step(const struct step *step);
// Answers 0 when it does not know the verb.
int socket_step(const struct step *step);
// Prints every datagram that comes to the port until standard input ends; answers those whose text begins with 'e'.
void be_peer(const char *port, const char *group);

#endif
