// SPDX-License-Identifier: BSD-2-Clause
// The cyclic probe itself. One task measures, another one prints: between them lies a ring that only the first writes.
#include "probe.h"

static void store(struct probe *probe, uint64_t late_ns) {
    uint32_t stored = atomic_load_explicit(&probe->stored, memory_order_relaxed);
    if (stored - atomic_load_explicit(&probe->taken, memory_order_acquire) == PROBE_HELD) {
        atomic_store(&probe->has_lost, 1);
        return;
    }
    // Four seconds and more are one value: no verdict asks how much more.
    probe->held[stored % PROBE_HELD] = late_ns < UINT32_MAX ? (uint32_t)late_ns : UINT32_MAX;
    atomic_store_explicit(&probe->stored, stored + 1, memory_order_release);
}

void probe_measure(struct probe *probe) {
    uint64_t due = probe_begin(probe->period_ns);
    for (uint64_t loop = 0; loop < probe->loops; loop++) {
        probe_wait(due);
        uint64_t now = probe_now();
        store(probe, now > due ? now - due : 0);
        // Wake-ups that passed meanwhile are left out: the late one stands for them, as in cyclictest.
        do {
            due += probe->period_ns;
        } while (due < now);
    }
}

static char *number(char *end, uint64_t value) {
    do {
        *--end = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    return end;
}

size_t probe_line(struct probe *probe, char *line) {
    uint32_t taken = atomic_load_explicit(&probe->taken, memory_order_relaxed);
    if (taken == atomic_load_explicit(&probe->stored, memory_order_acquire)) {
        return 0;
    }
    char text[48];
    char *end = text + sizeof(text), *at = end;
    *--at = '\n';
    at = number(at, probe->held[taken % PROBE_HELD]);
    *--at = ' ';
    *--at = ':';
    at = number(at, probe->printed++);
    *--at = ' ';
    *--at = ':';
    *--at = '0';
    atomic_store_explicit(&probe->taken, taken + 1, memory_order_release);
    size_t octets = (size_t)(end - at);
    for (size_t index = 0; index < octets; index++) {
        line[index] = at[index];
    }
    line[octets] = '\0';
    return octets;
}

int probe_is_done(const struct probe *probe) {
    return probe->printed == probe->loops;
}

uint64_t probe_setting(const char *settings, const char *name, uint64_t fallback) {
    for (const char *at = settings; at != NULL && *at != '\0';) {
        const char *word = name;
        while (*word != '\0' && *at == *word) {
            at++;
            word++;
        }
        if (*word == '\0' && *at == '=') {
            uint64_t value = 0;
            for (at++; *at >= '0' && *at <= '9' && value < UINT64_MAX / 16; at++) {
                value = value * 10 + (uint64_t)(*at - '0');
            }
            return value;
        }
        while (*at != '\0' && *at++ != ',') {
        }
    }
    return fallback;
}
