// SPDX-License-Identifier: BSD-2-Clause
// No wake-up is lost: every interleaving of small scenarios, with the driver's own code.
//
// The guest runs the driver. At each of the driver's reads and writes of an index or flag a choice is made: let the
// device do its next step, let the interrupt come, or go on. The test runs each scenario again and again until all
// sequences of choices are done. Stores of the driver wait in a buffer until a fence; at each step of the device a
// choice says how many of them, in order, it sees already: so a missing fence is found. A scenario is lost if guest and
// device both sleep while a frame is still under way, or a receive buffer is not posted again.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "host.h"

#define DEPTH_MAX 400u
#define STORES_MAX 16u

enum mutation { AS_SHIPPED, NO_FENCES, NO_LOOK_AFTER_ENABLE, ASKS_ONCE };

// One scenario: frames that the device delivers, frames that the program sends at first, and what the program does with
// what it gets.
struct scenario {
    const char *name;
    unsigned to_receive, to_send;
    unsigned sent_before; // of to_send: sent before the device begins to work, which saves interleavings
    uint16_t buffers, posted, slots;
    enum host_mode mode;
    bool is_long;       // not with packed ring and event index at once: millions of interleavings
    bool sent_returns;  // the full ring must hear of each frame that was sent
    bool sends_later;   // with HOST_KEEP: the program sends a kept buffer once the guest is idle
    bool device_sleeps; // the device takes notifications instead of looking again and again
};

static struct {
    unsigned char taken[DEPTH_MAX], options[DEPTH_MAX];
    unsigned depth, length;
} choices;

static const struct scenario *scenario;
static enum mutation mutation;
static struct {
    volatile uint16_t *to;
    uint16_t value;
} stores[STORES_MAX];
static unsigned stores_count, delivered, owed, notifications;
static bool is_in_interrupt, is_device_asleep, is_running, is_after_fence, has_asked;
static struct vnet_buffer *own[4];

static unsigned choose(unsigned options) {
    if (options == 1) {
        return 0;
    }
    if (choices.depth == DEPTH_MAX) {
        abort();
    }
    if (choices.depth == choices.length) {
        choices.taken[choices.length] = 0;
        choices.options[choices.length++] = (unsigned char)options;
    }
    return choices.taken[choices.depth++];
}

// The next sequence of choices; false: all are done.
static bool advance(void) {
    while (choices.length > 0 && choices.taken[choices.length - 1] + 1 == choices.options[choices.length - 1]) {
        choices.length--;
    }
    if (choices.length == 0) {
        return false;
    }
    choices.taken[choices.length - 1]++;
    choices.depth = 0;
    return true;
}

static void store_now(void) {
    *stores[0].to = stores[0].value;
    memmove(stores, stores + 1, --stores_count * sizeof(stores[0]));
}

// Where the driver names the transmitted frame at which the device is to interrupt.
static const volatile void *transmit_event(void) {
    const struct fake_queue *queue = &fake.queues[1];
    return fake_memory(queue->available + (host_options & VNET_OPTION_PACKED ? 0 : 4 + 2 * (uint64_t)queue->size), 2);
}

static void store(volatile uint16_t *to, uint16_t value) {
    if (mutation == ASKS_ONCE && to == transmit_event()) {
        if (has_asked) {
            return;
        }
        has_asked = true;
    }
    if (stores_count == STORES_MAX) {
        store_now();
    }
    stores[stores_count].to = to;
    stores[stores_count++].value = value;
}

static void fence(void) {
    is_after_fence = true;
    while (mutation != NO_FENCES && stores_count > 0) {
        store_now();
    }
}

// The driver reads an index right after a fence only when it looks once more: as if it did not, it finds nothing.
static uint32_t read(const volatile void *from, uint32_t value) {
    size_t next = host.device.pair.rx.used_next, size = fake.queues[0].size;
    bool is_packed = host_options & VNET_OPTION_PACKED;
    uint64_t place = is_packed ? fake.queues[0].descriptors + 16 * (next % size) + 14 : fake.queues[0].used + 2;
    bool is_last_look = is_after_fence && from == fake_memory(place, 2);
    is_after_fence = false;
    if (mutation == NO_LOOK_AFTER_ENABLE && is_last_look) {
        return (uint16_t)(!is_packed ? next : next / size % 2 == 0 ? 0 : 0x8080);
    }
    // A processor reads its own stores, even if others do not see them yet.
    for (unsigned index = stores_count; index > 0; index--) {
        if (stores[index - 1].to == from) {
            return stores[index - 1].value;
        }
    }
    return value;
}

