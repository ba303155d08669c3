// SPDX-License-Identifier: BSD-2-Clause
// The transport of a vhost-user front end (Linux user space): the device is a program behind a Unix socket.
//
// This transport has no registers. It answers from what the front end has negotiated before, and keeps what the driver
// decides: features, rings, status. The front end reads that after vnet_start and sends it to the backend. So no
// function here sends a message or waits.
#ifndef VNET_VHOST_H
#define VNET_VHOST_H

#include "vnet_transport.h"

struct vnet_vhost {
    struct vnet_transport transport; // pass its address to vnet_init
    uint64_t offered;                // what the backend offers, less what this transport cannot do
    uint64_t accepted;               // what the driver has accepted; the front end sends it
    uint16_t size_max;               // descriptors of each ring, at most
    uint8_t status;
    bool is_started[2]; // the driver has made this ring
    struct vnet_queue queues[2];
    void *context;
    // Notifies the backend of ring `queue`. Must not block. Context: task and bottom half.
    void (*kick)(void *context, unsigned queue);
};

// Context: task. Makes the transport for one receive and one transmit ring of at most `size_max` descriptors each.
// `offered`: the backend's features. Only FEATURE_VERSION_1 is passed on: all others change the rings' layout or the
// frames, and belong to the front end.
void vnet_vhost_open(struct vnet_vhost *vhost, uint64_t offered, uint16_t size_max, void *context,
                     void (*kick)(void *context, unsigned queue));

#endif
