// SPDX-License-Identifier: BSD-2-Clause
// The probe as a Linux program: probe SETTINGS. One thread measures, with memory locked, a CPU and SCHED_FIFO as the
// settings say (cpu=, fifo=); the first thread prints.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "probe.h"

enum { SECOND = 1000000000, STACK = 256 * 1024, PRINT_EVERY = 10 * 1000 * 1000, ANY_CPU = 100000 };

static struct probe probe;

uint64_t probe_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

uint64_t probe_begin(uint64_t period_ns) {
    return probe_now() + period_ns;
}

void probe_wait(uint64_t due) {
    struct timespec until = {(time_t)(due / SECOND), (long)(due % SECOND)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0) {
    }
}

static void *measure(void *context) {
    probe_measure(context);
    return NULL;
}

static int fail(const char *what, int error) {
    fprintf(stderr, "probe: %s: %s\n", what, strerror(error));
    return 1;
}

// The thread's attributes. Returns an error number.
static int prepare(pthread_attr_t *attributes, uint64_t fifo, uint64_t cpu) {
    int error = pthread_attr_init(attributes);
    if (error == 0) {
        error = pthread_attr_setstacksize(attributes, STACK);
    }
    if (error == 0 && cpu < ANY_CPU) {
        cpu_set_t cpus;
        CPU_ZERO(&cpus);
        CPU_SET(cpu, &cpus);
        error = pthread_attr_setaffinity_np(attributes, sizeof(cpus), &cpus);
    }
    if (error == 0 && fifo != 0) {
        struct sched_param parameters = {.sched_priority = (int)fifo};
        error = pthread_attr_setinheritsched(attributes, PTHREAD_EXPLICIT_SCHED);
        error = error != 0 ? error : pthread_attr_setschedpolicy(attributes, SCHED_FIFO);
        error = error != 0 ? error : pthread_attr_setschedparam(attributes, &parameters);
    }
    return error;
}

int main(int count, char **arguments) {
    const char *settings = count > 1 ? arguments[1] : "";
    probe.period_ns = probe_setting(settings, "period_us", 10000) * 1000;
    probe.loops = probe_setting(settings, "loops", 0);
    if (count != 2 || probe.period_ns == 0 || probe.loops == 0) {
        fprintf(stderr, "usage: probe period_us=N,loops=N[,fifo=PRIORITY][,cpu=N]\n");
        return 2;
    }
    // As cyclictest does: the CPU stays out of deep idle states while the file is open. Without the right to it, they
    // stay.
    int latency = open("/dev/cpu_dma_latency", O_WRONLY | O_CLOEXEC);
    int32_t none = 0;
    if (latency >= 0 && write(latency, &none, sizeof(none)) != (ssize_t)sizeof(none)) {
        close(latency);
    }
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) {
        perror("probe: mlockall");
        return 1;
    }
    pthread_attr_t attributes;
    int error = prepare(&attributes, probe_setting(settings, "fifo", 0), probe_setting(settings, "cpu", ANY_CPU));
    pthread_t thread;
    error = error != 0 ? error : pthread_create(&thread, &attributes, measure, &probe);
    if (error != 0) {
        return fail("the measuring thread cannot be started", error);
    }
    char line[48];
    while (!probe_is_done(&probe)) {
        while (probe_line(&probe, line) != 0) {
            fputs(line, stdout);
        }
        if (fflush(stdout) != 0 || atomic_load(&probe.has_lost)) {
            fprintf(stderr, "probe: latencies were lost: nothing takes its output\n");
            return 1;
        }
        const struct timespec turn = {0, PRINT_EVERY};
        nanosleep(&turn, NULL);
    }
    return 0;
}
