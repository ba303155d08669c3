// SPDX-License-Identifier: BSD-2-Clause
// A stub: it only declares what this port uses of RTEMS 6's API, so that the port can be compiled where RTEMS is not
// installed. Nothing here is RTEMS' own text.
#ifndef STUB_RTEMS_IRQ_EXTENSION_H
#define STUB_RTEMS_IRQ_EXTENSION_H

#include <rtems.h>

rtems_status_code rtems_interrupt_handler_install(rtems_vector_number vector, const char *info, rtems_option options,
                                                  rtems_interrupt_handler handler, void *argument);
rtems_status_code rtems_interrupt_handler_remove(rtems_vector_number vector, rtems_interrupt_handler handler,
                                                 void *argument);

#endif
