// SPDX-License-Identifier: BSD-2-Clause
// QEMU's riscv64 `virt` machine under FreeRTOS. FreeRTOS takes the traps; ports/bare/riscv64.c has all else.
#include <string.h>

#include "guest.h"
#include "machine.h"
#include "system.h"

// A device tree: a header, then tokens, each of 32 bits, big-endian.
enum { TREE_MAGIC = 0xd00dfeed, TREE_TOKENS_AT = 8, TREE_NAMES_AT = 12, TREE_STEPS_MAX = 20000 };
enum { TOKEN_BEGIN = 1, TOKEN_END = 2, TOKEN_PROPERTY = 3, TOKEN_NOTHING = 4 };

void freertos_risc_v_trap_handler(void);
void riscv64_trap(uint64_t cause, uint64_t place);

// FreeRTOS calls these. Context: interrupt, on FreeRTOS' stack for interrupts.
void freertos_risc_v_application_interrupt_handler(uint64_t cause) {
    riscv64_trap(cause, 0);
}

void freertos_risc_v_application_exception_handler(uint64_t cause) {
    (void)cause;
    machine_print("guest: trap\n");
    machine_exit(GUEST_TRAP);
}

static uint32_t read_big(const uint8_t *from) {
    return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
}

static const uint8_t *align(const uint8_t *at) {
    return (const uint8_t *)(((uintptr_t)at + 3) & ~(uintptr_t)3);
}

// Looks for the property `bootargs`; only one node has it. QEMU writes the tree, so it is trusted.
const char *system_command_line(void) {
    const uint8_t *tree = (const uint8_t *)machine_boot;
    if (tree == NULL || read_big(tree) != (uint32_t)TREE_MAGIC) {
        return NULL;
    }
    const uint8_t *at = tree + read_big(tree + TREE_TOKENS_AT);
    const char *names = (const char *)tree + read_big(tree + TREE_NAMES_AT);
    for (unsigned step = 0; step < TREE_STEPS_MAX; step++) {
        uint32_t token = read_big(at);
        at += 4;
        if (token == TOKEN_BEGIN) {
            at = align(at + strlen((const char *)at) + 1);
        } else if (token == TOKEN_PROPERTY) {
            uint32_t octets = read_big(at);
            if (strcmp(names + read_big(at + 4), "bootargs") == 0) {
                return (const char *)at + 8;
            }
            at = align(at + 8 + octets);
        } else if (token != TOKEN_END && token != TOKEN_NOTHING) {
            return NULL;
        }
    }
    return NULL;
}

struct vnet_transport *system_find_network(void) {
    __asm__ volatile("csrw mtvec, %0" ::"r"(freertos_risc_v_trap_handler));
    return machine_find_network();
}
