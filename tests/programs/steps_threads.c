// SPDX-License-Identifier: Apache-2.0
// Scenarios with threads that send, begin, end, are cancelled, and are there when their process forks; a signal handler that sends.
#include "steps.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/time.h>

static volatile int is_over;
static int shared_fd;

struct work {
	int fd, number;
	long frames, failed;
	pthread_t thread;
};

static void *send_own(void *argument)
{
	struct work *work = argument;
	for (long i = 0; i < work->frames && !is_over; i++) {
		char text[32];
		snprintf(text, sizeof(text), "w%d-%ld", work->number, i);
		work->failed += send_text(i % 2 ? shared_fd : work->fd, text) != (long)strlen(text);
		if (i % 16 == 0)
			usleep(100);
	}
	if (work->number % 2)
		pthread_exit(NULL);
	return NULL;
}

// Each thread with a socket of its own and one for all; short ones come and go beside them.
static void several(const struct step *)
{
	struct work works[4] = {{0}}, brief;
	long failed = 0, briefs = 0;
	shared_fd = timed_socket(AF_INET, TAI);
	for (int i = 0; i < 4; i++) {
		works[i] = (struct work){.fd = timed_socket(AF_INET, TAI), .number = i, .frames = 3000};
		pthread_create(&works[i].thread, NULL, send_own, &works[i]);
	}
	for (int i = 0; i < 200; i++) {
		brief = (struct work){.fd = timed_socket(AF_INET, TAI), .number = 10 + i, .frames = 5};
		if (pthread_create(&brief.thread, NULL, send_own, &brief))
			exit(6);
		pthread_join(brief.thread, NULL);
		close(brief.fd);
		failed += brief.failed;
		briefs += 5;
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(works[i].thread, NULL);
		failed += works[i].failed;
	}
	show("failed", failed);
	show("briefs", briefs);
}

// Four threads on one socket: threads FRAMES.
static void threads(const struct step *step)
{
	struct work works[4] = {{0}};
	long failed = 0;
	shared_fd = timed_socket(AF_INET, TAI);
	for (int i = 0; i < 4; i++) {
		works[i] = (struct work){.fd = shared_fd, .number = i, .frames = word_number(step, 1)};
		pthread_create(&works[i].thread, NULL, send_own, &works[i]);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(works[i].thread, NULL);
		failed += works[i].failed;
	}
	show("failed", failed);
}

// The process forks while its threads are in the middle of sends: the children send for themselves. One that waits in vain for the
// daemon's answer for a second gives up, and the kernel sends its datagram.
static void forked(const struct step *)
{
	struct work works[2] = {{0}};
	long failed = 0, gave_up = 0;
	shared_fd = timed_socket(AF_INET, TAI);
	for (int i = 0; i < 2; i++) {
		works[i] = (struct work){.fd = timed_socket(AF_INET, TAI), .number = i, .frames = 1L << 40};
		pthread_create(&works[i].thread, NULL, send_own, &works[i]);
	}
	for (int i = 0; i < 30; i++) {
		int status = -1;
		pid_t child = fork();
		if (!child) {
			char text[16];
			snprintf(text, sizeof(text), "child%d", i);
			uint64_t start = now(MONOTONIC);
			if (send_text(shared_fd, text) != (long)strlen(text))
				_exit(1);
			_exit(now(MONOTONIC) - start < 1000000000 ? 0 : 2);
		}
		waitpid(child, &status, 0);
		gave_up += WIFEXITED(status) && WEXITSTATUS(status) == 2;
		failed += !WIFEXITED(status) || WEXITSTATUS(status) == 1;
	}
	is_over = 1;
	for (int i = 0; i < 2; i++) {
		pthread_join(works[i].thread, NULL);
		failed += works[i].failed;
	}
	show("failed", failed);
	show("gave-up", gave_up);
	show("after", send_text(shared_fd, "after"));
}

static volatile int cleaned;

static void clean(void *argument)
{
	(void)argument;
	cleaned = 1;
}

static void *send_for_ever(void *argument)
{
	int is_timed = *(int *)argument;
	struct parcel untimed = parcel_of("x", 1);
	pthread_cleanup_push(clean, NULL);
	for (;;) {
		if (is_timed)
			send_text(shared_fd, "for ever");
		else
			send_parcel(shared_fd, &untimed);
	}
	pthread_cleanup_pop(0);
	return NULL;
}

// sendmsg is a cancellation point, also when it makes no system call.
static void cancelled(const struct step *)
{
	for (int is_timed = 0; is_timed < 2; is_timed++) {
		pthread_t thread;
		void *result = NULL;
		shared_fd = is_timed ? timed_socket(AF_INET, TAI) : socket(AF_INET, SOCK_DGRAM, 0);
		cleaned = 0;
		pthread_create(&thread, NULL, send_for_ever, &is_timed);
		usleep(20000);
		pthread_cancel(thread);
		pthread_join(thread, &result);
		show(is_timed ? "timed" : "untimed", result == PTHREAD_CANCELED && cleaned);
	}
	show("after", send_text(shared_fd, "after"));
}

