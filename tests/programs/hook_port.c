// SPDX-License-Identifier: Apache-2.0
// Sockets without a port: what the first send, bind, connect, fork and close make of them.
#include "hook_sender.h"
#include <dirent.h>
#include <sys/syscall.h>

#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif

static long local_port(int fd)
{
	struct sockaddr_in6 name = {0};
	socklen_t octets = sizeof(name);
	return getsockname(fd, (struct sockaddr *)&name, &octets) ? -errno : ntohs(name.sin6_port);
}

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
	say(what, local_port(fd));
	if (send_text(fd, text) != (long)strlen(text))
		exit(5);
	snprintf(what, sizeof(what), "%s-port", text);
	say(what, local_port(fd));
}

static void ports(void)
{
	int fd = timed_socket(AF_INET, TAI), value = 3, no = 0;
	send_from(fd, "plain");
	send_from(fd, "second");

	fd = socket(AF_INET6, SOCK_DGRAM, 0);
	setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
	set_txtime(fd, TAI);
	struct sockaddr_in6 six = to6("::1", port);
	say("six", send_at(fd, &six, sizeof(six), "six", now(TAI) + 200000000, 0));
	say("six-port", local_port(fd));

	// An option changes before the first send.
	fd = timed_socket(AF_INET, TAI);
	setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &value, sizeof(value));
	set_txtime(fd, MONOTONIC), set_txtime(fd, TAI);
	send_from(fd, "options");

	// The same option again.
	fd = timed_socket(AF_INET, TAI);
	set_txtime(fd, TAI), set_txtime(fd, TAI);
	send_from(fd, "again");

	fd = timed_socket(AF_INET, TAI);
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	say("bind", bind(fd, (struct sockaddr *)&name, sizeof(name)));
	say("bound-other", other_socket(fd) < 0 ? 0 : local_port(other_socket(fd)) == local_port(fd));
	send_from(fd, "bound");

	fd = timed_socket(AF_INET, TAI), name = to4(port);
	say("connect", connect(fd, (struct sockaddr *)&name, sizeof(name)));
	send_from(fd, "connected");

	// The kernel gives the port at an untimed send.
	fd = timed_socket(AF_INET, TAI);
	say("untimed", send_untimed(fd, "untimed"));
	send_from(fd, "later");

	unsigned range = 45000u << 16 | 44000u;
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	say("range", setsockopt(fd, IPPROTO_IP, IP_LOCAL_PORT_RANGE, &range, sizeof(range)));
	set_txtime(fd, TAI);
	send_from(fd, "range");
	fd = timed_socket(AF_INET, TAI);
	setsockopt(fd, IPPROTO_IP, IP_LOCAL_PORT_RANGE, &range, sizeof(range));
	send_from(fd, "ranged");
}

static void ports_lost(void)
{
	// Another descriptor holds the port.
	int fd = timed_socket(AF_INET, TAI), other = other_socket(fd);
	say("found", other >= 0);
	int kept = dup(other);
	long reserved = local_port(kept);
	send_from(fd, "held");
	say("reserved", reserved);
	close(kept);
	close(fd);

	// The program closes what it has not opened, and uses the number.
	fd = timed_socket(AF_INET, TAI), other = other_socket(fd);
	syscall(SYS_close, other);
	int file = open("/dev/null", O_WRONLY), moved = dup3(file, other, 0);
	send_from(fd, "closed");
	say("stays", fcntl(moved, F_GETFD) >= 0);
	close(moved), close(file), close(fd);

	// A child sends first, then the parent.
	fd = timed_socket(AF_INET, TAI);
	pid_t child = fork();
	if (!child)
		_exit(send_text(fd, "child") == 5 ? 0 : 1);
	int status = 1;
	waitpid(child, &status, 0);
	say("child", status);
	send_from(fd, "parent");
	close(fd);

	// Many at a time: the library's own sockets lie above the limit, and are not many.
	int many[100];
	long at_first = open_count();
	for (int i = 0; i < 100; i++)
		many[i] = timed_socket(AF_INET, TAI);
	say("own", open_count() - at_first - 100);
	say("highest", many[99]);
	for (int i = 0; i < 100; i++) {
		if (send_text(many[i], "many") != 4)
			exit(5);
		close(many[i]);
	}
	say("own-left", open_count() - at_first);

	// None is left over.
	long before = open_count();
	for (int i = 0; i < 100; i++) {
		fd = timed_socket(AF_INET, TAI);
		if (i % 2 && send_text(fd, "many") != 4)
			exit(5);
		close(fd);
	}
	say("left", open_count() - before);
}

// Threads that send first on the same socket.
static void *first(void *socket)
{
	return (void *)(intptr_t)(send_text((int)(intptr_t)socket, "thread") != 6);
}

static void ports_raced(void)
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

int run_port_scenario(const char *name)
{
	if (!strcmp(name, "ports-shown"))
		ports();
	else if (!strcmp(name, "ports-lost"))
		ports_lost();
	else if (!strcmp(name, "ports-raced"))
		ports_raced();
	else
		return 0;
	return 1;
}
