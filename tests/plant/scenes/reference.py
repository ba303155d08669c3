# SPDX-License-Identifier: Apache-2.0
"""The kernel alone, without KTSN: what becomes of a pod's transmit time on its way to the card."""

import re

from bed import END, MAKE_POD, POD, PORT

FRAMES = 10
# Linux 6.11 told the clocks of a frame's time apart, and forwarding keeps it since.
CARRIES = (6, 11)


def version(host):
    """The kernel's version, two numbers."""
    return tuple(map(int, re.match(r"(\d+)\.(\d+)", host.run("uname -r")).groups()))


def talk(plant, clock):
    """The pod sends each datagram 1 s before its time, by the kernel."""
    plant.a.run(f"ip netns exec {POD} ktsn talk {plant.b.address}:{PORT} --period 200ms --lead 1s --clock {clock} --count {FRAMES}")


def number(said, name):
    """A counter of `tc -s qdisc`."""
    return sum(int(found) for found in re.findall(rf"{name} (\d+)", said))


def fq_holds(plant):
    """fq on the uplink holds a pod's datagrams until their time from Linux 6.11 on, and not before"""
    try:
        plant.a.run(MAKE_POD + "tc qdisc replace dev eth0 root fq")
        talk(plant, "monotonic")
        held = number(plant.a.run("tc -s qdisc show dev eth0"), "throttled")
        # It counts once for all that are due while the guest is late.
        assert (held > 0) == (version(plant.a) >= CARRIES), f"{held} of {FRAMES} held by Linux {version(plant.a)}"
        print(f"       {held} of {FRAMES} held", flush=True)
    finally:
        plant.a.tried("tc qdisc del dev eth0 root")
        plant.a.tried(END)


SCENES = (fq_holds,)
