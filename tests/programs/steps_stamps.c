// SPDX-License-Identifier: Apache-2.0
// The scenario hwtstamp INTERFACE: what a program asks an interface about hardware timestamps before it goes on.
#include "steps.h"

#include <net/if.h>
#include <sys/ioctl.h>

// musl's compiler has no kernel headers.
enum { SET_STAMPS = 0x89b0, GET_STAMPS = 0x89b1, ETHTOOL = 0x8946, GET_TS_INFO = 0x41, GET_DRIVER = 3 };

static int request(int fd, const char *interface, unsigned number, void *data)
{
	struct ifreq asked;
	memset(&asked, 0, sizeof(asked));
	strncpy(asked.ifr_name, interface, sizeof(asked.ifr_name) - 1);
	asked.ifr_data = data;
	errno = 77;
	int answer = ioctl(fd, (int)number, &asked);
	if (answer)
		return -errno;
	return errno == 77 ? 0 : -1000;
}

static void set(int fd, const char *interface, const char *what, int flags, int tx_type, int rx_filter)
{
	int config[4] = {flags, tx_type, rx_filter, 0x5a5a};
	char text[32];
	show(what, request(fd, interface, SET_STAMPS, config));
	snprintf(text, sizeof(text), "%s-config", what);
	show(text, config[0] * 10000 + config[1] * 100 + config[2]);
	if (config[3] != 0x5a5a)
		exit(7);
}

static void hwtstamp(const struct step *step)
{
	const char *interface = step->word[1];
	uint32_t info[12] = {GET_TS_INFO}, driver[64] = {GET_DRIVER};
	int config[3] = {9, 9, 9}, fd = socket(AF_INET, SOCK_DGRAM, 0);
	show("info", request(fd, interface, ETHTOOL, info));
	show("modes", info[1]);
	show("phc", (int32_t)info[2]);
	show("tx-types", info[3]);
	show("rx-filters", info[7]);
	set(fd, interface, "set", 0, 1, 1);
	show("get", request(fd, interface, GET_STAMPS, config));
	show("get-config", config[0] * 10000 + config[1] * 100 + config[2]);
	set(fd, interface, "one-step", 0, 2, 0);
	set(fd, interface, "off", 0, 0, 0);
	show("driver", request(fd, interface, ETHTOOL, driver));
	show("nobody", request(fd, "no-such", SET_STAMPS, config));
	show("null", request(fd, interface, GET_STAMPS, NULL));
	show("no-socket", request(0, interface, GET_STAMPS, config));
	// Other ioctls are not looked at.
	int pending = -1;
	show("pending", ioctl(fd, FIONREAD, &pending));
	show("pending-octets", pending);
}

const struct verb stamp_verbs[] = {
	{"hwtstamp", hwtstamp}, {0},
};
