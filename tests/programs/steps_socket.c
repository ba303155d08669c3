// SPDX-License-Identifier: Apache-2.0
// Steps about sockets: socket, pair, txtime, gettxtime, set, bind, connect, listen, accept, name, dup, close, passfd.
#include "steps.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sys/un.h>

socklen_t address(const char *text, struct sockaddr_storage *name)
{
	char host[64] = "127.0.0.1";
	const char *comma = strrchr(text, ',');
	struct sockaddr_in *four = (struct sockaddr_in *)name;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)name;
	uint16_t port = htons((uint16_t)atoi(comma ? comma + 1 : text));

	memset(name, 0, sizeof(*name));
	if (comma)
		snprintf(host, sizeof(host), "%.*s", (int)(comma - text), text);
	if (strchr(host, ':')) {
		char *scope = strchr(host, '%');

		if (scope) {
			*scope = '\0';
			six->sin6_scope_id = if_nametoindex(scope + 1);
		}
		six->sin6_family = AF_INET6;
		six->sin6_port = port;
		inet_pton(AF_INET6, host, &six->sin6_addr);
		return sizeof(*six);
	}
	four->sin_family = AF_INET;
	four->sin_port = port;
	inet_pton(AF_INET, host, &four->sin_addr);
	return sizeof(*four);
}

static int family_of(const char *word)
{
	if (!strcmp(word, "inet"))
		return AF_INET;
	if (!strcmp(word, "inet6"))
		return AF_INET6;
	return strcmp(word, "packet") ? AF_UNIX : AF_PACKET;
}

static int type_of(const struct step *step, int from)
{
	int type = SOCK_DGRAM;

	for (int i = from; i < step->count; i++) {
		if (!strcmp(step->word[i], "stream"))
			type = (type & ~SOCK_DGRAM) | SOCK_STREAM;
		else if (!strcmp(step->word[i], "raw"))
			type = (type & ~SOCK_DGRAM) | SOCK_RAW;
		else if (!strcmp(step->word[i], "nonblock"))
			type |= SOCK_NONBLOCK;
		else if (!strcmp(step->word[i], "cloexec"))
			type |= SOCK_CLOEXEC;
	}
	return type;
}

static long set_txtime(const struct step *step, int fd)
{
	struct {
		struct txtime value;
		char more[24];
	} option = {.value = {.flags = (uint32_t)numeric(step, "flags", 0)}};
	const char *clock = value(step, "clock", "tai");

	option.value.clock = !strcmp(clock, "tai")    ? KT_CLOCK_TAI
			     : !strcmp(clock, "mono") ? CLOCK_MONOTONIC
			     : !strcmp(clock, "real") ? CLOCK_REALTIME
						      : atoi(clock);
	return setsockopt(fd, SOL_SOCKET, KT_SO_TXTIME, &option, (socklen_t)numeric(step, "len", 8));
}

static void get_txtime(const struct step *step, int fd)
{
	struct txtime option = {-7, 0x77777777};
	socklen_t octets = (socklen_t)numeric(step, "len", 8);

	if (getsockopt(fd, SOL_SOCKET, KT_SO_TXTIME, &option, &octets))
		say_result(step, -1);
	else
		say(step, "%u octets, clock %d flags %x", octets, option.clock, option.flags);
}

struct option {
	const char *name;
	int level, option;
};

static const struct option options[] = {
	{"priority", SOL_SOCKET, 12}, {"sndbuf", SOL_SOCKET, SO_SNDBUF}, {"tos", IPPROTO_IP, IP_TOS},
	{"ttl", IPPROTO_IP, IP_TTL}, {"mcast-ttl", IPPROTO_IP, IP_MULTICAST_TTL}, {"broadcast", SOL_SOCKET, SO_BROADCAST},
	{"tclass", IPPROTO_IPV6, 67}, {"hops", IPPROTO_IPV6, IPV6_UNICAST_HOPS}, {"v6only", IPPROTO_IPV6, IPV6_V6ONLY},
	{"mcast-hops", IPPROTO_IPV6, IPV6_MULTICAST_HOPS}, {"gso", IPPROTO_UDP, KT_UDP_SEGMENT},
	{"stamping", SOL_SOCKET, KT_SO_TIMESTAMPING}, {"select-errors", SOL_SOCKET, 45}, {"recverr", IPPROTO_IP, 11},
	{"mark", SOL_SOCKET, 36}, {"cork", IPPROTO_UDP, 1}, {"nocheck", SOL_SOCKET, 11}, {"reuse", SOL_SOCKET, SO_REUSEADDR},
	{"nodelay", IPPROTO_TCP, TCP_NODELAY}, {"mtu-discover", IPPROTO_IP, 10},
};

static long set_option(const struct step *step, int fd)
{
	int number_of = atoi(step->word[3]);

	if (!strcmp(step->word[2], "device"))
		return setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, step->word[3], (socklen_t)strlen(step->word[3]));
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (!strcmp(options[i].name, step->word[2]))
			return setsockopt(fd, options[i].level, options[i].option, &number_of, sizeof(number_of));
	fprintf(stderr, "step %d: no option %s\n", number, step->word[2]);
	exit(3);
}

