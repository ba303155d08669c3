/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Headers as they lie in a frame, and what all programs ask of them.
 */
#ifndef KTSN_FRAME_H
#define KTSN_FRAME_H

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

#define ETHERNET_OCTETS 14
#define UDP_OCTETS 8

struct ipv4 {
	__u8 version_length, ds;
	__be16 total_octets;
	__be16 identification, fragment;
	__u8 ttl, protocol;
	__be16 checksum;
	__u8 source[4], destination[4];
};

struct ipv6 {
	__u8 version, rest[3];
	__be16 payload_octets;
	__u8 next_header, hop_limit;
	__u8 source[16], destination[16];
};

struct udp {
	__be16 source, destination, octets, checksum;
};

INLINE __u32 host16(__be16 value)
{
	return __builtin_bswap16(value);
}

INLINE void mapped(__u8 to[16], const __u8 from[4])
{
	__builtin_memset(to, 0, 10);
	to[10] = 0xff;
	to[11] = 0xff;
	__builtin_memcpy(to + 12, from, 4);
}

/* Whether sixteen-bit words sum up to what a right header sums up to (RFC 1071). */
INLINE int is_checksum_right(const struct ipv4 *ip)
{
	__u16 words[10];
	__u32 sum = 0;

	__builtin_memcpy(words, ip, sizeof(words));
#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

INLINE int is_mapped(const __u8 address[16])
{
	__u64 high;
	__u32 low;

	__builtin_memcpy(&high, address, 8);
	__builtin_memcpy(&low, address + 8, 4);
	return high == 0 && low == 0xffff0000;
}

INLINE int is_extension(__u8 header)
{
	/* Hop-by-hop, routing, destination options (RFC 8200 4.1). */
	return header == 0 || header == 43 || header == 60;
}

#endif
