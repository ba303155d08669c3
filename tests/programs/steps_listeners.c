// SPDX-License-Identifier: Apache-2.0
// Listeners whose thread, descriptor or process changes while it expects an arrival.
//   arrivals-cancelled rounds=N    a thread is cancelled in a receive call, at any place of a period
//   arrivals-shared                two threads on one socket
//   arrivals-closed rounds=N       another thread closes the socket
//   arrivals-shut                  another thread shuts the socket down
//   arrivals-reused rounds=N       another thread closes the socket, and the next one has its number and its place
//   arrivals-drained count=N       SO_RCVTIMEO is negative before the first receive call
//   arrivals-forked                the child goes on receiving
//   arrivals-spawned               a vfork's child closes the descriptors, before anything was received
//   arrivals-forbidden how=CALL call=NAME   a sandbox forbids the process a system call that it does not make itself
//   arrivals-nested                a signal handler receives on the same socket
//   arrivals-answers rounds=N      MSG_PEEK, MSG_TRUNC, an ICMP error, select with a descriptor above FD_SETSIZE
#include "steps_arrivals.h"

#include "few_calls.h"

#include <pthread.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/uio.h>

static int fd;
static volatile int is_over;

static volatile long masked, cleaned;

static void clean(void *argument)
{
	sigset_t mask;

	(void)argument;
	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	masked += sigismember(&mask, SIGUSR1) || sigismember(&mask, SIGTERM);
	cleaned++;
}

static void *receive_for_ever(void *argument)
{
	uint64_t value;

	pthread_cleanup_push(clean, NULL);
	for (;;)
		receive_by(argument, fd, &value, sizeof(value), -1);
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancelled(const struct step *step)
{
	static const char *const hows[] = {"recv", "poll", "select", "read"};
	long rounds = numeric(step, "rounds", 20), failed = 0, not_cancelled = 0;
	struct sockaddr_in to;

	fd = listen_anywhere();
	to = name_of(fd);
	for (long round = 0; round < rounds; round++) {
		const char *how = hows[round % 4];
		pthread_t thread;
		void *result = NULL;
		struct timespec pause = {0, round * 1000000 / rounds};

		failed += take(how, fd, 60, -1);
		pthread_create(&thread, NULL, receive_for_ever, (void *)how);
		send_numbers(&to, 0, 5, 1000000);
		nanosleep(&pause, NULL);
		pthread_cancel(thread);
		pthread_join(thread, &result);
		not_cancelled += result != PTHREAD_CANCELED;
		// Whatever it left.
		while (recv(fd, &(uint64_t){0}, 8, MSG_DONTWAIT) > 0)
			;
	}
	show("failed", failed);
	show("not-cancelled", not_cancelled);
	show("masked", masked);
	show("uncleaned", rounds - cleaned);
}

static void *count_received(void *argument)
{
	long *count = argument;
	uint64_t value;

	while (recv(fd, &value, sizeof(value), 0) == sizeof(value) && value != UINT64_MAX)
		++*count;
	return NULL;
}

static void shared(const struct step *step)
{
	long counts[2] = {0, 0}, all = numeric(step, "count", 1000);
	struct sockaddr_in to;
	pthread_t threads[2];
	int from = socket(AF_INET, SOCK_DGRAM, 0);

	fd = listen_anywhere();
	to = name_of(fd);
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, count_received, &counts[i]);
	send_numbers(&to, 0, all, 1000000);
	for (int i = 0; i < 2; i++)
		send_number(from, &to, UINT64_MAX);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	show("lost", all - counts[0] - counts[1]);
	show("least", counts[0] < counts[1] ? counts[0] : counts[1]);
}

static void *shut_down(void *argument)
{
	struct timespec pause = {0, 1500000};

	nanosleep(&pause, NULL);
	shutdown(fd, SHUT_RD);
	return argument;
}

static void nothing(int signal)
{
	(void)signal;
}

static void shut(const struct step *)
{
	struct sockaddr_in to;
	uint64_t value;
	pthread_t thread;

	fd = listen_anywhere();
	show("failed", take("recv", fd, 100, -1));
	to = name_of(fd);
	connect(fd, (struct sockaddr *)&to, sizeof(to));
	pthread_create(&thread, NULL, shut_down, NULL);
	show("answer", recv(fd, &value, sizeof(value), 0));
	pthread_join(thread, NULL);
}

static void *close_socket(void *whom)
{
	struct timespec pause = {0, 300000};

	do
		nanosleep(&pause, NULL);
	while (!is_waiting(getpid()));
	close(fd);
	// Where no arrival was expected, the kernel alone waits, and goes on waiting.
	for (int pauses = 0; !is_over; pauses++) {
		nanosleep(&pause, NULL);
		if (pauses > 100)
			pthread_kill(*(pthread_t *)whom, SIGUSR1);
	}
	return NULL;
}

