/* SPDX-License-Identifier: Apache-2.0
 *
 * An ordinary program that asks what became of its datagrams: SO_TXTIME reports, SO_TIMESTAMPING stamps.
 * In: a scenario, an address and a port, KEY=VALUE. A MAC address means a packet socket on eth0 (raw=1: whole frames). Out: lines "what value", or a dump of every entry of its error
 * queue. It knows nothing of KTSN: the same calls work on a kernel alone.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "waited.h"

#ifndef SO_TXTIME
#define SO_TXTIME 61
#endif

struct txtime {
    int clock;
    uint32_t flags;
};

static char **keys;

static long key(const char *name, long otherwise) {
    for (char **at = keys; *at; at++) {
        size_t octets = strlen(name);
        if (!strncmp(*at, name, octets) && (*at)[octets] == '=') return strtol(*at + octets + 1, NULL, 0);
    }
    return otherwise;
}

static void check(int result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static uint64_t now_of(int clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static struct sockaddr_storage to;
static socklen_t to_octets;

static void address(const char *text, int port) {
    struct sockaddr_in *v4 = (void *)&to;
    struct sockaddr_in6 *v6 = (void *)&to;
    unsigned mac[6];
    if (sscanf(text, "%x:%x:%x:%x:%x:%x", mac, mac + 1, mac + 2, mac + 3, mac + 4, mac + 5) == 6) {
        struct sockaddr_ll *link = (void *)&to;
        *link = (struct sockaddr_ll){.sll_family = AF_PACKET, .sll_protocol = htons(0x88b5), .sll_halen = 6};
        link->sll_ifindex = (int)if_nametoindex("eth0"), to_octets = sizeof *link;
        for (int at = 0; at < 6; at++) link->sll_addr[at] = (unsigned char)mac[at];
    } else if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET, v4->sin_port = htons((uint16_t)port), to_octets = sizeof *v4;
        if (key("mapped", 0)) {
            struct in_addr own = v4->sin_addr;
            memset(&to, 0, sizeof to);
            v6->sin6_family = AF_INET6, v6->sin6_port = htons((uint16_t)port), to_octets = sizeof *v6;
            v6->sin6_addr.s6_addr[10] = v6->sin6_addr.s6_addr[11] = 0xff;
            memcpy(v6->sin6_addr.s6_addr + 12, &own, 4);
        }
    } else {
        check(inet_pton(AF_INET6, text, &v6->sin6_addr) - 1, "address");
        v6->sin6_family = AF_INET6, v6->sin6_port = htons((uint16_t)port), to_octets = sizeof *v6;
    }
}

/* A socket with SO_TXTIME and SO_TIMESTAMPING as the keys say. */
static int timed(void) {
    int protocol = to.ss_family == AF_PACKET ? htons((uint16_t)key("protocol", 0)) : 0;
    int fd = socket(to.ss_family, key("raw", 0) ? SOCK_RAW : SOCK_DGRAM, protocol), flags = (int)key("flags", 0);
    check(fd, "socket");
    struct txtime txtime = {(int)key("clock", CLOCK_MONOTONIC), (uint32_t)key("txtime", 0)};
    check(setsockopt(fd, SOL_SOCKET, SO_TXTIME, &txtime, sizeof txtime), "SO_TXTIME");
    if (flags) check(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof flags), "SO_TIMESTAMPING");
    int one = 1;
    if (key("select_error", 0)) check(setsockopt(fd, SOL_SOCKET, SO_SELECT_ERR_QUEUE, &one, 4), "option");
    if (key("bind", 0)) {
        struct sockaddr_storage own = {.ss_family = to.ss_family};
        ((struct sockaddr_in *)&own)->sin_port = htons((uint16_t)key("bind", 0));
        check(bind(fd, (void *)&own, to_octets), "bind");
    }
    if (key("connect", 0)) check(connect(fd, (void *)&to, to_octets), "connect");
    return fd;
}

