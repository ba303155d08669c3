// SPDX-License-Identifier: Apache-2.0
// Descriptors at the edge, and programs that start, become and leave others.
#include "hook_sender.h"
#include <dirent.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

extern char **environ;

// What musl's compiler has no kernel headers for.
struct instruction {
	uint16_t code;
	uint8_t if_true, if_false;
	uint32_t value;
};

struct program {
	uint16_t count;
	struct instruction *instructions;
};

enum { LOAD_WORD = 0x20, JUMP_EQUAL = 0x15, RETURN = 6, FILTER_MODE = 2 };
enum { RETURN_TRAP = 0x30000, RETURN_ERRNO = 0x50000, RETURN_ALLOW = 0x7fff0000 };

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

// Usage: limit PORT ROOM: 64 descriptors, ROOM more up to the hard limit.
static void limit(char **argv)
{
	int first = -1;
	close_inherited();
	set_limit(64, 64 + (rlim_t)atoi(argv[3]));
	int fd = timed_socket(AF_INET, TAI);
	say("one", send_text(fd, "one"));
	say("free", fill(&first));
	say("first", first);
	say("two", send_text(fd, "two"));
	say("limit", soft_limit());
	say("no-more", socket(AF_INET, SOCK_DGRAM, 0) < 0 ? -errno : 0);
	// A program that closes whatever it can name, without asking any library.
	for (int i = 3; i < soft_limit(); i++)
		if (i != fd)
			syscall(SYS_close, i);
	say("three", send_text(fd, "three"));
}

// Not one descriptor is free when the first socket becomes a timed one.
static void limit_full(char **argv)
{
	int first = -1, fd;
	close_inherited();
	set_limit(64, 64 + (rlim_t)atoi(argv[3]));
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	fill(&first);
	say("txtime", set_txtime(fd, TAI));
	say("one", send_text(fd, "one"));
	say("limit", soft_limit());
	for (int i = first; i < first + 8; i++)
		close(i);
	usleep(1100000); // no attempt within a second of the one that failed
	say("again", set_txtime(fd, TAI));
	say("two", send_text(fd, "two"));
}

// The program's own standard descriptors are its own, whatever they become.
static void closed_standard(void)
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

// Usage: daemonise PORT: a socket from before, another from after; the first process ends at once.
static void daemonise(void)
{
	int before = timed_socket(AF_INET, TAI);
	say("before", send_text(before, "before"));
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

static void list(void)
{
	int highest, count = open_count(&highest);
	say("count", count);
	say("highest", highest);
}

// Usage: spawn PORT: what another program finds open, and a socket that it gets under another number.
static void spawn(char **argv)
{
	int status = -1;
	close_inherited();
	int fd = timed_socket(AF_INET, TAI), kept = timed_socket(AF_INET, TAI);
	fcntl(kept, F_SETFD, 0);
	say("parent", send_text(fd, "parent"));
	char number[] = "70", *arguments[] = {argv[0], "inherited", argv[2], number, NULL};
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fd, 70);
	posix_spawn_file_actions_addclose(&actions, kept);
	pid_t child;
	say("spawn", posix_spawn(&child, "/proc/self/exe", &actions, NULL, arguments, environ));
	waitpid(child, &status, 0);
	say("child", status);
	say("kept", send_text(kept, "kept"));
	say("parent-again", send_text(fd, "parent again"));
	close(kept);
	if (!vfork()) {
		// It shares our memory, and so our region.
		send_text(fd, "in vfork");
		close(fd);
		close(2);
		execl("/proc/self/exe", argv[0], "list", argv[2], (char *)NULL);
		_exit(127);
	}
	wait(&status);
	say("vfork", send_text(fd, "after vfork"));
	execl("/proc/self/exe", argv[0], "list", argv[2], (char *)NULL);
}

// Usage: many PORT: as many sockets as the table has, and more.
static void many(void)
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
	say("taken", taken);
	for (int i = 999; i >= 0; i--)
		failed += send_text(sockets[i], "again") != 5;
	for (int i = 1000; i < 1100; i++) {
		sockets[i] = timed_socket(AF_INET, TAI);
		failed += send_text(sockets[i], "more") != 4;
	}
	say("failed", failed);
	for (int i = 0; i < 1100; i++)
		close(sockets[i]);
	int last = timed_socket(AF_INET, TAI);
	say("last", send_text(last, "last"));
}

// One socket after the other, each for one datagram.
static void short_lives(void)
{
	long failed = 0;
	for (int i = 0; i < 3000; i++) {
		int fd = timed_socket(AF_INET, TAI);
		char text[16];
		snprintf(text, sizeof(text), "l%d", i);
		failed += send_text(fd, text) != (long)strlen(text);
		close(fd);
	}
	say("failed", failed);
}

static void ranges(void)
{
#ifdef __GLIBC__
	int (*range)(unsigned, unsigned, int) = close_range;
#else
	int (*range)(unsigned, unsigned, int) = NULL;
#endif
	int fd = timed_socket(AF_INET, TAI);
	say("before", send_text(fd, "before"));
	say("cloexec", range ? range(3, ~0u, 4) : 0);
	say("after", send_text(fd, "after"));
	say("flag", range ? fcntl(fd, F_GETFD) : 1);
	say("unshare", range ? range(3, ~0u, 2) : close(fd));
	say("gone", send_text(fd, "x"));
	fd = timed_socket(AF_INET, TAI);
	say("new", send_text(fd, "new"));
	// Behind every library's back: ours are closed too, and found missing.
	syscall(436 /* close_range */, 3, ~0u, 0);
	fd = timed_socket(AF_INET, TAI);
	for (int i = 0; i < 60; i++) {
		send_text(fd, "again");
		usleep(5000);
	}
	say("last", send_text(fd, "last"));
}

