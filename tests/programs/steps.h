// SPDX-License-Identifier: Apache-2.0
// An ordinary program whose system calls are written on its command line, one step an argument: what its parts
// share. It knows nothing of KTSN.
//
// A step is "[LABEL:] VERB WORD… KEY=VALUE…". Its result is one line: "LABEL NUMBER" with a label (an error is the
// negative errno), else "STEP VERB: TEXT" with the error's name. Verbs that nothing else can be put together from
// (threads, signal handlers, pointers to nowhere) are a scenario of their own and print lines "WHAT NUMBER".
#ifndef STEPS_H
#define STEPS_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// musl-gcc does not see the kernel's headers.
#define KT_SO_TXTIME 61
#define KT_SO_TIMESTAMPING 37
#define KT_UDP_SEGMENT 103
#define KT_MSG_ERRQUEUE 0x2000
#define TAI 11
#define MONOTONIC 1

#define SOCKETS 16
#define WORDS 32
#define PARTS 8
#define PACKET_SOCKETS_PROTOCOL 0x88b5

// musl takes unsigned flags.
#ifdef __GLIBC__
#define MMSG_FLAGS int
#else
#define MMSG_FLAGS unsigned
#endif

struct txtime {
	int32_t clock;
	uint32_t flags;
};

// One step, split at its spaces.
struct step {
	const char *label;
	int count;
	char *word[WORDS];
	char text[1024];
};

struct verb {
	const char *name;
	void (*run)(const struct step *step);
};

// The verbs of each file; the last one has no name.
extern const struct verb control_verbs[], socket_verbs[], send_verbs[], receive_verbs[];
extern const struct verb burst_verbs[], cost_verbs[], descriptor_verbs[], number_verbs[], garbage_verbs[], hook_verbs[], port_verbs[],
	sandbox_verbs[], stamp_verbs[], thread_verbs[], arrival_verbs[], listener_verbs[], period_verbs[], traced_verbs[];

extern int fds[SOCKETS];
// The transmit time that each socket asked for last.
extern uint64_t asked[SOCKETS];
// The instant of the step "base".
extern uint64_t base;
extern int number;

// The value of "key=value" in a step, else in the step "defaults", else `fallback`.
const char *value(const struct step *step, const char *key, const char *fallback);
long numeric(const struct step *step, const char *key, long fallback);
int slot(const struct step *step, int index);
// A word of the step as a number; 0 where there is none.
long word_number(const struct step *step, int index);
// "host,port" into `name`; its octets. Port only: 127.0.0.1.
socklen_t address(const char *text, struct sockaddr_storage *name);
// "CLOCK:+NS" from now on, "CLOCK:=NS", "base:+NS".
uint64_t instant(const char *text);
// Prints the result of a step as text.
void say(const struct step *step, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Prints a number, or errno if it is negative.
void say_result(const struct step *step, long result);
// As say_result, for a call before which errno was 77: success must not change it.
void say_clean(const struct step *step, long result);
// Prints "what number".
void show(const char *what, long shown);
const char *error_name(int error);
// The step "defaults" as it was written.
extern const char *default_step;
// Becomes this program again, with these steps behind the present defaults; `second` may be NULL.
void become(const char *first, const char *second);

// steps_shared.c: what scenarios are made of.
uint64_t now(int clock);
// "host,port": where scenarios send to; the key `to` of the step "defaults".
void set_destination(const char *text);
int default_port(void);
struct sockaddr_in to4(int port);
struct sockaddr_in6 to6(const char *host, int port);
int local_port(int fd);
// 0 or -errno.
int set_txtime(int fd, int clock);
// A UDP socket with SO_TXTIME; ends the program if the kernel refuses.
int timed_socket(int family, int clock);
// From now on user and group are those of `nobody`: no rights, no capabilities.
void drop_rights(void);
// sendmsg with one SCM_TXTIME; the result, or -errno. errno must not change on success: -1000 says that it did.
long send_at(int fd, const void *name, socklen_t octets, const char *text, uint64_t at, int flags);
// send_at to the destination, 200 ms ahead of TAI.
long send_text(int fd, const char *text);

// SCM_RIGHTS: a descriptor over a connected socket, and from one; 0 or -errno, the descriptor or -1.
int pass(int over, int fd);
int receive_passed(int from);

// A datagram that is being put together: destination, pieces, control messages.
struct parcel {
	_Alignas(8) char control[512];
	size_t control_octets;
	struct sockaddr_storage to;
	socklen_t to_octets;
	struct iovec parts[PARTS];
	size_t part_count;
};

// To 127.0.0.1 and the destination's port, in one piece.
struct parcel parcel_of(const char *text, size_t octets);
void add(struct parcel *parcel, int level, int type, const void *data, size_t octets);
void add_int(struct parcel *parcel, int level, int type, int number);
void add_time(struct parcel *parcel, uint64_t at);
void add_segment(struct parcel *parcel, uint16_t octets);
struct msghdr header_of(struct parcel *parcel);
// As send_at.
long send_header(int fd, struct msghdr *message, int flags);
long send_parcel(int fd, struct parcel *parcel);
long send_messages(int fd, struct mmsghdr *messages, unsigned count, int flags);

// Prints every datagram that comes to the port until standard input ends; answers those whose text begins with 'e'.
void be_peer(const char *port, const char *group);

#endif
