// SPDX-License-Identifier: BSD-2-Clause
// The only program of the Linux guest (i386): the services of ports/guest/services.c, over the kernel's own virtio-net
// and TCP. In: modules /m/0, /m/1, ... in the order in which they are loaded; the setting `tcp_octets` of the kernel's
// command line. Out: a line of JSON on the console for each connection, as the FreeRTOS guest writes it.
//
// It uses system calls only: no C library for i386 is needed to build it. Every failure is written to the console and
// ends the machine.
#include <stddef.h>
#include <stdint.h>

enum { // system calls of i386
    SYS_EXIT = 1,
    SYS_FORK = 2,
    SYS_READ = 3,
    SYS_WRITE = 4,
    SYS_OPEN = 5,
    SYS_CLOSE = 6,
    SYS_MOUNT = 21,
    SYS_IOCTL = 54,
    SYS_REBOOT = 88,
    SYS_NANOSLEEP = 162,
    SYS_FINIT_MODULE = 350,
    SYS_SOCKET = 359,
    SYS_BIND = 361,
    SYS_LISTEN = 363,
    SYS_ACCEPT = 364,
    SYS_SETSOCKOPT = 366,
    SYS_CLOCK_GETTIME = 403
};
enum {
    AF_INET = 2,
    SOCK_STREAM = 1,
    SOCK_DGRAM = 2,
    SOL_SOCKET = 1,
    SO_SNDBUF = 7,
    SO_RCVBUF = 8,
    IPPROTO_TCP = 6,
    TCP_NODELAY = 1,
    CLOCK_MONOTONIC = 1
};
enum { SIOCSIFFLAGS = 0x8914, SIOCSIFADDR = 0x8916, SIOCSIFNETMASK = 0x891c, IFF_UP = 1 };
enum { REBOOT_MAGIC = (int)0xfee1dead, REBOOT_MAGIC_2 = 672274793, REBOOT_POWER_OFF = 0x4321fedc };
enum { PORT_ECHO = 7, PORT_SINK = 9, PORT_SOURCE = 19, MESSAGE = 1448, WAIT_MAX = 500 };

struct address {
    uint16_t family, port;
    uint32_t address;
    uint8_t zero[8];
};

struct interface {
    char name[16];
    union {
        struct address address;
        int16_t flags;
        uint8_t room[16];
    };
};

static char buffer[65536];
static unsigned long tcp_octets = 65535;

static long call(long number, long a, long b, long c, long d, long e) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e) : "memory");
    return result;
}

void *memset(void *start, int octet, size_t octets) {
    for (size_t at = 0; at < octets; at++) {
        ((uint8_t *)start)[at] = (uint8_t)octet;
    }
    return start;
}

struct line {
    char text[512];
    size_t length;
};

static void add(struct line *line, const char *text) {
    for (; *text != '\0' && line->length < sizeof(line->text); text++) {
        line->text[line->length++] = *text;
    }
}

// Divides by ten and returns the remainder; the compiler's own 64-bit division is in a library that the guest does not
// have.
static unsigned divide_by_ten(uint64_t *value) {
    uint32_t high = (uint32_t)(*value >> 32), low = (uint32_t)*value, rest = high % 10;
    __asm__("divl %2" : "+a"(low), "+d"(rest) : "r"(UINT32_C(10)));
    *value = (uint64_t)(high / 10) << 32 | low;
    return rest;
}

static void add_number(struct line *line, const char *name, uint64_t value) {
    char text[24] = "";
    char *at = text + sizeof(text) - 1;
    do {
        *--at = (char)('0' + divide_by_ten(&value));
    } while (value != 0);
    add(line, ",\"");
    add(line, name);
    add(line, "\":");
    add(line, at);
}

static void say(struct line *line) {
    add(line, "}\n");
    (void)call(SYS_WRITE, 1, (long)line->text, (long)line->length, 0, 0);
}

static _Noreturn void stop(const char *why, long error) {
    struct line line = {.length = 0};
    add(&line, "{\"guest\":\"failed\",\"why\":\"");
    add(&line, why);
    add(&line, "\"");
    add_number(&line, "error", (uint64_t)-error);
    say(&line);
    (void)call(SYS_REBOOT, REBOOT_MAGIC, REBOOT_MAGIC_2, REBOOT_POWER_OFF, 0, 0);
    for (;;) {
        (void)call(SYS_EXIT, 1, 0, 0, 0, 0);
    }
}

