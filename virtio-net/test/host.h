// SPDX-License-Identifier: BSD-2-Clause
// A program above the driver, for tests on the host: it runs interrupt and bottom half, and keeps or echoes what
// arrives.
#ifndef HOST_H
#define HOST_H

#include "fake.h"
#include "options.h"

enum host_mode { HOST_FREE, HOST_ECHO, HOST_KEEP };

struct host {
    struct vnet_device device;
    enum host_mode mode;
    unsigned budget, echo_class;
    unsigned received, short_sends; // short_sends: echoes that vnet_send refused
    unsigned segmented;             // frames in several buffers
    uint8_t last[65536];            // the last frame
    uint16_t last_octets;
    uint8_t last_checksum;
    struct vnet_buffer *kept[64]; // HOST_KEEP
    unsigned kept_count;
    struct vnet_buffer *back[64]; // what `sent` returned
    unsigned back_count;
    int link; // -1: not said yet
};

extern struct host host;

// The options that host_config asks for.
extern uint32_t host_options;

// Runs a test with each combination of options that changes the rings and is compiled in.
void host_each_ring(void (*run)(void));

// 8 posted buffers of 12, 16 frames under way, 8 queued.
struct vnet_config host_config(void);

// Opens, makes and starts the driver over `fake`. Returns the first error.
int host_start(const struct vnet_config *config);

// Delivers interrupts and runs the bottom half until neither has anything to do; aborts if that never ends.
void host_run(void);

// A buffer of the program's own, with a frame of `octets` octets of the value `fill`.
struct vnet_buffer *host_buffer(uint16_t octets, uint8_t fill);

// Every pooled buffer is in exactly one place; returns how many are in the pool or posted.
unsigned host_count_buffers(void);

#endif
