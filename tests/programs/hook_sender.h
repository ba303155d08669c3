// SPDX-License-Identifier: Apache-2.0
// An ordinary program that uses SO_TXTIME: what the scenarios share. It knows nothing of KTSN.
#ifndef HOOK_SENDER_H
#define HOOK_SENDER_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_TXTIME
#define SO_TXTIME 61
#endif
#define TAI 11
#define MONOTONIC 1

struct txtime {
	int32_t clock;
	uint32_t flags;
};

// The port to send to, argv[2].
extern int port;

int set_txtime(int fd, int clock);
// From now on nobody: no rights, no capabilities.
void drop_rights(void);
// A UDP socket with SO_TXTIME; ends the program if the kernel refuses.
int timed_socket(int family, int clock);
uint64_t now(int clock);
struct sockaddr_in to4(int to_port);
struct sockaddr_in6 to6(const char *address, int to_port);
// sendmsg with one SCM_TXTIME; the result, or -errno. errno must not change on success: -1000 says that it did.
long send_at(int fd, const void *name, socklen_t name_octets, const char *text, uint64_t at, int flags);
// send_at to 127.0.0.1:port, or to the address in HOOK_TO, 200 ms ahead of TAI.
long send_text(int fd, const char *text);
// sendmsg to 127.0.0.1:port without a transmit time.
long send_untimed(int fd, const char *text);
void say(const char *what, long value);

// Each of these answers 0 when it does not know the scenario.
int run_process_scenario(const char *name, int argc, char **argv);
int run_grant_scenario(const char *name, char **argv);
int run_life_scenario(const char *name, char **argv);
int run_thread_scenario(const char *name);
int run_stamp_scenario(const char *name, char **argv);
int run_burst_scenario(const char *name, int argc, char **argv);
int run_counted_scenario(const char *name);
int run_leaving_scenario(const char *name);
int run_port_scenario(const char *name);

#endif
