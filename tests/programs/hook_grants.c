// SPDX-License-Identifier: Apache-2.0
// CLOCK_TAI that the kernel refuses belongs to the socket: it outlives exec and goes with a descriptor that is passed.
#include "hook_sender.h"

static void say_txtime(int fd)
{
	struct txtime read = {-1, 99};
	socklen_t octets = sizeof(read);
	say("get", getsockopt(fd, SOL_SOCKET, SO_TXTIME, &read, &octets));
	say("clock", read.clock);
	say("flags", (long)read.flags);
}

static int granted_socket(uint32_t flags)
{
	struct txtime txtime = {TAI, flags};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	say("tai", setsockopt(fd, SOL_SOCKET, SO_TXTIME, &txtime, sizeof(txtime)) ? -errno : 0);
	return fd;
}

// Usage: grant-exec PORT FIRST, where FIRST is what the next program does first with the socket.
static void grant_exec(char **argv)
{
	char number[16];
	drop_rights();
	int fd = granted_socket(2);
	say("before", send_text(fd, "before"));
	snprintf(number, sizeof(number), "%d", fd);
	execl("/proc/self/exe", argv[0], "grant-next", argv[2], number, argv[3], (char *)NULL);
	exit(5);
}

static long send_two(int fd)
{
	_Alignas(8) char control[64] = {0};
	struct sockaddr_in to = to4(port);
	struct iovec iov = {"two", 3};
	struct mmsghdr two[2];
	uint64_t at = now(TAI) + 200000000;
	memset(two, 0, sizeof(two));
	for (int i = 0; i < 2; i++) {
		two[i].msg_hdr.msg_name = &to, two[i].msg_hdr.msg_namelen = sizeof(to);
		two[i].msg_hdr.msg_iov = &iov, two[i].msg_hdr.msg_iovlen = 1;
		two[i].msg_hdr.msg_control = control, two[i].msg_hdr.msg_controllen = CMSG_SPACE(8);
	}
	struct cmsghdr *item = CMSG_FIRSTHDR(&two[0].msg_hdr);
	item->cmsg_level = SOL_SOCKET, item->cmsg_type = SO_TXTIME, item->cmsg_len = CMSG_LEN(8);
	memcpy(CMSG_DATA(item), &at, 8);
	return sendmmsg(fd, two, 2, 0);
}

static void grant_next(char **argv)
{
	int fd = atoi(argv[3]), copy;
	if (!strcmp(argv[4], "get"))
		say_txtime(fd);
	else if (!strcmp(argv[4], "two"))
		say("two", send_two(fd));
	else if (!strcmp(argv[4], "untimed")) {
		// An ordinary send finds nothing to ask about; the timed one after it does.
		struct sockaddr_in to = to4(port);
		say("untimed", sendto(fd, "plain", 5, 0, (struct sockaddr *)&to, sizeof(to)));
		say("untimed-msg", send_untimed(fd, "plain"));
	}
	say("after", send_text(fd, "after"));
	copy = dup(fd);
	close(fd);
	say("copy", send_text(copy, "copy"));
	say_txtime(copy);
}

static int pass(int over, int fd)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, octet = 'x';
	struct iovec iov = {&octet, 1};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *item = CMSG_FIRSTHDR(&message);
	item->cmsg_level = SOL_SOCKET, item->cmsg_type = SCM_RIGHTS, item->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(item), &fd, sizeof(int));
	return sendmsg(over, &message, 0) == 1 ? 0 : -errno;
}

static int receive(int from)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, octet;
	struct iovec iov = {&octet, 1};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	int fd = -1;
	if (recvmsg(from, &message, 0) == 1 && CMSG_FIRSTHDR(&message))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	return fd;
}

// A socket that this process is granted goes to a process that never had one. With an argument the kernel grants it.
static void grant_pass(char **argv)
{
	int pair[2], status = -1;
	char number[16];
	if (!argv[3])
		drop_rights();
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
		exit(6);
	snprintf(number, sizeof(number), "%d", pair[1]);
	pid_t child = fork();
	if (!child) {
		execl("/proc/self/exe", argv[0], "grant-receive", argv[2], number, (char *)NULL);
		_exit(127);
	}
	int fd = granted_socket(0);
	say("before", send_text(fd, "before"));
	say("pass", pass(pair[0], fd));
	close(fd);
	waitpid(child, &status, 0);
	say("receiver", status);
}

static void grant_receive(char **argv)
{
	int fd = receive(atoi(argv[3]));
	say("received", send_text(fd, "received"));
	say_txtime(fd);
}

// Nobody was ever granted anything on this socket: the kernel's errno, and the daemon is asked once.
static void grant_none(void)
{
	drop_rights();
	int fd = socket(AF_INET, SOCK_DGRAM, 0), file = open("/dev/null", O_WRONLY);
	for (int i = 0; i < 5; i++)
		say("none", send_text(fd, "none"));
	say_txtime(fd);
	say("file", send_text(file, "x"));
	// The number is another socket's afterwards.
	close(fd);
	fd = granted_socket(1);
	say("granted", send_text(fd, "granted"));
	say_txtime(fd);
}

// The flags that count are those of the last setsockopt, and a revoked grant is as one that was never given.
static void grant_change(void)
{
	struct sockaddr_in to = to4(port);
	drop_rights();
	int fd = granted_socket(0);
	say("first", send_text(fd, "first"));
	struct txtime txtime = {TAI, 3};
	say("again", setsockopt(fd, SOL_SOCKET, SO_TXTIME, &txtime, sizeof(txtime)) ? -errno : 0);
	say("second", send_text(fd, "second"));
	usleep(500000); // the daemon's policy changes meanwhile
	say("connect", connect(fd, (struct sockaddr *)&to, sizeof(to)));
	say("revoked", send_text(fd, "revoked"));
	say_txtime(fd);
}

int run_grant_scenario(const char *name, char **argv)
{
	if (!strcmp(name, "grant-exec"))
		grant_exec(argv);
	else if (!strcmp(name, "grant-next"))
		grant_next(argv);
	else if (!strcmp(name, "grant-pass"))
		grant_pass(argv);
	else if (!strcmp(name, "grant-receive"))
		grant_receive(argv);
	else if (!strcmp(name, "grant-none"))
		grant_none();
	else if (!strcmp(name, "grant-change"))
		grant_change();
	else
		return 0;
	return 1;
}