// The next socket has the closed one's number. What arrives there is not the waiting call's.
static void *replace_socket(void *whom)
{
	struct timespec pause = {0, 300000};
	struct sockaddr_in to;
	uint64_t value;
	int next;

	// The main thread may be slow to make its call. A new one is the next socket's.
	do
		nanosleep(&pause, NULL);
	while (!is_waiting(getpid()));
	close(fd);
	next = listen_anywhere();
	to = name_of(next);
	send_number(next, &to, 0);
	if (next != fd)
		exit(8);
	// The waiting call may take it, and is over then: what a wait without end would not see.
	while (recv(next, &value, sizeof(value), MSG_DONTWAIT) != sizeof(value)) {
		if (is_over)
			return NULL;
		nanosleep(&pause, NULL);
	}
	send_numbers(&to, 1, 8, 500000);
	// Where the kernel alone waits, it waits for the closed socket.
	while (!is_over) {
		pthread_kill(*(pthread_t *)whom, SIGUSR1);
		nanosleep(&pause, NULL);
	}
	return NULL;
}

// How calls end whose socket another thread closes by `ender`.
static void count_ends(const struct step *step, void *(*ender)(void *))
{
	long rounds = numeric(step, "rounds", 10), failed = 0, ended = 0, interrupted = 0, taken = 0;
	struct sigaction action = {.sa_handler = nothing};
	pthread_t thread, self = pthread_self();

	sigaction(SIGUSR1, &action, NULL);
	for (long round = 0; round < rounds; round++) {
		uint64_t value;

		is_over = 0;
		fd = listen_anywhere();
		failed += take("recv", fd, 60, -1);
		pthread_create(&thread, NULL, ender, &self);
		errno = 0;
		long answer = recv(fd, &value, sizeof(value), 0);
		ended += answer < 0 && errno == EBADF;
		interrupted += answer < 0 && errno == EINTR;
		taken += answer >= 0;
		is_over = 1;
		pthread_join(thread, NULL);
		close(fd); // the next socket, where there is one
	}
	show("failed", failed);
	show("ended", ended);
	show("interrupted", interrupted);
	show("taken", taken);
	show("other", rounds - ended - interrupted);
}

static void closed(const struct step *step)
{
	count_ends(step, close_socket);
}

static void reused(const struct step *step)
{
	count_ends(step, replace_socket);
}

// A negative SO_RCVTIMEO does not wait, and reads as "without end".
static void drained(const struct step *step)
{
	struct sender sender = {.count = numeric(step, "count", 300), .period = 1000000};
	struct timeval never = {-1, 0};
	long received = 0, empty = 0, other = 0;
	pthread_t thread;
	uint64_t value;

	fd = listen_anywhere();
	other += setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof(never)) != 0;
	sender.to = name_of(fd);
	pthread_create(&thread, NULL, send_in_thread, &sender);
	while (received < sender.count) {
		struct pollfd asked = {fd, POLLIN, 0};

		if (poll(&asked, 1, -1) != 1)
			break;
		while (recv(fd, &value, sizeof(value), 0) == sizeof(value))
			received++;
		empty += errno == EAGAIN;
		other += errno != EAGAIN;
	}
	pthread_join(thread, NULL);
	show("received", received);
	show("empty", empty);
	show("other", other);
}

static void spawned(const struct step *)
{
	pid_t child;

	fd = listen_anywhere();
	prepare("epoll", fd, -1);
	child = vfork();
	if (child == 0) {
		close(fd);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	show("failed", take("epoll", fd, 300, -1));
}

static volatile long handled_count;

static void count_handled(int signal)
{
	(void)signal;
	handled_count++;
}

// The process blocks a signal, which is pending when the first call waits.
static void forbidden(const struct step *step)
{
	static const struct {
		const char *name;
		long number;
	} calls[] = {
		{"recvfrom", SYS_recvfrom}, {"ppoll", SYS_ppoll}, {"rt_sigprocmask", SYS_rt_sigprocmask},
	};
	struct instruction filter[] = {
		LOAD(0), EQUAL(0, 1), {0x06, 0, 0, 0x50000 | EPERM}, ALLOW,
	};
	struct sigaction action = {.sa_handler = count_handled};
	const char *how = value(step, "how", "recv");
	sigset_t blocked;

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		if (!strcmp(value(step, "call", ""), calls[i].name))
			filter[1].value = (uint32_t)calls[i].number;
	fd = listen_anywhere();
	prepare(how, fd, -1);
	show("failed", take("recvmsg", fd, 100, -1));
	sigaction(SIGUSR1, &action, NULL);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &blocked, NULL);
	pthread_kill(pthread_self(), SIGUSR1);
	filter_calls(filter, sizeof(filter) / sizeof(filter[0]));
	show("forbidden", take(how, fd, 300, -1));
	show("handled", handled_count);
}

static void forked(const struct step *)
{
	long failed;
	int status = -1;
	pid_t child;

	fd = listen_anywhere();
	failed = take("recv", fd, 200, -1);
	child = fork();
	if (child == 0)
		_exit(take("recv", fd, 300, -1) != 0);
	waitpid(child, &status, 0);
	show("failed", failed);
	show("child", status);
	show("after", take("recv", fd, 200, -1));
}

static volatile long nested_received, nested_begun;

