// SPDX-License-Identifier: BSD-2-Clause
// A minimal test runner. A test is a function; CHECK notes a failure with its place and the two values, and goes on.
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>

extern unsigned check_faults;

#define CHECK(found, wanted)                                                                           \
    do {                                                                                               \
        long long found_ = (long long)(found), wanted_ = (long long)(wanted);                          \
        if (found_ != wanted_) {                                                                       \
            check_faults++;                                                                            \
            printf("%s:%d: %s is %lld, expected %lld\n", __FILE__, __LINE__, #found, found_, wanted_); \
        }                                                                                              \
    } while (0)

struct check_test {
    const char *name;
    void (*run)(void);
};

// Runs the tests, prints a line for each that failed, then 'N passed, N failed'. Returns the exit status.
int check_run(const struct check_test *tests, unsigned count);

#define TEST(function) \
    { #function, function }

#endif
