// SPDX-License-Identifier: Apache-2.0
// Scenarios with descriptors at the edge, and programs that start, become and leave others.
#include "steps.h"

#include <dirent.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>

extern char **environ;

static long soft_limit(void)
{
	struct rlimit limit;
	getrlimit(RLIMIT_NOFILE, &limit);
	return (long)limit.rlim_cur;
}

static void set_limit(rlim_t soft, rlim_t hard)
{
	struct rlimit limit = {soft, hard};
	if (setrlimit(RLIMIT_NOFILE, &limit))
		exit(6);
}

// What the parent left open is not counted.
static void close_inherited(void)
{
	for (int i = 3; i < 1024; i++)
		close(i);
}

static int fill(int *first)
{
	int count = 0, fd;
	while ((fd = open("/dev/null", O_WRONLY)) >= 0) {
		*first = *first < 0 ? fd : *first;
		count++;
	}
	return count;
}

// limit ROOM: 64 descriptors, ROOM more up to the hard limit.
static void limit(const struct step *step)
{
	int first = -1;
	close_inherited();
	set_limit(64, 64 + (rlim_t)word_number(step, 1));
	int fd = timed_socket(AF_INET, TAI);
	show("one", send_text(fd, "one"));
	show("free", fill(&first));
	show("first", first);
	show("two", send_text(fd, "two"));
	show("limit", soft_limit());
	show("no-more", socket(AF_INET, SOCK_DGRAM, 0) < 0 ? -errno : 0);
	// A program that closes whatever it can name, without asking any library.
	for (int i = 3; i < soft_limit(); i++)
		if (i != fd)
			syscall(SYS_close, i);
	show("three", send_text(fd, "three"));
}

// limit-full ROOM: not one descriptor is free when the first socket becomes a timed one.
static void limit_full(const struct step *step)
{
	int first = -1, fd;
	close_inherited();
	set_limit(64, 64 + (rlim_t)word_number(step, 1));
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	fill(&first);
	show("txtime", set_txtime(fd, TAI));
	show("one", send_text(fd, "one"));
	show("limit", soft_limit());
	for (int i = first; i < first + 8; i++)
		close(i);
	usleep(1100000); // no attempt within a second of the one that failed
	show("again", set_txtime(fd, TAI));
	show("two", send_text(fd, "two"));
}

// The program's own standard descriptors are its own, whatever they become.
static void closed_standard(const struct step *)
{
	int out = fcntl(1, F_DUPFD, 10), fd;
	close(0);
	close(1);
	close(2);
	int data = open("/dev/shm", O_TMPFILE | O_RDWR, 0600), more = -1;
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	int answer = set_txtime(fd, TAI);
	long sent = send_text(fd, "closed");
	// Number 2 is a file of data now: no warning may land there.
	more = open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
	int other = timed_socket(AF_INET, TAI);
	long again = send_text(other, "closed too");
	long octets = (long)lseek(more, 0, SEEK_END) + (long)lseek(data, 0, SEEK_END);
	dprintf(out, "data %d\nsocket %d\nmore %d\ntxtime %d\nsent %ld\nagain %ld\noctets %ld\n", data, fd, more, answer, sent,
		again, octets);
}

// A socket from before, another from after; the first process ends at once.
static void daemonise(const struct step *)
{
	int before = timed_socket(AF_INET, TAI);
	show("before", send_text(before, "before"));
	if (fork())
		exit(0);
	setsid();
	if (fork())
		_exit(0);
	for (int i = 0; i < 1024; i++)
		if (i != before)
			close(i);
	open("/dev/null", O_RDWR);
	dup(0);
	dup(0);
	int after = timed_socket(AF_INET, TAI);
	send_text(before, "daemon-before");
	send_text(after, "daemon-after");
	usleep(100000);
	send_text(after, "daemon-last");
	_exit(0);
}

