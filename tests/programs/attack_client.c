// SPDX-License-Identifier: Apache-2.0
// Control messages, slots and doorbells: see attack_client.h.
#define _GNU_SOURCE
#include "attack_client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { HEAD = 128, FREE = 512, STREAMS = 1664, HEADER = 192, HELLO = 1, REGISTER = 3, UNREGISTER = 4 };

static const char MAGIC[8] = "KTSNRNG";

struct message {
	char magic[8];
	uint16_t type, a, b, c;
	uint32_t d, e;
};

uint64_t now_on(clockid_t clock)
{
	struct timespec time;
	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int say(int connection, struct message *message, int descriptor)
{
	union {
		char octets[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	// Hello without an interface is short.
	struct iovec part = {.iov_base = message, .iov_len = message->type == HELLO ? 16 : sizeof(*message)};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
	memcpy(message->magic, MAGIC, 8);
	if (descriptor >= 0) {
		header.msg_control = control.octets;
		header.msg_controllen = sizeof(control.octets);
		struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(rights), &descriptor, sizeof(int));
	}
	return sendmsg(connection, &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

// The answer to Hello with its two descriptors: 0, a status or -errno.
static int hear(struct client *client)
{
	union {
		char octets[CMSG_SPACE(4 * sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	struct message reply = {0};
	struct iovec part = {.iov_base = &reply, .iov_len = sizeof(reply)};
	struct msghdr header = {.msg_iov = &part,
				.msg_iovlen = 1,
				.msg_control = control.octets,
				.msg_controllen = sizeof(control.octets)};
	ssize_t count = recvmsg(client->connection, &header, MSG_CMSG_CLOEXEC);
	if (count != (ssize_t)sizeof(reply))
		return count < 0 ? -errno : -ECONNRESET;
	struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
	if (rights && rights->cmsg_type == SCM_RIGHTS && rights->cmsg_len == CMSG_LEN(2 * sizeof(int))) {
		memcpy(&client->memfd, CMSG_DATA(rights), sizeof(int));
		memcpy(&client->doorbell, CMSG_DATA(rights) + sizeof(int), sizeof(int));
	}
	return reply.a;
}

static uint32_t word(const struct client *client, unsigned at)
{
	uint32_t value;
	memcpy(&value, client->region + at, sizeof(value));
	return value;
}

static int map(struct client *client)
{
	struct stat about;
	if (client->memfd < 0 || fstat(client->memfd, &about) < 0)
		return -EBADMSG;
	client->octets = (uint32_t)about.st_size;
	client->region = mmap(NULL, client->octets, PROT_READ | PROT_WRITE, MAP_SHARED, client->memfd, 0);
	if (client->region == MAP_FAILED)
		return -errno;
	client->slots_count = word(client, 16);
	client->slot_octets = word(client, 20);
	client->slots_offset = word(client, 24);
	return 0;
}

int client_open(struct client *client, const char *run_dir, int socket_)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	struct message hello = {.type = HELLO, .a = 1, .b = 1};
	struct timeval most = {.tv_sec = 60};
	*client = (struct client){.memfd = -1, .doorbell = -1, .socket = socket_, .region = MAP_FAILED, .token = 1};
	memccpy(name.sun_path, run_dir, 0, sizeof(name.sun_path) - 20);
	strcat(name.sun_path, "/client/ktsn.sock");
	client->connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	setsockopt(client->connection, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most));
	int status = connect(client->connection, (struct sockaddr *)&name, sizeof(name)) < 0 ? -errno : 0;
	if (!status)
		status = say(client->connection, &hello, socket_);
	if (!status)
		status = hear(client);
	if (!status)
		status = map(client);
	if (status)
		client_close(client);
	return status;
}

void client_close(struct client *client)
{
	if (client->region != MAP_FAILED)
		munmap(client->region, client->octets);
	for (int *fd = (int[]){client->connection, client->memfd, client->doorbell, -2}; *fd != -2; fd++)
		if (*fd >= 0)
			close(*fd);
	*client = (struct client){.connection = -1, .memfd = -1, .doorbell = -1, .region = MAP_FAILED};
}

int client_register(const struct client *client, uint32_t stream, uint32_t token, int socket_)
{
	struct message message = {.type = REGISTER, .b = (uint16_t)stream, .c = (uint16_t)(stream >> 16), .d = token};
	return say(client->connection, &message, socket_);
}

int client_unregister(const struct client *client, uint32_t stream, uint32_t token)
{
	struct message message = {.type = UNREGISTER, .b = (uint16_t)stream, .c = (uint16_t)(stream >> 16), .d = token};
	return say(client->connection, &message, -1);
}

int client_wait(const struct client *client, uint32_t stream, uint32_t token, long micros)
{
	_Atomic uint64_t *status = (_Atomic uint64_t *)(client->region + STREAMS + 16 * stream);
	for (uint64_t until = now_on(CLOCK_MONOTONIC) + (uint64_t)micros * 1000;;) {
		uint64_t value = atomic_load(status);
		if (value >> 32 == token && (value & 0xffff))
			return (int)(value & 0xffff);
		if (now_on(CLOCK_MONOTONIC) > until)
			return 0;
		usleep(50);
	}
}

static void write_slot(const struct client *client, uint32_t slot, uint32_t next, const struct frame *frame)
{
	uint8_t *at = client->region + client->slots_offset + (size_t)slot * client->slot_octets;
	uint32_t words[18] = {next, 0, client->token, frame->flags};
	uint64_t pushed_at = now_on(CLOCK_MONOTONIC);
	struct mark mark = {.magic = "KTSF", .sender = frame->sender, .sequence = slot, .tx_time = frame->tx_time};
	mark.clock = frame->clock;
	memcpy(words + 4, &frame->tx_time, 8);
	memcpy(words + 6, &pushed_at, 8);
	words[10] = 0xffff0000; // ::ffff:a.b.c.d
	words[11] = frame->to;
	words[12] = frame->scope;
	words[13] = frame->port | (uint32_t)frame->payload_octets << 16;
	words[14] = frame->clock | (uint32_t)frame->priority << 8;
	if (frame->flags & 8)
		memset(words + 8, 0, 16);
	memcpy(at, words, sizeof(words));
	memcpy(at + HEADER, frame->link, frame->link_octets);
	if (frame->payload_octets >= frame->link_octets + sizeof(mark))
		memcpy(at + HEADER + frame->link_octets, &mark, sizeof(mark));
}

unsigned client_fill(const struct client *client, const struct frame *frame, unsigned most)
{
	_Atomic uint64_t *free_words = (_Atomic uint64_t *)(client->region + FREE);
	_Atomic uint32_t *head = (_Atomic uint32_t *)(client->region + HEAD);
	uint32_t first = 0, last = 0;
	unsigned count = 0;
	for (unsigned index = 0; index < client->slots_count / 64 && count < most; index++) {
		uint64_t taken = atomic_exchange(free_words + index, 0);
		for (; taken && count < most; taken &= taken - 1, count++) {
			uint32_t slot = index * 64 + (uint32_t)__builtin_ctzll(taken);
			write_slot(client, slot, last, frame);
			last = slot + 1;
			first = first ? first : last;
		}
		if (taken)
			atomic_fetch_or(free_words + index, taken);
	}
	if (count) {
		_Atomic uint32_t *next = (_Atomic uint32_t *)(client->region + client->slots_offset +
							      (size_t)(first - 1) * client->slot_octets);
		uint32_t before = atomic_load(head);
		do
			atomic_store(next, before);
		while (!atomic_compare_exchange_weak(head, &before, last));
	}
	return count;
}

int client_ring(const struct client *client)
{
	return send(client->doorbell, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}