static long must(const char *what, long result) {
    if (result < 0) {
        stop(what, result);
    }
    return result;
}

static uint64_t now(void) {
    int64_t time[2];
    (void)call(SYS_CLOCK_GETTIME, CLOCK_MONOTONIC, (long)time, 0, 0, 0);
    return (uint64_t)time[0] * 1000000000u + (uint64_t)time[1];
}

static unsigned long parse(const char *text) {
    unsigned long value = 0;
    while (*text >= '0' && *text <= '9') {
        value = value * 10 + (unsigned long)(*text++ - '0');
    }
    return value;
}

// How often the network device has interrupted: /proc/interrupts has a line for each of its vectors, "24: COUNT ...
// virtio0-input.0".
static uint64_t count_interrupts(void) {
    static char text[16384];
    long file = must("open /proc/interrupts", call(SYS_OPEN, (long)"/proc/interrupts", 0, 0, 0, 0));
    size_t octets = 0;
    for (long part; octets < sizeof(text) - 1 && (part = call(SYS_READ, file, (long)(text + octets),
                                                              (long)(sizeof(text) - 1 - octets), 0, 0)) > 0;) {
        octets += (size_t)part;
    }
    (void)call(SYS_CLOSE, file, 0, 0, 0, 0);
    text[octets] = '\0';
    uint64_t sum = 0;
    const char *count = NULL;
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '\n') {
            count = NULL;
        } else if (*at == ':' && count == NULL) {
            for (count = at + 1; *count == ' '; count++) {
            }
        } else if (count != NULL && at[0] == 'v' && at[1] == 'i' && at[2] == 'r' && at[3] == 't' && at[4] == 'i' &&
                   at[5] == 'o') {
            sum += parse(count);
            count = NULL;
        }
    }
    return sum;
}

struct tally {
    uint64_t octets, began, first_interrupts;
};

static struct tally begin(void) {
    return (struct tally){.began = now(), .first_interrupts = count_interrupts()};
}

static void tell(const char *kind, const struct tally *tally) {
    uint64_t nanoseconds = now() - tally->began;
    struct line line = {.length = 0};
    add(&line, "{\"guest\":\"");
    add(&line, kind);
    add(&line, "\"");
    add_number(&line, "octets", tally->octets);
    add_number(&line, "nanoseconds", nanoseconds);
    add_number(&line, "interrupts_here", count_interrupts() - tally->first_interrupts);
    add_number(&line, "tcp_octets", tcp_octets);
    say(&line);
}

// Writes all of it; false: the connection is gone.
static int write_all(long connection, const char *data, size_t octets) {
    while (octets > 0) {
        long written = call(SYS_WRITE, connection, (long)data, (long)octets, 0, 0);
        if (written <= 0) {
            return 0;
        }
        data += written;
        octets -= (size_t)written;
    }
    return 1;
}

static void sink(long connection) {
    struct tally tally = begin();
    for (long octets; (octets = call(SYS_READ, connection, (long)buffer, sizeof(buffer), 0, 0)) > 0;) {
        if (tally.octets == 0 && !write_all(connection, "+", 1)) {
            break;
        }
        tally.octets += (uint64_t)octets;
    }
    tell("sink", &tally);
}

static void source(long connection) {
    uint8_t wanted_octets[8];
    for (size_t had = 0; had < sizeof(wanted_octets);) {
        long octets =
            call(SYS_READ, connection, (long)(wanted_octets + had), (long)(sizeof(wanted_octets) - had), 0, 0);
        if (octets <= 0) {
            return;
        }
        had += (size_t)octets;
    }
    uint64_t wanted = 0;
    for (unsigned octet = 0; octet < sizeof(wanted_octets); octet++) {
        wanted |= (uint64_t)wanted_octets[octet] << 8 * octet;
    }
    struct tally tally = begin();
    while (tally.octets < wanted) {
        size_t octets = wanted - tally.octets < MESSAGE ? (size_t)(wanted - tally.octets) : MESSAGE;
        if (!write_all(connection, buffer, octets)) {
            break;
        }
        tally.octets += octets;
    }
    tell("source", &tally);
}

static void echo(long connection) {
    struct tally tally = begin();
    for (long octets; (octets = call(SYS_READ, connection, (long)buffer, sizeof(buffer), 0, 0)) > 0;) {
        if (!write_all(connection, buffer, (size_t)octets)) {
            break;
        }
        tally.octets += (uint64_t)octets;
    }
    tell("echo", &tally);
}