/* One datagram; per-message SO_TIMESTAMPING where `record` says so. */
static int send_at(int fd, uint64_t at, const void *data, size_t octets) {
    struct iovec iov = {(void *)data, octets};
    char control[128] = {0};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control};
    if (!key("connect", 0)) message.msg_name = &to, message.msg_namelen = to_octets;
    message.msg_controllen = CMSG_SPACE(8) + (key("record", -1) >= 0 ? CMSG_SPACE(4) : 0);
    struct cmsghdr *item = CMSG_FIRSTHDR(&message);
    item->cmsg_level = SOL_SOCKET, item->cmsg_type = SO_TXTIME, item->cmsg_len = CMSG_LEN(8);
    memcpy(CMSG_DATA(item), &at, 8);
    if (key("record", -1) >= 0) {
        int record = (int)key("record", 0);
        item = CMSG_NXTHDR(&message, item);
        item->cmsg_level = SOL_SOCKET, item->cmsg_type = SO_TIMESTAMPING, item->cmsg_len = CMSG_LEN(4);
        memcpy(CMSG_DATA(item), &record, 4);
    }
    return (int)sendmsg(fd, &message, 0);
}

static int send_soon(int fd, int number) {
    char data[1400];
    memset(data, 'a' + number % 26, sizeof data);
    if (key("raw", 0)) {
        memcpy(data, ((struct sockaddr_ll *)&to)->sll_addr, 6);
        struct ifreq own = {.ifr_name = "eth0"};
        check(ioctl(fd, SIOCGIFHWADDR, &own), "SIOCGIFHWADDR");
        memcpy(data + 6, own.ifr_hwaddr.sa_data, 6);
        memcpy(data + 12, "\x88\xb5", 2);
    }
    int clock = (int)key("clock", CLOCK_MONOTONIC);
    uint64_t at = now_of(clock) + (uint64_t)key("lead_us", 1000) * 1000u;
    return send_at(fd, at, data, (size_t)key("size", 20));
}

static int is_waiting(int fd, int timeout) {
    struct pollfd polled = {fd, 0, 0};
    return poll(&polled, 1, timeout) == 1 ? polled.revents : 0;
}

struct entry {
    char data[4096], control[1024];
    struct iovec iov[2];
    struct sockaddr_storage name;
    struct msghdr message;
};

static struct msghdr *prepare(struct entry *entry) {
    memset(entry, 0, sizeof *entry);
    size_t room = (size_t)key("room", 2048);
    entry->iov[0] = (struct iovec){entry->data, room / 2};
    entry->iov[1] = (struct iovec){entry->data + room / 2, room - room / 2};
    entry->message.msg_iov = entry->iov, entry->message.msg_iovlen = room ? 2 : 0;
    entry->message.msg_control = entry->control, entry->message.msg_controllen = (size_t)key("control", 1024);
    if (key("name", 0)) entry->message.msg_name = &entry->name, entry->message.msg_namelen = sizeof entry->name;
    return &entry->message;
}

static int read_error(int fd, struct entry *entry) {
    int flags = MSG_ERRQUEUE | (key("cloexec", 0) ? MSG_CMSG_CLOEXEC : 0);
    return (int)recvmsg(fd, prepare(entry), flags);
}

/* Times become "time" if they are not zero; identification, flow label and checksums are masked. */
static void dump(struct entry *entry, int octets) {
    struct msghdr *message = &entry->message;
    printf("entry %d flags %x name %u control %zu\n", octets, (unsigned)message->msg_flags,
           message->msg_namelen, message->msg_controllen);
    unsigned char *data = (void *)entry->data;
    static const int v4[] = {18, 19, 24, 25, 40, 41, 0}, v6[] = {15, 16, 17, 60, 61, 0};
    for (const int *mask = octets > 12 && data[12] == 8 ? v4 : v6; *mask && to.ss_family != AF_PACKET; mask++) {
        if (*mask < octets) data[*mask] = 0;
    }
    printf("data ");
    for (int at = 0; at < octets; at++) printf("%02x", data[at]);
    printf(".\n");
    size_t at = 0;
    while (at + sizeof(struct cmsghdr) <= message->msg_controllen) {
        struct cmsghdr *item = (void *)(entry->control + at);
        printf("message %d %d %zu ", item->cmsg_level, item->cmsg_type, (size_t)item->cmsg_len);
        if (item->cmsg_level == SOL_SOCKET && item->cmsg_type == SO_TIMESTAMPING) {
            for (size_t word = 16; word + 8 <= item->cmsg_len; word += 8) {
                uint64_t value;
                memcpy(&value, (char *)item + word, 8);
                printf("%s ", value ? "time" : "0");
            }
        } else {
            for (size_t octet = 16; octet < item->cmsg_len; octet++) printf("%02x", ((unsigned char *)item)[octet]);
        }
        printf(".\n");
        at += CMSG_ALIGN(item->cmsg_len);
    }
}

