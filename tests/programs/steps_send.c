// SPDX-License-Identifier: Apache-2.0
// The steps send and flood.
//   send SLOT [to=HOST,PORT|none] [text=TEXT | fill=c] [size=N+N… | parts=N] [namelen=N] [truncate=N] [more=1] [dontwait=1]
//        [confirm=1] [nosignal=1] [count=N] [bad=iov|data|name|control|header] [badat=N] [via=send|sendto|write|writev]
//        control messages, in the order of the step: tx=CLOCK:+NS|CLOCK:=NS|base:+NS|none [txlen=N] tos=N ttl=N tclass=N
//        hops=N gso=N stamp=N priority=N cmsg=LEVEL:TYPE[:VALUE] leave=INTERFACE,SOURCE (IP_PKTINFO, IPV6_PKTINFO)
//        [mac=A:B:…] [proto=N] [halen=N] [vlan=VID]   packet sockets, on eth0
// sendmmsg: the message with index i carries the text or fill + i; prints the count and each msg_len, with a label the
// count and the last msg_len ("LABEL-len"). One step sends at most 64. parts=N: so many pieces of one octet.
//   flood SLOT [max=N] …  the same again and again until it is refused; prints why, with a label how many were taken
#include "steps.h"

#include <net/if.h>
#include <netpacket/packet.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#define BATCH 64
#define PARTS_MAX 1025

static char payload[BATCH][66000];

static void add_leaving(struct parcel *parcel, const char *text)
{
	const char *source = strchr(text, ',') + 1;
	struct {
		struct in6_addr source;
		int interface;
	} six = {.interface = atoi(text)};
	struct {
		int interface;
		struct in_addr source, unused;
	} four = {.interface = atoi(text)};

	if (strchr(source, ':')) {
		inet_pton(AF_INET6, source, &six.source);
		add(parcel, IPPROTO_IPV6, IPV6_PKTINFO, &six, sizeof(six));
	} else {
		inet_pton(AF_INET, source, &four.source);
		add(parcel, IPPROTO_IP, IP_PKTINFO, &four, sizeof(four));
	}
}

static void add_asked(const struct step *step, struct parcel *parcel, const char *text)
{
	uint64_t *at = &asked[slot(step, 1)];

	*at = instant(text);
	add(parcel, SOL_SOCKET, KT_SO_TXTIME, at, (size_t)numeric(step, "txlen", 8));
}

// Adds the control message that a key of a step stands for, if it is one.
static void add_control(const struct step *step, struct parcel *parcel, const char *key, const char *text)
{
	static const struct {
		const char *key;
		int level, type;
	} numbers[] = {
		{"stamp", SOL_SOCKET, KT_SO_TIMESTAMPING}, {"priority", SOL_SOCKET, SO_PRIORITY}, {"tos", IPPROTO_IP, IP_TOS},
		{"ttl", IPPROTO_IP, IP_TTL}, {"tclass", IPPROTO_IPV6, IPV6_TCLASS}, {"hops", IPPROTO_IPV6, IPV6_HOPLIMIT},
	};
	int level, type, number_of = 0;

	if (!strcmp(key, "tx") && strcmp(text, "none"))
		add_asked(step, parcel, text);
	else if (!strcmp(key, "gso"))
		add_segment(parcel, (uint16_t)atoi(text));
	else if (!strcmp(key, "leave"))
		add_leaving(parcel, text);
	else if (!strcmp(key, "cmsg") && sscanf(text, "%d:%d:%d", &level, &type, &number_of) >= 2)
		add_int(parcel, level, type, number_of);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (!strcmp(numbers[i].key, key))
			add_int(parcel, numbers[i].level, numbers[i].type, (int)strtol(text, NULL, 0));
}

static void add_controls(const struct step *step, struct parcel *parcel)
{
	int has_time = 0;

	for (int i = 2; i < step->count; i++) {
		char key[16] = "";
		const char *text = strchr(step->word[i], '=');

		if (!text || text - step->word[i] >= (int)sizeof(key))
			continue;
		memcpy(key, step->word[i], (size_t)(text - step->word[i]));
		has_time |= !strcmp(key, "tx");
		add_control(step, parcel, key, text + 1);
	}
	if (!has_time)
		add_control(step, parcel, "tx", value(step, "tx", "none"));
	// Octets taken off the control area's end, without a word to its headers.
	parcel->control_octets -= (size_t)numeric(step, "truncate", 0);
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

// The message with the index `index` of a step.
static void write_parcel(const struct step *step, struct parcel *parcel, int index)
{
	int fd = fds[slot(step, 1)], kind = SOCK_DGRAM;
	const char *to = value(step, "to", "none"), *text = value(step, "text", NULL), *sizes = value(step, "size", text ? NULL : "10");
	char *at = payload[index];
	socklen_t octets = sizeof(kind);

	memset(parcel, 0, sizeof(*parcel));
	if (text)
		strcpy(at, text);
	else
		memset(at, value(step, "fill", "a")[0] + index, sizeof(payload[0]));
	if (value(step, "mac", NULL)) {
		getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &octets);
		parcel->to_octets = link_address(step, &parcel->to);
		if (kind == SOCK_RAW) {
			parcel->parts[0] = (struct iovec){at, link_header(step, at, fd)};
			at += parcel->parts[parcel->part_count++].iov_len;
		}
	} else if (strcmp(to, "none")) {
		parcel->to_octets = address(to, &parcel->to);
	}
	if (!sizes)
		parcel->parts[parcel->part_count++] = (struct iovec){at, strlen(at)};
	for (const char *size = sizes; size && parcel->part_count < PARTS; size = strchr(size, '+') ? strchr(size, '+') + 1 : NULL) {
		parcel->parts[parcel->part_count] = (struct iovec){at, (size_t)atoi(size)};
		at += parcel->parts[parcel->part_count++].iov_len;
	}
	add_controls(step, parcel);
}

