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
    atomic_thread_fence(memory_order_seq_cst);
}
#endif

// What was written to memory is there before the device's registers are written.
static inline void vnet_fence_device(void) {
#if defined(__riscv)
    __asm__ volatile("fence w, o" ::: "memory");
#elif defined(__aarch64__)
    __asm__ volatile("dmb sy" ::: "memory");
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

static inline void vnet_fence_acquire(void) {
    atomic_thread_fence(memory_order_acquire);
}

static inline void vnet_fence_release(void) {
    atomic_thread_fence(memory_order_release);
}

#endif
