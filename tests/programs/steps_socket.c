// SPDX-License-Identifier: Apache-2.0
// Steps about sockets. SLOT is the program's own number of a socket:
//   socket SLOT inet|inet6|packet [stream|raw] [nonblock] [cloexec]
//   timed SLOT [inet6] [clock=CLOCK] [flags=N] [exec=keep]     socket and txtime at once
//   pair SLOT SLOT; open SLOT PATH; accept, dup, passfd SLOT NEW; dup2, dup3 SLOT OLD [fd=N]; dupfd SLOT NEW [fd=N] [exec=keep]
//   txtime SLOT [clock=CLOCK] [flags=N] [len=N]; gettxtime SLOT [len=N]; set SLOT OPTION VALUE;
//   set SLOT mcast-if - [interface=N] [source=A] [len=N]
//   bind, connect SLOT HOST,PORT; connect SLOT none; listen SLOT; name SLOT; port SLOT; fd SLOT; mode SLOT; close SLOT
#include "steps.h"

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

static long set_txtime_option(const struct step *step, int fd)
{
	struct {
		struct txtime value;
		char more[24];
	} option = {.value = {.flags = (uint32_t)numeric(step, "flags", 0)}};
	const char *clock = value(step, "clock", "tai");

	option.value.clock = !strcmp(clock, "tai")    ? TAI
			     : !strcmp(clock, "mono") ? CLOCK_MONOTONIC
			     : !strcmp(clock, "real") ? CLOCK_REALTIME
						      : atoi(clock);
	return setsockopt(fd, SOL_SOCKET, KT_SO_TXTIME, &option, (socklen_t)numeric(step, "len", 8));
}

static void txtime_step(const struct step *step)
{
	long answer;

	errno = 77;
	answer = set_txtime_option(step, fds[slot(step, 1)]);
	say_clean(step, answer);
}

static void gettxtime_step(const struct step *step)
{
	struct txtime option = {-7, 0x77777777};
	socklen_t octets = (socklen_t)numeric(step, "len", 8);
	char what[64];

	if (getsockopt(fds[slot(step, 1)], SOL_SOCKET, KT_SO_TXTIME, &option, &octets)) {
		say_result(step, -1);
	} else if (!step->label) {
		say(step, "%u octets, clock %d flags %x", octets, option.clock, option.flags);
	} else {
		say_result(step, 0);
		snprintf(what, sizeof(what), "%s-octets", step->label);
		show(what, octets);
		snprintf(what, sizeof(what), "%s-clock", step->label);
		show(what, option.clock);
		snprintf(what, sizeof(what), "%s-flags", step->label);
		show(what, (long)option.flags);
	}
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
	{"nodelay", IPPROTO_TCP, TCP_NODELAY}, {"mtu-discover", IPPROTO_IP, 10}, {"no-port", IPPROTO_IP, 24},
	{"port-range", IPPROTO_IP, 51}, {"mcast6-if", IPPROTO_IPV6, IPV6_MULTICAST_IF},
};

static long set_option(const struct step *step, int fd)
{
	int number_of = (int)strtoll(step->word[3], NULL, 0);

	if (!strcmp(step->word[2], "mcast-if")) {
		// Interface, address, both (struct ip_mreqn), or the shorter struct ip_mreq, whose address stands second.
		struct ip_mreqn by = {.imr_ifindex = (int)numeric(step, "interface", 0),
				      .imr_address.s_addr = inet_addr(value(step, "source", "0.0.0.0"))};
		socklen_t octets = (socklen_t)numeric(step, "len", sizeof(by));

		return setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, octets == 4 ? (void *)&by.imr_address : &by, octets);
	}

	if (!strcmp(step->word[2], "device"))
		return setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, step->word[3], (socklen_t)strlen(step->word[3]));
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (!strcmp(options[i].name, step->word[2]))
			return setsockopt(fd, options[i].level, options[i].option, &number_of, sizeof(number_of));
	fprintf(stderr, "step %d: no option %s\n", number, step->word[2]);
	exit(3);
}

static void set_step(const struct step *step)
{
	say_result(step, set_option(step, fds[slot(step, 1)]));
}

static void name_step(const struct step *step)
{
	int port = local_port(fds[slot(step, 1)]);

	if (port < 0)
		say_result(step, -1);
	else
		say(step, "%s", port == 0 ? "no port" : port >= 32768 ? "a port of the kernel's" : "a port of its own");
}

