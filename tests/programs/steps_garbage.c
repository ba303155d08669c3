// SPDX-License-Identifier: Apache-2.0
// The scenario garbage: calls that only the kernel can answer. The same lines must come out with and without KTSN.
#include "steps.h"

// A message with a transmit time and no destination; its control area is the caller's.
static struct msghdr header(struct iovec *iov, char *control, uint64_t at)
{
	struct msghdr message = {.msg_iov = iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(8)};
	struct cmsghdr *item = CMSG_FIRSTHDR(&message);
	item->cmsg_level = SOL_SOCKET;
	item->cmsg_type = KT_SO_TXTIME;
	item->cmsg_len = CMSG_LEN(8);
	memcpy(CMSG_DATA(item), &at, 8);
	return message;
}

// Calls that only the kernel can answer: the same lines must come out with and without KTSN.
static long odd(int fd, struct msghdr *message, int flags)
{
	errno = 0;
	long sent = sendmsg(fd, message, flags);
	return sent < 0 ? -errno : sent;
}

static void garbage(const struct step *)
{
	struct sockaddr_in to = to4(default_port());
	struct sockaddr_in6 loop = to6("::1", default_port()), any = to6("::", 0);
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
				show("cmsg-len", odd(fd, &message, 0));
			((struct cmsghdr *)control)->cmsg_len = CMSG_LEN(8);
			message.msg_controllen = (size_t)len;
			if (len < 24)
				show("control-len", odd(fd, &message, 0));
		}
		memset(control, 0xff, sizeof(control));
		struct msghdr message = {.msg_name = &to, .msg_namelen = sizeof(to), .msg_iov = &iov, .msg_iovlen = 1};
		message.msg_control = control, message.msg_controllen = sizeof(control);
		show("ones", odd(fd, &message, 0));
		message.msg_control = NULL;
		show("null-control", odd(fd, &message, 0));
		message.msg_controllen = 0;
		show("untimed", odd(fd, &message, 0));
		for (socklen_t len = 0; len < 16; len++) {
			message = header(&iov, memset(control, 0, sizeof(control)), 5);
			message.msg_name = &to, message.msg_namelen = len;
			show("name-len", odd(fd, &message, 0));
		}
		message.msg_name = &any, message.msg_namelen = sizeof(any);
		show("any", odd(fd, &message, 0));
		message.msg_name = &loop, message.msg_namelen = 20;
		show("short6", odd(fd, &message, 0));
		message.msg_name = &to, message.msg_namelen = (socklen_t)-1;
		show("negative", odd(fd, &message, 0));
		message.msg_namelen = sizeof(to);
		to.sin_port = 0;
		show("port0", odd(fd, &message, 0));
		to = to4(default_port());
		to.sin_family = 77;
		show("family", odd(fd, &message, 0));
		to = to4(default_port());
		show("oob", odd(fd, &message, MSG_OOB));
		message.msg_iov = NULL;
		show("null-iov", odd(fd, &message, 0));
		struct iovec negative = {"x", (size_t)-1};
		message.msg_iov = &negative;
		show("negative-iov", odd(fd, &message, 0));
		struct iovec nothing = {NULL, 5};
		message.msg_iov = &nothing;
		show("null-base", odd(fd, &message, 0));
		show("null", odd(fd, NULL, 0));
	}
	show("bad-fd", send_text(-1, "x"));
	show("no-fd", send_text(999, "x"));
	show("file", send_text(0, "x"));
	show("dup-bad", dup(-1));
	show("close-bad", close(999));
}

const struct verb garbage_verbs[] = {
	{"garbage", garbage}, {0},
};
