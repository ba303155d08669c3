// SPDX-License-Identifier: BSD-2-Clause
// A cyclic probe: it wakes up each period, and records how late each wake-up was. One source for every system; the port
// supplies the clock and the wait. `ktsn rt run` reads what the port prints: a line `0: NUMBER: NANOSECONDS` for each
// wake-up, in order.
#ifndef PROBE_H
#define PROBE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

// Wake-ups that may wait to be printed.
#define PROBE_HELD 4096u

struct probe {
    uint64_t period_ns, loops;
    // In probe.c's hands: what was measured and not printed yet.
    uint32_t held[PROBE_HELD];
    _Atomic uint32_t taken, stored;
    uint64_t printed;
    atomic_bool has_lost; // more wake-ups waited than fit: the record has a gap, and the run is of no use
};

// The measuring side, until `loops` wake-ups are recorded. It neither prints nor takes memory.
void probe_measure(struct probe *probe);
// The printing side: the next line, or 0 where nothing waits. `line` has 32 octets or more.
size_t probe_line(struct probe *probe, char *line);
// Whether all wake-ups are printed.
int probe_is_done(const struct probe *probe);
// "period_us=10000,loops=8": the number behind a name; `fallback` where it is not named.
uint64_t probe_setting(const char *settings, const char *name, uint64_t fallback);

// The port supplies, in nanoseconds of one clock:
uint64_t probe_now(void);
uint64_t probe_begin(uint64_t period_ns); // the instant of the first wake-up; the ones after it are periods apart
void probe_wait(uint64_t due);            // returns at this instant or later

#endif
