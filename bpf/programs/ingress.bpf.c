/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The ingress fast path: takes VXLAN frames with a UDP datagram for an attached pod at the node's uplink.
 *
 * In: every frame that arrives by the uplink. Out: those that carry one UDP datagram to an address of an attached pod,
 * decapsulated, as the host would have delivered them, straight into the pod. Everything else goes on untouched, to the
 * next program and to the kernel.
 *
 * What it must never do: change a frame and let it go on, take a frame that the kernel would have dropped or changed
 * otherwise on its way to the pod (the host's own rules excepted: skipping them is what it is for), or hand a frame to
 * another device than the one that the pod's attachment stands for.
 */
#include <linux/bpf.h>
#include <linux/types.h>

#include "frame.h"
#include "ingress.h"

static void *(*const map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const load_bytes)(const void *skb, __u32 at, void *to, __u32 octets) = (void *)BPF_FUNC_skb_load_bytes;
static long (*const store_bytes)(void *skb, __u32 at, const void *from, __u32 octets,
				 __u64 flags) = (void *)BPF_FUNC_skb_store_bytes;
static long (*const adjust_room)(void *skb, __s32 octets, __u32 mode, __u64 flags) = (void *)BPF_FUNC_skb_adjust_room;
static __s64 (*const csum_diff)(const void *from, __u32 from_octets, const void *to, __u32 to_octets,
				__u32 seed) = (void *)BPF_FUNC_csum_diff;
static long (*const csum_level)(void *skb, __u64 what) = (void *)BPF_FUNC_csum_level;
static void (*const set_hash_invalid)(void *skb) = (void *)BPF_FUNC_set_hash_invalid;
static long (*const redirect_peer)(__u32 ifindex, __u64 flags) = (void *)BPF_FUNC_redirect_peer;

/* The loader makes the maps and puts their descriptors where these symbols are used. */
extern char pods;	/* target → delivery */
extern char devices;	/* slot → host end of the pod's veth; the kernel itself takes a device out when it goes */
extern char tallies;	/* slot → counters, of each processor */
extern char ends;	/* target, its destination an outer source → the tunnel end is known */
extern char own;	/* address → it is this node's */

/* TCX's verdicts (linux/bpf.h since 6.6): to the next program; dropped; a redirection. */
#define GO_ON (-1)
#define DROP 2
#define REDIRECT 7

#define HOST 0			/* PACKET_HOST: the frame is for this station */
#define AFTER_MAC 1		/* BPF_ADJ_ROOM_MAC */
#define NOW_IPV4 (1ULL << 7)	/* BPF_F_ADJ_ROOM_DECAP_L3_IPV4, _IPV6, since Linux 6.3 */
#define NOW_IPV6 (1ULL << 8)
#define QUERY 0			/* BPF_CSUM_LEVEL_QUERY */
#define RECOMPUTE 1		/* BPF_F_RECOMPUTE_CSUM: for devices that sum up the whole frame */

#define TUNNEL_OCTETS 30	/* UDP, VXLAN and inner Ethernet header */
#define VXLAN_OCTETS 8
#define FLAGS_VNI 0x08000000	/* the flag I alone; others are extensions, which only the kernel knows */
#define CHUNK_OCTETS 128
#define CHUNKS_MAX 73		/* a datagram in a frame of 9,216 octets */
#define CONGESTION_EXPERIENCED 3

struct tunnel {
	struct udp udp;
	__be32 flags, vni;
	__u8 destination[6], source[6];
	__be16 ether_type;
};

/* What was read of an IP header. */
struct packet {
	__u8 source[16], destination[16];
	__u32 headers;		/* its octets */
	__u32 room;		/* octets behind it */
	__u8 hops[4];		/* IPv4: TTL, protocol, checksum; IPv6: hop limit */
	__u8 is_ipv4, is_congested;
};

INLINE __u32 host32(__be32 value)
{
	return __builtin_bswap32(value);
}

/* Reads an IPv4 header; which counter says why such a packet is not taken, or -1. The destination is there in any case. */
INLINE int read_ipv4(struct __sk_buff *skb, __u32 at, struct packet *packet)
{
	struct ipv4 ip;

	if (load_bytes(skb, at, &ip, sizeof(ip)))
		return TALLY_MALFORMED;
	mapped(packet->destination, ip.destination);
	mapped(packet->source, ip.source);
	packet->is_ipv4 = 1;
	packet->is_congested = (ip.ds & 3) == CONGESTION_EXPERIENCED;
	packet->headers = sizeof(ip);
	packet->hops[0] = ip.ttl;
	packet->hops[1] = ip.protocol;
	__builtin_memcpy(packet->hops + 2, &ip.checksum, 2);
	if (ip.version_length >> 4 != 4 || (ip.version_length & 0xf) < 5)
		return TALLY_MALFORMED;
	if ((ip.version_length & 0xf) != 5)
		return TALLY_OPTIONS;
	if (host16(ip.fragment) & 0x3fff)
		return TALLY_FRAGMENT;
	if (ip.protocol != 17)
		return TALLY_NOT_UDP;
	if (!is_checksum_right(&ip) || host16(ip.total_octets) < sizeof(ip) + UDP_OCTETS)
		return TALLY_MALFORMED;
	packet->room = host16(ip.total_octets) - (__u32)sizeof(ip);
	return -1;
}

INLINE int read_ipv6(struct __sk_buff *skb, __u32 at, struct packet *packet)
{
	struct ipv6 ip;

	if (load_bytes(skb, at, &ip, sizeof(ip)))
		return TALLY_MALFORMED;
	__builtin_memcpy(packet->destination, ip.destination, 16);
	__builtin_memcpy(packet->source, ip.source, 16);
	packet->is_ipv4 = 0;
	/* The traffic class lies across two octets. */
	packet->is_congested = (ip.rest[0] >> 4 & 3) == CONGESTION_EXPERIENCED;
	packet->headers = sizeof(ip);
	packet->hops[0] = ip.hop_limit;
	if (ip.version >> 4 != 6)
		return TALLY_MALFORMED;
	if (ip.next_header == 44)
		return TALLY_FRAGMENT;
	if (is_extension(ip.next_header))
		return TALLY_OPTIONS;
	if (ip.next_header != 17)
		return TALLY_NOT_UDP;
	/* Such addresses have no place on a wire; as keys they would be IPv4's. */
	if (is_mapped(ip.destination) || host16(ip.payload_octets) < UDP_OCTETS)
		return TALLY_MALFORMED;
	packet->room = host16(ip.payload_octets);
	return -1;
}

/* Whether routers drop packets that come from there: groups, this host, this network. */
INLINE int is_source_odd(const struct packet *packet)
{
	__u64 high, low;

	if (packet->is_ipv4)
		return packet->source[12] == 0 || packet->source[12] == 127 || packet->source[12] >= 224;
	__builtin_memcpy(&high, packet->source, 8);
	__builtin_memcpy(&low, packet->source + 8, 8);
	if (packet->source[0] == 0xff || is_mapped(packet->source))
		return 1;
	return high == 0 && (low == 0 || low == __builtin_bswap64(1));
}

INLINE int is_link_local(const __u8 address[16])
{
	return address[0] == 0xfe && (address[1] & 0xc0) == 0x80;
}

INLINE int is_station(const __u8 mac[6])
{
	return !(mac[0] & 1) && (mac[0] | mac[1] | mac[2] | mac[3] | mac[4] | mac[5]);
}

INLINE int is_same(const __u8 *a, const __u8 *b, const __u32 octets)
{
	__u8 differs = 0;

#pragma unroll
	for (__u32 i = 0; i < octets; i++)
		differs |= (__u8)(a[i] ^ b[i]);
	return !differs;
}

/* Whether the outer UDP checksum holds, as far as it has to. One that the sender has not finished (virtual links) does not. */
INLINE int is_outer_sum_right(struct __sk_buff *skb, const struct packet *outer, __be16 checksum, __u32 at)
{
	struct {
		__u8 addresses[32];
		__be32 octets, protocol;
	} pseudo;
	__u8 chunk[CHUNK_OCTETS];
	__s64 sum;

	if (!checksum)
		return outer->is_ipv4;
	/* The device has seen to it. */
	if (csum_level(skb, QUERY) >= 0)
		return 1;
	if (outer->room > CHUNK_OCTETS * CHUNKS_MAX)
		return 0;
	__builtin_memcpy(pseudo.addresses, outer->source, 16);
	__builtin_memcpy(pseudo.addresses + 16, outer->destination, 16);
	if (outer->is_ipv4) {
		__builtin_memset(pseudo.addresses, 0, 12);
		__builtin_memset(pseudo.addresses + 16, 0, 12);
	}
	pseudo.octets = __builtin_bswap32(outer->room);
	pseudo.protocol = __builtin_bswap32(17);
	sum = csum_diff(0, 0, &pseudo, sizeof(pseudo), 0);
	for (__u32 i = 0; i < CHUNKS_MAX; i++) {
		__u32 done = i * CHUNK_OCTETS;
		__u64 octets;

		if (done >= outer->room)
			break;
		octets = outer->room - done;
		if (octets < CHUNK_OCTETS)
			__builtin_memset(chunk, 0, sizeof(chunk));
		else
			octets = CHUNK_OCTETS;
		/* Keeps the compiler from forgetting what was checked: the verifier wants to see it. */
		__asm__ volatile("" : "+r"(octets));
		if (octets < 1)
			return 0;
		__asm__ volatile("" : "+r"(octets));
		if (octets > CHUNK_OCTETS || load_bytes(skb, at + done, chunk, (__u32)octets))
			return 0;
		sum = csum_diff(0, 0, chunk, sizeof(chunk), (__u32)sum);
	}
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

/*
 * Why a frame for this pod is the kernel's, or -1. `end` is its target with the outer source as destination; `inner_at` is
 * where its inner IP header lies.
 */
INLINE int examine(struct __sk_buff *skb, const struct delivery *delivery, const struct packet *outer,
		   const struct target *end, const struct tunnel *tunnel, const struct packet *inner, __u32 inner_at)
{
	struct udp udp;

	if (!map_lookup(&ends, end))
		return TALLY_TUNNEL_END;
	if (skb->gso_size)
		return TALLY_SEGMENTED;
	if (!is_same(tunnel->destination, delivery->station, 6) || is_same(tunnel->source, delivery->station, 6) ||
	    !is_station(tunnel->source))
		return TALLY_OTHER_MAC;
	/* The node sends nothing to itself by the wire: for the kernel such a source is a martian. */
	if (is_source_odd(inner) || map_lookup(&own, inner->source) || map_lookup(&own, outer->source))
		return TALLY_SOURCE;
	/* The inner packet fills the frame, the datagram fills the packet. */
	if (inner_at + inner->headers + inner->room != skb->len)
		return TALLY_MALFORMED;
	if (load_bytes(skb, inner_at + inner->headers, &udp, sizeof(udp)) || host16(udp.octets) != inner->room)
		return TALLY_MALFORMED;
	if (!inner->is_ipv4 && !udp.checksum)
		return TALLY_MALFORMED;
	if (delivery->is_routed && is_link_local(inner->source) && !inner->is_ipv4)
		return TALLY_SOURCE;
	if (delivery->is_routed && inner->hops[0] <= 1)
		return TALLY_HOP_LIMIT;
	if (inner->headers + inner->room > delivery->packet_octets_max)
		return TALLY_OVER_MTU;
	if (outer->is_congested)
		return TALLY_CONGESTION;
	if (!is_outer_sum_right(skb, outer, tunnel->udp.checksum, ETHERNET_OCTETS + outer->headers))
		return TALLY_CHECKSUM;
	return -1;
}

/* Takes the outer headers off and writes what the host would have written. */
INLINE int decapsulate(struct __sk_buff *skb, const struct delivery *delivery, struct tunnel *tunnel,
		       struct packet *inner, __u32 inner_at)
{
	/* The inner Ethernet header goes with the rest: what stays in front is as long, and is written again. */
	if (adjust_room(skb, -(__s32)(inner_at - ETHERNET_OCTETS), AFTER_MAC, inner->is_ipv4 ? NOW_IPV4 : NOW_IPV6))
		return GO_ON;
	if (delivery->is_routed) {
		__builtin_memcpy(tunnel->destination, delivery->pod, 6);
		__builtin_memcpy(tunnel->source, delivery->gateway, 6);
		inner->hops[0]--;
	}
	if (store_bytes(skb, 0, tunnel->destination, ETHERNET_OCTETS, 0))
		return DROP;
	if (delivery->is_routed && inner->is_ipv4) {
		__be16 checksum;
		__u32 sum;

		/* RFC 1141: the sum's first octet of that word is one more. */
		__builtin_memcpy(&checksum, inner->hops + 2, 2);
		sum = host16(checksum) + 0x100;
		sum += sum >= 0xffff;
		checksum = __builtin_bswap16((__u16)sum);
		__builtin_memcpy(inner->hops + 2, &checksum, 2);
		if (store_bytes(skb, ETHERNET_OCTETS + 8, inner->hops, 4, RECOMPUTE))
			return DROP;
	} else if (delivery->is_routed) {
		if (store_bytes(skb, ETHERNET_OCTETS + 7, inner->hops, 1, RECOMPUTE))
			return DROP;
	}
	/* It was the outer flow's. */
	set_hash_invalid(skb);
	return REDIRECT;
}

SECTION("tcx/ingress")
int ingress(struct __sk_buff *skb)
{
	struct packet outer = {}, inner = {};
	struct tunnel tunnel = {};
	struct target target = {};
	struct delivery *found, delivery;
	__be16 ether_type;
	__u32 at, inner_at, *device, octets;
	__u64 *counts;
	int why, verdict;

	/* What is for others, or in a VLAN, is none of ours. */
	if (skb->pkt_type != HOST || skb->vlan_present || load_bytes(skb, 12, &ether_type, sizeof(ether_type)))
		return GO_ON;
	if (host16(ether_type) == 0x0800)
		why = read_ipv4(skb, ETHERNET_OCTETS, &outer);
	else if (host16(ether_type) == 0x86dd)
		why = read_ipv6(skb, ETHERNET_OCTETS, &outer);
	else
		return GO_ON;
	at = ETHERNET_OCTETS + outer.headers;
	if (why >= 0 || is_source_odd(&outer) || is_same(outer.source, outer.destination, 16))
		return GO_ON;
	/* Whatever goes on behind the datagram would end up in the pod. */
	if (at + outer.room != skb->len || load_bytes(skb, at, &tunnel, TUNNEL_OCTETS))
		return GO_ON;
	if (host16(tunnel.udp.octets) != outer.room || host32(tunnel.flags) != FLAGS_VNI || host32(tunnel.vni) & 0xff)
		return GO_ON;
	inner_at = at + TUNNEL_OCTETS;
	if (host16(tunnel.ether_type) == 0x0800)
		why = read_ipv4(skb, inner_at, &inner);
	else if (host16(tunnel.ether_type) == 0x86dd)
		why = read_ipv6(skb, inner_at, &inner);
	else
		return GO_ON;

	target.vni = host32(tunnel.vni) >> 8;
	target.port = tunnel.udp.destination;
	__builtin_memcpy(target.local, outer.destination, 16);
	__builtin_memcpy(target.destination, inner.destination, 16);
	found = map_lookup(&pods, &target);
	if (!found)
		return GO_ON;
	delivery = *found;
	__asm__ volatile("" : : : "memory");
	/* Removed, and its memory another's by now. */
	if (!is_same((const __u8 *)&found->target, (const __u8 *)&target, sizeof(target)))
		return GO_ON;
	counts = map_lookup(&tallies, &delivery.slot);
	if (!counts)
		return GO_ON;
	if (why < 0) {
		__builtin_memcpy(target.destination, outer.source, 16);
		why = examine(skb, &delivery, &outer, &target, &tunnel, &inner, inner_at);
	}
	device = map_lookup(&devices, &delivery.slot);
	if (why < 0 && !device)
		why = TALLY_GONE;
	if (why >= 0) {
		counts[why & (TALLIES - 1)]++;
		return GO_ON;
	}
	octets = skb->len - (inner_at - ETHERNET_OCTETS);
	verdict = decapsulate(skb, &delivery, &tunnel, &inner, inner_at);
	if (verdict == REDIRECT)
		verdict = (int)redirect_peer(*device, 0);
	if (verdict == REDIRECT) {
		counts[TALLY_TAKEN]++;
		counts[TALLY_OCTETS] += octets;
		return REDIRECT;
	}
	counts[TALLY_FAILED]++;
	return verdict;
}

/* Helpers of this kind are open to programs under this licence only. */
char licence[] SECTION("license") = "Dual BSD/GPL";