// The device is a thread of its own: it finishes a buffer in one step, and looks whether to interrupt in the next.
static bool device_can_step(void) {
    if (!is_running || is_device_asleep) {
        return false;
    }
    return owed != 0 || (delivered < scenario->to_receive && fake_waiting(0) != 0) || fake_waiting(1) != 0 ||
           scenario->device_sleeps;
}

static void device_step(void) {
    static const uint8_t FRAME[60];
    if (owed != 0) {
        unsigned queue = owed & 1 ? 0 : 1;
        owed &= ~(1u << queue);
        fake_interrupt_queue(queue);
    } else if (fake_waiting(1) != 0) {
        fake_want_notifications(1, false); // at work
        fake_transmit_quietly();
        owed |= 2;
    } else if (delivered < scenario->to_receive && fake_waiting(0) != 0) {
        fake_receive_quietly(FRAME, sizeof(FRAME));
        delivered++;
        owed |= 1;
    } else if (fake.queues[1].is_quiet) {
        fake_want_notifications(1, true); // the last look comes in the next step
    } else {
        is_device_asleep = true;
        notifications = fake.queues[0].notifications + fake.queues[1].notifications;
    }
}

static void look_for_notifications(void) {
    if (fake.queues[0].notifications + fake.queues[1].notifications != notifications) {
        is_device_asleep = false;
    }
}

static void interrupt(void) {
    is_in_interrupt = true;
    vnet_interrupt(&host.device);
    is_in_interrupt = false;
}

// One step of anything but the guest's own program. Returns false if the guest's program goes on (or nothing else can
// happen).
static bool other_step(bool may_go_on) {
    look_for_notifications();
    unsigned options[4], count = 0;
    if (may_go_on) {
        options[count++] = 0;
    }
    if (device_can_step()) {
        options[count++] = 1;
    }
    if (stores_count > 0 && !may_go_on) {
        options[count++] = 2; // while the guest sleeps, stores become visible sooner or later
    }
    if (fake.isr != 0 && !is_in_interrupt) {
        options[count++] = 3;
    }
    switch (count == 0 ? 0 : options[choose(count)]) {
    case 1:
        for (unsigned seen = choose(stores_count + 1); seen > 0; seen--) {
            store_now();
        }
        device_step();
        return true;
    case 2: store_now(); return true;
    case 3: interrupt(); return true;
    default: return false;
    }
}

static void step(void) {
    while (is_running && other_step(true)) {
    }
}

static void poll(void) {
    fake.is_woken = false;
    for (unsigned again = 0; vnet_poll(&host.device, 2); again++) {
        if (again > 50) {
            abort();
        }
    }
}

static bool program_can_step(void) {
    return scenario->sends_later && host.kept_count > 0;
}

// Returns whether the scenario came to its end.
static bool run_once(void) {
    struct vnet_config config = host_config();
    config.buffers = scenario->buffers;
    config.rx_posted_min = config.rx_posted_max = scenario->posted;
    config.tx_slots = scenario->slots;
    is_running = false;
    stores_count = delivered = owed = 0;
    is_in_interrupt = is_device_asleep = false;
    fake_make(FAKE_PCI_MODERN);
    host.mode = scenario->mode;
    if (host_start(&config) != VNET_OK) {
        abort();
    }
    host_run();
    fake.step = step;
    fake.store = store;
    fake.fence = fence;
    fake.twist = read;
    is_after_fence = has_asked = false;
    notifications = fake.queues[0].notifications + fake.queues[1].notifications;
    for (unsigned index = 0; index < scenario->to_send; index++) {
        is_running = index >= scenario->sent_before;
        own[index]->bus = fake_platform.bus_address(NULL, own[index]->start = fake_allocate(VNET_BUFFER_OCTETS, 8), 1);
        own[index]->owner = VNET_OWNER_CALLER;
        if (vnet_send(&host.device, own[index]) < 0) {
            abort();
        }
    }
    is_running = true;
    // The guest sleeps unless it is woken, or its program has something to do.
    for (;;) {
        if (fake.is_woken) {
            poll();
        } else if (!other_step(false)) {
            if (!program_can_step()) {
                break;
            }
            if (vnet_send(&host.device, host.kept[--host.kept_count]) < 0) {
                abort();
            }
        }
    }
    unsigned echoes = scenario->mode == HOST_ECHO || scenario->sends_later ? scenario->to_receive : 0;
    return host.received == scenario->to_receive && fake.sent_count == scenario->to_send + echoes &&
           (!scenario->sent_returns || host.back_count == scenario->to_send) && host.device.pair.queue.count == 0 &&
           host.device.state == VNET_RUNNING && host.device.pair.rx.under_way_count == scenario->posted;
}

