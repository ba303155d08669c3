// SPDX-License-Identifier: Apache-2.0
// A listener for periodic datagrams, by every call that waits for them; the scenarios of KTSN_RECEIVE=expect.
//   arrivals HOW               receives what a child sends every millisecond, until standard input ends
//   arrivals-timeout HOW       the sender stops: a call with a time limit of 30 ms
//   arrivals-signal HOW [restart=1] [timed=1] [realtime=1] [error=1] seed=N rounds=N   the sender stops: a signal, at any instant
#include "steps_arrivals.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static int set = -1, many_fds[64];

int listen_anywhere(void)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof(name)))
		exit(6);
	return fd;
}

static long by_recvmsg(int fd, void *data, size_t octets)
{
	struct iovec part = {data, octets};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

	return recvmsg(fd, &message, 0);
}

static long by_recvmmsg(int fd, void *data, size_t octets)
{
	struct iovec part = {data, octets};
	struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
	int count = recvmmsg(fd, &message, 1, 0x10000 /* MSG_WAITFORONE */, NULL);

	return count == 1 ? (long)message.msg_len : count;
}

// The first wait of a set of calls with a limit in milliseconds; negative: none.
static int wait_readable(const char *how, int fd, long limit)
{
	struct timespec span = {limit / 1000, limit % 1000 * 1000000}, *at = limit < 0 ? NULL : &span;
	struct pollfd polled = {fd, POLLIN, 0}, several[65];
	struct epoll_event event;
	sigset_t none;

	sigemptyset(&none);
	if (!strcmp(how, "poll"))
		return poll(&polled, 1, (int)limit);
	if (!strcmp(how, "ppoll"))
		return ppoll(&polled, 1, at, &none);
	if (!strcmp(how, "many")) {
		for (int i = 0; i < 64; i++)
			several[i] = (struct pollfd){many_fds[i], POLLIN, 0};
		several[64] = polled;
		return poll(several, 65, (int)limit);
	}
	if (!strcmp(how, "select") || !strcmp(how, "pselect")) {
		struct timeval value = {limit / 1000, limit % 1000 * 1000};
		fd_set in;
		FD_ZERO(&in);
		FD_SET(fd, &in);
		int count = how[0] == 's' ? select(fd + 1, &in, NULL, NULL, limit < 0 ? NULL : &value)
					  : pselect(fd + 1, &in, NULL, NULL, at, &none);
		if (count >= 0 && !!FD_ISSET(fd, &in) != count)
			exit(7);
		// As Linux does: what is left of the time.
		if (how[0] == 's' && limit >= 0 && count == 0 && (value.tv_sec || value.tv_usec))
			exit(7);
		return count;
	}
	if (!strcmp(how, "epoll_pwait"))
		return epoll_pwait(set, &event, 1, (int)limit, &none);
#ifdef __GLIBC__
	if (!strcmp(how, "epoll_pwait2"))
		return epoll_pwait2(set, &event, 1, at, &none);
#endif
	return epoll_wait(set, &event, 1, (int)limit);
}

static int is_single(const char *how)
{
	return !strncmp(how, "rec", 3) || !strncmp(how, "read", 4);
}

long receive_by(const char *how, int fd, void *data, size_t octets, long limit)
{
	struct iovec part = {data, octets};
	struct sockaddr_in from;
	socklen_t from_octets = sizeof(from);
	int ready;

	if (!strcmp(how, "recv"))
		return recv(fd, data, octets, 0);
	if (!strcmp(how, "recvfrom"))
		return recvfrom(fd, data, octets, 0, (struct sockaddr *)&from, &from_octets);
	if (!strcmp(how, "recvmsg"))
		return by_recvmsg(fd, data, octets);
	if (!strcmp(how, "recvmmsg"))
		return by_recvmmsg(fd, data, octets);
	if (!strcmp(how, "read"))
		return read(fd, data, octets);
	if (!strcmp(how, "readv"))
		return readv(fd, &part, 1);
	for (;;) {
		// An edge comes once for all datagrams that are there.
		long got = strcmp(how, "edge") ? -1 : recv(fd, data, octets, MSG_DONTWAIT);
		if (got >= 0)
			return got;
		errno = 77;
		ready = wait_readable(how, fd, limit);
		if (ready <= 0)
			return ready < 0 ? -1 : 0;
		got = recv(fd, data, octets, MSG_DONTWAIT);
		if (got >= 0 || errno != EAGAIN)
			return got;
	}
}

