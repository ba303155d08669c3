// SPDX-License-Identifier: Apache-2.0
// The steps send and flood.
//   send SLOT [to=HOST,PORT] [size=N+N…] [fill=c] [tx=CLOCK:+NS | tx=CLOCK:=NS] [txlen=N] [twice=CLOCK:+NS] [tos=N] [ttl=N]
//        [tclass=N] [hops=N] [gso=N] [stamp=N] [unknown=LEVEL:TYPE] [truncate=N] [more=1] [dontwait=1] [namelen=N]
//        [count=N] [bad=iov|data|name|control|header] [via=send|sendto|write|writev]
//        [mac=A:B:…] [proto=N] [halen=N] [vlan=VID]   packet sockets, on eth0
// sendmmsg: the message with index i carries fill + i; prints the count and each msg_len. One step sends at most 64.
#include "steps.h"

#include <net/if.h>
#include <netpacket/packet.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#define PARTS 8
#define BATCH 64
// musl takes unsigned flags.
#ifdef __GLIBC__
#define MMSG_FLAGS int
#else
#define MMSG_FLAGS unsigned
#endif

static char payload[BATCH][66000];
static char control[1024];

// Appends a control message; its data may be shorter than its type says.
static void add(struct msghdr *message, int level, int type, const void *data, size_t octets)
{
	struct cmsghdr *item = (struct cmsghdr *)(control + message->msg_controllen);

	item->cmsg_level = level;
	item->cmsg_type = type;
	item->cmsg_len = (__typeof__(item->cmsg_len))CMSG_LEN(octets);
	memcpy(CMSG_DATA(item), data, octets);
	message->msg_controllen = (__typeof__(message->msg_controllen))((size_t)message->msg_controllen + CMSG_SPACE(octets));
}

static uint64_t instant(const char *text)
{
	const char *colon = strchr(text, ':');
	int clock = !strncmp(text, "tai", 3) ? KT_CLOCK_TAI : !strncmp(text, "mono", 4) ? CLOCK_MONOTONIC : CLOCK_REALTIME;

	if (colon[1] == '=')
		return strtoull(colon + 2, NULL, 0);
	return now(clock) + (uint64_t)strtoll(colon + 1, NULL, 0);
}

static void add_number(const struct step *step, struct msghdr *message, const char *key, int level, int type)
{
	int octets = (int)numeric(step, key, -1);

	if (value(step, key, NULL))
		add(message, level, type, &octets, sizeof(octets));
}

static void fill_control(const struct step *step, struct msghdr *message, int which)
{
	const char *time = value(step, "tx", NULL), *twice = value(step, "twice", NULL);
	const char *unknown = value(step, "unknown", NULL);
	uint16_t segment = (uint16_t)numeric(step, "gso", 0);
	uint64_t at;

	message->msg_control = control;
	message->msg_controllen = 0;
	memset(control, 0, sizeof(control));
	if (segment)
		add(message, IPPROTO_UDP, KT_UDP_SEGMENT, &segment, sizeof(segment));
	add_number(step, message, "stamp", SOL_SOCKET, KT_SO_TIMESTAMPING);
	if (time) {
		asked[which] = at = instant(time);
		add(message, SOL_SOCKET, KT_SO_TXTIME, &at, (size_t)numeric(step, "txlen", 8));
	}
	if (twice) {
		asked[which] = at = instant(twice);
		add(message, SOL_SOCKET, KT_SO_TXTIME, &at, 8);
	}
	add_number(step, message, "tos", IPPROTO_IP, 1);
	add_number(step, message, "ttl", IPPROTO_IP, 2);
	add_number(step, message, "tclass", IPPROTO_IPV6, 67);
	add_number(step, message, "hops", IPPROTO_IPV6, 52);
	if (unknown) {
		int zero = 0;

		add(message, atoi(unknown), atoi(strchr(unknown, ':') + 1), &zero, sizeof(zero));
	}
	// Octets taken off the control area's end, without a word to its headers.
	message->msg_controllen =
		(__typeof__(message->msg_controllen))((size_t)message->msg_controllen - (size_t)numeric(step, "truncate", 0));
	if (message->msg_controllen == 0)
		message->msg_control = NULL;
}

