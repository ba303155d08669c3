// SPDX-License-Identifier: BSD-2-Clause
// A stub: it only declares what this port uses of RTEMS 6's API, so that the port can be compiled where RTEMS is not
// installed. Nothing here is RTEMS' own text.
#ifndef STUB_RTEMS_BSPIO_H
#define STUB_RTEMS_BSPIO_H

int printk(const char *format, ...);

#endif
