// SPDX-License-Identifier: BSD-2-Clause
// Lines on the console that a program reads.
#include <string.h>

#include "guest.h"

static void add(struct guest_line *line, const char *text) {
    size_t octets = strlen(text);
    if (octets <= sizeof(line->text) - 4 - line->length) { // the line's end fits always
        memcpy(line->text + line->length, text, octets);
        line->length += octets;
    }
}

void guest_say_begin(struct guest_line *line, const char *kind) {
    line->length = 0;
    add(line, "{\"guest\":\"");
    add(line, kind);
    add(line, "\"");
}

void guest_say_number(struct guest_line *line, const char *name, uint64_t value) {
    char text[64] = "";
    char *end = text + sizeof(text) - 1;
    size_t octets = strlen(name);
    do {
        *--end = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    *--end = ':';
    *--end = '"';
    end -= octets; // names have at most 24 octets
    memcpy(end, name, octets);
    *--end = '"';
    *--end = ',';
    add(line, end);
}

void guest_say_counters(struct guest_line *line) {
    struct vnet_counters counters;
    vnet_read_counters(guest_device, &counters);
    guest_say_number(line, "interrupts", counters.interrupts);
    guest_say_number(line, "wakes", counters.wakes);
    guest_say_number(line, "rx_frames", counters.rx_frames);
    guest_say_number(line, "tx_frames", counters.tx_frames);
    guest_say_number(line, "rx_starved", counters.rx_starved);
    guest_say_number(line, "rx_posted_peak", counters.rx_posted_peak);
    guest_say_number(line, "rx_posted_peak_octets", (uint64_t)counters.rx_posted_peak * VNET_BUFFER_OCTETS);
    guest_say_number(line, "restarts", counters.restarts);
    guest_say_number(line, "rx_copied", guest_interface.counters.rx_copied);
    guest_say_number(line, "rx_dropped", guest_interface.counters.rx_dropped);
    guest_say_number(line, "tx_refused", guest_interface.counters.tx_refused);
    guest_say_number(line, "held_peak", guest_interface.counters.held_peak);
    guest_say_number(line, "memory_octets", guest_driver_memory());
}

void guest_say_end(struct guest_line *line) {
    memcpy(line->text + line->length, "}\n", 3);
    guest_print(line->text);
}

_Noreturn void guest_stop(const char *why, unsigned status) {
    guest_print("guest: ");
    guest_print(why);
    guest_print("\n");
    guest_exit(status);
}

void guest_assert(const char *file, unsigned line) {
    char digits[12] = "";
    char *end = digits + sizeof(digits) - 1;
    for (; line != 0; line /= 10) {
        *--end = (char)('0' + line % 10);
    }
    guest_print("guest: assertion, line ");
    guest_print(end);
    guest_print(" of ");
    guest_stop(file, GUEST_ASSERTION);
}

// For port numbers and sequence numbers of a test machine; guessable.
unsigned guest_random(void) {
    static uint32_t state = 1;
    state = state * UINT32_C(1664525) + UINT32_C(1013904223) + (uint32_t)guest_now();
    return state >> 8;
}