static int open_count(int *highest)
{
	DIR *directory = opendir("/proc/self/fd");
	struct dirent *entry;
	int count = 0;
	*highest = 0;
	while (directory && (entry = readdir(directory))) {
		int fd = atoi(entry->d_name);
		if (entry->d_name[0] == '.' || fd == dirfd(directory))
			continue;
		count++;
		*highest = fd > *highest ? fd : *highest;
	}
	closedir(directory);
	return count;
}

static void list(const struct step *)
{
	int highest, count = open_count(&highest);
	show("count", count);
	show("highest", highest);
}

// What another program finds open, and a socket that it gets under another number.
static void spawn(const struct step *)
{
	int status = -1;
	close_inherited();
	int fd = timed_socket(AF_INET, TAI), kept = timed_socket(AF_INET, TAI);
	fcntl(kept, F_SETFD, 0);
	show("parent", send_text(fd, "parent"));
	char *arguments[] = {"steps", "quiet", (char *)default_step, "inherited 70", NULL};
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fd, 70);
	posix_spawn_file_actions_addclose(&actions, kept);
	pid_t child;
	show("spawn", posix_spawn(&child, "/proc/self/exe", &actions, NULL, arguments, environ));
	waitpid(child, &status, 0);
	show("child", status);
	show("kept", send_text(kept, "kept"));
	show("parent-again", send_text(fd, "parent again"));
	close(kept);
	if (!vfork()) {
		// It shares our memory, and so our region.
		send_text(fd, "in vfork");
		close(fd);
		close(2);
		execl("/proc/self/exe", "steps", "list", (char *)NULL);
		_exit(127);
	}
	wait(&status);
	show("vfork", send_text(fd, "after vfork"));
	become("list", NULL);
}

// As many sockets as the table has, and more.
static void many(const struct step *)
{
	static int sockets[1100];
	long taken = 0, failed = 0;
	struct rlimit most;
	getrlimit(RLIMIT_NOFILE, &most);
	most.rlim_cur = most.rlim_max < 4096 ? most.rlim_max : 4096;
	setrlimit(RLIMIT_NOFILE, &most);
	for (int i = 0; i < 1000; i++) {
		char text[16];
		sockets[i] = timed_socket(AF_INET, TAI);
		snprintf(text, sizeof(text), "s%d", i);
		taken += send_text(sockets[i], text) == (long)strlen(text);
	}
	show("taken", taken);
	for (int i = 999; i >= 0; i--)
		failed += send_text(sockets[i], "again") != 5;
	for (int i = 1000; i < 1100; i++) {
		sockets[i] = timed_socket(AF_INET, TAI);
		failed += send_text(sockets[i], "more") != 4;
	}
	show("failed", failed);
	for (int i = 0; i < 1100; i++)
		close(sockets[i]);
	int last = timed_socket(AF_INET, TAI);
	show("last", send_text(last, "last"));
}

static void ranges(const struct step *)
{
#ifdef __GLIBC__
	int (*range)(unsigned, unsigned, int) = close_range;
#else
	int (*range)(unsigned, unsigned, int) = NULL;
#endif
	int fd = timed_socket(AF_INET, TAI);
	show("before", send_text(fd, "before"));
	show("cloexec", range ? range(3, ~0u, 4) : 0);
	show("after", send_text(fd, "after"));
	show("flag", range ? fcntl(fd, F_GETFD) : 1);
	show("unshare", range ? range(3, ~0u, 2) : close(fd));
	show("gone", send_text(fd, "x"));
	fd = timed_socket(AF_INET, TAI);
	show("new", send_text(fd, "new"));
	// Behind every library's back: ours are closed too, and found missing.
	syscall(436 /* close_range */, 3, ~0u, 0);
	fd = timed_socket(AF_INET, TAI);
	for (int i = 0; i < 60; i++) {
		send_text(fd, "again");
		usleep(5000);
	}
	show("last", send_text(fd, "last"));
}

