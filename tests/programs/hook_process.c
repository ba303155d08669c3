// SPDX-License-Identifier: Apache-2.0
// Scenarios with descriptors, processes, threads and signals.
#include "hook_sender.h"
#include <sys/syscall.h>

static void duplicates(void)
{
	int fd = timed_socket(AF_INET, TAI), copies[4] = {dup(fd), dup2(fd, 40), dup3(fd, 41, O_CLOEXEC), fcntl(fd, F_DUPFD, 50)};
	say("fcntl", copies[3]);
	close(fd);
	for (int i = 0; i < 4; i++) {
		char text[8] = {'d', (char)('0' + i)};
		say("copy", send_text(copies[i], text));
		close(copies[i]);
	}
	say("closed", send_text(copies[0], "x"));
	int file = open("/dev/null", O_WRONLY);
	say("same-number", file == fd);
	say("file", send_text(file, "x"));
	int plain = socket(AF_INET, SOCK_DGRAM, 0);
	say("plain", send_text(plain, "x"));
	dup2(file, plain);
	say("replaced", send_text(plain, "x"));
	int again = timed_socket(AF_INET, TAI);
	dup2(again, plain);
	say("put", send_text(plain, "put"));
	say("getfl", (fcntl(plain, F_GETFL) & O_ACCMODE) == O_RDWR);
}

static void forks(void)
{
	int fd = timed_socket(AF_INET, TAI), status = 0;
	say("before", send_text(fd, "before"));
	pid_t child = fork();
	if (!child) {
		long sent = send_text(fd, "child");
		pid_t grandchild = fork();
		if (!grandchild)
			_exit(send_text(fd, "grandchild") == 10 ? 0 : 1);
		int inner = 1;
		waitpid(grandchild, &inner, 0);
		_exit(sent == 5 && inner == 0 ? 0 : 1);
	}
	waitpid(child, &status, 0);
	say("child", status);
	say("after", send_text(fd, "after"));
	child = vfork();
	if (!child) {
		// What a shell does between vfork and exec: none of it may change the parent's table.
		dup2(fd, 60);
		close(fd);
		close(60);
		execlp("true", "true", (char *)NULL);
		_exit(127);
	}
	waitpid(child, &status, 0);
	say("vfork", status);
	say("after-vfork", send_text(fd, "after-vfork"));
	for (int i = 0; i < 20; i++) {
		child = fork();
		if (!child)
			_exit(0);
		waitpid(child, &status, 0);
	}
	say("after-many", send_text(fd, "after-many"));
}

static long thread_frames;

static void *send_frames(void *argument)
{
	int fd = *(int *)((void **)argument)[0];
	long number = (long)((void **)argument)[1], failed = 0;
	for (long i = 0; i < thread_frames; i++) {
		char text[32];
		snprintf(text, sizeof(text), "t%ld-%ld", number, i);
		failed += send_text(fd, text) != (long)strlen(text);
	}
	return (void *)failed;
}

static void threads(int argc, char **argv)
{
	thread_frames = argc > 3 ? atol(argv[3]) : 1000;
	int fd = timed_socket(AF_INET, TAI);
	pthread_t threads[4];
	void *arguments[4][2], *failed;
	long all = 0;
	for (long i = 0; i < 4; i++) {
		arguments[i][0] = &fd, arguments[i][1] = (void *)i;
		pthread_create(&threads[i], NULL, send_frames, arguments[i]);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &failed);
		all += (long)failed;
	}
	say("failed", all);
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

static void signals(void)
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
	say("failed", failed);
	say("handler-failed", handler_failed);
	say("main", sent);
	say("handled", handled);
}

static void closes(void)
{
	// No room above the limit: the library's descriptors lie among ours.
	struct rlimit limit = {1024, 1024};
	setrlimit(RLIMIT_NOFILE, &limit);
	// Whatever the parent left open is not what is counted.
	for (int i = 3; i < 1024; i++)
		close(i);
	int fd = timed_socket(AF_INET, TAI), closed = 0;
	say("first", send_text(fd, "first"));
	for (int i = 3; i < 1024; i++)
		closed += close(i) == 0;
	say("closed", closed);
	fd = timed_socket(AF_INET, TAI);
	say("second", send_text(fd, "second"));
#ifdef __GLIBC__
	say("range", close_range(3, ~0u, 0));
#else
	say("range", close(fd));
#endif
	say("gone", send_text(fd, "x") == (long)strlen("x"));
	fd = timed_socket(AF_INET, TAI);
	say("third", send_text(fd, "third"));
	// A program may put anything anywhere; the next frames find the daemon again.
	for (int i = 512; i < 520; i++)
		dup2(1, i);
	for (int i = 0; i < 100; i++) {
		send_text(fd, "again");
		usleep(5000);
	}
	say("last", send_text(fd, "last"));
}

static void inherit(char **argv)
{
	// The kernel knows SO_TXTIME on this socket; the next program has never heard of it.
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	char number[16];
	say("txtime", set_txtime(fd, TAI));
	snprintf(number, sizeof(number), "%d", fd);
	execl("/proc/self/exe", argv[0], "inherited", argv[2], number, (char *)NULL);
}

static int local_port(int fd)
{
	struct sockaddr_in name;
	socklen_t octets = sizeof(name);
	getsockname(fd, (struct sockaddr *)&name, &octets);
	return ntohs(name.sin_port);
}

// Two threads that do one round after the other at the same instant.
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

static void in_rounds(int argc, char **argv, int with_connect)
{
	long count = argc > 3 ? atol(argv[3]) : 100, all = 0;
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
	say("failed", all);
}

// Sockets that get their port in another way than by the library's bind.
static void ports(void)
{
	int no_port = timed_socket(AF_INET, TAI), yes = 1;
	setsockopt(no_port, IPPROTO_IP, 24 /* IP_BIND_ADDRESS_NO_PORT */, &yes, sizeof(yes));
	say("to-the-kernel", send_text(no_port, "no-port"));
	say("taken", send_text(no_port, "port"));
	say("port", local_port(no_port));
}

// A number that is closed and used again by raw system calls.
static void reused(void)
{
	int fd = timed_socket(AF_INET, TAI);
	struct sockaddr_in here = to4(0);
	say("old", send_text(fd, "old"));
	syscall(SYS_close, fd);
	int again = (int)syscall(SYS_socket, AF_INET, SOCK_DGRAM, 0);
	say("bind", syscall(SYS_bind, again, &here, sizeof(here)));
	say("same-number", again == fd);
	say("txtime", set_txtime(again, TAI));
	say("new", send_text(again, "new"));
	say("port", local_port(again));
}

int run_process_scenario(const char *name, int argc, char **argv)
{
	if (!strcmp(name, "duplicates"))
		duplicates();
	else if (!strcmp(name, "forks"))
		forks();
	else if (!strcmp(name, "threads"))
		threads(argc, argv);
	else if (!strcmp(name, "signals"))
		signals();
	else if (!strcmp(name, "closes"))
		closes();
	else if (!strcmp(name, "first-sends") || !strcmp(name, "reconnects"))
		in_rounds(argc, argv, name[0] == 'r');
	else if (!strcmp(name, "ports"))
		ports();
	else if (!strcmp(name, "reused"))
		reused();
	else if (!strcmp(name, "inherit"))
		inherit(argv);
	else if (!strcmp(name, "inherited"))
		say("inherited", send_text(atoi(argv[3]), "inherited"));
	else
		return 0;
	return 1;
}