void prepare(const char *how, int fd, long limit)
{
	struct timeval value = {limit / 1000, limit % 1000 * 1000};
	struct epoll_event event = {.events = EPOLLIN | (strcmp(how, "edge") ? 0 : EPOLLET), .data.u64 = 0x1234567890abcdef};

	if (is_single(how) && limit >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &value, sizeof(value)))
		exit(6);
	if (!strncmp(how, "e", 1)) {
		set = epoll_create1(0);
		if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
			exit(6);
	}
	if (!strcmp(how, "many"))
		for (int i = 0; i < 64; i++)
			many_fds[i] = socket(AF_INET, SOCK_DGRAM, 0);
}

static void sleep_until(uint64_t at)
{
	struct timespec then = {(time_t)(at / 1000000000), (long)(at % 1000000000)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &then, NULL) == EINTR)
		;
}

void send_number(int from, const struct sockaddr_in *to, uint64_t value)
{
	sendto(from, &value, sizeof(value), 0, (const struct sockaddr *)to, sizeof(*to));
}

// Sends numbers every `period` nanoseconds: `count` of them, or until standard input ends.
void send_numbers(const struct sockaddr_in *to, uint64_t first, long count, uint64_t period)
{
	int from = socket(AF_INET, SOCK_DGRAM, 0);
	uint64_t at = now(MONOTONIC);

	for (uint64_t i = first; count < 0 || i < first + (uint64_t)count; i++) {
		struct pollfd end = {0, POLLIN, 0};
		char none;

		sleep_until(at += period);
		if (count < 0 && poll(&end, 1, 0) > 0 && read(0, &none, 1) <= 0) {
			send_number(from, to, UINT64_MAX);
			return;
		}
		send_number(from, to, i);
	}
	close(from);
}

struct sockaddr_in name_of(int fd)
{
	struct sockaddr_in name;
	socklen_t octets = sizeof(name);

	if (getsockname(fd, (struct sockaddr *)&name, &octets))
		exit(6);
	return name;
}

static void arrivals(const struct step *step)
{
	const char *how = step->word[1];
	int fd = listen_anywhere();
	struct sockaddr_in to = name_of(fd);
	uint64_t next = 0, value = 0;
	long disordered = 0, failed = 0;
	pid_t child = fork();

	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		send_numbers(&to, 0, -1, 1000000);
		_exit(0);
	}
	prepare(how, fd, -1);
	for (;;) {
		errno = 77;
		long octets = receive_by(how, fd, &value, sizeof(value), -1);
		if (octets != sizeof(value) || (errno != 77 && is_single(how))) {
			failed++;
			continue;
		}
		if (value == UINT64_MAX)
			break;
		disordered += value != next;
		next = value + 1;
	}
	waitpid(child, NULL, 0);
	show("received", (long)next);
	show("disordered", disordered);
	show("failed", failed);
}

void *send_in_thread(void *argument)
{
	struct sender *sender = argument;
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	send_numbers(&sender->to, 0, sender->count, sender->period);
	return NULL;
}

// A SO_RCVTIMEO of 30 ms ends no sooner: it counts jiffies.
#define TIMEO_MIN 26000000u

long take(const char *how, int fd, long count, long limit)
{
	struct sender sender = {name_of(fd), count, 1000000};
	uint64_t value;
	pthread_t thread;
	long failed = 0;

	pthread_create(&thread, NULL, send_in_thread, &sender);
	for (long i = 0; i < count; i++) {
		uint64_t begin = now(MONOTONIC);
		long got = receive_by(how, fd, &value, sizeof(value), limit);

		// The socket's own limit, where the sender had no CPU for so long.
		for (; got < 0 && errno == EAGAIN && now(MONOTONIC) - begin >= TIMEO_MIN; begin = now(MONOTONIC))
			got = receive_by(how, fd, &value, sizeof(value), limit);
		failed += got != sizeof(value) || value != (uint64_t)i;
	}
	pthread_join(thread, NULL);
	return failed;
}

static void arrivals_timeout(const struct step *step)
{
	const char *how = step->word[1];
	int fd = listen_anywhere();
	uint64_t value, begin;
	long early = 0, wrong = 0, failed = 0;

	prepare(how, fd, 30);
	for (int round = 0; round < 5; round++) {
		failed += take(how, fd, 100, 20000);
		// recv's own limit is 30 ms.
		for (int i = 0; i < 3; i++) {
			begin = now(MONOTONIC);
			errno = 77;
			long answer = receive_by(how, fd, &value, sizeof(value), 30);
			int error = errno;
			early += now(MONOTONIC) - begin < (is_single(how) ? TIMEO_MIN : 30000000u);
			wrong += is_single(how) ? answer != -1 || error != EAGAIN : answer != 0 || error != 77;
		}
	}
	show("failed", failed);
	show("early", early);
	show("wrong", wrong);
}

static volatile sig_atomic_t handled;

static void count_signal(int signal)
{
	(void)signal;
	handled = handled + 1;
}