static void closes(const struct step *)
{
	// No room above the limit: the library's descriptors lie among ours.
	struct rlimit limit = {1024, 1024};
	setrlimit(RLIMIT_NOFILE, &limit);
	// Whatever the parent left open is not what is counted.
	for (int i = 3; i < 1024; i++)
		close(i);
	int fd = timed_socket(AF_INET, TAI), closed = 0;
	show("first", send_text(fd, "first"));
	for (int i = 3; i < 1024; i++)
		closed += close(i) == 0;
	show("closed", closed);
	fd = timed_socket(AF_INET, TAI);
	show("second", send_text(fd, "second"));
#ifdef __GLIBC__
	show("range", close_range(3, ~0u, 0));
#else
	show("range", close(fd));
#endif
	show("gone", send_text(fd, "x") == (long)strlen("x"));
	fd = timed_socket(AF_INET, TAI);
	show("third", send_text(fd, "third"));
	// A program may put anything anywhere; no frame is lost.
	for (int i = 512; i < 520; i++)
		dup2(1, i);
	for (int i = 0; i < 100; i++) {
		send_text(fd, "again");
		usleep(5000);
	}
	show("last", send_text(fd, "last"));
}

// A descriptor that another program left open.
static void inherited(const struct step *step)
{
	show("inherited", send_text((int)word_number(step, 1), "inherited"));
}

// This program again, which has never heard of the descriptor.
static void inherit(const struct step *)
{
	char next[32];
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	show("txtime", set_txtime(fd, TAI));
	snprintf(next, sizeof(next), "inherited %d", fd);
	become(next, NULL);
}

// vfork SLOT: what a shell does between vfork and exec. None of it may change the parent's table.
static void vfork_shell(const struct step *step)
{
	int fd = fds[slot(step, 1)], status = -1;
	pid_t child = vfork();
	if (!child) {
		dup2(fd, 60);
		close(fd);
		close(60);
		execlp("true", "true", (char *)NULL);
		_exit(127);
	}
	waitpid(child, &status, 0);
	show("vfork", status);
}

// A number that is closed and used again by raw system calls.
static void reused(const struct step *)
{
	int fd = timed_socket(AF_INET, TAI);
	struct sockaddr_in here = to4(0);
	show("old", send_text(fd, "old"));
	syscall(SYS_close, fd);
	int again = (int)syscall(SYS_socket, AF_INET, SOCK_DGRAM, 0);
	show("bind", syscall(SYS_bind, again, &here, sizeof(here)));
	show("same-number", again == fd);
	show("txtime", set_txtime(again, TAI));
	show("new", send_text(again, "new"));
	show("port", local_port(again));
}

// A socket goes to a process that never had one, by a pair that it inherits.
static void grant_pass(const struct step *)
{
	int pair[2], status = -1;
	char next[32];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
		exit(6);
	snprintf(next, sizeof(next), "grant-receive %d", pair[1]);
	pid_t child = fork();
	if (!child)
		become(next, "get: gettxtime 0");
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	show("tai", set_txtime(fd, TAI));
	show("before", send_text(fd, "before"));
	show("pass", pass(pair[0], fd));
	close(fd);
	waitpid(child, &status, 0);
	show("receiver", status);
}

static void grant_receive(const struct step *step)
{
	fds[0] = receive_passed((int)word_number(step, 1));
	show("received", send_text(fds[0], "received"));
}

const struct verb descriptor_verbs[] = {
	{"limit", limit}, {"limit-full", limit_full}, {"closed-standard", closed_standard}, {"daemonise", daemonise},
	{"list", list}, {"spawn", spawn}, {"many", many}, {"ranges", ranges}, {"closes", closes},
	{"inherit", inherit}, {"inherited", inherited}, {"vfork", vfork_shell}, {"reused", reused},
	{"grant-pass", grant_pass}, {"grant-receive", grant_receive}, {0},
};