/* Sends `count`, then shows every entry: `per` each. */
static void dumped(void) {
    int fd = timed(), count = (int)key("count", 2), expected = count * (int)key("per", 1);
    struct entry entry;
    for (int number = 0; number < count; number++) {
        check(send_soon(fd, number), "send");
        usleep(20000);
    }
    for (int found = 0; found < expected;) {
        if (!is_waiting(fd, 2000)) break;
        int octets = read_error(fd, &entry);
        if (octets < 0) continue;
        dump(&entry, octets), found++;
    }
    int more = read_error(fd, &entry);
    printf("then %d %d\n", more, more < 0 ? errno : 0);
    printf("poll %x\n", (unsigned)is_waiting(fd, 0));
}

/* Sends one, reads its first entry in the way `how`, then shows the rest. */
static void otherwise(void) {
    int fd = timed(), how = (int)key("how", 0);
    char *wild = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct entry entry;
    check(send_soon(fd, 0), "send");
    is_waiting(fd, 2000);
    usleep(20000);
    struct msghdr *message = prepare(&entry);
    message->msg_controllen = 0;
    socklen_t octets = sizeof entry.name;
    long read = -1;
    errno = 0;
    switch (how) {
    case 1: read = recv(fd, entry.data, 2048, MSG_ERRQUEUE); break;
    case 2: read = recv(fd, entry.data, 50, MSG_ERRQUEUE | MSG_DONTWAIT); break;
    case 3: read = recvfrom(fd, entry.data, 2048, MSG_ERRQUEUE, (void *)&entry.name, &octets); break;
    case 4: read = recvfrom(fd, entry.data, 2048, MSG_ERRQUEUE, (void *)&entry.name, (void *)wild); break;
    case 5: read = recv(fd, wild, 2048, MSG_ERRQUEUE); break;
    case 6: read = recvmsg(fd, (void *)wild, MSG_ERRQUEUE); break;
    case 7: message->msg_iov = (void *)wild, read = recvmsg(fd, message, MSG_ERRQUEUE); break;
    case 8: entry.iov[0].iov_base = wild, read = recvmsg(fd, message, MSG_ERRQUEUE); break;
    case 9: entry.iov[1].iov_base = wild, read = recvmsg(fd, message, MSG_ERRQUEUE); break;
    default: message->msg_control = wild, message->msg_controllen = 500, read = recvmsg(fd, message, MSG_ERRQUEUE);
    }
    int error = read < 0 ? errno : 0;
    message->msg_controllen = how > 9 ? message->msg_controllen : 0;
    printf("read %ld %d name %u\n", read, error, how == 3 ? octets : 0);
    if (read >= 0) {
        if (how > 9) printf("control %zu\n", message->msg_controllen), message->msg_controllen = 0;
        dump(&entry, (int)read);
    }
    while (is_waiting(fd, 200)) {
        int rest = read_error(fd, &entry);
        if (rest >= 0) dump(&entry, rest);
    }
    printf("then %d\n", read_error(fd, &entry));
}

/* Missed, invalid, beyond the horizon. */
static void reported(void) {
    int fd = timed(), clock = (int)key("clock", CLOCK_MONOTONIC);
    uint64_t now = now_of(clock), times[3] = {now - 1000000, 0, now + 20000000000u};
    struct entry entry;
    for (int number = 0; number < 3; number++) {
        check(send_at(fd, times[number], "report", 6), "send");
        printf("events %x\n", (unsigned)is_waiting(fd, 2000));
        int octets = read_error(fd, &entry);
        if (octets < 0) continue;
        dump(&entry, octets);
        struct cmsghdr *item = CMSG_FIRSTHDR(&entry.message);
        struct sock_extended_err *error = item ? (void *)CMSG_DATA(item) : NULL;
        uint64_t told = error ? (uint64_t)error->ee_data << 32 | error->ee_info : 0;
        printf("report %d origin %d code %d time %s\n", error ? (int)error->ee_errno : 0,
               error ? error->ee_origin : 0, error ? error->ee_code : 0, told == times[number] ? "right" : "wrong");
    }
    printf("then %d\n", read_error(fd, &entry));
}

