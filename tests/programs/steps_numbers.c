// SPDX-License-Identifier: Apache-2.0
// The numbers of descriptors: standard streams that are closed, low limits, files that land on any number, and every way to end.
#include "steps.h"

#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>

extern char **environ;

static void set_limit(rlim_t soft, rlim_t hard)
{
	struct rlimit limit = {soft, hard};
	if (setrlimit(RLIMIT_NOFILE, &limit))
		exit(6);
}

// 0 where the number is closed, 1 where it is open.
static int is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

// Whether the program itself can use the number, for anything: none of it must reach another file.
static int use(int fd)
{
	char text[] = "text";
	return write(fd, text, 4) >= 0 || read(fd, text, 4) >= 0 || send(fd, text, 4, MSG_NOSIGNAL) >= 0 ||
		recv(fd, text, 4, MSG_DONTWAIT) >= 0;
}

// streams LIMIT CLOSED: LIMIT numbers (soft and hard), and the standard streams of the mask CLOSED are closed. Whatever becomes of the
// socket, these numbers stay free, in this process and in its child.
static void streams(const struct step *step)
{
	long limit = word_number(step, 1), closed = word_number(step, 2), sent = 0, open = 0, used = 0;
	int out = fcntl(1, F_DUPFD, 200), status = -1;
	for (int i = 3; i < 1024; i++)
		if (i != out)
			close(i);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	for (int i = 0; i < 3; i++)
		if (closed >> i & 1)
			close(i);
	set_limit((rlim_t)limit, (rlim_t)limit);
	long answer = set_txtime(fd, TAI);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 3; i++)
			if (closed >> i & 1) {
				open += is_open(i);
				used += use(i);
			}
		sent += send_text(fd, "stream") == 6;
	}
	pid_t child = fork();
	if (!child) {
		sent = send_text(fd, "child") == 5;
		for (int i = 0; i < 3; i++)
			open += closed >> i & 1 && is_open(i);
		_exit(sent && !open ? 0 : 1);
	}
	waitpid(child, &status, 0);
	// The first numbers that the program gets are those that it closed.
	int lowest = fcntl(fd, F_DUPFD, 0), wrong = closed && lowest != __builtin_ctzl((unsigned long)closed);
	dprintf(out, "txtime %ld\nsent %ld\nopen %ld\nused %ld\nchild %d\nwrong %d\n", answer, sent, open, used, status, wrong);
}

static int file;

static void by_dup2(int fd)
{
	dup2(file, fd);
}

static void by_dup3(int fd)
{
	dup3(file, fd, O_CLOEXEC);
}

static void by_raw_dup3(int fd)
{
	syscall(SYS_dup3, file, fd, 0);
}

static void by_raw_close(int fd)
{
	syscall(SYS_close, fd);
}

static void by_raw_range(int fd)
{
	syscall(436 /* close_range */, fd, fd, 0);
}

// A dup2 that fails leaves everything as it is.
static void by_bad_dup2(int fd)
{
	dup2(-1, fd);
	dup3(file, fd, -1);
}

static const struct {
	const char *name;
	void (*put)(int fd);
} ways[] = {
	{"dup2", by_dup2}, {"dup3", by_dup3}, {"raw-dup3", by_raw_dup3}, {"raw-close", by_raw_close}, {"raw-range", by_raw_range},
	{"bad-dup2", by_bad_dup2},
};

// Every number but the socket's and the streams', as a program does that raises its limit, or that never had more.
static void put_everywhere(const struct step *step, int index, int fd, int end)
{
	file = open("/dev/null", O_RDWR);
	for (size_t way = 0; way < sizeof(ways) / sizeof(ways[0]); way++)
		if (!strcmp(step->word[index], ways[way].name))
			for (int i = 3; i < end; i++)
				if (i != fd && i != file)
					ways[way].put(i);
}

static void end(const char *how)
{
	if (!strcmp(how, "exit"))
		exit(0);
	if (!strcmp(how, "exec"))
		execlp("true", "true", (char *)NULL);
	if (!strcmp(how, "abort"))
		abort();
	if (!strcmp(how, "kill"))
		kill(getpid(), SIGKILL);
	if (!strcmp(how, "thread-exit"))
		syscall(SYS_exit, 0);
	_exit(0);
}

static void send_from(int fd, int first, int count, const char *what)
{
	for (int i = first; i < count; i++) {
		char text[16];
		snprintf(text, sizeof(text), "%s%d", what, i);
		if (send_text(fd, text) != (long)strlen(text))
			exit(7);
	}
}

static void send_some(int fd, int count, const char *what)
{
	send_from(fd, 0, count, what);
}

// put WAY ROOM HOW: 5 datagrams; then WAY for every number up to a limit that was ROOM lower, 5 datagrams again, and the end by HOW.
static void put(const struct step *step)
{
	long room = word_number(step, 2);
	set_limit(256 - (rlim_t)room, 256);
	int fd = timed_socket(AF_INET, TAI);
	send_some(fd, 5, "a");
	set_limit(256, 256);
	put_everywhere(step, 1, fd, 250);
	send_some(fd, 2, "b");
	usleep(30000); // by now the daemon has seen the end of a connection
	send_from(fd, 2, 5, "b");
	end(step->word[3]);
}

// put-child WAY: a child does that to its own table; the parent goes on.
static void put_child(const struct step *step)
{
	int status = -1, fd = timed_socket(AF_INET, TAI);
	send_some(fd, 5, "a");
	pid_t child = fork();
	if (!child) {
		set_limit(4096, 4096);
		put_everywhere(step, 1, fd, 4096);
		_exit(0);
	}
	waitpid(child, &status, 0);
	show("child", status);
	child = vfork();
	if (!child) {
		for (int i = 1020; i < 1040; i++)
			dup2(0, i);
		_exit(0);
	}
	waitpid(child, &status, 0);
	show("vfork", status);
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	for (int i = 1020; i < 1024; i++)
		posix_spawn_file_actions_adddup2(&actions, 0, i);
#ifdef __GLIBC__
	posix_spawn_file_actions_addclosefrom_np(&actions, 3);
#endif
	char *arguments[] = {"true", NULL};
	show("spawn", posix_spawnp(&child, "true", &actions, NULL, arguments, environ));
	waitpid(child, &status, 0);
	show("true", status);
	send_some(fd, 5, "b");
}

// service HOW: as daemon(3) makes one, with standard streams that are closed; it sends and ends at once.
static void service(const struct step *step)
{
	int fd = timed_socket(AF_INET, TAI);
	send_some(fd, 5, "a");
	if (daemon(0, 0))
		exit(6);
	send_some(fd, 5, "b");
	for (int i = 0; i < 3; i++)
		close(i);
	int other = timed_socket(AF_INET, TAI); // number 0
	send_some(other, 5, "c");
	end(step->word[1]);
}

const struct verb number_verbs[] = {
	{"streams", streams}, {"put", put}, {"put-child", put_child}, {"service", service}, {0},
};
