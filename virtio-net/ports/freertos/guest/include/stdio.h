// SPDX-License-Identifier: BSD-2-Clause
// What FreeRTOS and lwIP use of the C library's stdio.h. A freestanding compiler has none.
#ifndef GUEST_STDIO_H
#define GUEST_STDIO_H

#include <stddef.h>

// lwIP includes it for the sake of debugging, which is off.

#endif
