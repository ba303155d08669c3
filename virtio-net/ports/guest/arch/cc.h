// SPDX-License-Identifier: BSD-2-Clause
// lwIP's view of the compiler: little-endian; under RTEMS a C library, else none.
#ifndef ARCH_CC_H
#define ARCH_CC_H

void guest_assert(const char *file, unsigned line);
unsigned guest_random(void);

#ifdef __rtems__
#include <machine/endian.h>
#define LWIP_ERRNO_STDINCLUDE 1
#else
#define LWIP_NO_UNISTD_H 1
#define LWIP_PROVIDE_ERRNO 1
#endif
#ifndef BYTE_ORDER
#define BYTE_ORDER LITTLE_ENDIAN
#endif
#define LWIP_NO_INTTYPES_H 1
#define LWIP_NO_CTYPE_H 1
#define LWIP_RAND() guest_random()
#define LWIP_PLATFORM_DIAG(text) ((void)0)
#define LWIP_PLATFORM_ASSERT(text) guest_assert(__FILE__, __LINE__)
#define X8_F "x"
#define U16_F "u"
#define S16_F "d"
#define X16_F "x"
#define U32_F "u"
#define S32_F "d"
#define X32_F "x"
#define SZT_F "lu"

#endif
