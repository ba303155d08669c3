// SPDX-License-Identifier: BSD-2-Clause
// A stub: it only declares what this port uses of RTEMS' C library, so that the port can be compiled where RTEMS is not
// installed. Nothing here is RTEMS' own text.
#ifndef STUB_ERRNO_H
#define STUB_ERRNO_H

extern int errno;

#endif
