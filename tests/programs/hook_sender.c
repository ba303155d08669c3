// SPDX-License-Identifier: Apache-2.0
// Scenarios of one process and one thread. Usage: hook_sender SCENARIO PORT [ARGUMENT…]; prints "what value" lines.
#include "hook_sender.h"
#include "few_calls.h"
#include "waited.h"

int port;

int set_txtime(int fd, int clock)
{
	struct txtime txtime = {clock, 0};
	return setsockopt(fd, SOL_SOCKET, SO_TXTIME, &txtime, sizeof(txtime)) ? -errno : 0;
}

int timed_socket(int family, int clock)
{
	int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int answer = set_txtime(fd, clock);
	if (answer) {
		say("txtime", answer);
		exit(3);
	}
	return fd;
}

uint64_t now(int clock)
{
	struct timespec time;
	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

struct sockaddr_in to4(int to_port)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)to_port)};
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return to;
}

struct sockaddr_in6 to6(const char *address, int to_port)
{
	struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)to_port)};
	inet_pton(AF_INET6, address, &to.sin6_addr);
	return to;
}

static struct msghdr header(struct iovec *iov, char *control, uint64_t at)
{
	struct msghdr message = {.msg_iov = iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(8)};
	struct cmsghdr *item = CMSG_FIRSTHDR(&message);
	item->cmsg_level = SOL_SOCKET;
	item->cmsg_type = SO_TXTIME;
	item->cmsg_len = CMSG_LEN(8);
	memcpy(CMSG_DATA(item), &at, 8);
	return message;
}

long send_at(int fd, const void *name, socklen_t name_octets, const char *text, uint64_t at, int flags)
{
	_Alignas(8) char control[64] = {0};
	struct iovec iov = {(void *)text, strlen(text)};
	struct msghdr message = header(&iov, control, at);
	message.msg_name = (void *)name;
	message.msg_namelen = name_octets;
	errno = 77;
	long sent = sendmsg(fd, &message, flags);
	if (sent < 0)
		return -errno;
	return errno == 77 ? sent : -1000;
}

long send_text(int fd, const char *text)
{
	struct sockaddr_in to = to4(port);
	const char *elsewhere = getenv("HOOK_TO");
	if (elsewhere)
		to.sin_addr.s_addr = inet_addr(elsewhere);
	return send_at(fd, &to, sizeof(to), text, now(TAI) + 200000000, 0);
}

long send_untimed(int fd, const char *text)
{
	struct sockaddr_in to = to4(port);
	struct iovec iov = {(void *)text, strlen(text)};
	struct msghdr message = {.msg_name = &to, .msg_namelen = sizeof(to), .msg_iov = &iov, .msg_iovlen = 1};
	long sent = sendmsg(fd, &message, 0);
	return sent < 0 ? -errno : sent;
}

void say(const char *what, long value)
{
	printf("%s %ld\n", what, value);
	fflush(stdout);
}

static int local_port(int fd)
{
	struct sockaddr_in6 name;
	socklen_t octets = sizeof(name);
	getsockname(fd, (struct sockaddr *)&name, &octets);
	return ntohs(name.sin6_port);
}