static const char *mode = "";

/* Waits for an error; what was seen of it. */
static int wait_for(int fd, int set) {
    if (!strcmp(mode, "poll")) return is_waiting(fd, 5000) & (POLLERR | POLLPRI);
    if (!strcmp(mode, "ppoll")) {
        struct pollfd polled = {fd, POLLPRI, 0};
        struct timespec limit = {5, 0};
        return ppoll(&polled, 1, &limit, NULL) == 1 ? polled.revents & (POLLERR | POLLPRI) : 0;
    }
    if (!strcmp(mode, "select") || !strcmp(mode, "pselect")) {
        fd_set readable, exceptional;
        FD_ZERO(&readable);
        FD_ZERO(&exceptional);
        FD_SET(fd, &readable);
        FD_SET(fd, &exceptional);
        struct timeval limit = {5, 0};
        struct timespec precise = {5, 0};
        int result = mode[0] == 's' ? select(fd + 1, &readable, NULL, &exceptional, &limit)
                                    : pselect(fd + 1, &readable, NULL, &exceptional, &precise, NULL);
        return result > 0 ? (FD_ISSET(fd, &readable) ? POLLERR : 0) | (FD_ISSET(fd, &exceptional) ? POLLPRI : 0) : 0;
    }
    struct epoll_event event = {0};
    int result = epoll_wait(set, &event, 1, 5000), seen = (int)event.events;
    if (!strcmp(mode, "oneshot") && result == 1) {
        struct epoll_event again = {.events = EPOLLIN | EPOLLONESHOT};
        check(epoll_wait(set, &event, 1, 0) == 0 ? 0 : -1, "one shot");
        check(epoll_ctl(set, EPOLL_CTL_MOD, fd, &again), "EPOLL_CTL_MOD");
    }
    return result == 1 ? seen & (EPOLLERR | EPOLLPRI) : 0;
}

static void ready(void) {
    int fd = timed(), set = epoll_create1(0), rounds = (int)key("count", 20), woken = 0, stray = 0, read = 0;
    struct epoll_event event = {.events = EPOLLIN};
    if (!strcmp(mode, "edge")) event.events |= EPOLLET;
    if (!strcmp(mode, "oneshot")) event.events |= EPOLLONESHOT;
    check(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), "EPOLL_CTL_ADD");
    struct entry entry;
    for (int round = 0; round < rounds; round++) {
        check(send_soon(fd, round), "send");
        int seen = wait_for(fd, set);
        printf("seen %x\n", (unsigned)seen);
        woken += seen != 0;
        if (!strcmp(mode, "level")) woken += (epoll_wait(set, &event, 1, 0) == 1) - 1;
        if (!strcmp(mode, "edge")) woken += (epoll_wait(set, &event, 1, 0) == 0) - 1;
        while (read_error(fd, &entry) >= 0) read++;
        stray += is_waiting(fd, 0) != 0;
    }
    printf("woken %d\nread %d\nstray %d\n", woken, read, stray);
}

/* Reads after all are done. */
static void late(void) {
    int fd = timed(), count = (int)key("count", 20), read = 0, ordered = 1;
    struct entry entry;
    for (int number = 0; number < count; number++) check(send_soon(fd, number), "send");
    usleep(300000);
    printf("events %x\n", (unsigned)is_waiting(fd, 0));
    if (key("batch", 0)) {
        static struct entry entries[64];
        struct mmsghdr headers[64];
        for (int index = 0; index < 64; index++) headers[index].msg_hdr = *prepare(&entries[index]);
        read = recvmmsg(fd, headers, 64, MSG_ERRQUEUE, NULL);
        for (int index = 0; index < read; index++) {
            int letter = entries[index].data[headers[index].msg_len - 1];
            ordered &= letter == 'a' + index % 26;
        }
    } else {
        for (int octets; (octets = read_error(fd, &entry)) >= 0; read++) {
            ordered &= entry.data[octets - 1] == 'a' + read % 26;
        }
    }
    printf("read %d\nordered %d\nafter %x\n", read, ordered, (unsigned)is_waiting(fd, 0));
}