static void name_step(const struct step *step, int fd)
{
	struct sockaddr_storage name;
	socklen_t octets = sizeof(name);
	uint16_t port;

	if (getsockname(fd, (struct sockaddr *)&name, &octets)) {
		say_result(step, -1);
		return;
	}
	port = ntohs(name.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&name)->sin6_port
						: ((struct sockaddr_in *)&name)->sin_port);
	say(step, "%s", port == 0 ? "no port" : port >= 32768 ? "a port of the kernel's" : "a port of its own");
}

// SCM_RIGHTS over a pair that this step makes and closes.
static int pass(int fd)
{
	int pair[2], passed = -1;
	char byte = 'f', control[CMSG_SPACE(sizeof(int))];
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *item;

	memset(control, 0, sizeof(control));
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		return -1;
	item = CMSG_FIRSTHDR(&message);
	item->cmsg_level = SOL_SOCKET;
	item->cmsg_type = SCM_RIGHTS;
	item->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(item), &fd, sizeof(fd));
	if (sendmsg(pair[0], &message, 0) == 1 && recvmsg(pair[1], &message, 0) == 1) {
		item = CMSG_FIRSTHDR(&message);
		if (item)
			memcpy(&passed, CMSG_DATA(item), sizeof(passed));
	}
	close(pair[0]);
	close(pair[1]);
	return passed;
}

static int make_step(const struct step *step)
{
	const char *verb = step->word[0];
	struct sockaddr_storage name;

	if (!strcmp(verb, "socket")) {
		int family = family_of(step->word[2]), protocol = family == AF_PACKET ? htons(PACKET_SOCKETS_PROTOCOL) : 0;
		int fd = socket(family, type_of(step, 3), protocol);

		fds[slot(step, 1)] = fd;
		say_result(step, fd < 0 ? -1 : 0);
	} else if (!strcmp(verb, "pair")) {
		int pair[2] = {-1, -1};

		say_result(step, socketpair(AF_UNIX, type_of(step, 3), 0, pair));
		fds[slot(step, 1)] = pair[0];
		fds[slot(step, 2)] = pair[1];
	} else if (!strcmp(verb, "accept")) {
		int fd = accept(fds[slot(step, 1)], NULL, NULL);

		fds[slot(step, 2)] = fd;
		say_result(step, fd < 0 ? -1 : 0);
	} else if (!strcmp(verb, "dup")) {
		int fd = dup(fds[slot(step, 1)]);

		fds[slot(step, 2)] = fd;
		say_result(step, fd < 0 ? -1 : 0);
	} else if (!strcmp(verb, "dup2")) {
		int fd = dup2(fds[slot(step, 1)], fds[slot(step, 2)]);

		say_result(step, fd < 0 ? -1 : 0);
	} else if (!strcmp(verb, "dupfd")) {
		int fd = fcntl(fds[slot(step, 1)], F_DUPFD_CLOEXEC, 100);

		fds[slot(step, 2)] = fd;
		say_result(step, fd < 0 ? -1 : 0);
	} else if (!strcmp(verb, "passfd")) {
		int fd = pass(fds[slot(step, 1)]);

		fds[slot(step, 2)] = fd;
		say_result(step, fd < 0 ? -1 : 0);
	} else if (!strcmp(verb, "connect") && !strcmp(step->word[2], "none")) {
		memset(&name, 0, sizeof(name));
		say_result(step, connect(fds[slot(step, 1)], (struct sockaddr *)&name, sizeof(sa_family_t)));
	} else {
		return 0;
	}
	return 1;
}

int socket_step(const struct step *step)
{
	const char *verb = step->word[0];
	struct sockaddr_storage name;
	int fd;

	if (make_step(step))
		return 1;
	fd = fds[slot(step, 1)];
	if (!strcmp(verb, "txtime")) {
		say_result(step, set_txtime(step, fd));
	} else if (!strcmp(verb, "gettxtime")) {
		get_txtime(step, fd);
	} else if (!strcmp(verb, "set")) {
		say_result(step, set_option(step, fd));
	} else if (!strcmp(verb, "bind")) {
		socklen_t octets = address(step->word[2], &name);

		say_result(step, bind(fd, (struct sockaddr *)&name, octets));
	} else if (!strcmp(verb, "connect")) {
		socklen_t octets = address(step->word[2], &name);

		say_result(step, connect(fd, (struct sockaddr *)&name, octets));
	} else if (!strcmp(verb, "listen")) {
		say_result(step, listen(fd, 4));
	} else if (!strcmp(verb, "name")) {
		name_step(step, fd);
	} else if (!strcmp(verb, "close")) {
		say_result(step, close(fd));
	} else if (!strcmp(verb, "send")) {
		send_step(step);
	} else if (!strcmp(verb, "flood")) {
		flood_step(step);
	} else if (!strcmp(verb, "recv")) {
		receive_step(step);
	} else if (!strcmp(verb, "wait")) {
		wait_step(step);
	} else if (!strcmp(verb, "errors")) {
		errors_step(step);
	} else {
		return 0;
	}
	return 1;
}