// Returns how many interleavings there are; the first that loses a frame ends it with 0.
static unsigned long explore(const struct scenario *which, enum mutation how) {
    unsigned long runs = 0;
    scenario = which;
    mutation = how;
    memset(&choices, 0, sizeof(choices));
    do {
        runs++;
        if (!run_once()) {
            return 0;
        }
    } while (advance());
    return runs;
}

static const struct scenario SCENARIOS[] = {
    {.name = "two frames received", .to_receive = 2, .buffers = 2, .posted = 2, .slots = 2},
    {.name = "more frames than buffers", .to_receive = 2, .buffers = 1, .posted = 1, .slots = 2},
    {.name = "frames in the interface queue",
     .to_send = 2,
     .sent_before = 1,
     .is_long = true,
     .buffers = 1,
     .posted = 1,
     .slots = 1},
    {.name = "two frames through one slot",
     .to_send = 2,
     .sent_before = 2,
     .buffers = 1,
     .posted = 1,
     .slots = 1,
     .sent_returns = true},
    {.name = "a sleeping device", .to_send = 1, .buffers = 1, .posted = 1, .slots = 2, .device_sleeps = true},
    {.name = "echo with one buffer", .to_receive = 1, .buffers = 1, .posted = 1, .slots = 1, .mode = HOST_ECHO},
    {.name = "a buffer sent later",
     .to_receive = 1,
     .buffers = 1,
     .posted = 1,
     .slots = 1,
     .mode = HOST_KEEP,
     .sends_later = true},
};

static void search_all(void) {
    for (unsigned index = 0; index < sizeof(SCENARIOS) / sizeof(SCENARIOS[0]); index++) {
        if (SCENARIOS[index].is_long && host_options == (VNET_OPTION_PACKED | VNET_OPTION_EVENT_INDEX)) {
            continue;
        }
        unsigned long runs = explore(&SCENARIOS[index], AS_SHIPPED);
        printf("  options %u, %s: %lu interleavings\n", host_options, SCENARIOS[index].name, runs);
        fflush(stdout);
        CHECK(runs > 0, true);
    }
}

static void no_wake_up_is_lost(void) {
    host_each_ring(search_all);
}

// The same search must find what it is there for.
static void search_without_fences(void) {
    CHECK(explore(&SCENARIOS[0], NO_FENCES), 0);
    CHECK(explore(&SCENARIOS[4], NO_FENCES), 0);
}

static void missing_fences_are_found(void) {
    host_each_ring(search_without_fences);
}

static void search_without_look(void) {
    CHECK(explore(&SCENARIOS[0], NO_LOOK_AFTER_ENABLE), 0);
}

static void a_missing_look_is_found(void) {
    host_each_ring(search_without_look);
}

// With an event index an interrupt comes once; without one the driver needs to ask only once.
static void search_asking_once(void) {
    bool is_lost = explore(&SCENARIOS[3], ASKS_ONCE) == 0;
    CHECK(is_lost, (host_options & VNET_OPTION_EVENT_INDEX) != 0);
}

static void asking_once_is_found(void) {
    host_each_ring(search_asking_once);
}

int main(void) {
    static const struct check_test TESTS[] = {
        TEST(no_wake_up_is_lost),
        TEST(missing_fences_are_found),
        TEST(a_missing_look_is_found),
        TEST(asking_once_is_found),
    };
    for (unsigned index = 0; index < 4; index++) {
        fake_make(FAKE_PCI_MODERN);
        own[index] = host_buffer(60, 1);
    }
    int status = check_run(TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
    for (unsigned index = 0; index < 4; index++) {
        free(own[index]);
    }
    return status;
}
