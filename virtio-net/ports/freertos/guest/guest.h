// SPDX-License-Identifier: BSD-2-Clause
// What the files of the FreeRTOS guest share.
#ifndef GUEST_H
#define GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vnet_freertos.h"
#include "vnet_netif.h"

// Priorities of tasks; the driver's bottom half is above lwIP's thread (5).
enum { PRIORITY_DRIVER = 6, PRIORITY_SERVICE = 3, PRIORITY_SENDER = 2, PRIORITY_START = 1 };

// What the machine's user chose by QEMU's option `-append NAME=VALUE,…`.
struct guest_settings {
    uint32_t rx_min, rx_max;         // bounds of the posted receive buffers
    uint32_t held_max;               // further buffers, which lwIP may hold
    uint32_t tx_max;                 // transmit buffers
    uint32_t tcp_octets;             // TCP's send buffer and receive window
    uint32_t check;                  // 1: the content of TCP's octets is made and checked
    uint32_t address, mask, gateway; // IPv4, the first octet in the highest bits
};

extern struct vnet_freertos guest_port;
extern struct vnet_netif guest_interface;
extern struct guest_settings guest_settings;

// In settings.c. Context: any. Reads the settings; what is not there keeps its default.
void guest_read_settings(struct guest_settings *settings);

// In machine files. Context: before the scheduler runs. Finds the network device, prepares its interrupt, which calls
// guest_interrupt. Returns NULL if there is none.
struct vnet_transport *guest_find_network(void);
// The machine's command line, or NULL.
const char *guest_command_line(void);

// In main.c. Nanoseconds since the machine was switched on.
uint64_t guest_now(void);
_Noreturn void guest_stop(const char *why, unsigned status);
void guest_assert(const char *file, unsigned line);
unsigned guest_random(void);

// In frames.c. Frames of Ethertype 0x88b5. Returns whether the buffer was such a frame, and was dealt with.
bool guest_take_frame(struct vnet_buffer *buffer);
void guest_start_frames(void);
// The first frame: says that the guest runs.
void guest_greet(const char *transport);

// In services.c: UDP echo, TCP echo, sink and source. Context: task.
void guest_start_services(void);

// In say.c. A line of JSON on the console, for programs: {"guest":KIND,NAME:NUMBER,…}. It is printed as a whole by
// guest_say_end. What does not fit is left out. Context: task; guest_say_counters not inside the driver's `log`.
struct guest_line {
    char text[768];
    size_t length;
};
void guest_say_begin(struct guest_line *line, const char *kind);
void guest_say_number(struct guest_line *line, const char *name, uint64_t value);
void guest_say_counters(struct guest_line *line);
void guest_say_end(struct guest_line *line);

#endif
