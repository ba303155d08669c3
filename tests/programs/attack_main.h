// SPDX-License-Identifier: Apache-2.0
// What the attacks of attack_*.c share: keys, the stop flag, counts.
#ifndef ATTACK_MAIN_H
#define ATTACK_MAIN_H
#include "attack_client.h"
#include <pthread.h>

extern atomic_bool stop;
extern const char *run_dir;

long key(const char *name, long otherwise);
const char *word_key(const char *name, const char *otherwise);
// A UDP socket of this namespace, bound to the key `from` if there is one.
int udp_socket(void);
void drop_rights(void);
// Says that the attack has begun.
void ready(void);
// One line "name value".
void say_value(const char *name, long value);
// Ends the process with the system's reason.
void fail(const char *what);
// The calling thread only runs when no other wants its CPU.
void be_idle(void);
// A thread, which is not waited for.
void thread(void *(*run)(void *), void *argument);

// Waits until standard input ends, then says so to all threads.
void until_end(void);
// One of the open clients, by turns.
const struct client *client_of(unsigned number);

void attack_locks(void);
void attack_churn(void);
void attack_attach(void);
void attack_flap(void);
void attack_names(void);
void *attack_later(void *unused);
void *attack_expect(void *unused);
#endif