// A frame's header for SOCK_RAW; its octets.
static size_t link_header(const struct step *step, char *at, int fd)
{
	static const char to_default[] = "ff:ff:ff:ff:ff:ff";
	unsigned vlan = (unsigned)numeric(step, "vlan", 0);
	unsigned octet[6];
	struct ifreq request;
	size_t length = 12;

	sscanf(value(step, "mac", to_default), "%x:%x:%x:%x:%x:%x", octet, octet + 1, octet + 2, octet + 3, octet + 4, octet + 5);
	for (int i = 0; i < 6; i++)
		at[i] = (char)octet[i];
	memset(&request, 0, sizeof(request));
	snprintf(request.ifr_name, sizeof(request.ifr_name), "eth0");
	ioctl(fd, SIOCGIFHWADDR, &request);
	memcpy(at + 6, request.ifr_hwaddr.sa_data, 6);
	if (vlan) {
		char tag[4] = {(char)0x81, 0, (char)(vlan >> 8), (char)vlan};

		memcpy(at + length, tag, 4);
		length += 4;
	}
	at[length] = (char)(PACKET_SOCKETS_PROTOCOL >> 8);
	at[length + 1] = (char)(PACKET_SOCKETS_PROTOCOL & 0xff);
	return length + 2;
}

static socklen_t link_address(const struct step *step, struct sockaddr_storage *name)
{
	struct sockaddr_ll *link = (struct sockaddr_ll *)name;
	unsigned octet[6] = {0};

	memset(name, 0, sizeof(*name));
	link->sll_family = AF_PACKET;
	link->sll_protocol = htons((uint16_t)numeric(step, "proto", PACKET_SOCKETS_PROTOCOL));
	link->sll_ifindex = (int)if_nametoindex("eth0");
	link->sll_halen = (unsigned char)numeric(step, "halen", 6);
	sscanf(value(step, "mac", "ff:ff:ff:ff:ff:ff"), "%x:%x:%x:%x:%x:%x", octet, octet + 1, octet + 2, octet + 3, octet + 4,
	       octet + 5);
	for (int i = 0; i < 6; i++)
		link->sll_addr[i] = (unsigned char)octet[i];
	return sizeof(*link);
}

struct letter {
	struct sockaddr_storage name;
	struct iovec parts[PARTS];
	struct msghdr message;
};

static void write_letter(const struct step *step, struct letter *letter, int index)
{
	int which = slot(step, 1), kind = SOCK_DGRAM;
	const char *to = value(step, "to", NULL), *sizes = value(step, "size", "10");
	char *at = payload[index];
	socklen_t octets = sizeof(kind);
	size_t count = 0;

	memset(letter, 0, sizeof(*letter));
	memset(at, value(step, "fill", "a")[0] + index, sizeof(payload[0]));
	if (value(step, "mac", NULL)) {
		getsockopt(fds[which], SOL_SOCKET, SO_TYPE, &kind, &octets);
		letter->message.msg_namelen = link_address(step, &letter->name);
		if (kind == SOCK_RAW) {
			letter->parts[count].iov_base = at;
			letter->parts[count].iov_len = link_header(step, at, fds[which]);
			at += letter->parts[count++].iov_len;
		}
	} else if (to) {
		letter->message.msg_namelen = address(to, &letter->name);
	}
	for (const char *size = sizes; size && count < PARTS; size = strchr(size, '+') ? strchr(size, '+') + 1 : NULL) {
		letter->parts[count].iov_base = at;
		letter->parts[count].iov_len = (size_t)atoi(size);
		at += letter->parts[count++].iov_len;
	}
	letter->message.msg_name = letter->message.msg_namelen ? &letter->name : NULL;
	letter->message.msg_namelen = (socklen_t)numeric(step, "namelen", letter->message.msg_namelen);
	letter->message.msg_iov = letter->parts;
	letter->message.msg_iovlen = (__typeof__(letter->message.msg_iovlen))count;
	fill_control(step, &letter->message, which);
}