static int filter(uint32_t otherwise, const long *allowed, unsigned count)
{
	// The number of the system call is the first word.
	struct instruction instructions[40] = {{LOAD_WORD, 0, 0, 0}};
	uint16_t at = 1;
	for (unsigned i = 0; i < count; i++) {
		instructions[at++] = (struct instruction){JUMP_EQUAL, 0, 1, (uint32_t)allowed[i]};
		instructions[at++] = (struct instruction){RETURN, 0, 0, RETURN_ALLOW};
	}
	instructions[at++] = (struct instruction){RETURN, 0, 0, otherwise};
	struct program whole = {at, instructions};
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, FILTER_MODE, &whole, 0, 0);
}

static volatile sig_atomic_t trapped;

static void on_trap(int number)
{
	(void)number;
	trapped = trapped + 1;
}

// A timed send makes no system call at all: no lock, no allocation, no line of a log. The answer is how many it made.
static void no_calls(void)
{
	static const long allowed[] = {SYS_write, SYS_exit_group, SYS_rt_sigreturn};
	int fd = timed_socket(AF_INET, TAI);
	struct sigaction action = {.sa_handler = on_trap};
	long failed = 0;
	uint64_t at = now(TAI) + 5000000000;
	struct sockaddr_in to = to4(port);
	say("first", send_text(fd, "first"));
	sigaction(SIGSYS, &action, NULL);
	if (filter(RETURN_TRAP, allowed, sizeof(allowed) / sizeof(allowed[0])))
		exit(6);
	for (int i = 0; i < 100; i++)
		failed += send_at(fd, &to, sizeof(to), "silent", at, 0) != 6;
	int calls = trapped;
	char text[64];
	int octets = snprintf(text, sizeof(text), "failed %ld\ncalls %d\n", failed, calls);
	syscall(SYS_write, 1, text, octets);
	syscall(SYS_exit_group, 0);
}

// A program that allows itself no more than sending.
static void sandboxed(void)
{
	static const long allowed[] = {SYS_write, SYS_exit_group, SYS_sendmsg, SYS_getsockopt, SYS_nanosleep, SYS_clock_nanosleep};
	int fd = timed_socket(AF_INET, TAI);
	long failed = 0;
	say("first", send_text(fd, "first"));
	if (filter(RETURN_ERRNO | EPERM, allowed, sizeof(allowed) / sizeof(allowed[0])))
		exit(6);
	for (int i = 0; i < 200; i++) {
		struct timespec nap = {0, 1000000};
		failed += send_text(fd, "boxed") != 5;
		syscall(SYS_nanosleep, &nap, NULL);
	}
	char text[64];
	int octets = snprintf(text, sizeof(text), "failed %ld\n", failed);
	syscall(SYS_write, 1, text, octets);
	syscall(SYS_exit_group, 0);
}

// Sends before main, when the environment says where to.
__attribute__((constructor)) static void before_main(void)
{
	const char *to = getenv("HOOK_CONSTRUCTOR");
	if (!to)
		return;
	port = atoi(to);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	errno = 78;
	if (set_txtime(fd, TAI) || errno != 78 || send_text(fd, "constructor") != 11)
		_exit(9);
}

// A network's broadcast address, without and with SO_BROADCAST.
static void broadcast(void)
{
	int fd = timed_socket(AF_INET, TAI), yes = 1;
	struct sockaddr_in to = to4(port);
	to.sin_addr.s_addr = inet_addr("127.255.255.255");
	say("refused", send_at(fd, &to, sizeof(to), "refused", now(TAI) + 200000000, 0));
	say("set", setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &yes, sizeof(yes)));
	say("taken", send_at(fd, &to, sizeof(to), "taken", now(TAI) + 200000000, 0));
	say("connect", connect(fd, (struct sockaddr *)&to, sizeof(to)));
	say("peer", send_at(fd, NULL, 0, "peer", now(TAI) + 200000000, 0));
}

int run_life_scenario(const char *name, char **argv)
{
	if (!strcmp(name, "broadcast"))
		broadcast();
	else if (!strcmp(name, "limit"))
		limit(argv);
	else if (!strcmp(name, "limit-full"))
		limit_full(argv);
	else if (!strcmp(name, "closed-standard"))
		closed_standard();
	else if (!strcmp(name, "daemonise"))
		daemonise();
	else if (!strcmp(name, "list"))
		list();
	else if (!strcmp(name, "spawn"))
		spawn(argv);
	else if (!strcmp(name, "many"))
		many();
	else if (!strcmp(name, "short-lives"))
		short_lives();
	else if (!strcmp(name, "ranges"))
		ranges();
	else if (!strcmp(name, "no-calls"))
		no_calls();
	else if (!strcmp(name, "sandboxed"))
		sandboxed();
	else if (!strcmp(name, "nothing"))
		say("main", 1);
	else
		return 0;
	return 1;
}