static void addresses(void)
{
	struct sockaddr_in4_storage {
		struct sockaddr_in name;
		char rest[128 - sizeof(struct sockaddr_in)];
	} wide = {.name = to4(port)};
	uint64_t at = now(TAI) + 200000000;
	int v4 = timed_socket(AF_INET, TAI), v6 = timed_socket(AF_INET6, TAI);
	struct sockaddr_in6 loop = to6("::1", port), mapped = to6("::ffff:127.0.0.1", port);
	say("v4", send_at(v4, &wide, sizeof(wide.name), "v4", at, 0));
	say("wide", send_at(v4, &wide, 128, "wide", at, MSG_DONTWAIT | MSG_NOSIGNAL));
	say("v6", send_at(v6, &loop, sizeof(loop), "v6", at, 0));
	say("mapped", send_at(v6, &mapped, sizeof(mapped), "mapped", at, 0));
	say("v4-on-v6", send_at(v6, &wide, sizeof(wide.name), "v4-on-v6", at, 0));
	say("port4", local_port(v4));
	say("port6", local_port(v6));
	int bound = timed_socket(AF_INET, TAI);
	struct sockaddr_in here = to4(0);
	say("bind", bind(bound, (void *)&here, sizeof(here)));
	say("bound", send_at(bound, &wide, sizeof(wide.name), "bound", at, 0));
	say("port-bound", local_port(bound));
	int connected = timed_socket(AF_INET, TAI);
	say("no-peer", send_at(connected, NULL, 0, "no-peer", at, 0));
	say("connect", connect(connected, (void *)&wide, sizeof(wide.name)));
	say("peer", send_at(connected, NULL, 0, "peer", at, 0));
	say("override", send_at(connected, &wide, sizeof(wide.name), "override", at, 0));
	say("far", send_at(v4, &(struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = inet_addr("127.9.9.9")},
		sizeof(struct sockaddr_in), "far", at, 0));
}

static void options(void)
{
	int fd = timed_socket(AF_INET, TAI), value;
	send_text(fd, "default");
	value = 5, setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &value, sizeof(value));
	value = 9, setsockopt(fd, IPPROTO_IP, IP_TTL, &value, sizeof(value));
	send_text(fd, "priority-ttl");
	value = 0xb8, setsockopt(fd, IPPROTO_IP, IP_TOS, &value, sizeof(value));
	send_text(fd, "tos");
	value = 3, setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &value, sizeof(value));
	send_text(fd, "tos-priority");
	value = 1, setsockopt(fd, SOL_SOCKET, SO_NO_CHECK, &value, sizeof(value));
	say("no-check", send_text(fd, "no-check"));
	value = 0, setsockopt(fd, SOL_SOCKET, SO_NO_CHECK, &value, sizeof(value));
	say("check", send_text(fd, "check"));
	int six = timed_socket(AF_INET6, TAI);
	struct sockaddr_in6 loop = to6("::1", port);
	value = 0x20, setsockopt(six, IPPROTO_IPV6, IPV6_TCLASS, &value, sizeof(value));
	value = 7, setsockopt(six, IPPROTO_IPV6, IPV6_UNICAST_HOPS, &value, sizeof(value));
	say("class", send_at(six, &loop, sizeof(loop), "class", now(TAI) + 200000000, 0));
}

// Datagrams without a transmit time, on a socket that has SO_TXTIME.
static void untimed(void)
{
	int fd = timed_socket(AF_INET, TAI), connected = timed_socket(AF_INET, MONOTONIC), value;
	struct sockaddr_in to = to4(port);
	char space[CMSG_SPACE(4)] = {0};
	struct iovec piece = {"others", 6};
	struct msghdr message = {.msg_name = &to, .msg_namelen = sizeof(to), .msg_iov = &piece, .msg_iovlen = 1};
	const char *texts[] = {"zero", "four", "six"};
	int priorities[] = {0, 4, 6};
	connect(connected, (void *)&to, sizeof(to));
	for (int i = 0; i < 3; i++) {
		setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priorities[i], sizeof(int));
		piece = (struct iovec){(void *)texts[i], strlen(texts[i])};
		say(texts[i], sendmsg(fd, &message, 0));
	}
	value = 5, setsockopt(connected, SOL_SOCKET, SO_PRIORITY, &value, sizeof(value));
	piece = (struct iovec){"peer", 4}, message.msg_name = NULL, message.msg_namelen = 0;
	say("peer", sendmsg(connected, &message, 0));
	// With a control message that the frame carries.
	struct cmsghdr *item = (void *)space;
	item->cmsg_level = IPPROTO_IP, item->cmsg_type = IP_TTL, item->cmsg_len = CMSG_LEN(4), value = 3;
	memcpy(CMSG_DATA(item), &value, 4);
	piece = (struct iovec){"others", 6}, message.msg_control = space, message.msg_controllen = sizeof(space);
	say("others", sendmsg(connected, &message, 0));
	send_text(fd, "timed");
}

