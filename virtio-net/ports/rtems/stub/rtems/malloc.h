// SPDX-License-Identifier: BSD-2-Clause
// A stub: it only declares what this port uses of RTEMS 6's API, so that the port can be compiled where RTEMS is not
// installed. Nothing here is RTEMS' own text.
#ifndef STUB_RTEMS_MALLOC_H
#define STUB_RTEMS_MALLOC_H

#include <stddef.h>
#include <stdint.h>

void *rtems_heap_allocate_aligned_with_boundary(size_t octets, uintptr_t alignment, uintptr_t boundary);

#endif
