// SPDX-License-Identifier: Apache-2.0
// A pod that attacks: attack RUN_DIR ATTACK [KEY=VALUE…]. It begins as root, to pin itself to a CPU and to open what a pod with
// capabilities could, and goes on as an ordinary user without any right. It writes "ready" when it has begun, and goes on
// until its standard input ends; then come lines "what value".
//   fill    clients=N rings are kept full; frames due=now|past|beyond|instant, payload=N, priority=N, sender=N; each
//           every_us=N; once=1: each ring only once; frames=0: none; storm=1: Unregister and Register after each fill;
//           ring_us=N: how often all doorbells are rung (0: when frames were published)
//   phases  clients=N with streams=N each; every pause_us each stream has frames=N frames of a period and a phase of its own, then
//           none, so that ktsnd expects frames that never come
//   punch   one client, doorbells each ring_us, holes punched in its region; idle=1: by a SCHED_IDLE thread beside a busy one
//   bells   clients=N, whose doorbells are rung without end
//   send    frames=N frames to=ADDRESS from=ADDRESS (IP_FREEBIND), raw=1: a whole frame with that source, arp=1: of ARP,
//           tag=N: of that VLAN
//   locks   sockets=N are locked for hold_ms at a time, gap_us apart, connections=N register them without end; rights=0:
//           without userfaultfd, by pages of a memfd that a SCHED_IDLE thread punches
//   later   clients=N give datagrams of payload=N octets that only the kernel can send, due ahead_us=N ahead, gap_us apart
//   expect  clients=N ask for the receive area, gap_us apart
//   flap    the pod's root adds routes=N, then adds and removes one more each gap_us
//   names   the pod's root renames its interface each gap_us
//   churn   connections that open and close
//   compute no client: walks through mib=N of its own memory
//   attach  frames=N clients, one after the other: lines "us N"; an innocent one
// Keys of all but compute, which has cpu=N and user=N: cpu=N (0; -1: any), user=N (1000), busy=N: an ordinary thread that keeps CPU N busy beside it, so that the
// kernel's limit of real-time threads there counts.
#define _GNU_SOURCE
#include "attack_main.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/net_tstamp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLIENTS_MAX = 1024, SECOND = 1000000000 };

atomic_bool stop;
const char *run_dir;
static char **keys;
static struct client clients[CLIENTS_MAX];
static unsigned clients_count;

const char *word_key(const char *name, const char *otherwise)
{
	size_t length = strlen(name);
	for (char **one = keys; *one; one++)
		if (!strncmp(*one, name, length) && (*one)[length] == '=')
			return *one + length + 1;
	return otherwise;
}

long key(const char *name, long otherwise)
{
	const char *word = word_key(name, NULL);
	return word ? atol(word) : otherwise;
}

void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void pin(long cpu)
{
	cpu_set_t cpus;
	CPU_ZERO(&cpus);
	CPU_SET((size_t)cpu, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
}

void say_value(const char *name, long value)
{
	printf("%s %ld\n", name, value);
	fflush(stdout);
}

void be_idle(void)
{
	struct sched_param none = {0};
	if (sched_setscheduler(0, SCHED_IDLE, &none) < 0)
		fail("SCHED_IDLE");
}

void thread(void *(*run)(void *), void *argument)
{
	pthread_t created;
	if (pthread_create(&created, NULL, run, argument))
		fail("thread");
}

// Streams are sockets with SO_TXTIME; CLOCK_MONOTONIC needs no right.
static void timed(int fd)
{
	struct sock_txtime txtime = {.clockid = CLOCK_MONOTONIC};
	if (setsockopt(fd, SOL_SOCKET, SO_TXTIME, &txtime, sizeof(txtime)) < 0)
		fail("SO_TXTIME");
}

int udp_socket(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), one = 1;
	const char *from = word_key("from", NULL);
	struct sockaddr_in name = {.sin_family = AF_INET};
	if (fd < 0)
		fail("socket");
	timed(fd);
	if (from) {
		setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &one, sizeof(one));
		inet_pton(AF_INET, from, &name.sin_addr);
		if (bind(fd, (struct sockaddr *)&name, sizeof(name)) < 0)
			fail("bind");
	}
	return fd;
}

