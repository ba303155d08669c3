/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that does, before its timed sends, what keeps KTSN from serving some programs.
 * In: what it does (plain; lock: mlockall; chroot DIR; daemon: daemon(3)), then the number of datagrams to 192.0.2.2:5000. Out: its
 * sends, each for 20 ms later. It knows nothing of KTSN.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/net_tstamp.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_TXTIME
#define SO_TXTIME 61
#endif

static void check(int result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void send_timed(int fd) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t when = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + 20000000u;
    union { struct cmsghdr head; char room[CMSG_SPACE(sizeof when)]; } control;
    memset(&control, 0, sizeof control);
    char text[] = "cause";
    struct iovec part = {text, sizeof text};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SO_TXTIME;
    head->cmsg_len = CMSG_LEN(sizeof when);
    memcpy(CMSG_DATA(head), &when, sizeof when);
    check((int)sendmsg(fd, &message, 0), "sendmsg");
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "plain";
    if (!strcmp(what, "lock")) check(mlockall(MCL_CURRENT | MCL_FUTURE), "mlockall");
    if (!strcmp(what, "chroot")) check(chroot(words[2]), "chroot");
    /* Standard error stays, for libktsn's line. */
    if (!strcmp(what, "daemon")) check(daemon(0, 1), "daemon");
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    check(fd, "socket");
    struct { int clock; uint32_t flags; } txtime = {CLOCK_MONOTONIC, 0};
    check(setsockopt(fd, SOL_SOCKET, SO_TXTIME, &txtime, sizeof txtime), "SO_TXTIME");
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(5000)};
    inet_pton(AF_INET, "192.0.2.2", &to.sin_addr);
    check(connect(fd, (struct sockaddr *)&to, sizeof to), "connect");
    for (int left = atoi(words[count - 1]); left > 0; left--) {
        send_timed(fd);
        usleep(10000);
    }
    return 0;
}
