// SPDX-License-Identifier: BSD-2-Clause
// What FreeRTOS and lwIP use of the C library's stdlib.h. A freestanding compiler has none.
#ifndef GUEST_STDLIB_H
#define GUEST_STDLIB_H

#include <stddef.h>

int atoi(const char *text);

#endif
