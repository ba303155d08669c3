# SPDX-License-Identifier: Apache-2.0
"""Traffic of a pod of host `a`, which ktsnd serves by the card, to host `b`.

In: the plant. Out: what was sent, what arrived, what ktsnd and the kernel counted meanwhile. A frame without a counter is a fault.
"""

import contextlib
import json
import re

from kit.space import until

POD, POD_ADDRESS = "talker", "10.9.0.2"
PORT = 7000
ATTACHMENT = "talker/eth0"
CONFIGURATION = """[[port]]
device = "{device}"
{more}
[[attachment]]
name = "talker/eth0"
netns = "talker"
interface = "eth0"
uplink = "{device}"
destinations = ["10.0.0.0/8"]
"""
# Counters of frames that the host's stack drops (/proc/net/snmp, /proc/net/netstat).
LOSSES = {"Ip OutNoRoutes", "Ip InDiscards", "Ip OutDiscards", "IpExt InNoRoutes"}
# A pod behind the host's own routing, as Flannel's host-gw makes it.
MAKE_POD = f"""set -e
sysctl -qw net.ipv4.ip_forward=1
ip netns add {POD}
ip link add pod type veth peer name eth0 netns {POD}
ip addr add 10.9.0.1/24 dev pod
ip link set pod up
ip -n {POD} addr add {POD_ADDRESS}/24 dev eth0
ip -n {POD} link set eth0 up
ip -n {POD} link set lo up
ip -n {POD} route add default via 10.9.0.1
"""
END = f"pkill -x ktsn; pkill -x ktsnd; until [ -z \"$(pidof ktsnd ktsn)\" ]; do sleep 0.1; done; ip netns del {POD}; rm -rf /etc/ktsn/ktsnd.toml /run/ktsn"


class Bed:
    """ktsnd on `a`, its pod, and the listener on `b`."""

    def __init__(self, plant, device, to):
        self.a, self.b, self.device, self.to = plant.a, plant.b, device, to

    def status(self):
        """What `ktsn status --json` says."""
        return json.loads(self.a.run("ktsn status --json"))

    def port(self):
        """The port's state."""
        return next(port for port in self.status()["ports"] if port["device"] == self.device)

    def log(self):
        """What ktsnd has logged."""
        return self.a.run("cat /tmp/ktsnd.log")

    def counters(self):
        """The attachment's statistics."""
        return next(one for one in self.status()["statistics"]["attachments"] if one["name"] == ATTACHMENT)

    def has_settled(self):
        """Each frame that was taken has been sent, or dropped with its reason."""
        counters = self.counters()
        return counters["taken"] == counters["sent"] + sum(counters["dropped"].values())

    def frames(self):
        """How many frames the card has got."""
        return sum(next(port for port in self.status()["statistics"]["ports"] if port["device"] == self.device and not port["netns"])["frames"])

    def node(self):
        """How many frames the host's own stack has lost by its own counters: no route, no neighbour, no room."""
        lost = 0
        for path in ("snmp", "netstat"):
            lines = self.a.run(f"cat /proc/net/{path}").splitlines()
            for names, values in zip(lines[::2], lines[1::2]):
                lost += sum(int(value) for name, value in zip(names.split(), values.split()) if f"{names.split(':')[0]} {name}" in LOSSES)
        head, *rows = self.a.run("cat /proc/net/stat/arp_cache").splitlines()
        return lost + sum(int(row.split()[head.split().index("unresolved_discards")], 16) for row in rows)

    @contextlib.contextmanager
    def traffic(self, period_ms=20, lead_ms=300, clock="monotonic", arrives=True):
        """A stream while the block runs, which has begun to arrive unless its clock is not good; afterwards the yielded Flow knows what became
        of it."""
        listener = self.b.begin(f"exec ktsn listen {PORT} --timeout 600s")
        self.b.run(f"until ss -lun | grep -q ':{PORT} '; do sleep 0.1; done")
        before, node, flow = self.counters(), self.node(), Flow()
        talker = self.a.begin(f"ip netns exec {POD} ktsn run -- ktsn talk {self.to}:{PORT} --period {period_ms}ms --lead {lead_ms}ms --clock {clock}")
        try:
            if arrives:
                self.arrives()
            yield flow
        finally:
            try:
                self.a.run("pkill -INT -x ktsn; true")
                said = talker.wait(60, check=False)[1]
                until(self.has_settled, 60, lambda: f"each frame is sent or dropped: {self.counters()}")
            finally:
                self.b.run("pkill -INT -x ktsn; true")
                heard = listener.wait(60, check=False)[1]
        flow.read(said, heard, before, self.counters())
        flow.lost_by_node = self.node() - node

    def arrives(self, seconds=60):
        """Waits until datagrams arrive at `b`."""
        count = "cat /proc/net/snmp | sed -n 's/^Udp: \\([0-9][0-9]*\\) .*/\\1/p'"
        begun = int(self.b.run(count))
        until(lambda: int(self.b.run(count)) > begun + 2, seconds, "datagrams arrive")


class Flow:
    """What became of a stream."""

    def read(self, said, heard, before, after):
        self.said, self.heard = said, heard
        self.sent = int(re.search(r"sent (\d+) of", said)[1])
        self.received = int(re.search(r"received (\d+) datagrams", heard)[1])
        self.counted = {name: change(before.get(name), after.get(name)) for name in after}

    def uncounted(self):
        """Frames that neither arrived nor were counted, by ktsnd or by the stack that it handed them to."""
        dropped = sum(self.counted["dropped"].values())
        return self.sent - self.received - dropped - self.lost_by_node


def change(before, after):
    """By how much counters have grown."""
    if isinstance(after, dict):
        return {name: grown for name, value in after.items() if (grown := change((before or {}).get(name), value))}
    return after - (before or 0) if isinstance(after, int) and not isinstance(after, bool) else after


@contextlib.contextmanager
def serving(plant, device="eth0", more="", to=None):
    """ktsnd serves the pod by the device of host `a`."""
    a = plant.a
    a.run(MAKE_POD)
    bed = Bed(plant, device, to or plant.b.address)
    try:
        a.run("mkdir -p /etc/ktsn; cat >/etc/ktsn/ktsnd.toml <<'END'\n" + CONFIGURATION.format(device=device, more=more) + "END\n")
        a.run("setsid ktsnd >/tmp/ktsnd.log 2>&1 </dev/null &\nuntil ktsn status >/dev/null 2>&1; do kill -0 $! || { cat /tmp/ktsnd.log; exit 1; }; sleep 0.2; done")
        yield bed
        assert "panicked" not in bed.log(), bed.log()
    finally:
        a.tried(END, 60)
