// SPDX-License-Identifier: BSD-2-Clause
// Between fake.c and fake_ring.c: chains of descriptors, as the device takes and returns them.
#ifndef FAKE_RING_H
#define FAKE_RING_H

#include "fake.h"

struct fake_chain {
    uint32_t id;           // UINT32_MAX: none is available
    uint16_t first, count; // packed ring: where it begins, and how many descriptors it has
};

struct fake_chain fake_take_chain(unsigned queue);
void fake_put_used_chain(unsigned queue, const struct fake_chain *chain, uint32_t length);

// Copies between the chain's descriptors (those that the device writes, or those that it reads) and linear memory.
// Aborts where the driver's chain is not as the standard wants it: those are faults of the driver. Returns the octets
// of these descriptors.
uint32_t fake_copy_chain(unsigned queue, const struct fake_chain *chain, uint8_t *data, uint32_t octets,
                         bool to_driver);

// Answers a command in the control queue.
void fake_answer_command(unsigned queue);

#endif
