// SPDX-License-Identifier: BSD-2-Clause
// QEMU's `pc` machine: a multiboot loader (QEMU's own, by -kernel) starts this in protected mode without paging.
    .section .text.start, "ax"
    .balign 4
    .long   0x1badb002, 0, -0x1badb002

    .global _start
_start:
    cli
    mov     $stack_end, %esp
    cld
    mov     $bss_start, %edi
    mov     $bss_end, %ecx
    sub     %edi, %ecx
    xor     %eax, %eax
    rep stosb
    mov     %ebx, machine_boot
    // The loader's segment table may be gone: an own one, for the return from interrupts.
    lgdt    gdt_pointer
    ljmp    $8, $1f
1:  mov     $16, %eax
    mov     %eax, %ds
    mov     %eax, %es
    mov     %eax, %ss
    mov     %eax, %fs
    mov     %eax, %gs
    call    guest_main
2:  hlt
    jmp     2b

    .global i386_interrupt_entry, i386_trap_entry
i386_interrupt_entry:
    pusha
    cld
    call    i386_interrupt
    popa
    iret
i386_trap_entry:
    cld
    call    i386_trap

    .section .rodata
    .balign 8
gdt:
    .quad   0, 0x00cf9a000000ffff, 0x00cf92000000ffff
gdt_pointer:
    .word   23
    .long   gdt

    .section .bss.machine_boot, "aw", @nobits
    .balign 4
    .global machine_boot
machine_boot:
    .zero   4