static void receive_in_handler(int signal)
{
	uint64_t value;
	int saved = errno;

	(void)signal;
	nested_begun++;
	nested_received += recv(fd, &value, sizeof(value), 0) == sizeof(value);
	errno = saved;
}

static void *signal_again(void *whom)
{
	for (int i = 0; i < 50; i++) {
		struct timespec pause = {0, 3300000};
		nanosleep(&pause, NULL);
		pthread_kill(*(pthread_t *)whom, SIGUSR1);
	}
	is_over = 1;
	return NULL;
}

static void *keep_sending(void *argument)
{
	while (!is_over)
		send_numbers(argument, 0, 20, 1000000);
	for (int i = 0; i < 3; i++)
		send_numbers(argument, UINT64_MAX, 1, 1000000);
	return NULL;
}

static void nested(const struct step *)
{
	struct sigaction action = {.sa_handler = receive_in_handler, .sa_flags = SA_RESTART};
	struct sockaddr_in to;
	pthread_t sender, signaller, self = pthread_self();
	uint64_t value = 0;
	long received = 0;

	fd = listen_anywhere();
	to = name_of(fd);
	sigaction(SIGUSR1, &action, NULL);
	pthread_create(&sender, NULL, keep_sending, &to);
	show("failed", take("recv", fd, 0, -1));
	pthread_create(&signaller, NULL, signal_again, &self);
	while (!is_over && recv(fd, &value, sizeof(value), 0) == sizeof(value))
		received++;
	pthread_join(signaller, NULL);
	pthread_join(sender, NULL);
	show("received", received > 0);
	show("nested", nested_received);
	show("begun", nested_begun);
}

static void *send_one(void *to)
{
	struct timespec pause = {0, 1200000};

	nanosleep(&pause, NULL);
	send_numbers(to, 1234, 1, 1000);
	return NULL;
}

// The socket is connected to a closed port: what it sends there comes back as an error.
static void *send_refused(void *socket)
{
	struct timespec pause = {0, 1200000};

	nanosleep(&pause, NULL);
	send(*(int *)socket, "x", 1, 0);
	return NULL;
}

static long select_high(int high)
{
	uint64_t words[32] = {0};

	words[high / 64] |= 1ull << high % 64;
	return select(high + 1, (fd_set *)words, NULL, NULL, NULL) == 1 && words[high / 64] == 1ull << high % 64;
}

static void answers(const struct step *step)
{
	long rounds = numeric(step, "rounds", 10), failed = 0, wrong[4] = {0};
	int closed = listen_anywhere(), high;
	struct sockaddr_in refusing = name_of(closed), to;
	struct rlimit limit = {2000, 2000};

	close(closed);
	fd = listen_anywhere();
	setrlimit(RLIMIT_NOFILE, &limit);
	high = dup2(fd, 1500);
	to = name_of(fd);
	for (long round = 0; round <= rounds * 3; round++) {
		// The last one connects the socket.
		int what = round == rounds * 3 ? 2 : (int[]){0, 1, 3}[round % 3];
		uint64_t value = 0;
		char part[4];
		struct iovec short_part = {part, sizeof(part)};
		struct msghdr message = {.msg_iov = &short_part, .msg_iovlen = 1};
		pthread_t thread;
		int is_right = 0;

		failed += take("recv", fd, round ? 20 : 60, -1);
		if (what == 2)
			connect(fd, (struct sockaddr *)&refusing, sizeof(refusing));
		pthread_create(&thread, NULL, what == 2 ? send_refused : send_one, what == 2 ? (void *)&fd : (void *)&to);
		errno = 0;
		switch (what) {
		case 0:
			is_right = recv(fd, &value, sizeof(value), MSG_PEEK) == 8 && value == 1234;
			value = 0;
			is_right &= recv(fd, &value, sizeof(value), 0) == 8 && value == 1234;
			break;
		case 1:
			if (round / 3 % 2)
				is_right = recv(fd, part, sizeof(part), MSG_TRUNC) == 8;
			else
				is_right = recvmsg(fd, &message, 0) == 4 && message.msg_flags & MSG_TRUNC;
			break;
		case 2:
			is_right = recv(fd, &value, sizeof(value), 0) == -1 && errno == ECONNREFUSED;
			break;
		default:
			is_right = select_high(high) && recv(high, &value, sizeof(value), 0) == 8;
		}
		wrong[what] += !is_right;
		pthread_join(thread, NULL);
	}
	show("failed", failed);
	show("peek", wrong[0]);
	show("truncated", wrong[1]);
	show("refused", wrong[2]);
	show("high", wrong[3]);
}

const struct verb listener_verbs[] = {
	{"arrivals-cancelled", cancelled}, {"arrivals-shared", shared}, {"arrivals-closed", closed}, {"arrivals-shut", shut},
	{"arrivals-reused", reused}, {"arrivals-drained", drained}, {"arrivals-spawned", spawned}, {"arrivals-forbidden", forbidden},
	{"arrivals-forked", forked}, {"arrivals-nested", nested}, {"arrivals-answers", answers},
	{0},
};