// Whether a thread sleeps in a call that waits for datagrams.
int is_waiting(pid_t thread)
{
	static const long calls[] = {
		SYS_recvfrom, SYS_recvmsg, SYS_recvmmsg, SYS_read, SYS_readv, SYS_ppoll, SYS_pselect6, SYS_epoll_pwait,
#ifdef SYS_poll
		SYS_poll, SYS_select, SYS_epoll_wait,
#endif
	};
	char path[64], text[64] = "";
	int file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", (int)thread);
	file = open(path, O_RDONLY);
	if (file < 0 || read(file, text, sizeof(text) - 1) <= 0)
		exit(6);
	close(file);
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		if (text[0] != 'r' && strtol(text, NULL, 10) == calls[i])
			return 1;
	return 0;
}

struct later {
	pthread_t whom;
	pid_t thread;
	int signal, goes_on, before;
	struct sockaddr_in to;
	uint64_t after;
	// The call has returned.
	volatile int is_over;
	// It went on after a handler that ends it, until a datagram freed it.
	int is_lost;
};

// Nothing is judged by this time: only a test that fails waits for so long.
#define FREE_AFTER 10000000000ull

// A signal after `after` ns. Only when the call goes on as it should, or failed to end, a datagram follows: so whatever the machine does
// meanwhile, the kernel has one answer.
static void *interrupt(void *argument)
{
	struct later *later = argument;
	uint64_t begin = now(MONOTONIC);
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	// A signal before the call is none of the call's.
	while (!is_waiting(later->thread))
		;
	while (now(MONOTONIC) - begin < later->after)
		;
	pthread_kill(later->whom, later->signal);
	begin = now(MONOTONIC);
	while (!later->is_over && now(MONOTONIC) - begin < FREE_AFTER) {
		if (later->goes_on && handled != later->before && is_waiting(later->thread))
			break;
		sched_yield();
	}
	later->is_lost = !later->is_over && !later->goes_on;
	if (!later->is_over) {
		int from = socket(AF_INET, SOCK_DGRAM, 0);
		send_number(from, &later->to, 4711);
		close(from);
	}
	return NULL;
}

// An entry in the socket's error queue that stays: poll says "ready" from now on, a receive call does not.
static void leave_error(int fd)
{
	int none = listen_anywhere(), flags = 2 | 16; // SOF_TIMESTAMPING_TX_SOFTWARE, SOF_TIMESTAMPING_SOFTWARE
	struct sockaddr_in to = name_of(none);
	struct pollfd polled = {fd, 0, 0};

	if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof(flags)))
		exit(6);
	send_number(fd, &to, 1);
	if (poll(&polled, 1, 10000) != 1)
		exit(6);
	close(none);
}

static void arrivals_signal(const struct step *step)
{
	const char *how = step->word[1];
	long restarts = numeric(step, "restart", 0), rounds = numeric(step, "rounds", 20), failed = 0, wrong = 0, lost = 0;
	unsigned seed = (unsigned)numeric(step, "seed", 1);
	struct sigaction action = {.sa_handler = count_signal, .sa_flags = restarts ? SA_RESTART : 0};
	int fd = listen_anywhere(), is_ended = !restarts || !is_single(how) || numeric(step, "timed", 0);
	int signal = numeric(step, "realtime", 0) ? SIGRTMIN : SIGUSR1;
	uint64_t value;

	sigaction(signal, &action, NULL);
	prepare(how, fd, numeric(step, "timed", 0) ? 100000 : -1);
	if (numeric(step, "error", 0))
		leave_error(fd);
	for (long round = 0; round < rounds; round++) {
		failed += take(how, fd, round ? 30 : 60, -1);
		// At any place of the next periods.
		struct later later = {.whom = pthread_self(), .thread = (pid_t)syscall(SYS_gettid), .signal = signal,
				      .goes_on = !is_ended, .before = handled, .to = name_of(fd),
				      .after = (uint64_t)rand_r(&seed) % 2500000};
		pthread_t thread;
		pthread_create(&thread, NULL, interrupt, &later);
		errno = 0;
		value = 0;
		long answer = receive_by(how, fd, &value, sizeof(value), -1);
		int error = errno;
		later.is_over = 1;
		pthread_join(thread, NULL);
		lost += later.is_lost;
		wrong += handled != later.before + 1;
		wrong += is_ended ? answer != -1 || error != EINTR : answer != sizeof(value) || value != 4711;
		// What freed a call that was lost.
		while (recv(fd, &value, sizeof(value), MSG_DONTWAIT) > 0)
			;
	}
	show("failed", failed);
	show("lost", lost);
	show("wrong", wrong);
	show("handled", handled);
}

const struct verb arrival_verbs[] = {
	{"arrivals", arrivals}, {"arrivals-timeout", arrivals_timeout}, {"arrivals-signal", arrivals_signal}, {0},
};
