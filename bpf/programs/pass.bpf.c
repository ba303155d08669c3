/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Passes every frame on to the kernel (XDP). A veth takes redirected frames only when its peer has a program.
 */
#include <linux/bpf.h>
#include <linux/types.h>

#include "frame.h"

SECTION("xdp")
int pass(struct xdp_md *context)
{
	(void)context;
	return XDP_PASS;
}

char licence[] SECTION("license") = "Dual BSD/GPL";
