// SPDX-License-Identifier: BSD-2-Clause
// What FreeRTOS and lwIP use of the C library's limits.h. The compiler's own would include one of a hosted system.
#ifndef GUEST_LIMITS_H
#define GUEST_LIMITS_H

#define CHAR_BIT __CHAR_BIT__
#define USHRT_MAX 0xffff
#define INT_MAX __INT_MAX__
#define UINT_MAX (__INT_MAX__ * 2u + 1u)
#define LONG_MAX __LONG_MAX__
#define ULONG_MAX (__LONG_MAX__ * 2ul + 1ul)

#endif
