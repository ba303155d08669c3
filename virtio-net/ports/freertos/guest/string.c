// SPDX-License-Identifier: BSD-2-Clause
// The functions of include/string.h and include/stdlib.h. Copies go by words where both sides have the same alignment:
// frames and lwIP's buffers have.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uintptr_t __attribute__((may_alias)) word;
enum { WORD = sizeof(word) };

void *memcpy(void *restrict to, const void *restrict from, size_t octets) {
    unsigned char *target = to;
    const unsigned char *source = from;
    if (octets >= 4 * WORD && (((uintptr_t)target ^ (uintptr_t)source) & (WORD - 1)) == 0) {
        while (((uintptr_t)target & (WORD - 1)) != 0) {
            *target++ = *source++;
            octets--;
        }
        for (; octets >= 4 * WORD; octets -= 4 * WORD, target += 4 * WORD, source += 4 * WORD) {
            word *into = (word *)(void *)target;
            const word *out = (const word *)(const void *)source;
            word one = out[0], two = out[1], three = out[2], four = out[3];
            into[0] = one;
            into[1] = two;
            into[2] = three;
            into[3] = four;
        }
    }
    while (octets-- != 0) {
        *target++ = *source++;
    }
    return to;
}

void *memmove(void *to, const void *from, size_t octets) {
    unsigned char *target = to;
    const unsigned char *source = from;
    if ((uintptr_t)target <= (uintptr_t)source || (uintptr_t)target >= (uintptr_t)source + octets) {
        return memcpy(to, from, octets);
    }
    while (octets-- != 0) {
        target[octets] = source[octets];
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

int memcmp(const void *first, const void *second, size_t octets) {
    const unsigned char *one = first, *two = second;
    for (; octets != 0; octets--, one++, two++) {
        if (*one != *two) {
            return *one < *two ? -1 : 1;
        }
    }
    return 0;
}

size_t strlen(const char *text) {
    size_t length = 0;
    while (text[length] != '\0') {
        length++;
    }
    return length;
}

int strncmp(const char *first, const char *second, size_t octets) {
    for (; octets != 0; octets--, first++, second++) {
        if (*first != *second) {
            return (unsigned char)*first < (unsigned char)*second ? -1 : 1;
        }
        if (*first == '\0') {
            return 0;
        }
    }
    return 0;
}

int strcmp(const char *first, const char *second) {
    return strncmp(first, second, SIZE_MAX);
}

int atoi(const char *text) {
    int value = 0;
    while (*text >= '0' && *text <= '9') {
        value = value * 10 + (*text++ - '0');
    }
    return value;
}