static struct msghdr header_with(const struct step *step, struct parcel *parcel)
{
	static struct iovec many[PARTS_MAX];
	struct msghdr message = header_of(parcel);
	long parts = numeric(step, "parts", -1);

	message.msg_namelen = (socklen_t)numeric(step, "namelen", message.msg_namelen);
	for (long i = 0; i < parts && i < PARTS_MAX; i++)
		many[i] = (struct iovec){payload[0], 1};
	if (parts >= 0) {
		message.msg_iov = many;
		message.msg_iovlen = (__typeof__(message.msg_iovlen))parts;
	}
	return message;
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
	struct parcel parcel;
	struct iovec *part = parcel.parts;
	struct msghdr message;

	write_parcel(step, &parcel, 0);
	message = header_with(step, &parcel);
	if (bad)
		spoil(&message, bad);
	errno = 77;
	if (!strcmp(via, "send"))
		return send(fd, part->iov_base, part->iov_len, flags);
	if (!strcmp(via, "sendto"))
		return sendto(fd, part->iov_base, part->iov_len, flags, (struct sockaddr *)&parcel.to, message.msg_namelen);
	if (!strcmp(via, "write"))
		return write(fd, part->iov_base, part->iov_len);
	if (!strcmp(via, "writev"))
		return writev(fd, part, (int)message.msg_iovlen);
	if (bad && !strcmp(bad, "header"))
		return sendmsg(fd, (struct msghdr *)4096, flags);
	return sendmsg(fd, &message, flags);
}

static struct mmsghdr messages[BATCH];

// One sendmmsg; how many messages were sent, or -1.
static int send_batch(const struct step *step, unsigned count, int flags)
{
	static struct parcel parcels[BATCH];

	for (unsigned i = 0; i < count && i < BATCH; i++) {
		write_parcel(step, &parcels[i], (int)i);
		messages[i].msg_hdr = header_with(step, &parcels[i]);
		messages[i].msg_len = 7777;
	}
	if (value(step, "bad", NULL))
		spoil(&messages[numeric(step, "badat", 0)].msg_hdr, value(step, "bad", ""));
	return sendmmsg(fds[slot(step, 1)], messages, count, (MMSG_FLAGS)flags);
}

static void send_many(const struct step *step, unsigned count, int flags)
{
	int sent = send_batch(step, count, flags), octets;
	char text[600];

	if (sent < 0 || step->label) {
		say_result(step, sent);
		if (sent > 0) {
			snprintf(text, sizeof(text), "%s-len", step->label);
			show(text, messages[sent - 1].msg_len);
		}
		return;
	}
	octets = snprintf(text, sizeof(text), "%d:", sent);
	for (int i = 0; i < sent && octets < 580; i++)
		octets += snprintf(text + octets, sizeof(text) - (size_t)octets, " %u", messages[i].msg_len);
	say(step, "%s", text);
}

static void send_step(const struct step *step)
{
	int flags = (numeric(step, "more", 0) ? MSG_MORE : 0) | (numeric(step, "dontwait", 0) ? MSG_DONTWAIT : 0) |
		    (numeric(step, "confirm", 0) ? MSG_CONFIRM : 0) | (numeric(step, "nosignal", 0) ? MSG_NOSIGNAL : 0);
	long count = numeric(step, "count", 0);

	if (count > 0)
		send_many(step, (unsigned)count, flags);
	else
		say_clean(step, send_one(step, flags));
}

static void flood_step(const struct step *step)
{
	long most = numeric(step, "max", 1000), count = numeric(step, "count", 1);

	for (long taken = 0; taken < most;) {
		int sent = count > 1 ? send_batch(step, (unsigned)count, MSG_DONTWAIT) : send_one(step, MSG_DONTWAIT) < 0 ? -1 : 1;

		if (sent < 0) {
			say_result(step, step->label && errno == EAGAIN ? taken : -1);
			return;
		}
		taken += sent;
	}
	say(step, "all taken");
}

const struct verb send_verbs[] = {{"send", send_step}, {"flood", flood_step}, {0}};
