// SPDX-License-Identifier: Apache-2.0
// Sockets, addresses, datagrams and filters that the scenarios are made of.
#include "steps.h"

static struct sockaddr_storage destination;
static socklen_t destination_octets;

uint64_t now(int clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void set_destination(const char *text)
{
	destination_octets = address(text, &destination);
}

int default_port(void)
{
	return ntohs(((struct sockaddr_in *)&destination)->sin_port);
}

struct sockaddr_in to4(int port)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return to;
}

struct sockaddr_in6 to6(const char *host, int port)
{
	struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};

	inet_pton(AF_INET6, host, &to.sin6_addr);
	return to;
}

int local_port(int fd)
{
	struct sockaddr_in6 name = {0};
	socklen_t octets = sizeof(name);

	return getsockname(fd, (struct sockaddr *)&name, &octets) ? -errno : ntohs(name.sin6_port);
}

int set_txtime(int fd, int clock)
{
	struct txtime txtime = {clock, 0};

	return setsockopt(fd, SOL_SOCKET, KT_SO_TXTIME, &txtime, sizeof(txtime)) ? -errno : 0;
}

int timed_socket(int family, int clock)
{
	int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0), answer = set_txtime(fd, clock);

	if (answer) {
		show("txtime", answer);
		exit(3);
	}
	return fd;
}

void drop_rights(void)
{
	if (setresuid(65534, 65534, 65534))
		exit(4);
}

struct parcel parcel_of(const char *text, size_t octets)
{
	struct parcel parcel = {.to_octets = sizeof(struct sockaddr_in), .parts = {{(void *)text, octets}}, .part_count = 1};
	struct sockaddr_in to = to4(default_port());

	memcpy(&parcel.to, &to, sizeof(to));
	return parcel;
}

void add(struct parcel *parcel, int level, int type, const void *data, size_t octets)
{
	struct cmsghdr *item = (struct cmsghdr *)(parcel->control + parcel->control_octets);

	item->cmsg_level = level;
	item->cmsg_type = type;
	item->cmsg_len = (__typeof__(item->cmsg_len))CMSG_LEN(octets);
	memcpy(CMSG_DATA(item), data, octets);
	parcel->control_octets += CMSG_SPACE(octets);
}

void add_int(struct parcel *parcel, int level, int type, int number)
{
	add(parcel, level, type, &number, sizeof(number));
}

void add_time(struct parcel *parcel, uint64_t at)
{
	add(parcel, SOL_SOCKET, KT_SO_TXTIME, &at, sizeof(at));
}

void add_segment(struct parcel *parcel, uint16_t octets)
{
	add(parcel, IPPROTO_UDP, KT_UDP_SEGMENT, &octets, sizeof(octets));
}

struct msghdr header_of(struct parcel *parcel)
{
	struct msghdr message = {.msg_name = parcel->to_octets ? &parcel->to : NULL, .msg_namelen = parcel->to_octets,
				 .msg_iov = parcel->parts, .msg_control = parcel->control_octets ? parcel->control : NULL};

	// musl has other types than glibc.
	message.msg_iovlen = (__typeof__(message.msg_iovlen))parcel->part_count;
	message.msg_controllen = (__typeof__(message.msg_controllen))parcel->control_octets;
	return message;
}

long send_header(int fd, struct msghdr *message, int flags)
{
	long sent;

	errno = 77;
	sent = sendmsg(fd, message, flags);
	return sent < 0 ? -errno : errno == 77 ? sent : -1000;
}

long send_parcel(int fd, struct parcel *parcel)
{
	struct msghdr message = header_of(parcel);

	return send_header(fd, &message, 0);
}

long send_messages(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
	long sent;

	errno = 77;
	sent = sendmmsg(fd, messages, count, (MMSG_FLAGS)flags);
	// musl leaves the errno of the message that failed.
	return sent < 0 ? -errno : errno == 77 || sent < (long)count ? sent : -1000;
}

long send_at(int fd, const void *name, socklen_t octets, const char *text, uint64_t at, int flags)
{
	_Alignas(8) char control[CMSG_SPACE(8)] = {0};
	struct iovec piece = {(void *)text, strlen(text)};
	struct msghdr message = {.msg_name = (void *)name, .msg_namelen = octets, .msg_iov = &piece, .msg_iovlen = 1,
				 .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *item = CMSG_FIRSTHDR(&message);

	item->cmsg_level = SOL_SOCKET;
	item->cmsg_type = KT_SO_TXTIME;
	item->cmsg_len = CMSG_LEN(8);
	memcpy(CMSG_DATA(item), &at, 8);
	return send_header(fd, &message, flags);
}

long send_text(int fd, const char *text)
{
	return send_at(fd, &destination, destination_octets, text, now(TAI) + 200000000, 0);
}

int pass(int over, int fd)
{
	_Alignas(8) char control[CMSG_SPACE(sizeof(int))] = {0};
	char octet = 'f';
	struct iovec piece = {&octet, 1};
	struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *item = CMSG_FIRSTHDR(&message);

	item->cmsg_level = SOL_SOCKET;
	item->cmsg_type = SCM_RIGHTS;
	item->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(item), &fd, sizeof(int));
	return sendmsg(over, &message, 0) == 1 ? 0 : -errno;
}

int receive_passed(int from)
{
	_Alignas(8) char control[CMSG_SPACE(sizeof(int))] = {0};
	char octet;
	struct iovec piece = {&octet, 1};
	struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	int fd = -1;

	if (recvmsg(from, &message, 0) == 1 && CMSG_FIRSTHDR(&message))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	return fd;
}