// Pointers to nowhere: page 1 is never mapped.
static void spoil(struct msghdr *message, const char *what)
{
	void *nowhere = (void *)4096;

	if (!strcmp(what, "iov"))
		message->msg_iov = nowhere;
	else if (!strcmp(what, "data"))
		message->msg_iov[0].iov_base = nowhere;
	else if (!strcmp(what, "name"))
		message->msg_name = nowhere;
	else if (!strcmp(what, "control"))
		message->msg_control = nowhere;
}

static long send_one(const struct step *step, int flags)
{
	int fd = fds[slot(step, 1)];
	const char *via = value(step, "via", "sendmsg"), *bad = value(step, "bad", NULL);
	struct letter letter;
	struct iovec *part = letter.parts;

	write_letter(step, &letter, 0);
	if (bad)
		spoil(&letter.message, bad);
	if (!strcmp(via, "send"))
		return send(fd, part->iov_base, part->iov_len, flags);
	if (!strcmp(via, "sendto"))
		return sendto(fd, part->iov_base, part->iov_len, flags, (struct sockaddr *)&letter.name, letter.message.msg_namelen);
	if (!strcmp(via, "write"))
		return write(fd, part->iov_base, part->iov_len);
	if (!strcmp(via, "writev"))
		return writev(fd, part, (int)letter.message.msg_iovlen);
	if (bad && !strcmp(bad, "header"))
		return sendmsg(fd, (struct msghdr *)4096, flags);
	return sendmsg(fd, &letter.message, flags);
}

static void send_many(const struct step *step, unsigned count, int flags)
{
	static struct letter letters[BATCH];
	static struct mmsghdr messages[BATCH];
	char text[600];
	int sent, octets;

	// All messages share the control messages: they are written for each alike.
	for (unsigned i = 0; i < count && i < BATCH; i++) {
		write_letter(step, &letters[i], (int)i);
		messages[i].msg_hdr = letters[i].message;
		messages[i].msg_len = 7777;
	}
	if (value(step, "bad", NULL))
		spoil(&messages[numeric(step, "badat", 0)].msg_hdr, value(step, "bad", ""));
	sent = sendmmsg(fds[slot(step, 1)], messages, count, (MMSG_FLAGS)flags);
	if (sent < 0) {
		say_result(step, -1);
		return;
	}
	octets = snprintf(text, sizeof(text), "%d:", sent);
	for (int i = 0; i < sent && octets < 580; i++)
		octets += snprintf(text + octets, sizeof(text) - (size_t)octets, " %u", messages[i].msg_len);
	say(step, "%s", text);
}

void send_step(const struct step *step)
{
	int flags = (numeric(step, "more", 0) ? MSG_MORE : 0) | (numeric(step, "dontwait", 0) ? MSG_DONTWAIT : 0) |
		    (numeric(step, "confirm", 0) ? MSG_CONFIRM : 0);
	long count = numeric(step, "count", 0);
	long sent;

	if (count > 0) {
		send_many(step, (unsigned)count, flags);
		return;
	}
	errno = 77;
	sent = send_one(step, flags);
	if (sent >= 0 && errno != 77)
		say(step, "%ld, but errno became %s", sent, error_name(errno));
	else
		say_result(step, sent);
}

// Sends the same again and again until it is refused, at most max=N times; prints only why it ended.
void flood_step(const struct step *step)
{
	long most = numeric(step, "max", 1000);

	for (long i = 0; i < most; i++) {
		if (send_one(step, MSG_DONTWAIT) < 0) {
			say_result(step, -1);
			return;
		}
	}
	say(step, "all taken");
}
