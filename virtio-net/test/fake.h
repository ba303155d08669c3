// SPDX-License-Identifier: BSD-2-Clause
// A virtio network device in memory, for tests on the host: registers of all four transports, rings, interrupts, and as
// many lies as a test wants. One device at a time. The driver is compiled with VNET_TEST_HOOKS and VNET_TEST_REGISTERS.
#ifndef FAKE_H
#define FAKE_H

#include "vnet.h"
#include "vnet_mmio.h"
#include "vnet_pci.h"

enum fake_kind { FAKE_MMIO_1, FAKE_MMIO_2, FAKE_PCI_LEGACY, FAKE_PCI_MODERN, FAKE_KINDS };

#define FAKE_ARENA_OCTETS (4096u * 1024) // for two rings of 32,768
#define FAKE_BUS UINT64_C(0x1000000)
#define FAKE_SENT_MAX 64u
#define FAKE_PAIRS_MAX 4u
#define FAKE_QUEUES (2 * FAKE_PAIRS_MAX + 1)
#define FAKE_CHAINS_MAX 32u

// Features, as in VIRTIO 1.1.
#define FAKE_FEATURE_CHECKSUM (UINT64_C(1) << 0)
#define FAKE_FEATURE_GUEST_CHECKSUM (UINT64_C(1) << 1)
#define FAKE_FEATURE_MTU (UINT64_C(1) << 3)
#define FAKE_FEATURE_MAC (UINT64_C(1) << 5)
#define FAKE_FEATURE_MERGEABLE (UINT64_C(1) << 15)
#define FAKE_FEATURE_STATUS (UINT64_C(1) << 16)
#define FAKE_FEATURE_CONTROL (UINT64_C(1) << 17)
#define FAKE_FEATURE_QUEUES (UINT64_C(1) << 22)
#define FAKE_FEATURE_ANY_LAYOUT (UINT64_C(1) << 27)
#define FAKE_FEATURE_EVENT_INDEX (UINT64_C(1) << 29)
#define FAKE_FEATURE_VERSION_1 (UINT64_C(1) << 32)
#define FAKE_FEATURE_ACCESS_PLATFORM (UINT64_C(1) << 33)
#define FAKE_FEATURE_PACKED (UINT64_C(1) << 34)
#define FAKE_FEATURE_ORDER_PLATFORM (UINT64_C(1) << 36)
#define FAKE_MTU 1400u

struct fake_queue {
    uint16_t size, available_next, used_next;
    uint16_t used_signalled; // used_next when it was last judged whether to interrupt
    uint64_t descriptors, available, used;
    bool is_on;
    bool is_quiet; // the device wants no notifications
    unsigned notifications;
};

struct fake_frame {
    uint16_t octets;
    uint8_t header[10];
    uint8_t data[1600];
};

struct fake {
    enum fake_kind kind;
    // What the device offers and how it behaves; a test changes these.
    uint64_t offered;
    uint32_t size_max[FAKE_QUEUES];
    uint32_t magic, version, device_id;
    uint8_t config[12];
    uint8_t pci[256];
    uint64_t required;   // features without which the device keeps no FEATURES_OK
    bool is_strict;      // fields of 16 bits are all ones unless they are read as 16 bits
    bool is_port_silent; // the port cannot write PCI configuration space
    bool refuses_reset, refuses_features, changes_config;
    bool has_lied;               // what the driver sends may not be what it believes to send
    bool is_lenient;             // registers may be touched that are not there: the device lied about their place
    uint8_t rx_header[10];       // of the frames that it gives
    unsigned rx_queue, tx_queue; // of fake_receive and fake_transmit
    uint8_t ack;                 // the answer to a command
    bool ignores_commands;
    uint8_t lied_segments;   // added to the number of buffers of a frame
    unsigned memory_left;    // allocations before the platform refuses
    unsigned addresses_left; // bus addresses before the platform refuses
    // What happened.
    bool is_stale; // a reset was refused: the rings may be others now, so the device carries no frames
    uint64_t accepted;
    uint8_t status;
    uint32_t feature_select, generation, isr;
    unsigned control_queue; // its number once the driver runs; 0: none
    unsigned pairs;         // that the driver has asked for
    unsigned queue_select, resets, wakes, pauses, allocations;
    struct fake_queue queues[FAKE_QUEUES];
    unsigned sent_count;
    bool is_woken;
    size_t arena_used;
    unsigned lock_depth;
    // Called before each read of an index or flag and after each write of one, if a model test wants it.
    void (*step)(void);
    // Replaces what the driver reads from the ring if a test wants it.
    uint32_t (*twist)(const volatile void *from, uint32_t value);
    // Takes stores instead of memory if a model test wants it.
    void (*store)(volatile uint16_t *to, uint16_t value);
    void (*fence)(void);
    struct fake_frame
        sent[FAKE_SENT_MAX]; // what the driver sent, oldest first; last, because fake_make leaves it as it is
};

extern struct fake fake;
extern const struct vnet_platform fake_platform;

// A well-behaved device of a kind: 256 descriptors, a MAC address, link up.
void fake_make(enum fake_kind kind);

// A PCI device has the capability of MSI (0x05) or MSI-X (0x11), turned on by earlier software. It then interrupts by
// messages only, and the configuration of a legacy device begins four octets later.
void fake_leave_messages_on(uint8_t capability);
bool fake_has_messages_on(void);

// Opens the device by its transport. Returns the transport for vnet_init, or NULL.
struct vnet_transport *fake_open(void);

// The device gives a frame to the driver and interrupts if the driver wants that. False: no buffer is posted.
bool fake_receive(const uint8_t *frame, uint16_t octets);
// As fake_receive, in two steps: without the interrupt, and the interrupt.
bool fake_receive_quietly(const uint8_t *frame, uint16_t octets);
void fake_interrupt_queue(unsigned queue);

// The device sends up to `most` frames of the driver, then interrupts if the driver wants that. Returns how many.
unsigned fake_transmit(unsigned most);
bool fake_transmit_quietly(void);

// Raw lies: an element of the used ring, without taking anything; the used index moved on by `jump` (packed ring: so
// many descriptors marked as used).
void fake_put_used(unsigned queue, uint32_t id, uint32_t length);
void fake_move_used(unsigned queue, uint16_t jump);
// The id of the next posted buffer, taken from the available ring; UINT32_MAX: none.
uint32_t fake_take_available(unsigned queue);
uint16_t fake_waiting(unsigned queue); // available, not yet taken

// The device asks for notifications of a queue, or for none.
void fake_want_notifications(unsigned queue, bool on);

void fake_change_config(void); // interrupts for the configuration

// Memory of the guest at a bus address, or NULL if it is not all in the arena.
void *fake_memory(uint64_t bus, size_t octets);
// As the platform gives it to the driver.
void *fake_allocate(size_t octets, size_t alignment);

#endif
