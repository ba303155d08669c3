// SPDX-License-Identifier: Apache-2.0
// The steps recv, wait and errors.
//   recv SLOT [wait=MS] [many=N]                 one recv, or one recvmmsg of N
//   wait SLOT how=poll|select|epoll|edge [wait=MS]   what is ready
//   errors SLOT [wait=MS] [count=N] [small=1]    reads the error queue, until it is empty or N entries are read
#include "steps.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>

struct extended_error {
	uint32_t error;
	uint8_t origin, type, code, pad;
	uint32_t info, data;
};

static int is_ready(int fd, short events, long wait)
{
	struct pollfd poll_of = {fd, events, 0};

	return poll(&poll_of, 1, (int)wait) > 0;
}

static void receive_many(const struct step *step, int fd, unsigned count)
{
	struct mmsghdr messages[8];
	struct iovec parts[8];
	char data[8][64], text[200];
	int received, octets;

	memset(messages, 0, sizeof(messages));
	for (unsigned i = 0; i < 8; i++) {
		parts[i].iov_base = data[i];
		parts[i].iov_len = sizeof(data[i]);
		messages[i].msg_hdr.msg_iov = &parts[i];
		messages[i].msg_hdr.msg_iovlen = 1;
	}
	received = recvmmsg(fd, messages, count < 8 ? count : 8, MSG_DONTWAIT, NULL);
	if (received < 0) {
		say_result(step, -1);
		return;
	}
	octets = snprintf(text, sizeof(text), "%d:", received);
	for (int i = 0; i < received; i++)
		octets += snprintf(text + octets, sizeof(text) - (size_t)octets, " %c%u", data[i][0], messages[i].msg_len);
	say(step, "%s", text);
}

static void receive_step(const struct step *step)
{
	int fd = fds[slot(step, 1)];
	long wait = numeric(step, "wait", 1000), many = numeric(step, "many", 0);
	char data[70000];
	ssize_t octets;

	if (many) {
		usleep((useconds_t)wait * 1000);
		receive_many(step, fd, (unsigned)many);
		return;
	}
	if (!is_ready(fd, POLLIN, wait)) {
		say(step, "nothing");
		return;
	}
	octets = recv(fd, data, sizeof(data), MSG_DONTWAIT);
	if (octets < 0)
		say_result(step, -1);
	else
		say(step, "%zd of %c", octets, octets ? data[0] : '-');
}

static void say_events(const struct step *step, unsigned events)
{
	say(step, "%s%s%s%s%s", events & POLLIN ? "in " : "", events & POLLOUT ? "out " : "", events & POLLERR ? "err " : "",
	    events & POLLPRI ? "pri " : "", events ? "" : "nothing");
}

static unsigned by_select(int fd, long wait)
{
	struct timeval limit = {wait / 1000, wait % 1000 * 1000};
	fd_set in, urgent;

	FD_ZERO(&in);
	FD_ZERO(&urgent);
	FD_SET(fd, &in);
	FD_SET(fd, &urgent);
	if (select(fd + 1, &in, NULL, &urgent, &limit) <= 0)
		return 0;
	return (FD_ISSET(fd, &in) ? (unsigned)POLLIN : 0) | (FD_ISSET(fd, &urgent) ? (unsigned)POLLPRI : 0);
}

static unsigned by_epoll(int fd, long wait, int is_edge)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLPRI | (is_edge ? EPOLLET : 0)};
	int set = epoll_create1(0), count;

	epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
	count = epoll_wait(set, &event, 1, (int)wait);
	close(set);
	return count > 0 ? event.events & (POLLIN | POLLERR | POLLPRI) : 0;
}

static void wait_step(const struct step *step)
{
	int fd = fds[slot(step, 1)];
	const char *how = value(step, "how", "poll");
	long wait = numeric(step, "wait", 1000);

	if (!strcmp(how, "select")) {
		say_events(step, by_select(fd, wait));
	} else if (!strcmp(how, "poll") || !strcmp(how, "out")) {
		struct pollfd poll_of = {fd, strcmp(how, "out") ? POLLIN | POLLPRI : POLLOUT, 0};

		poll(&poll_of, 1, (int)wait);
		say_events(step, (unsigned short)poll_of.revents);
	} else {
		say_events(step, by_epoll(fd, wait, !strcmp(how, "edge")));
	}
}

static int describe(struct cmsghdr *item, char *text, size_t room, uint64_t wanted)
{
	struct extended_error error;
	struct timespec stamps[3];

	if (item->cmsg_level == SOL_SOCKET && item->cmsg_type == KT_SO_TIMESTAMPING) {
		int64_t age;

		memcpy(stamps, CMSG_DATA(item), sizeof(stamps));
		age = (int64_t)now(CLOCK_REALTIME) - (int64_t)stamps[0].tv_sec * 1000000000 - stamps[0].tv_nsec;
		return snprintf(text, room, " stamp(%s)", stamps[0].tv_sec == 0 ? "none" : age >= 0 && age < 5000000000 ? "recent" : "wrong");
	}
	if ((item->cmsg_level == IPPROTO_IP && item->cmsg_type == 11) || (item->cmsg_level == IPPROTO_IPV6 && item->cmsg_type == 25) ||
	    item->cmsg_level == 263) {
		uint64_t reported;

		memcpy(&error, CMSG_DATA(item), sizeof(error));
		reported = (uint64_t)error.data << 32 | error.info;
		if (error.origin == 4)
			return snprintf(text, room, " stamped(%d.%d %s type=%u key=%u)", item->cmsg_level, item->cmsg_type,
					error_name((int)error.error), error.info, error.data);
		return snprintf(text, room, " error(%d.%d %s origin=%u type=%u code=%u%s)", item->cmsg_level, item->cmsg_type,
				error_name((int)error.error), error.origin, error.type, error.code,
				error.origin == 6 ? reported == wanted ? " its-time" : " another-time" : "");
	}
	return snprintf(text, room, " other(%d.%d)", item->cmsg_level, item->cmsg_type);
}

static void errors_step(const struct step *step)
{
	int which = slot(step, 1), fd = fds[which];
	long count = numeric(step, "count", 16), wait = numeric(step, "wait", 200);

	for (long n = 0; n < count; n++) {
		char data[4096], control[512], text[600];
		struct iovec part = {data, numeric(step, "small", 0) ? 4 : sizeof(data)};
		struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
		ssize_t octets;
		int used;

		is_ready(fd, 0, wait);
		octets = recvmsg(fd, &message, KT_MSG_ERRQUEUE);
		if (octets < 0) {
			say(step, "%ld entries, then %s", n, error_name(errno));
			return;
		}
		used = snprintf(text, sizeof(text), "%zd octets flags %x ends with %c", octets, (unsigned)message.msg_flags,
				octets && data[octets - 1] >= 'a' && data[octets - 1] <= 'z' ? data[octets - 1] : '-');
		for (struct cmsghdr *item = CMSG_FIRSTHDR(&message); item && used < 500; item = CMSG_NXTHDR(&message, item))
			used += describe(item, text + used, sizeof(text) - (size_t)used, asked[which]);
		say(step, "%s", text);
	}
	say(step, "%ld entries", count);
}

const struct verb receive_verbs[] = {{"recv", receive_step}, {"wait", wait_step}, {"errors", errors_step}, {0}};
