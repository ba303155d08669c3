// SPDX-License-Identifier: Apache-2.0
// Sets a host's own clock, and says what the kernel says of it.
//
//   clock good          disciplined, greatest error 500 us      clock tai SECONDS       TAI - UTC
//   clock bad           not synchronised                        clock step SECONDS      CLOCK_REALTIME, by so much
//   clock insert        a leap second at the end of the day     clock midnight SECONDS  CLOCK_REALTIME, so long before the day ends
//   clock show          sets nothing

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timex.h>
#include <time.h>

static int fail(const char *what)
{
	perror(what);
	return 1;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "", *number = argc > 2 ? argv[2] : "0";
	struct timex asked = {0}, now = {0};
	struct timespec at;
	clock_gettime(CLOCK_REALTIME, &at);
	if (!strcmp(what, "step") || !strcmp(what, "midnight")) {
		if (!strcmp(what, "step"))
			at.tv_sec += atoi(number);
		else
			at = (struct timespec){(at.tv_sec / 86400 + 1) * 86400 - atoi(number), 0};
		if (clock_settime(CLOCK_REALTIME, &at))
			return fail("clock_settime");
	} else if (!strcmp(what, "tai")) {
		asked.modes = ADJ_TAI, asked.constant = atoi(number);
	} else if (!strcmp(what, "bad")) {
		asked.modes = ADJ_STATUS, asked.status = STA_UNSYNC;
	} else if (!strcmp(what, "good") || !strcmp(what, "insert")) {
		asked.modes = ADJ_STATUS | ADJ_MAXERROR | ADJ_ESTERROR, asked.maxerror = 500, asked.esterror = 10;
		asked.status = strcmp(what, "insert") ? 0 : STA_INS;
	} else if (strcmp(what, "show")) {
		return fprintf(stderr, "clock: %s: expected good, bad, insert, tai, step, midnight or show\n", what), 2;
	}
	if (asked.modes && adjtimex(&asked) < 0)
		return fail("adjtimex");
	adjtimex(&now);
	printf("state %#x, greatest error %ld us, TAI - UTC %d s\n", now.status, now.maxerror, now.tai);
	return 0;
}