// As an unprivileged program: CLOCK_TAI needs CAP_NET_ADMIN, or somebody who grants it.
void drop_rights(void)
{
	if (setresuid(65534, 65534, 65534))
		exit(4);
}

static void granted(void)
{
	drop_rights();
	int fd = socket(AF_INET, SOCK_DGRAM, 0), tcp = socket(AF_INET, SOCK_STREAM, 0);
	errno = 77;
	say("tai", set_txtime(fd, TAI));
	say("errno", errno);
	struct {
		struct txtime txtime;
		uint8_t after;
	} read = {{0, 0}, 0xee};
	socklen_t octets = sizeof(read.txtime);
	say("get", getsockopt(fd, SOL_SOCKET, SO_TXTIME, &read.txtime, &octets));
	say("clock", read.txtime.clock);
	say("octets", octets);
	octets = 3, read.txtime.clock = 0x55555555;
	getsockopt(fd, SOL_SOCKET, SO_TXTIME, &read, &octets);
	say("short", octets);
	say("short-clock", read.txtime.clock == 0x55000000 + TAI);
	say("sent", send_text(fd, "granted"));
	// To the kernel, which never heard of SO_TXTIME on this socket: the transmit time must be taken out.
	struct sockaddr_in far = to4(port);
	far.sin_addr.s_addr = inet_addr("127.9.9.9");
	say("stripped", send_at(fd, &far, sizeof(far), "stripped", now(TAI) + 200000000, 0));
	say("tcp", set_txtime(tcp, TAI));
	say("realtime", set_txtime(fd, 0));
	say("wrong", set_txtime(fd, 99));
	struct txtime bad = {TAI, 0xff00};
	say("flags", setsockopt(fd, SOL_SOCKET, SO_TXTIME, &bad, sizeof(bad)) ? -errno : 0);
	say("length", setsockopt(fd, SOL_SOCKET, SO_TXTIME, &bad, 4) ? -errno : 0);
	int mono = socket(AF_INET, SOCK_DGRAM, 0);
	say("monotonic", set_txtime(mono, MONOTONIC));
	struct sockaddr_in to = to4(port);
	say("mono-sent", send_at(mono, &to, sizeof(to), "monotonic", now(MONOTONIC) + 200000000, 0));
}

static void pieces(void)
{
	int fd = timed_socket(AF_INET, TAI);
	struct sockaddr_in to = to4(port);
	_Alignas(8) char control[64] = {0};
	static char block[65536];
	static struct iovec many[1025];
	memset(block, 'x', sizeof(block));
	struct iovec three[3] = {{"ab", 2}, {NULL, 0}, {"cde", 3}};
	struct msghdr message = header(three, control, now(TAI) + 200000000);
	message.msg_name = &to, message.msg_namelen = sizeof(to), message.msg_iovlen = 3;
	say("three", sendmsg(fd, &message, 0));
	message.msg_iovlen = 0;
	say("empty", sendmsg(fd, &message, 0));
	for (int i = 0; i < 1025; i++)
		many[i] = (struct iovec){"m", 1};
	message.msg_iov = many, message.msg_iovlen = 1024;
	say("many", sendmsg(fd, &message, 0));
	message.msg_iovlen = 1025;
	say("too-many", sendmsg(fd, &message, 0) < 0 ? -errno : 0);
	struct iovec big = {block, 1400};
	message.msg_iov = &big, message.msg_iovlen = 1;
	say("fits", sendmsg(fd, &message, 0));
	big.iov_len = 1401;
	say("over", sendmsg(fd, &message, 0));
	big.iov_len = 65507;
	say("longest", sendmsg(fd, &message, 0));
	big.iov_len = 65508;
	say("too-long", sendmsg(fd, &message, 0) < 0 ? -errno : 0);
	struct mmsghdr burst[5];
	char controls[5][64] = {{0}};
	struct iovec one[5];
	for (int i = 0; i < 5; i++) {
		one[i] = (struct iovec){"burst", 5};
		burst[i].msg_hdr = header(&one[i], controls[i], now(TAI) + 200000000);
		burst[i].msg_hdr.msg_name = &to, burst[i].msg_hdr.msg_namelen = sizeof(to);
	}
	say("burst", sendmmsg(fd, burst, 5, 0));
	say("burst-len", burst[4].msg_len);
}