void drop_rights(void)
{
	uid_t user = (uid_t)key("user", 1000);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || setgroups(0, NULL) || setresgid(user, user, user) ||
	    setresuid(user, user, user))
		fail("dropping rights");
}

void ready(void)
{
	puts("ready");
	fflush(stdout);
}

// Opens `count` clients, as many as are let in, with a registered stream each.
static void open_clients(unsigned count, int (*open_socket)(void))
{
	unsigned refused = 0, unregistered = 0;
	int last = 0;
	uid_t user = (uid_t)key("user", 1000);
	for (unsigned index = 0; index < count && refused < 8; index++) {
		struct client *client = clients + clients_count;
		int socket_ = open_socket();
		// The peer's rights are what it has when it connects.
		if (setresuid(user, user, 0))
			fail("rights");
		int status = client_open(client, run_dir, socket_);
		if (setresuid(0, 0, 0))
			fail("rights");
		if (status) {
			close(socket_);
			refused++;
			last = status;
			continue;
		}
		client_register(client, 0, client->token, socket_);
		clients_count++;
	}
	for (unsigned index = 0; index < clients_count; index++)
		unregistered += client_wait(clients + index, 0, 1, 500000) != 1;
	say_value("clients", (long)clients_count);
	say_value("refused", (long)refused);
	say_value("refused_status", last);
	say_value("unregistered", (long)unregistered);
}

const struct client *client_of(unsigned number)
{
	if (!clients_count)
		fail("no client was let in");
	return clients + number % clients_count;
}

static struct frame frame_of(void)
{
	static uint8_t nothing;
	struct frame frame = {.clock = 1, .port = 9, .link = &nothing, .sender = (uint32_t)key("sender", 666)};
	frame.payload_octets = (uint16_t)key("payload", 1400);
	frame.priority = (uint8_t)key("priority", 0);
	inet_pton(AF_INET, word_key("to", "10.244.1.5"), &frame.to);
	return frame;
}

static uint64_t due(void)
{
	const char *word = word_key("due", "now");
	uint64_t now = now_on(CLOCK_MONOTONIC);
	switch (word[0]) {
	case 'p':
		return now - SECOND / 10;
	case 'b':
		return now + 3600ull * SECOND;
	case 'i':
		return now + SECOND / 50;
	default:
		return now;
	}
}

static void ring_all(void)
{
	for (unsigned index = 0; index < clients_count; index++)
		client_ring(clients + index);
}

// Unregisters each stream and registers it under another token.
static void storm(void)
{
	for (unsigned index = 0; index < clients_count; index++) {
		struct client *client = clients + index;
		client_unregister(client, 0, client->token);
		if (!client_register(client, 0, client->token + 1, client->socket))
			client->token++;
	}
}

static void *attack_fill(void *unused)
{
	struct frame frame = frame_of();
	long every = key("every_us", 0), ring = key("ring_us", 0), frames = key("frames", 1 << 30);
	unsigned long pushed = 0, rounds = 0;
	for (uint64_t rung = 0; !atomic_load(&stop); rounds++) {
		frame.tx_time = due();
		for (unsigned index = 0; index < clients_count && frames; index++)
			pushed += client_fill(clients + index, &frame, (unsigned)frames);
		if (now_on(CLOCK_MONOTONIC) - rung > (uint64_t)ring * 1000) {
			rung = now_on(CLOCK_MONOTONIC);
			ring_all();
		}
		if (key("storm", 0))
			storm();
		if (key("once", 0) || !frames)
			break;
		if (every)
			usleep((useconds_t)every);
	}
	say_value("pushed", (long)pushed);
	say_value("rounds", (long)rounds);
	return unused;
}