static void set(long socket, long level, long option, int value) {
    (void)must("setsockopt", call(SYS_SETSOCKOPT, socket, level, option, (long)&value, sizeof(value)));
}

// A process for each service, which serves one connection after the other.
static void serve(uint16_t port, void (*service)(long connection)) {
    long listener = must("socket", call(SYS_SOCKET, AF_INET, SOCK_STREAM, 0, 0, 0));
    struct address address = {.family = AF_INET, .port = (uint16_t)(port << 8 | port >> 8)};
    set(listener, SOL_SOCKET, SO_RCVBUF, (int)tcp_octets);
    set(listener, SOL_SOCKET, SO_SNDBUF, (int)tcp_octets);
    set(listener, IPPROTO_TCP, TCP_NODELAY, 1);
    (void)must("bind", call(SYS_BIND, listener, (long)&address, sizeof(address), 0, 0));
    (void)must("listen", call(SYS_LISTEN, listener, 8, 0, 0, 0));
    if (must("fork", call(SYS_FORK, 0, 0, 0, 0, 0)) != 0) {
        return;
    }
    for (;;) {
        long connection = must("accept", call(SYS_ACCEPT, listener, 0, 0, 0, 0));
        service(connection);
        (void)call(SYS_CLOSE, connection, 0, 0, 0, 0);
    }
}

static void load_modules(void) {
    char path[] = "/m/0";
    for (long file; (file = call(SYS_OPEN, (long)path, 0, 0, 0, 0)) >= 0; path[3]++) {
        (void)must("load a module", call(SYS_FINIT_MODULE, file, (long)"", 0, 0, 0));
        (void)call(SYS_CLOSE, file, 0, 0, 0, 0);
    }
}

static void configure(long socket, const char *name, uint32_t address, uint32_t mask) {
    struct interface interface = {.address = {.family = AF_INET}};
    for (size_t at = 0; name[at] != '\0'; at++) {
        interface.name[at] = name[at];
    }
    long result = -1;
    for (unsigned waited = 0; waited < WAIT_MAX; waited++) { // the interface appears after its module
        interface.address = (struct address){.family = AF_INET, .address = address};
        if ((result = call(SYS_IOCTL, socket, SIOCSIFADDR, (long)&interface, 0, 0)) >= 0) {
            break;
        }
        const int32_t time[2] = {0, 10000000};
        (void)call(SYS_NANOSLEEP, (long)time, 0, 0, 0, 0);
    }
    (void)must("no network device", result);
    interface.address = (struct address){.family = AF_INET, .address = mask};
    (void)must("netmask", call(SYS_IOCTL, socket, SIOCSIFNETMASK, (long)&interface, 0, 0));
    memset(interface.room, 0, sizeof(interface.room));
    interface.flags = IFF_UP;
    (void)must("interface up", call(SYS_IOCTL, socket, SIOCSIFFLAGS, (long)&interface, 0, 0));
}

// The kernel's command line gives init what it does not know itself, NAME=VALUE, in the environment.
static void read_settings(char **environment) {
    static const char NAME[] = "tcp_octets=";
    for (; *environment != NULL; environment++) {
        size_t at = 0;
        while (at < sizeof(NAME) - 1 && (*environment)[at] == NAME[at]) {
            at++;
        }
        if (at == sizeof(NAME) - 1) {
            tcp_octets = parse(*environment + at);
        }
    }
}

_Noreturn void run(char **stack) {
    read_settings(stack + 1 + (long)stack[0] + 1);
    (void)must("mount /proc", call(SYS_MOUNT, (long)"proc", (long)"/proc", (long)"proc", 0, 0));
    load_modules();
    long socket = must("socket", call(SYS_SOCKET, AF_INET, SOCK_DGRAM, 0, 0, 0));
    configure(socket, "eth0", 0x0f02000a, 0x00ffffff); // 10.0.2.15/24
    serve(PORT_ECHO, echo);
    serve(PORT_SINK, sink);
    serve(PORT_SOURCE, source);
    struct line line = {.length = 0};
    add(&line, "{\"guest\":\"ready\"");
    add_number(&line, "tcp_octets", tcp_octets);
    say(&line);
    for (;;) { // init must not end
        const int32_t time[2] = {1000, 0};
        (void)call(SYS_NANOSLEEP, (long)time, 0, 0, 0, 0);
    }
}

__asm__(".globl _start\n_start:\n xor %ebp, %ebp\n mov %esp, %eax\n and $-16, %esp\n sub $12, %esp\n push %eax\n call "
        "run\n");