static void *connect_again(void *argument)
{
	struct sockaddr_in to = *(struct sockaddr_in *)argument;
	while (!is_over) {
		connect(shared_fd, (struct sockaddr *)&to, sizeof(to));
		usleep(100);
	}
	return NULL;
}

// One thread sends in bursts, another one connects the same socket again and again.
static void reconnected(const struct step *)
{
	static struct mmsghdr messages[64];
	struct parcel parcel = parcel_of("burst", 5);
	pthread_t thread;
	long sent = 0;
	add_time(&parcel, now(TAI) + 200000000);
	for (int i = 0; i < 64; i++)
		messages[i].msg_hdr = header_of(&parcel);
	shared_fd = timed_socket(AF_INET, TAI);
	pthread_create(&thread, NULL, connect_again, &parcel.to);
	for (int i = 0; i < 200; i++)
		sent += send_messages(shared_fd, messages, 64, 0);
	is_over = 1;
	pthread_join(thread, NULL);
	show("sent", sent);
}

static int handler_fd;
static volatile sig_atomic_t handled, handler_failed;

static void handler(int number)
{
	(void)number;
	char text[16] = "h";
	int value = handled, at = 1;
	for (int scale = 10000; scale; scale /= 10)
		text[at++] = (char)('0' + value / scale % 10);
	int saved = errno;
	if (send_text(handler_fd, text) != 6)
		handler_failed = handler_failed + 1;
	errno = saved;
	handled = handled + 1;
}

static void signals(const struct step *)
{
	long failed = 0, sent = 0;
	handler_fd = timed_socket(AF_INET, TAI);
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &action, NULL);
	struct itimerval timer = {{0, 300}, {0, 300}}, off = {{0, 0}, {0, 0}};
	setitimer(ITIMER_REAL, &timer, NULL);
	for (uint64_t start = now(MONOTONIC); now(MONOTONIC) - start < 500000000 || handled <= 100 || sent <= 1000; sent++) {
		char text[32];
		snprintf(text, sizeof(text), "m%ld", sent);
		failed += send_text(handler_fd, text) != (long)strlen(text);
		if (sent % 16 == 0)
			usleep(100);
	}
	setitimer(ITIMER_REAL, &off, NULL);
	show("failed", failed);
	show("handler-failed", handler_failed);
	show("main", sent);
	show("handled", handled);
}

// Two threads that do one round after the other at the same instant: first-sends ROUNDS, reconnects ROUNDS.
static volatile long round_number, round_over;
static int round_fd, is_connected, is_last;

static void *rounds(void *argument)
{
	long failed = 0, number = (long)argument;
	for (long next = 1;; next++) {
		while (__atomic_load_n(&round_number, __ATOMIC_ACQUIRE) < next)
			if (next % 2)
				sched_yield();
		if (is_last)
			return (void *)failed;
		char text[32];
		snprintf(text, sizeof(text), "r%ld-%ld", next, number);
		long sent = is_connected ? send_at(round_fd, NULL, 0, text, now(TAI) + 200000000, 0) : send_text(round_fd, text);
		failed += sent != (long)strlen(text);
		__atomic_add_fetch(&round_over, 1, __ATOMIC_ACQ_REL);
	}
}

static void in_rounds(long count, int with_connect)
{
	long all = 0;
	pthread_t threads[2];
	void *failed;
	is_connected = with_connect;
	round_fd = timed_socket(AF_INET, TAI);
	for (long i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, rounds, (void *)i);
	for (long next = 1; next <= count; next++) {
		if (with_connect) {
			struct sockaddr_in to = to4(10000 + (int)next);
			if (connect(round_fd, (struct sockaddr *)&to, sizeof(to)))
				exit(6);
		} else {
			close(round_fd);
			round_fd = timed_socket(AF_INET, TAI);
		}
		__atomic_store_n(&round_number, next, __ATOMIC_RELEASE);
		while (__atomic_load_n(&round_over, __ATOMIC_ACQUIRE) < 2 * next)
			usleep(100);
	}
	is_last = 1;
	__atomic_store_n(&round_number, count + 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], &failed);
		all += (long)failed;
	}
	show("failed", all);
}

static void first_sends(const struct step *step)
{
	in_rounds(word_number(step, 1), 0);
}

static void reconnects(const struct step *step)
{
	in_rounds(word_number(step, 1), 1);
}

const struct verb thread_verbs[] = {
	{"several", several}, {"forked", forked}, {"cancelled", cancelled}, {"reconnected", reconnected},
	{"signals", signals}, {"threads", threads}, {"first-sends", first_sends}, {"reconnects", reconnects}, {0},
};
