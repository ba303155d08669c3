// SPDX-License-Identifier: BSD-2-Clause
// A guest with lwIP that answers the tests: what its files share, and what the port of a system has to supply. It needs
// lwIP's tasks and mailboxes (sys.h), and nothing else of the system.
#ifndef GUEST_H
#define GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vnet.h"
#include "vnet_netif.h"

// Exit statuses: 0 after the frame 'Q' (1 if the device was restarted before).
enum guest_status {
    GUEST_NO_DEVICE = 1,
    GUEST_NOT_STARTED, // the driver's vnet_start failed
    GUEST_NO_MEMORY,   // or no task, no mailbox
    GUEST_NOT_SENT,    // the first frame
    GUEST_WRONG_SETTING,
    GUEST_ASSERTION = 7, // of FreeRTOS or lwIP
    GUEST_STACK,         // a task's stack is full
    GUEST_TRAP,
};

struct guest_settings {
    uint32_t rx_min, rx_max;         // bounds of the posted receive buffers
    uint32_t held_max;               // further buffers, which lwIP may hold
    uint32_t tx_max;                 // transmit buffers
    uint32_t tcp_octets;             // TCP's send buffer and receive window
    uint32_t check;                  // 1: the content of TCP's octets is made and checked
    uint32_t address, mask, gateway; // IPv4, the first octet in the highest bits
};

extern struct guest_settings guest_settings;
extern unsigned guest_tcp_octets; // lwipopts.h: TCP_WND and TCP_SND_BUF
extern struct vnet_netif guest_interface;

// In guest.c. Context: task, never twice. Reads the settings from `command_line` (NULL: none), starts lwIP, the driver
// and the services, and returns. Ends the machine if anything fails.
void guest_start(struct vnet_transport *transport, const char *command_line);
// For the driver's `log`.
void guest_log(void *context, enum vnet_event event, unsigned value);

// The port supplies:
extern struct vnet_device *const guest_device;
// Starts the driver with its bottom half. As vnet_start.
int guest_start_driver(struct vnet_transport *transport, const struct vnet_config *config);
size_t guest_driver_memory(void);       // octets that the driver has taken
void *guest_take_memory(size_t octets); // set to 0, divisible by 8, reached by the device; NULL: refused
uint64_t guest_now(void);               // nanoseconds since the machine was switched on
void guest_print(const char *line);     // as a whole
_Noreturn void guest_exit(unsigned status);

// In settings.c. "rx_min=8,rx_max=64,address=10.0.2.15": what is not named keeps its value. An unknown name, and a
// value that is no number, ends the machine.
void guest_read_settings(struct guest_settings *settings, const char *text);

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
// Prints why, and ends the machine.
_Noreturn void guest_stop(const char *why, unsigned status);
void guest_assert(const char *file, unsigned line);
unsigned guest_random(void);

#endif
