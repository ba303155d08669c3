// SPDX-License-Identifier: BSD-2-Clause
// The functions that a compiler may call on its own in a freestanding program; with link-time optimisation it does so
// after it has dropped what is not used.
#include <stddef.h>

__attribute__((used)) void *memcpy(void *restrict to, const void *restrict from, size_t octets) {
    unsigned char *target = to;
    const unsigned char *source = from;
    while (octets-- != 0) {
        *target++ = *source++;
    }
    return to;
}

__attribute__((used)) void *memset(void *to, int octet, size_t octets) {
    unsigned char *target = to;
    while (octets-- != 0) {
        *target++ = (unsigned char)octet;
    }
    return to;
}
