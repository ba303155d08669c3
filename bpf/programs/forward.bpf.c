/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Forwarding between a virtual machine's tap and the uplink (XDP), by a table of stations.
 *
 * In: every frame that the device receives. Out: a frame for a station of the table leaves by that station's device.
 * Every other frame goes on to the kernel: the bridge is the slow path. Built twice: for the uplink, and (KTSN_GUEST)
 * for the tap, where a frame is forwarded only when the station that it names as its source is one of that tap.
 *
 * What it must never do: change a frame, drop one, or send one back to the device that it came from.
 */
#include <linux/bpf.h>
#include <linux/types.h>

#include "frame.h"

#define COUNT_FORWARDED 0
#define COUNT_UNKNOWN 1
#define COUNT_FOREIGN 2

static void *(*const map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const redirect_map)(void *map, __u64 key, __u64 flags) = (void *)BPF_FUNC_redirect_map;

/* The loader makes the maps and puts their descriptors where these symbols are used. */
extern char stations;
extern char ports;
extern char counted;

/* A MAC address, as the table's key. */
struct station {
	__u8 mac[6];
	__u8 zero[2];
};

INLINE int pass(__u32 which)
{
	__u64 *count = map_lookup(&counted, &which);

	if (count)
		*count += 1;
	return XDP_PASS;
}

SECTION("xdp")
int forward(struct xdp_md *context)
{
	const __u8 *frame = (const __u8 *)(long)context->data;
	const __u8 *end = (const __u8 *)(long)context->data_end;
	struct station to = {};
	const __u32 *port;
	long verdict;

	if (frame + ETHERNET_OCTETS > end)
		return pass(COUNT_UNKNOWN);
#ifdef KTSN_GUEST
	struct station from = {};
	const __u32 *owner;

	__builtin_memcpy(from.mac, frame + 6, 6);
	owner = map_lookup(&stations, &from);
	if (!owner || *owner != context->ingress_ifindex)
		return pass(COUNT_FOREIGN);
#endif
	__builtin_memcpy(to.mac, frame, 6);
	port = map_lookup(&stations, &to);
	if (!port || *port == context->ingress_ifindex)
		return pass(COUNT_UNKNOWN);
	/* A port that is gone: the lower bits are the verdict then. */
	verdict = redirect_map(&ports, *port, XDP_PASS);
	if (verdict != XDP_REDIRECT)
		return pass(COUNT_UNKNOWN);
	pass(COUNT_FORWARDED);
	return XDP_REDIRECT;
}

char licence[] SECTION("license") = "Dual BSD/GPL";
