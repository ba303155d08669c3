// SPDX-License-Identifier: BSD-2-Clause
// See check.h.
#include "check.h"

unsigned check_faults;

int check_run(const struct check_test *tests, unsigned count) {
    unsigned failed = 0;
    for (unsigned index = 0; index < count; index++) {
        check_faults = 0;
        printf("test %s\n", tests[index].name);
        fflush(stdout);
        tests[index].run();
        if (check_faults != 0) {
            failed++;
            printf("FAILED %s\n", tests[index].name);
        }
    }
    printf("%u passed, %u failed\n", count - failed, failed);
    return failed != 0;
}
