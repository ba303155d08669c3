// SPDX-License-Identifier: BSD-2-Clause
// Options of the driver. An option is used if three agree: it is compiled in (`-DVNET_OPTIONS=` with the sum of these
// bits, for the sources of the driver; the default is none), the program asks for it (`vnet_config.options`), and the
// device offers it. vnet_options says which of them are in use. The public structures are the same for all builds.
#ifndef VNET_OPTIONS_H
#define VNET_OPTIONS_H

// VIRTIO_F_EVENT_IDX: both sides name the entry at which they want to hear of the other, instead of a flag.
#define VNET_OPTION_EVENT_INDEX 1u
// VIRTIO_F_RING_PACKED: one list of descriptors instead of three. Modern devices only.
#define VNET_OPTION_PACKED 2u
// VIRTIO_NET_F_MRG_RXBUF: a frame may arrive in several buffers, so buffers may be short
// (`vnet_config.segment_octets`).
#define VNET_OPTION_MERGEABLE 4u
// VIRTIO_NET_F_CSUM and VIRTIO_NET_F_GUEST_CSUM: checksums of layer 4 are left to the device, in both directions. Where
// the device does not take them, the driver computes those of frames to be sent.
#define VNET_OPTION_CHECKSUM 8u
// VIRTIO_NET_F_MQ and VIRTIO_NET_F_CTRL_VQ: a pair of queues for each traffic class (`vnet_config.tx_classes`), so that
// a class whose ring is full holds up no other.
#define VNET_OPTION_QUEUES 16u

#endif