// Frames of streams that begin and end again and again: after its last frame each has taught the daemon when the next one comes.
static void *attack_phases(void *unused)
{
	enum { STREAMS_MAX = 256 };
	struct frame frame = frame_of();
	long streams = key("streams", 64), frames = key("frames", 8), pause = key("pause_us", 100000);
	unsigned long pushed = 0, rounds = 0, unregistered = 0;
	if (streams > STREAMS_MAX)
		streams = STREAMS_MAX;
	for (unsigned index = 0; index < clients_count; index++) {
		struct client *client = clients + index;
		for (uint32_t stream = 1; stream < (uint32_t)streams; stream++) {
			client_register(client, stream, client->token, client->socket);
			unregistered += client_wait(client, stream, client->token, 500000) != 1;
		}
	}
	say_value("streams", streams * (long)clients_count - (long)unregistered);
	for (; !atomic_load(&stop); rounds++) {
		uint64_t begin = now_on(CLOCK_MONOTONIC) + 1000000;
		for (long number = 0; number < frames; number++) {
			for (unsigned at = 0; at < clients_count * (unsigned)streams; at++) {
				// 1 to 3 ms, no two alike, and no two phases.
				uint64_t period = 1000000 + 7919ull * at % 2000000, phase = 104729ull * at % period;
				frame.stream = at % (unsigned)streams;
				frame.tx_time = begin + phase + (uint64_t)number * period;
				pushed += client_fill(clients + at / (unsigned)streams, &frame, 1);
			}
		}
		ring_all();
		usleep((useconds_t)pause);
	}
	say_value("pushed", (long)pushed);
	say_value("rounds", (long)rounds);
	return unused;
}

static atomic_long punched, punch_errno;

static void *puncher(void *idle)
{
	if (idle)
		be_idle();
	// A busy machine lets an idle thread wait: its one hole may come late.
	do {
		if (!fallocate(clients->memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, clients->octets)) {
			atomic_fetch_add(&punched, 1);
			continue;
		}
		atomic_store(&punch_errno, errno);
		if (madvise(clients->region, clients->octets, MADV_REMOVE))
			usleep(1000);
	} while (!atomic_load(&stop));
	return NULL;
}

static void *hog(void *cpu)
{
	if (cpu)
		pin(key("busy", 0));
	while (!atomic_load(&stop))
		;
	return NULL;
}

static void *attack_punch(void *unused)
{
	long ring = key("ring_us", 500);
	if (!clients_count)
		return unused;
	thread(puncher, key("idle", 0) ? "" : NULL);
	if (key("idle", 0))
		thread(hog, NULL);
	while (!atomic_load(&stop)) {
		ring_all();
		usleep((useconds_t)ring);
	}
	for (int tries = 0; tries < 1000 && !atomic_load(&punched) && !atomic_load(&punch_errno); tries++)
		usleep(10000);
	say_value("punched", atomic_load(&punched));
	say_value("punch_errno", atomic_load(&punch_errno));
	return unused;
}

static void *attack_bells(void *unused)
{
	unsigned long rung = 0;
	for (; !atomic_load(&stop); rung += clients_count)
		ring_all();
	say_value("rung", (long)rung);
	return unused;
}

static int packet_socket(void)
{
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	struct sockaddr_ll name = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
	name.sll_ifindex = (int)if_nametoindex("eth0");
	if (fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof(name)) < 0)
		fail("packet socket");
	timed(fd);
	return fd;
}

// What comes before the mark in a frame of the pod's own MAC address, with the source of the key `from`: IPv4 and UDP, or
// with arp=1 an ARP request; with tag=N behind a tag of that VLAN. Its octets.
static uint16_t link_head(uint8_t *head, const struct frame *frame)
{
	struct ifreq request = {.ifr_name = "eth0"};
	struct iphdr ip = {.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP, .daddr = frame->to};
	struct udphdr udp = {.source = htons(9), .dest = htons(9), .len = htons(sizeof(udp) + sizeof(struct mark))};
	uint8_t arp[28] = {0, 1, 8, 0, 6, 4, 0, 1}, *at = head;
	uint16_t words[10], tag = htons((uint16_t)key("tag", 0));
	uint32_t sum = 0;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (ioctl(fd, SIOCGIFHWADDR, &request) < 0)
		fail("MAC address");
	close(fd);
	inet_pton(AF_INET, word_key("from", "10.244.0.6"), &ip.saddr);
	ip.tot_len = htons(sizeof(ip) + sizeof(udp) + sizeof(struct mark));
	memcpy(words, &ip, sizeof(ip));
	for (unsigned index = 0; index < 10; index++)
		sum += words[index];
	sum = (sum & 0xffff) + (sum >> 16);
	ip.check = (uint16_t)~((sum & 0xffff) + (sum >> 16));
	memcpy(arp + 8, request.ifr_hwaddr.sa_data, 6);
	memcpy(arp + 14, &ip.saddr, 4);
	memcpy(arp + 24, &ip.daddr, 4);
	at = mempcpy(at, (uint8_t[]){2, 0, 0, 0, 9, 9}, 6);
	at = mempcpy(at, request.ifr_hwaddr.sa_data, 6);
	if (tag)
		at = mempcpy(mempcpy(at, "\x81\x00", 2), &tag, 2);
	if (key("arp", 0)) {
		at = mempcpy(mempcpy(at, "\x08\x06", 2), arp, sizeof(arp));
	} else {
		at = mempcpy(at, "\x08\x00", 2);
		at = mempcpy(mempcpy(at, &ip, sizeof(ip)), &udp, sizeof(udp));
	}
	return (uint16_t)(at - head);
}

