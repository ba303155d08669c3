// SPDX-License-Identifier: BSD-2-Clause
// A stub: it only declares what this port uses of RTEMS' C library, so that the port can be compiled where RTEMS is not
// installed. Nothing here is RTEMS' own text.
#ifndef STUB_UNISTD_H
#define STUB_UNISTD_H

typedef __PTRDIFF_TYPE__ ssize_t;
#define SSIZE_MAX __PTRDIFF_MAX__

#endif
