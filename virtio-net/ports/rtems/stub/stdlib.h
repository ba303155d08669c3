// SPDX-License-Identifier: BSD-2-Clause
// A stub: it only declares what this port uses of RTEMS' C library, so that the port can be compiled where RTEMS is not
// installed. Nothing here is RTEMS' own text.
#ifndef STUB_STDLIB_H
#define STUB_STDLIB_H

int atoi(const char *text);
_Noreturn void exit(int status);

#endif
