// SPDX-License-Identifier: BSD-2-Clause
// The guest's settings, from its command line.
#include <string.h>

#include "guest.h"

struct guest_settings guest_settings = {
    .rx_min = 8,
    .rx_max = 8,
    .held_max = 16,
    .tx_max = 32,
    .tcp_octets = 65535,
    .check = 1,
    .address = 0x0a00020f, // 10.0.2.15, as QEMU's user network has it
    .mask = 0xffffff00,
    .gateway = 0x0a000202,
};

// A decimal number, or the four numbers of an address. Stops at `,` or at the end.
static const char *parse(const char *text, uint32_t *value) {
    uint32_t whole = 0, part = 0;
    bool has_digits = false;
    for (; *text != '\0' && *text != ','; text++) {
        if (*text == '.') {
            whole = (whole | part) << 8;
            part = 0;
        } else if (*text >= '0' && *text <= '9' && part < UINT32_MAX / 10) {
            part = part * 10 + (uint32_t)(*text - '0');
            has_digits = true;
        } else {
            return NULL;
        }
    }
    *value = whole | part;
    return has_digits ? text : NULL;
}

void guest_read_settings(struct guest_settings *settings, const char *text) {
    const struct {
        const char *name;
        uint32_t *value;
    } known[] = {
        {"rx_min", &settings->rx_min},   {"rx_max", &settings->rx_max}, {"held_max", &settings->held_max},
        {"tx_max", &settings->tx_max},   {"check", &settings->check},   {"tcp_octets", &settings->tcp_octets},
        {"address", &settings->address}, {"mask", &settings->mask},     {"gateway", &settings->gateway},
    };
    const char *at = text;
    while (at != NULL && *at != '\0') {
        unsigned index = 0;
        while (index < sizeof(known) / sizeof(known[0])) {
            size_t length = strlen(known[index].name);
            if (strncmp(at, known[index].name, length) == 0 && at[length] == '=') {
                at = parse(at + length + 1, known[index].value);
                break;
            }
            index++;
        }
        if (index == sizeof(known) / sizeof(known[0]) || at == NULL) {
            guest_stop("a setting is unknown or no number", GUEST_WRONG_SETTING);
        }
        at += *at == ',';
    }
}
