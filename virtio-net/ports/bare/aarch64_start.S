// SPDX-License-Identifier: BSD-2-Clause
// QEMU's aarch64 `virt` machine: the first processor starts here at EL1, without MMU.
    .section .text.start, "ax"
    .global _start
_start:
    adrp    x0, stack_end
    add     x0, x0, :lo12:stack_end
    mov     sp, x0
    adrp    x0, bss_start
    add     x0, x0, :lo12:bss_start
    adrp    x1, bss_end
    add     x1, x1, :lo12:bss_end
1:  cmp     x0, x1
    b.hs    2f
    str     xzr, [x0], #8
    b       1b
2:  adrp    x0, vectors
    add     x0, x0, :lo12:vectors
    msr     vbar_el1, x0
    isb
    bl      guest_main
3:  wfi
    b       3b

    .macro entry target
    .balign 128
    b       \target
    .endm

    .balign 2048
vectors:
    entry trap
    entry trap
    entry trap
    entry trap
    entry trap
    entry interrupt
    entry trap
    entry trap
    .rept 8
    entry trap
    .endr

trap:
    bl      aarch64_trap

interrupt:
    stp     x0, x1, [sp, #-176]!
    stp     x2, x3, [sp, #16]
    stp     x4, x5, [sp, #32]
    stp     x6, x7, [sp, #48]
    stp     x8, x9, [sp, #64]
    stp     x10, x11, [sp, #80]
    stp     x12, x13, [sp, #96]
    stp     x14, x15, [sp, #112]
    stp     x16, x17, [sp, #128]
    stp     x18, x29, [sp, #144]
    str     x30, [sp, #160]
    bl      aarch64_interrupt
    ldr     x30, [sp, #160]
    ldp     x18, x29, [sp, #144]
    ldp     x16, x17, [sp, #128]
    ldp     x14, x15, [sp, #112]
    ldp     x12, x13, [sp, #96]
    ldp     x10, x11, [sp, #80]
    ldp     x8, x9, [sp, #64]
    ldp     x6, x7, [sp, #48]
    ldp     x4, x5, [sp, #32]
    ldp     x2, x3, [sp, #16]
    ldp     x0, x1, [sp], #176
    eret
