// SPDX-License-Identifier: BSD-2-Clause
// A stub: it only declares what this port uses of RTEMS 6's API, so that the port can be compiled where RTEMS is not
// installed. Nothing here is RTEMS' own text.
#ifndef STUB_RTEMS_CONFDEFS_H
#define STUB_RTEMS_CONFDEFS_H

#include <rtems.h>

// With CONFIGURE_RTEMS_INIT_TASKS_TABLE the application has this task.
rtems_task Init(rtems_task_argument argument);

#endif
