/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the ingress fast path and its loader (bpf/src) both know: maps and counters.
 *
 * The loader writes the same numbers in Rust (`ingress/layout.rs`); a test compares the two.
 */
#ifndef KTSN_INGRESS_H
#define KTSN_INGRESS_H

/* Counters of one attachment; each frame to one of its addresses counts once, besides its octets. */
#define TALLIES 16

enum tally {
	TALLY_TAKEN = 0,	/* handed into the pod */
	TALLY_OCTETS = 1,	/* of these: octets of the inner frames */
	TALLY_NOT_UDP = 2,	/* TCP, ICMP, …: connection tracking has to see them */
	TALLY_FRAGMENT = 3,	/* part of a datagram over the MTU */
	TALLY_OPTIONS = 4,	/* inner IP options or extension headers */
	TALLY_SEGMENTED = 5,	/* several datagrams in one packet (GSO, GRO) */
	TALLY_MALFORMED = 6,	/* lengths, versions, an IP header's checksum */
	TALLY_CHECKSUM = 7,	/* the outer checksum is wrong, not finished yet, or missing over IPv6 */
	TALLY_HOP_LIMIT = 8,	/* it ends here */
	TALLY_OVER_MTU = 9,	/* longer than the pod's interface takes */
	TALLY_OTHER_MAC = 10,	/* for another station of the VXLAN segment, or from an impossible one */
	TALLY_CONGESTION = 11,	/* the outer header marks congestion, the inner one must then (RFC 6040) */
	TALLY_SOURCE = 12,	/* a source address that no router forwards, or one of this node's own */
	TALLY_GONE = 13,	/* the host end of the pod's veth is not there (any more) */
	TALLY_FAILED = 14,	/* the kernel could not change the frame any further: dropped */
	TALLY_TUNNEL_END = 15,	/* from no tunnel end that is known in this network */
};

/*
 * Which frames: the outer destination, the network, the inner destination. Addresses as IPv6, IPv4 mapped. In the map of
 * tunnel ends the outer source stands for the inner destination.
 */
struct target {
	__u32 vni;
	__be16 port;
	__u16 reserved;
	__u8 local[16];
	__u8 destination[16];
};

/*
 * What happens to them. The kernel may use the memory of an element that was removed for another one while a program
 * still looks at it: the target stands here once more, in front, where it is written first. Whoever has copied the rest
 * looks at it again.
 */
struct delivery {
	struct target target;
	__u32 slot;		/* in the maps of devices and of tallies */
	__u32 packet_octets_max;
	__u8 station[6];	/* inner destination MAC address that such frames have */
	__u8 pod[6];		/* routed: the MAC addresses that the host would deliver it with */
	__u8 gateway[6];
	__u8 is_routed;
	__u8 reserved;
};

#endif
