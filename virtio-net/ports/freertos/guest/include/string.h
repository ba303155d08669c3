// SPDX-License-Identifier: BSD-2-Clause
// What FreeRTOS and lwIP use of the C library's string.h. A freestanding compiler has none.
#ifndef GUEST_STRING_H
#define GUEST_STRING_H

#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t octets);
void *memmove(void *to, const void *from, size_t octets);
void *memset(void *to, int octet, size_t octets);
int memcmp(const void *first, const void *second, size_t octets);
size_t strlen(const char *text);
int strcmp(const char *first, const char *second);
int strncmp(const char *first, const char *second, size_t octets);

#endif
