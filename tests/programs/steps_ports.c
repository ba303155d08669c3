// SPDX-License-Identifier: Apache-2.0
// Sockets without a port: what another descriptor, a close behind the library's back, a fork and threads make of them.
#include "steps.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/syscall.h>

// How many descriptors are open.
static long open_count(void)
{
	DIR *all = opendir("/proc/self/fd");
	long count = 0;
	while (readdir(all))
		count++;
	closedir(all);
	return count;
}

// A UDP socket that the program has not opened; -1 without one.
static int other_socket(int own)
{
	for (int fd = 3; fd < 65536; fd++) {
		int protocol = 0;
		socklen_t octets = sizeof(protocol);
		if (fd != own && !getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &octets) && protocol == IPPROTO_UDP)
			return fd;
	}
	return -1;
}

// Sends a text, and says from which port.
static void send_from(int fd, const char *text)
{
	char what[32];
	snprintf(what, sizeof(what), "%s-before", text);
	show(what, local_port(fd));
	if (send_text(fd, text) != (long)strlen(text))
		exit(5);
	snprintf(what, sizeof(what), "%s-port", text);
	show(what, local_port(fd));
}

// is-shared SLOT: whether another descriptor has the port of the socket.
static void is_shared(const struct step *step)
{
	int fd = fds[slot(step, 1)], other = other_socket(fd);
	say_result(step, other >= 0 && local_port(other) == local_port(fd));
}

static void ports_lost(const struct step *)
{
	// Another descriptor holds the port.
	int fd = timed_socket(AF_INET, TAI), other = other_socket(fd);
	show("found", other >= 0);
	int kept = dup(other);
	long reserved = local_port(kept);
	send_from(fd, "held");
	show("reserved", reserved);
	close(kept);
	close(fd);

	// The program closes what it has not opened, and uses the number.
	fd = timed_socket(AF_INET, TAI), other = other_socket(fd);
	syscall(SYS_close, other);
	int file = open("/dev/null", O_WRONLY), moved = dup3(file, other, 0);
	send_from(fd, "closed");
	show("stays", fcntl(moved, F_GETFD) >= 0);
	close(moved), close(file), close(fd);

	// A child sends first, then the parent.
	fd = timed_socket(AF_INET, TAI);
	pid_t child = fork();
	if (!child)
		_exit(send_text(fd, "child") == 5 ? 0 : 1);
	int status = 1;
	waitpid(child, &status, 0);
	show("child", status);
	send_from(fd, "parent");
	close(fd);

	// Many at a time: the library's own sockets lie above the limit, and are not many.
	int many[100];
	long at_first = open_count();
	for (int i = 0; i < 100; i++)
		many[i] = timed_socket(AF_INET, TAI);
	show("own", open_count() - at_first - 100);
	show("highest", many[99]);
	for (int i = 0; i < 100; i++) {
		if (send_text(many[i], "many") != 4)
			exit(5);
		close(many[i]);
	}
	show("own-left", open_count() - at_first);

	// None is left over.
	long before = open_count();
	for (int i = 0; i < 100; i++) {
		fd = timed_socket(AF_INET, TAI);
		if (i % 2 && send_text(fd, "many") != 4)
			exit(5);
		close(fd);
	}
	show("left", open_count() - before);
}

// Threads that send first on the same socket.
static void *first(void *socket)
{
	return (void *)(intptr_t)(send_text((int)(intptr_t)socket, "thread") != 6);
}

static void ports_raced(const struct step *)
{
	for (int i = 0; i < 100; i++) {
		pthread_t threads[4];
		int fd = timed_socket(AF_INET, TAI);
		for (int j = 0; j < 4; j++)
			pthread_create(&threads[j], NULL, first, (void *)(intptr_t)fd);
		for (int j = 0; j < 4; j++) {
			void *failed = NULL;
			pthread_join(threads[j], &failed);
			if (failed)
				exit(5);
		}
		close(fd);
	}
}

const struct verb port_verbs[] = {
	{"is-shared", is_shared}, {"ports-lost", ports_lost}, {"ports-raced", ports_raced}, {0},
};
