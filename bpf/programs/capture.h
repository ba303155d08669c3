/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the capture program and its loader (bpf/src) both know: maps, records, counters.
 *
 * The loader writes the same numbers in Rust (`layout.rs`); a test compares the two.
 */
#ifndef KTSN_CAPTURE_H
#define KTSN_CAPTURE_H

/* Counters lie in stripes, one for a processor, so that no two processors write one line. */
#define STRIPES 64
#define COUNTERS 16

enum counter {
	COUNT_TAKEN = 0,	/* copied into the ring */
	COUNT_RING_FULL = 1,	/* no room: dropped, as the frame must not leave before its time */
	COUNT_UNTIMED = 2,	/* carries no transmit time, whatever its protocol */
	COUNT_OTHER_CLOCK = 3,	/* its time is of a clock that is not taken */
	COUNT_NOT_UDP = 4,	/* timed, but not UDP over IPv4 or IPv6, or damaged */
	COUNT_OPTIONS = 5,	/* timed UDP with IP options or IPv6 extension headers, or with a VLAN tag */
	COUNT_FRAGMENT = 6,	/* part of a datagram over the MTU */
	COUNT_NOT_ALLOWED = 7,	/* the destination is none of the attachment's */
	COUNT_FOREIGN = 8,	/* the source is no address of the interface */
	COUNT_OVER_MTU = 9,	/* does not fit into one frame of the way it would leave by */
	COUNT_UNREADABLE = 10,	/* the kernel refused the copy */
};

/* Bit n: clock n of BPF_SKB_CLOCK_* is taken. */
#define CLOCK_MONOTONIC_TYPE 1
#define CLOCK_TAI_TYPE 2

struct settings {
	__u32 clocks;
	__u32 reserved;
};

/* A destination as IPv6, IPv4 mapped (RFC 4291 2.5.5.2); bits of the whole. */
struct destination {
	__u32 bits;
	__u8 address[16];
};

struct verdict {
	__u16 take;
	__u16 payload_octets_max;
};

struct address {
	__u8 octets[16];
};

/* Stands in front of the frame's octets. */
struct record {
	__u64 tx_time;		/* nanoseconds of `clock` */
	__u64 captured_at;	/* CLOCK_MONOTONIC, nanoseconds */
	__u32 octets;		/* of the frame, from its Ethernet header on */
	__u16 segment_octets;	/* payload of each datagram that it is to be cut into; 0: it is one datagram */
	__u8 clock;
	__u8 reserved;
};

#endif
