// SPDX-License-Identifier: BSD-2-Clause
// The two functions of the C library that the driver needs. A freestanding compiler brings no string.h.
#ifndef VNET_MEMORY_H
#define VNET_MEMORY_H

#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t octets);
void *memset(void *to, int octet, size_t octets);

#endif