// Calls that only the kernel can answer: the same lines must come out with and without KTSN.
static long odd(int fd, struct msghdr *message, int flags)
{
	errno = 0;
	long sent = sendmsg(fd, message, flags);
	return sent < 0 ? -errno : sent;
}

static void garbage(void)
{
	struct sockaddr_in to = to4(port);
	struct sockaddr_in6 loop = to6("::1", port), any = to6("::", 0);
	_Alignas(8) char control[256];
	struct iovec iov = {"garbage", 7};
	int timed = timed_socket(AF_INET, TAI), plain = socket(AF_INET, SOCK_DGRAM, 0), six = timed_socket(AF_INET6, TAI);
	int fds[] = {timed, plain, six};
	for (int s = 0; s < 3; s++) {
		int fd = fds[s];
		for (int len = 0; len < 40; len++) {
			memset(control, 0, sizeof(control));
			struct msghdr message = header(&iov, control, 0);
			message.msg_name = &to, message.msg_namelen = sizeof(to);
			((struct cmsghdr *)control)->cmsg_len = (size_t)len;
			if (len != 24)
				say("cmsg-len", odd(fd, &message, 0));
			((struct cmsghdr *)control)->cmsg_len = CMSG_LEN(8);
			message.msg_controllen = (size_t)len;
			if (len < 24)
				say("control-len", odd(fd, &message, 0));
		}
		memset(control, 0xff, sizeof(control));
		struct msghdr message = {.msg_name = &to, .msg_namelen = sizeof(to), .msg_iov = &iov, .msg_iovlen = 1};
		message.msg_control = control, message.msg_controllen = sizeof(control);
		say("ones", odd(fd, &message, 0));
		message.msg_control = NULL;
		say("null-control", odd(fd, &message, 0));
		message.msg_controllen = 0;
		say("untimed", odd(fd, &message, 0));
		for (socklen_t len = 0; len < 16; len++) {
			message = header(&iov, memset(control, 0, sizeof(control)), 5);
			message.msg_name = &to, message.msg_namelen = len;
			say("name-len", odd(fd, &message, 0));
		}
		message.msg_name = &any, message.msg_namelen = sizeof(any);
		say("any", odd(fd, &message, 0));
		message.msg_name = &loop, message.msg_namelen = 20;
		say("short6", odd(fd, &message, 0));
		message.msg_name = &to, message.msg_namelen = (socklen_t)-1;
		say("negative", odd(fd, &message, 0));
		message.msg_namelen = sizeof(to);
		to.sin_port = 0;
		say("port0", odd(fd, &message, 0));
		to = to4(port);
		to.sin_family = 77;
		say("family", odd(fd, &message, 0));
		to = to4(port);
		say("oob", odd(fd, &message, MSG_OOB));
		message.msg_iov = NULL;
		say("null-iov", odd(fd, &message, 0));
		struct iovec negative = {"x", (size_t)-1};
		message.msg_iov = &negative;
		say("negative-iov", odd(fd, &message, 0));
		struct iovec nothing = {NULL, 5};
		message.msg_iov = &nothing;
		say("null-base", odd(fd, &message, 0));
		say("null", odd(fd, NULL, 0));
	}
	say("bad-fd", send_text(-1, "x"));
	say("no-fd", send_text(999, "x"));
	say("file", send_text(0, "x"));
	say("dup-bad", dup(-1));
	say("close-bad", close(999));
}

static void interrupt(int number)
{
	(void)number;
}