static void port_step(const struct step *step)
{
	say_result(step, local_port(fds[slot(step, 1)]));
}

// Whether it is open for reading (0), writing (1), or both (2).
static void mode_step(const struct step *step)
{
	int flags = fcntl(fds[slot(step, 1)], F_GETFL);

	say_result(step, flags < 0 ? -1 : flags & O_ACCMODE);
}

static void fd_step(const struct step *step)
{
	say_result(step, fds[slot(step, 1)]);
}

// The new descriptor's slot gets it.
static void keep(const struct step *step, int index, int fd)
{
	fds[slot(step, index)] = fd;
	say_result(step, fd < 0 ? -1 : 0);
}

static void socket_step(const struct step *step)
{
	int family = family_of(step->word[2]), protocol = family == AF_PACKET ? htons(PACKET_SOCKETS_PROTOCOL) : 0;

	keep(step, 1, socket(family, type_of(step, 3), protocol));
}

static void timed_step(const struct step *step)
{
	int family = step->count > 2 && !strcmp(step->word[2], "inet6") ? AF_INET6 : AF_INET;

	fds[slot(step, 1)] = socket(family, SOCK_DGRAM | (strcmp(value(step, "exec", "close"), "keep") ? SOCK_CLOEXEC : 0), 0);
	txtime_step(step);
}

static void open_step(const struct step *step)
{
	keep(step, 1, open(step->word[2], O_WRONLY));
}

static void pair_step(const struct step *step)
{
	int pair[2] = {-1, -1};

	say_result(step, socketpair(AF_UNIX, type_of(step, 3), 0, pair));
	fds[slot(step, 1)] = pair[0];
	fds[slot(step, 2)] = pair[1];
}

static void accept_step(const struct step *step)
{
	keep(step, 2, accept(fds[slot(step, 1)], NULL, NULL));
}

static void dup_step(const struct step *step)
{
	keep(step, 2, dup(fds[slot(step, 1)]));
}

// Over the descriptor of the second slot, or over fd=N.
static void dup2_step(const struct step *step)
{
	int over = (int)numeric(step, "fd", fds[slot(step, 2)]);

	keep(step, 2, dup2(fds[slot(step, 1)], over));
}

static void dup3_step(const struct step *step)
{
	int over = (int)numeric(step, "fd", fds[slot(step, 2)]);

	keep(step, 2, dup3(fds[slot(step, 1)], over, O_CLOEXEC));
}

static void dupfd_step(const struct step *step)
{
	int command = value(step, "exec", NULL) ? F_DUPFD : F_DUPFD_CLOEXEC;

	keep(step, 2, fcntl(fds[slot(step, 1)], command, (int)numeric(step, "fd", 100)));
}

static void passfd_step(const struct step *step)
{
	int pair[2] = {-1, -1}, fd = -1;

	if (!socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && !pass(pair[0], fds[slot(step, 1)]))
		fd = receive_passed(pair[1]);
	close(pair[0]);
	close(pair[1]);
	keep(step, 2, fd);
}

static void bind_step(const struct step *step)
{
	struct sockaddr_storage name;
	socklen_t octets = address(step->word[2], &name);

	say_result(step, bind(fds[slot(step, 1)], (struct sockaddr *)&name, octets));
}

static void connect_step(const struct step *step)
{
	struct sockaddr_storage name = {0};
	socklen_t octets = sizeof(sa_family_t);

	if (strcmp(step->word[2], "none"))
		octets = address(step->word[2], &name);
	say_result(step, connect(fds[slot(step, 1)], (struct sockaddr *)&name, octets));
}

static void listen_step(const struct step *step)
{
	say_result(step, listen(fds[slot(step, 1)], 4));
}

static void close_step(const struct step *step)
{
	say_result(step, close(fds[slot(step, 1)]));
}

const struct verb socket_verbs[] = {
	{"socket", socket_step}, {"timed", timed_step}, {"pair", pair_step}, {"open", open_step}, {"accept", accept_step},
	{"dup", dup_step}, {"dup2", dup2_step}, {"dup3", dup3_step}, {"dupfd", dupfd_step}, {"passfd", passfd_step},
	{"txtime", txtime_step}, {"gettxtime", gettxtime_step}, {"set", set_step}, {"bind", bind_step}, {"connect", connect_step},
	{"listen", listen_step}, {"name", name_step}, {"port", port_step}, {"fd", fd_step},
	{"mode", mode_step}, {"close", close_step}, {0},
};
