// SPDX-License-Identifier: Apache-2.0
// Threads that send, begin, end, are cancelled, and are there when their process forks.
#include "hook_sender.h"

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
static void several(void)
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
	say("failed", failed);
	say("briefs", briefs);
}

// The process forks while its threads are in the middle of sends: the children send for themselves.
static void forked(void)
{
	struct work works[2] = {{0}};
	long failed = 0;
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
			_exit(send_text(shared_fd, text) == (long)strlen(text) ? 0 : 1);
		}
		waitpid(child, &status, 0);
		failed += status != 0;
	}
	is_over = 1;
	for (int i = 0; i < 2; i++) {
		pthread_join(works[i].thread, NULL);
		failed += works[i].failed;
	}
	say("failed", failed);
	say("after", send_text(shared_fd, "after"));
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
	pthread_cleanup_push(clean, NULL);
	for (;;) {
		if (is_timed)
			send_text(shared_fd, "for ever");
		else
			send_untimed(shared_fd, "x");
	}
	pthread_cleanup_pop(0);
	return NULL;
}

// sendmsg is a cancellation point, also when it makes no system call.
static void cancelled(void)
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
		say(is_timed ? "timed" : "untimed", result == PTHREAD_CANCELED && cleaned);
	}
	say("after", send_text(shared_fd, "after"));
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
static void reconnected(void)
{
	static _Alignas(8) char control[64][CMSG_SPACE(8)];
	struct sockaddr_in to = to4(port);
	struct iovec piece = {(void *)"burst", 5};
	static struct mmsghdr messages[64];
	pthread_t thread;
	long sent = 0;
	uint64_t at = now(TAI) + 200000000;
	for (int i = 0; i < 64; i++) {
		struct msghdr *message = &messages[i].msg_hdr;
		*message = (struct msghdr){.msg_name = &to, .msg_namelen = sizeof(to), .msg_iov = &piece, .msg_iovlen = 1,
			.msg_control = control[i], .msg_controllen = sizeof(control[i])};
		struct cmsghdr *item = CMSG_FIRSTHDR(message);
		item->cmsg_level = SOL_SOCKET, item->cmsg_type = SO_TXTIME, item->cmsg_len = CMSG_LEN(8);
		memcpy(CMSG_DATA(item), &at, 8);
	}
	shared_fd = timed_socket(AF_INET, TAI);
	pthread_create(&thread, NULL, connect_again, &to);
	for (int i = 0; i < 200; i++)
		sent += sendmmsg(shared_fd, messages, 64, 0);
	is_over = 1;
	pthread_join(thread, NULL);
	say("sent", sent);
}

int run_thread_scenario(const char *name)
{
	if (!strcmp(name, "several"))
		several();
	else if (!strcmp(name, "forked"))
		forked();
	else if (!strcmp(name, "cancelled"))
		cancelled();
	else if (!strcmp(name, "reconnected"))
		reconnected();
	else
		return 0;
	return 1;
}