static void full(void)
{
	int fd = timed_socket(AF_INET, TAI), count = 0;
	struct sockaddr_in to = to4(port);
	long sent;
	while ((sent = send_at(fd, &to, sizeof(to), "fill", now(TAI) + 5000000000, MSG_DONTWAIT)) == 4 && count < 100000)
		count++;
	say("filled", count);
	say("full", sent);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	say("nonblocking", send_text(fd, "x"));
	fcntl(fd, F_SETFL, 0);
	struct timeval wait = {0, 50000};
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	uint64_t start = now(MONOTONIC);
	say("timeout", send_text(fd, "x"));
	say("waited-ms", (long)((now(MONOTONIC) - start) / 1000000));
	wait.tv_usec = 0;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	struct sigaction action = {.sa_handler = interrupt};
	sigaction(SIGALRM, &action, NULL);
	// Again and again: the first one may come before the send waits.
	struct itimerval timer = {{0, 20000}, {0, 20000}}, off = {{0, 0}, {0, 0}};
	setitimer(ITIMER_REAL, &timer, NULL);
	long interrupted = send_text(fd, "x");
	setitimer(ITIMER_REAL, &off, NULL);
	say("interrupted", interrupted);
	// Line by line: the test lets slots go when it has read this.
	say("blocking", 1);
	say("released", send_text(fd, "late"));
}

// What one send of 64 octets costs while slots are free and nobody must be woken: the mean.
static void cost(void)
{
	uint64_t took = 0;
	int fd = timed_socket(AF_INET, TAI);
	char text[65];
	memset(text, 'c', 64), text[64] = 0;
	struct sockaddr_in to = to4(port);
	send_at(fd, &to, sizeof(to), text, now(TAI) + 5000000000, 0);
	only_few_calls();
	for (int i = 0; i < 4000; i++) {
		uint64_t at = now(TAI) + 5000000000, start = now(MONOTONIC);
		if (send_at(fd, &to, sizeof(to), text, at, 0) != 64)
			exit(5);
		took += now(MONOTONIC) - start;
	}
	say("send-ns", (long)took / 4000);
}

// hook_sender stream PORT COUNT PERIOD_US [nonblocking]: one frame a period, and how many sends after the first had to wait.
static void stream(int argc, char **argv)
{
	long count = argc > 3 ? atol(argv[3]) : 100, period = argc > 4 ? atol(argv[4]) : 1000, waits = 0, failed = 0;
	int fd = timed_socket(AF_INET, MONOTONIC);
	struct sockaddr_in to = to4(port);
	if (argc > 5)
		fcntl(fd, F_SETFL, O_NONBLOCK);
	say("ready", 1);
	for (long i = 0; i < count; i++) {
		char text[32];
		snprintf(text, sizeof(text), "s%ld", i);
		long waited_before = waited();
		long sent = send_at(fd, &to, sizeof(to), text, now(MONOTONIC) + 100000000, 0);
		waits += i > 0 && waited() > waited_before;
		failed += sent != (long)strlen(text);
		usleep((useconds_t)period);
	}
	say("failed", failed);
	say("waits", waits);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	// Whatever hangs is killed, and the test fails.
	struct sigevent end = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
	struct itimerspec limit = {.it_value.tv_sec = 60};
	timer_t timer;
	if (timer_create(CLOCK_MONOTONIC, &end, &timer) || timer_settime(timer, 0, &limit, NULL))
		return 3;
	const char *name = argv[1];
	port = atoi(argv[2]);
	if (!strcmp(name, "addresses"))
		addresses();
	else if (!strcmp(name, "options"))
		options();
	else if (!strcmp(name, "untimed"))
		untimed();
	else if (!strcmp(name, "granted"))
		granted();
	else if (!strcmp(name, "pieces"))
		pieces();
	else if (!strcmp(name, "garbage"))
		garbage();
	else if (!strcmp(name, "full"))
		full();
	else if (!strcmp(name, "cost"))
		cost();
	else if (!strcmp(name, "stream"))
		stream(argc, argv);
	else if (!run_process_scenario(name, argc, argv) && !run_grant_scenario(name, argv) &&
		!run_life_scenario(name, argv) && !run_thread_scenario(name) && !run_stamp_scenario(name, argv) &&
		!run_burst_scenario(name, argc, argv) && !run_counted_scenario(name) &&
		!run_leaving_scenario(name) && !run_port_scenario(name))
		return 2;
	return 0;
}
