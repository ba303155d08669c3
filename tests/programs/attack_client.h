// SPDX-License-Identifier: Apache-2.0
// A client of the ring, written after docs/design/ring-abi.md alone: no line of KTSN's own. Used by attack_*.c.
#ifndef ATTACK_CLIENT_H
#define ATTACK_CLIENT_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct client {
	int connection, memfd, doorbell, socket;
	uint8_t *region;
	uint32_t octets, slots_count, slot_octets, slots_offset;
	uint32_t token; // of stream 0
};

// What each slot of a fill says.
struct frame {
	uint64_t tx_time;
	uint32_t clock; // 1 MONOTONIC, 11 TAI
	uint32_t flags; // 8: payload is a whole Ethernet frame
	uint32_t scope;
	uint8_t priority;
	uint16_t port, payload_octets;
	uint32_t to; // IPv4, network order
	uint32_t sender;
	const uint8_t *link; // the frame of flag 8, up to its UDP payload
	uint16_t link_octets;
};

// At the start of each payload; the tests' tap reads it.
struct mark {
	char magic[4];
	uint32_t sender;
	uint64_t sequence, tx_time;
	uint32_t clock, zero;
};

// 0, the status of the answer (3 clients_max, 4 refused, …), or -errno.
int client_open(struct client *client, const char *run_dir, int socket);
void client_close(struct client *client);
// 0 or -errno. Nothing is waited for.
int client_register(const struct client *client, uint32_t stream, uint32_t token, int socket);
int client_unregister(const struct client *client, uint32_t stream, uint32_t token);
// The code of the stream's status once it is not pending: 1 = registered; 0 after `micros`.
int client_wait(const struct client *client, uint32_t stream, uint32_t token, long micros);
// Publishes up to `most` frames in the slots that are free, as one list. How many.
unsigned client_fill(const struct client *client, const struct frame *frame, unsigned most);
// 0 or -errno.
int client_ring(const struct client *client);

uint64_t now_on(clockid_t clock);
#endif
