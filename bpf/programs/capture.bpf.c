/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Kernel capture: takes timed UDP frames at the host end of a pod's veth.
 *
 * In: every frame that leaves the pod. Out: UDP frames that carry a transmit time, go to an allowed destination and
 * fit into one frame of the way there: frame and time into the ring. Everything else goes on untouched, to the next
 * program and to the kernel.
 *
 * What it must never do: change a frame, let a frame go on that it put into the ring, or let one go on early that it
 * would have put there (a full ring drops it, and counts it).
 */
#include <linux/bpf.h>
#include <linux/types.h>

#include "capture.h"
#include "frame.h"

/* Keeps the compiler from forgetting what was checked: the verifier wants to see it. */
#define SEEN(value) __asm__ volatile("" : "+r"(value))

static void *(*const map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static __u64 (*const ktime_get_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static __u32 (*const processor)(void) = (void *)BPF_FUNC_get_smp_processor_id;
static long (*const load_bytes)(const void *skb, __u32 at, void *to, __u32 octets) = (void *)BPF_FUNC_skb_load_bytes;
static void *(*const reserve)(void *ring, __u64 octets, __u64 flags) = (void *)BPF_FUNC_ringbuf_reserve;
static void (*const submit)(void *record, __u64 flags) = (void *)BPF_FUNC_ringbuf_submit;
static void (*const discard)(void *record, __u64 flags) = (void *)BPF_FUNC_ringbuf_discard;

/* The loader makes the maps and puts their descriptors where these symbols are used. */
extern char settings;
extern char destinations;
extern char sources;
extern char counters;
extern char frames;

/* TCX's verdicts (linux/bpf.h since 6.6): to the next program; taken away. */
#define GO_ON (-1)
#define TAKEN 2

#define SEGMENTS_MAX 128

/* What was read of a frame. */
struct datagram {
	struct destination destination;
	struct address source;
	__u32 headers;		/* octets in front of the UDP header */
	__u32 room;		/* octets of the IP payload */
};

INLINE int count(__u32 which)
{
	__u32 zero = 0;
	__u64 *all = map_lookup(&counters, &zero);

	if (all) {
		__u32 stripe = processor() & (STRIPES - 1);

		__sync_fetch_and_add(&all[stripe * COUNTERS + (which & (COUNTERS - 1))], 1);
	}
	return GO_ON;
}

/* Reads an IPv4 header; which counter says why it is not taken, or -1. */
INLINE int read_ipv4(struct __sk_buff *skb, struct datagram *datagram)
{
	struct ipv4 ip;

	if (load_bytes(skb, ETHERNET_OCTETS, &ip, sizeof(ip)))
		return COUNT_NOT_UDP;
	if (ip.version_length >> 4 != 4 || (ip.version_length & 0xf) < 5 || ip.protocol != 17)
		return COUNT_NOT_UDP;
	if (host16(ip.fragment) & 0x3fff)
		return COUNT_FRAGMENT;
	if ((ip.version_length & 0xf) != 5)
		return COUNT_OPTIONS;
	if (!ip.ttl || !is_checksum_right(&ip) || host16(ip.total_octets) < sizeof(ip) + UDP_OCTETS)
		return COUNT_NOT_UDP;
	datagram->headers = ETHERNET_OCTETS + sizeof(ip);
	datagram->room = host16(ip.total_octets) - sizeof(ip);
	mapped(datagram->destination.address, ip.destination);
	mapped(datagram->source.octets, ip.source);
	return -1;
}

INLINE int read_ipv6(struct __sk_buff *skb, struct datagram *datagram)
{
	struct ipv6 ip;

	if (load_bytes(skb, ETHERNET_OCTETS, &ip, sizeof(ip)))
		return COUNT_NOT_UDP;
	if (ip.version >> 4 != 6)
		return COUNT_NOT_UDP;
	if (ip.next_header == 44)
		return COUNT_FRAGMENT;
	if (is_extension(ip.next_header))
		return COUNT_OPTIONS;
	if (ip.next_header != 17 || !ip.hop_limit || host16(ip.payload_octets) < UDP_OCTETS)
		return COUNT_NOT_UDP;
	/* Such addresses have no place on a wire; as keys they would be IPv4's. */
	if (is_mapped(ip.source) || is_mapped(ip.destination))
		return COUNT_NOT_ALLOWED;
	datagram->headers = ETHERNET_OCTETS + sizeof(ip);
	datagram->room = host16(ip.payload_octets);
	__builtin_memcpy(datagram->destination.address, ip.destination, 16);
	__builtin_memcpy(datagram->source.octets, ip.source, 16);
	return -1;
}

/* The first `octets` of the frame into the ring, in a record with `room` for them: the ring wants to know it when it is
 * compiled. */
INLINE int store(struct __sk_buff *skb, const struct record *head, __u64 octets, const __u32 room)
{
	struct record *record = reserve(&frames, sizeof(*record) + room, 0);

	if (!record) {
		count(COUNT_RING_FULL);
		return TAKEN;
	}
	*record = *head;
	SEEN(octets);
	if (octets < ETHERNET_OCTETS)
		goto unreadable;
	SEEN(octets);
	if (octets > room || load_bytes(skb, 0, record + 1, (__u32)octets))
		goto unreadable;
	submit(record, 0);
	count(COUNT_TAKEN);
	return TAKEN;
unreadable:
	discard(record, 0);
	return count(COUNT_UNREADABLE);
}

SECTION("tcx/ingress")
int capture(struct __sk_buff *skb)
{
	struct datagram datagram = {};
	struct record head = {};
	struct verdict *verdict;
	struct settings *set;
	struct udp udp;
	__be16 ether_type;
	__u32 zero = 0, octets, payload, segment, frame;
	int why = COUNT_NOT_UDP;

	/* Only a program that reads the type is shown times of other clocks than the real one. */
#ifdef KTSN_CAPTURE_TEST
	__u32 clock = skb->cb[0];	/* BPF_PROG_TEST_RUN cannot set the type */
#else
	__u32 clock = skb->tstamp_type;
#endif
	head.tx_time = skb->tstamp;
	if (!head.tx_time || (clock != CLOCK_MONOTONIC_TYPE && clock != CLOCK_TAI_TYPE))
		return count(COUNT_UNTIMED);
	set = map_lookup(&settings, &zero);
	if (!set || !(set->clocks & (1U << clock)))
		return count(COUNT_OTHER_CLOCK);
	if (skb->vlan_present)
		return count(COUNT_OPTIONS);
	if (load_bytes(skb, 12, &ether_type, sizeof(ether_type)))
		return count(COUNT_NOT_UDP);
	if (host16(ether_type) == 0x0800)
		why = read_ipv4(skb, &datagram);
	else if (host16(ether_type) == 0x86dd)
		why = read_ipv6(skb, &datagram);
	else if (host16(ether_type) == 0x8100 || host16(ether_type) == 0x88a8)
		why = COUNT_OPTIONS;
	if (why >= 0)
		return count((__u32)why);
	if (load_bytes(skb, datagram.headers, &udp, sizeof(udp)))
		return count(COUNT_NOT_UDP);
	octets = host16(udp.octets);
	frame = datagram.headers + octets;
	/* A packet that goes on behind its datagram is nothing that a socket makes: the kernel's. */
	if (octets < UDP_OCTETS || octets != datagram.room || datagram.headers + datagram.room > skb->len ||
	    !udp.destination)
		return count(COUNT_NOT_UDP);

	datagram.destination.bits = 128;
	verdict = map_lookup(&destinations, &datagram.destination);
	if (!verdict || !verdict->take)
		return count(COUNT_NOT_ALLOWED);
	if (!map_lookup(&sources, &datagram.source))
		return count(COUNT_FOREIGN);
	payload = octets - UDP_OCTETS;
	segment = skb->gso_size;
	if (segment >= payload)
		segment = 0;
	if (segment && (payload + segment - 1) / segment > SEGMENTS_MAX)
		return count(COUNT_OVER_MTU);
	if ((segment ? segment : payload) > verdict->payload_octets_max)
		return count(COUNT_OVER_MTU);

	head.captured_at = ktime_get_ns();
	head.octets = frame;
	head.segment_octets = (__u16)segment;
	head.clock = (__u8)clock;
	if (frame <= 232)
		return store(skb, &head, frame, 232);
	if (frame <= 2024)
		return store(skb, &head, frame, 2024);
	if (frame <= 10216)
		return store(skb, &head, frame, 10216);
	return store(skb, &head, frame, 65600);
}

/* Helpers of this kind are open to programs under this licence only. */
char licence[] SECTION("license") = "Dual BSD/GPL";
