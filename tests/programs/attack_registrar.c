// SPDX-License-Identifier: Apache-2.0
// Attacks on the daemon's registrar, and the innocent pod that measures what they do: see attack_main.c.
#define _GNU_SOURCE
#include "attack_main.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SOCKETS_MAX = 64, CONNECTIONS_MAX = 256, PAGE = 4096 };

// A socket whose lock is held while the kernel waits for a page of ours.
static struct lock {
	int socket, faults;
	uint8_t *page;
} locks[SOCKETS_MAX];
static int pages = -1;
static long hold_ms, gap_us, sockets_count;
static atomic_long held, ended;

// Gives each page that is asked for after `hold_ms`.
static void *give_late(void *argument)
{
	const struct lock *lock = argument;
	static const uint8_t zeros[PAGE];
	struct uffd_msg message;
	while (read(lock->faults, &message, sizeof(message)) == sizeof(message)) {
		usleep((useconds_t)hold_ms * 1000);
		struct uffdio_copy copy = {.dst = (uintptr_t)lock->page, .src = (uintptr_t)zeros, .len = PAGE};
		ioctl(lock->faults, UFFDIO_COPY, &copy);
	}
	return NULL;
}

static void *punch_pages(void *unused)
{
	be_idle();
	while (!atomic_load(&stop))
		fallocate(pages, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SOCKETS_MAX * PAGE);
	return unused;
}

static void *busy(void *unused)
{
	while (!atomic_load(&stop))
		;
	return unused;
}

// A corked socket copies under its lock: what it copies comes late.
static void *hold(void *argument)
{
	const struct lock *lock = argument;
	while (!atomic_load(&stop)) {
		if (pages < 0)
			madvise(lock->page, PAGE, MADV_DONTNEED);
		send(lock->socket, "x", 1, MSG_MORE);
		send(lock->socket, lock->page, 64, 0);
		atomic_fetch_add(&held, 1);
		// Who waits for the lock gets it: one that waits longer than the daemon's patience would be noticed.
		usleep((useconds_t)gap_us);
	}
	return NULL;
}

static void open_lock(struct lock *lock, bool rights, long index)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
	inet_pton(AF_INET, "10.244.1.5", &to.sin_addr);
	lock->socket = udp_socket();
	if (connect(lock->socket, (struct sockaddr *)&to, sizeof(to)) < 0)
		fail("connect");
	if (!rights) {
		lock->page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, pages, index * PAGE);
		return;
	}
	lock->page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	lock->faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register range = {.range = {.start = (uintptr_t)lock->page, .len = PAGE},
					.mode = UFFDIO_REGISTER_MODE_MISSING};
	if (lock->faults < 0 || ioctl(lock->faults, UFFDIO_API, &api) < 0 ||
	    ioctl(lock->faults, UFFDIO_REGISTER, &range) < 0)
		fail("userfaultfd");
}

static struct client crowd[CONNECTIONS_MAX];
static long crowd_count;

// Registers the sockets on all connections, as often as the daemon takes it; one that it ends is opened again.
static void *register_all(void *unused)
{
	uint32_t token = 1;
	while (!atomic_load(&stop)) {
		for (long index = 0; index < crowd_count; index++, token++) {
			const struct lock *lock = locks + token % (uint32_t)sockets_count;
			int status = -EPIPE;
			if (crowd[index].connection >= 0)
				status = client_register(crowd + index, token % 1024, token, lock->socket);
			if (status != -EPIPE && status != -ECONNRESET)
				continue;
			client_close(crowd + index);
			client_open(crowd + index, run_dir, lock->socket);
			atomic_fetch_add(&ended, 1);
		}
		usleep(500);
	}
	return unused;
}

void until_end(void)
{
	while (getchar() != EOF)
		;
	atomic_store(&stop, true);
}

void attack_locks(void)
{
	bool rights = key("rights", 1);
	hold_ms = key("hold_ms", 30);
	gap_us = key("gap_us", rights ? 5000 : 0);
	sockets_count = key("sockets", 16);
	if (!rights && ((pages = memfd_create("pages", MFD_CLOEXEC)) < 0 || ftruncate(pages, SOCKETS_MAX * PAGE)))
		fail("memfd");
	for (long index = 0; index < sockets_count; index++)
		open_lock(locks + index, rights, index);
	drop_rights();
	// Before anything is slow.
	for (long asked = key("connections", 32); crowd_count < asked; crowd_count++)
		if (client_open(crowd + crowd_count, run_dir, locks->socket))
			break;
	say_value("connections", crowd_count);
	ready();
	for (long index = 0; index < sockets_count; index++) {
		if (rights)
			thread(give_late, locks + index);
		thread(hold, locks + index);
	}
	if (!rights) {
		thread(punch_pages, NULL);
		thread(busy, NULL);
	}
	thread(register_all, NULL);
	until_end();
	say_value("held", atomic_load(&held));
	say_value("ended", atomic_load(&ended));
}

static void *open_and_close(void *unused)
{
	long opened = 0, refused = 0;
	int socket_ = udp_socket();
	while (!atomic_load(&stop)) {
		struct client client;
		if (client_open(&client, run_dir, socket_))
			refused++;
		else
			opened++;
		client_close(&client);
	}
	say_value("opened", opened);
	say_value("refused", refused);
	return unused;
}

void attack_churn(void)
{
	drop_rights();
	ready();
	thread(open_and_close, NULL);
	until_end();
	usleep(100000);
}

void attack_attach(void)
{
	long count = key("frames", 100);
	drop_rights();
	ready();
	for (long index = 0; index < count && !atomic_load(&stop); index++) {
		struct client client;
		int socket_ = udp_socket();
		uint64_t begun = now_on(CLOCK_MONOTONIC);
		int status = client_open(&client, run_dir, socket_);
		if (!status)
			status = client_register(&client, 0, 1, socket_);
		// 100 + the code of the stream's status.
		int code = status ? 0 : client_wait(&client, 0, 1, 60000000);
		if (code == 1)
			say_value("us", (long)((now_on(CLOCK_MONOTONIC) - begun) / 1000));
		else
			say_value("failed", status ? status : 100 + code);
		client_close(&client);
		close(socket_);
		usleep(2000);
	}
	say_value("done", count);
}
