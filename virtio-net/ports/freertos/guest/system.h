// SPDX-License-Identifier: BSD-2-Clause
// What main.c needs of a machine under FreeRTOS, beside ports/bare/machine.h. One file for each machine.
#ifndef SYSTEM_H
#define SYSTEM_H

#include "vnet_transport.h"

// Context: before the scheduler runs. Finds the network device and prepares its interrupt, which calls guest_interrupt.
// Returns NULL if there is none.
struct vnet_transport *system_find_network(void);

// The text of QEMU's option -append, or NULL.
const char *system_command_line(void);

#endif