/* Sends and never looks. */
static void never(void) {
    int fd = timed(), count = (int)key("count", 2000), sent = 0;
    for (int number = 0; number < count; number++) {
        sent += send_soon(fd, number) >= 0;
        if (number % 20 == 19) usleep(2000);
    }
    usleep(200000);
    printf("sent %d\n", sent);
}

/* Closes right after sending, and takes the same port again at once. */
static void rebound(void) {
    int rounds = (int)key("count", 200), failed = 0;
    for (int round = 0; round < rounds; round++) {
        int fd = timed();
        check(send_soon(fd, round), "send");
        usleep((unsigned)(round % 20) * 10u);
        close(fd);
        int again = socket(to.ss_family, SOCK_DGRAM, 0);
        struct sockaddr_storage own = {.ss_family = to.ss_family};
        ((struct sockaddr_in *)&own)->sin_port = htons((uint16_t)key("bind", 0));
        failed += bind(again, (void *)&own, to_octets) != 0;
        close(again);
    }
    printf("failed %d\n", failed);
}

/* A child reads the queue of its parent's socket. */
static void forked(void) {
    int fd = timed(), read = 0, strays = 0;
    struct entry entry;
    check(send_soon(fd, 0), "send");
    usleep(100000);
    pid_t child = fork();
    if (child == 0) {
        int octets = read_error(fd, &entry);
        _exit(octets < 0 && errno == EAGAIN ? 0 : 1);
    }
    int status;
    check(waitpid(child, &status, 0), "waitpid");
    for (int number = 1; number < 5; number++) {
        check(send_soon(fd, number), "send");
        if (!is_waiting(fd, 2000)) break;
        while (read_error(fd, &entry) >= 0) read++;
        strays += is_waiting(fd, 0) != 0;
    }
    printf("child %d\nread %d\nstrays %d\n", WEXITSTATUS(status), read, strays);
}

/* One datagram each millisecond, reading what is there. */
static void stream(void) {
    int fd = timed(), count = (int)key("count", 2000), failed = 0, read = 0, last = -1;
    int waits = 0;
    struct entry entry;
    for (int number = 0; number < count; number++) {
        long before = waited();
        failed += send_soon(fd, number) < 0;
        while (read_error(fd, &entry) >= 0) read++, last = number;
        waits += number > 0 && waited() > before; /* the first one attaches */
        usleep(1000);
    }
    printf("failed %d\nread %d\nlast %d\nwaits %d\n", failed, read, last, waits);
}

/* What a report costs: send, wait until it is there, read. */
static void cost(void) {
    int fd = timed(), count = (int)key("count", 2000);
    struct entry entry;
    uint64_t sum = 0;
    for (int number = 0; number < count; number++) {
        check(send_soon(fd, number), "send");
        if (!is_waiting(fd, 1000)) continue;
        uint64_t before = now_of(CLOCK_MONOTONIC);
        read_error(fd, &entry);
        sum += now_of(CLOCK_MONOTONIC) - before;
    }
    printf("read-ns %llu\n", (unsigned long long)(sum / (unsigned)count));
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    keys = argv + 4;
    address(argv[2], atoi(argv[3]));
    const char *scenario = argv[1];
    if (!strncmp(scenario, "ready-", 6)) mode = scenario + 6, ready();
    else if (!strcmp(scenario, "dump")) dumped();
    else if (!strcmp(scenario, "otherwise")) otherwise();
    else if (!strcmp(scenario, "report")) reported();
    else if (!strcmp(scenario, "late")) late();
    else if (!strcmp(scenario, "never")) never();
    else if (!strcmp(scenario, "rebound")) rebound();
    else if (!strcmp(scenario, "forked")) forked();
    else if (!strcmp(scenario, "stream")) stream();
    else if (!strcmp(scenario, "cost")) cost();
    else return 2;
    return 0;
}
