// SPDX-License-Identifier: BSD-2-Clause
// A guest with FreeRTOS, the driver, and lwIP with services in tasks (services.c). The first task starts all of it and
// ends. Exit status: 0 by the frame 'Q'; 1 no device, 2 the device did not start, 3 no memory, 4 no first frame,
// 5 wrong settings, 7 a broken assertion, 8 a task's stack is full, 9 a trap.
#include "guest.h"

#include <string.h>

#include "machine.h"

#define BUDGET 16u

struct vnet_freertos guest_port;
struct vnet_netif guest_interface;
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
unsigned guest_tcp_octets = 65535;
static struct vnet_transport *transport;
static struct netif netif;

uint64_t guest_now(void) {
    uint64_t now = machine_nanoseconds();
    return now != 0 ? now : (uint64_t)xTaskGetTickCount() * (1000000000 / configTICK_RATE_HZ);
}

_Noreturn void guest_stop(const char *why, unsigned status) {
    machine_print("guest: ");
    machine_print(why);
    machine_print("\n");
    machine_exit(status);
}

void guest_assert(const char *file, unsigned line) {
    char digits[12] = "";
    char *end = digits + sizeof(digits) - 1;
    for (; line != 0; line /= 10) {
        *--end = (char)('0' + line % 10);
    }
    machine_print("guest: assertion, line ");
    machine_print(end);
    machine_print(" of ");
    guest_stop(file, 7);
}

// For port numbers and sequence numbers of a test machine; guessable.
unsigned guest_random(void) {
    static uint32_t state = 1;
    state = state * UINT32_C(1664525) + UINT32_C(1013904223) + (uint32_t)guest_now();
    return state >> 8;
}

void vApplicationStackOverflowHook(TaskHandle_t task, char *name) {
    (void)task;
    machine_print(name);
    guest_stop(": the task's stack is full", 8);
}

// Context: the idle task. Sleeps until the next interrupt.
void vApplicationIdleHook(void) {
#ifdef __riscv
    __asm__ volatile("wfi");
#else
    __asm__ volatile("hlt");
#endif
}

// In machine files: the network device interrupts. Context: interrupt.
void guest_interrupt(void) {
    (void)vnet_freertos_interrupt(&guest_port);
}

static void receive(void *context, struct vnet_buffer *buffer) {
    if (!guest_take_frame(buffer)) {
        vnet_netif_receive(context, buffer);
    }
}

static void link_changed(void *context, bool is_up) {
    vnet_netif_link(context, is_up);
    struct guest_line line;
    guest_say_begin(&line, "link");
    guest_say_number(&line, "is_up", is_up);
    guest_say_end(&line);
}

static void log_event(void *context, enum vnet_event event, unsigned value) {
    (void)context;
    static const char *const KINDS[] = {"fault", "restart", "failed"};
    struct guest_line line;
    guest_say_begin(&line, KINDS[event]);
    guest_say_number(&line, "value", value);
    guest_say_end(&line);
}

static void prepare_interface(void) {
    struct vnet_netif_setup setup = {
        .device = &guest_port.device,
        .held = pvPortMalloc(guest_settings.held_max * sizeof(struct vnet_held) + 1),
        .held_max = (uint16_t)guest_settings.held_max,
        .tx = pvPortMalloc(guest_settings.tx_max * sizeof(struct vnet_buffer)),
        .tx_max = (uint16_t)guest_settings.tx_max,
        .tx_memory = pvPortMalloc(guest_settings.tx_max * VNET_BUFFER_OCTETS),
    };
    if (setup.held == NULL || setup.tx == NULL || setup.tx_memory == NULL) {
        guest_stop("no memory for the interface", 3);
    }
    memset(setup.held, 0, guest_settings.held_max * sizeof(struct vnet_held));
    memset(setup.tx, 0, guest_settings.tx_max * sizeof(struct vnet_buffer));
    setup.tx_memory_bus = (uintptr_t)setup.tx_memory;
    if (vnet_netif_init(&guest_interface, &setup) != ERR_OK) {
        guest_stop("the interface cannot be prepared", 3);
    }
}

static void add_interface(void) {
    ip4_addr_t address = {lwip_htonl(guest_settings.address)}, mask = {lwip_htonl(guest_settings.mask)},
               gateway = {lwip_htonl(guest_settings.gateway)};
    LOCK_TCPIP_CORE();
    err_t result = vnet_netif_add(&guest_interface, &netif, &address, &mask, &gateway);
    UNLOCK_TCPIP_CORE();
    if (result != ERR_OK) {
        guest_stop("the interface cannot be added", 3);
    }
}

static void start(void *context) {
    (void)context;
    const struct vnet_config config = {
        .ring_size = 256,
        .rx_posted_min = (uint16_t)guest_settings.rx_min,
        .rx_posted_max = (uint16_t)guest_settings.rx_max,
        .buffers = (uint16_t)(guest_settings.rx_max + guest_settings.held_max + 1), // one for the first frame
        .tx_slots = (uint16_t)guest_settings.tx_max,
        .tx_queue_max = (uint16_t)guest_settings.tx_max,
        .context = &guest_interface,
        .receive = receive,
        .sent = vnet_netif_sent,
        .link = link_changed,
    };
    guest_start_frames();
    tcpip_init(NULL, NULL);
    prepare_interface();
    int result = vnet_freertos_start(&guest_port, transport, &config, PRIORITY_DRIVER, BUDGET, log_event);
    if (result != VNET_OK) {
        log_event(NULL, VNET_EVENT_FAILED, (unsigned)-result);
        guest_stop("the device did not start", 2);
    }
    guest_greet(transport->ops->name);
    add_interface();
    guest_start_services();
    struct guest_line line;
    guest_say_begin(&line, "ready");
    guest_say_number(&line, "rx_min", guest_settings.rx_min);
    guest_say_number(&line, "rx_max", guest_settings.rx_max);
    guest_say_number(&line, "held_max", guest_settings.held_max);
    guest_say_number(&line, "tx_max", guest_settings.tx_max);
    guest_say_number(&line, "tcp_octets", guest_settings.tcp_octets);
    guest_say_number(&line, "check", guest_settings.check);
    guest_say_counters(&line);
    guest_say_end(&line);
    vTaskDelete(NULL);
}

_Noreturn void guest_main(void) {
    machine_init();
    guest_read_settings(&guest_settings);
    guest_tcp_octets = guest_settings.tcp_octets;
    transport = guest_find_network();
    if (transport == NULL) {
        guest_stop("no network device", 1);
    }
    if (xTaskCreate(start, "start", 1024, NULL, PRIORITY_START, NULL) != pdPASS) {
        guest_stop("no memory for the first task", 3);
    }
    vTaskStartScheduler();
    guest_stop("the scheduler did not start", 3);
}
