// SPDX-License-Identifier: BSD-2-Clause
// The network device's interrupt on i386, with FreeRTOS' own macros: a switch of tasks may follow.
#include "FreeRTOSConfig.h"
#include "ISR_Support.h"

    .text
    .global i386_freertos_interrupt_entry
i386_freertos_interrupt_entry:
    portFREERTOS_INTERRUPT_ENTRY
    call    guest_interrupt
    portFREERTOS_INTERRUPT_EXIT
