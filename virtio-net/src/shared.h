// SPDX-License-Identifier: BSD-2-Clause
// Each access to memory that the device can write, and the fences between them. With VNET_TEST_HOOKS a test is called
// at each step.
#ifndef VNET_SHARED_H
#define VNET_SHARED_H

#include <stdatomic.h>
#include <stdint.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "virtio-net supports little-endian machines only: the rings of modern devices are little-endian"
#endif

// The device may be hardware (VIRTIO_F_ORDER_PLATFORM). Fences of C order what processors see. On RISC-V, x86 and
// others these are the fences for coherent devices too; Arm has stronger ones for devices outside the processors'
// domain.
#if defined(__aarch64__)
#define VNET_FENCE(arm, order) __asm__ volatile(arm ::: "memory")
#elif defined(__ARM_ARCH) && __ARM_ARCH >= 7
#define VNET_FENCE(arm, order) __asm__ volatile("dmb" ::: "memory")
#else
#define VNET_FENCE(arm, order) atomic_thread_fence(order)
#endif

#ifdef VNET_TEST_HOOKS
uint16_t vnet_load16(const volatile uint16_t *from);
uint32_t vnet_load32(const volatile uint32_t *from);
void vnet_store16(volatile uint16_t *to, uint16_t value);
void vnet_fence_full(void);
#else
static inline uint16_t vnet_load16(const volatile uint16_t *from) {
    return *from;
}

static inline uint32_t vnet_load32(const volatile uint32_t *from) {
    return *from;
}

static inline void vnet_store16(volatile uint16_t *to, uint16_t value) {
    *to = value;
}

// Loads and stores before it come before those after it, for the device too.
static inline void vnet_fence_full(void) {
    VNET_FENCE("dmb osh", memory_order_seq_cst);
}
#endif

// What was written to memory is there before the device's registers are written.
static inline void vnet_fence_device(void) {
#if defined(__riscv)
    __asm__ volatile("fence w, o" ::: "memory");
#else
    VNET_FENCE("dmb sy", memory_order_seq_cst);
#endif
}

// What a register said comes before what is read from memory.
static inline void vnet_fence_after_register(void) {
#if defined(__riscv)
    __asm__ volatile("fence i, r" ::: "memory");
#else
    VNET_FENCE("dmb sy", memory_order_acquire);
#endif
}

static inline void vnet_fence_acquire(void) {
    VNET_FENCE("dmb oshld", memory_order_acquire);
}

static inline void vnet_fence_release(void) {
    VNET_FENCE("dmb osh", memory_order_release);
}

#endif
