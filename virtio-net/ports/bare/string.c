// SPDX-License-Identifier: BSD-2-Clause
// The functions that a compiler may call on its own in a freestanding program.
#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t octets) {
    unsigned char *target = to;
    const unsigned char *source = from;
    while (octets-- != 0) {
        *target++ = *source++;
    }
    return to;
}

void *memset(void *to, int octet, size_t octets) {
    unsigned char *target = to;
    while (octets-- != 0) {
        *target++ = (unsigned char)octet;
    }
    return to;
}