static void *attack_send(void *unused)
{
	static uint8_t head[128];
	struct frame frame = frame_of();
	long count = key("frames", 50), pushed = 0;
	frame.payload_octets = sizeof(struct mark);
	if (key("raw", 0)) {
		frame.flags = 8;
		frame.link = head;
		frame.link_octets = link_head(head, &frame);
		frame.payload_octets = (uint16_t)(frame.link_octets + sizeof(struct mark));
		frame.scope = if_nametoindex("eth0");
	}
	for (; pushed < count && clients_count && !atomic_load(&stop); usleep(2000)) {
		frame.tx_time = now_on(CLOCK_MONOTONIC) + 1000000;
		pushed += (long)client_fill(clients, &frame, 1);
		client_ring(clients);
	}
	say_value("pushed", pushed);
	return unused;
}

// A program that only computes: it walks through its own memory, on the CPU of the key `cpu`.
static void compute(void)
{
	size_t octets = (size_t)key("mib", 16) << 20;
	volatile uint8_t *memory = malloc(octets);
	if (!memory)
		fail("memory");
	memset((void *)memory, 1, octets);
	drop_rights();
	ready();
	if (fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK) < 0)
		fail("standard input");
	unsigned long walks = 0;
	for (char end; read(STDIN_FILENO, &end, 1) < 0 && (errno == EAGAIN || errno == EINTR); walks++)
		for (size_t at = 0; at < octets; at += 64)
			memory[at]++;
	say_value("walks", (long)walks);
}

static void begin(const char *attack)
{
	static const struct {
		const char *name;
		void *(*run)(void *);
		unsigned clients;
	} all[] = {
		{"fill", attack_fill, 1}, {"phases", attack_phases, 4}, {"punch", attack_punch, 1}, {"bells", attack_bells, 256}, {"send", attack_send, 1},
		{"later", attack_later, 1}, {"expect", attack_expect, 1},
	};
	for (unsigned index = 0; index < sizeof(all) / sizeof(*all); index++) {
		if (strcmp(attack, all[index].name))
			continue;
		open_clients((unsigned)key("clients", all[index].clients), key("raw", 0) ? packet_socket : udp_socket);
		drop_rights();
		ready();
		if (word_key("busy", NULL))
			thread(hog, "");
		pthread_t run;
		if (pthread_create(&run, NULL, all[index].run, NULL))
			fail("thread");
		while (getchar() != EOF)
			;
		atomic_store(&stop, true);
		pthread_join(run, NULL);
		return;
	}
	if (!strcmp(attack, "locks"))
		attack_locks();
	else if (!strcmp(attack, "churn"))
		attack_churn();
	else if (!strcmp(attack, "attach"))
		attack_attach();
	else if (!strcmp(attack, "flap"))
		attack_flap();
	else if (!strcmp(attack, "names"))
		attack_names();
	else if (!strcmp(attack, "compute"))
		compute();
	else
		fail("no such attack");
}

int main(int argc, char **argv)
{
	struct rlimit files = {.rlim_cur = 8192, .rlim_max = 8192};
	if (argc < 3) {
		fputs("attack RUN_DIR ATTACK [KEY=VALUE…]\n", stderr);
		return 2;
	}
	run_dir = argv[1];
	keys = argv + 3;
	setrlimit(RLIMIT_NOFILE, &files);
	if (key("cpu", 0) >= 0)
		pin(key("cpu", 0));
	begin(argv[2]);
	fflush(stdout);
	_exit(0);
}
