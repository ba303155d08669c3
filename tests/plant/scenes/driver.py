# SPDX-License-Identifier: Apache-2.0
"""What a card's driver does while a pod sends: the port goes on, and each frame that is lost has a counter."""

from bed import serving
from host import on
from kit.space import until


def carrier_changes(host):
    """How often the link has gone down or up."""
    return int(host.run("cat /sys/class/net/eth0/carrier_changes"))


def is_whole(bed):
    """The port is what it was at the begin."""
    port = bed.port()
    return port["adapter"] == "af_xdp" and port["up"] and port["gates"]["is_open"]


def goes_on(plant, script, seconds=120):
    """The script runs on host `a` while its pod sends; the port is whole again, datagrams arrive, none is lost without a counter."""
    with serving(plant) as bed:
        with bed.traffic() as flow:
            plant.a.run(script, seconds)
            until(lambda: is_whole(bed), 60, "the port is whole again")
            bed.arrives()
        log, lost = bed.log(), flow.uncounted()
        assert "stays stuck" not in log, log
        assert lost == 0, f"{lost} of {flow.sent} frames neither arrived ({flow.received}) nor were counted: {flow.counted}\n{log}"
    return flow


def attach(plant):
    """Attach and detach leave the link and the kernel's own receiving as they are"""
    before = carrier_changes(plant.a)
    ping = plant.b.begin(f"ping -q -i 0.05 -c 400 -W 5 {plant.a.address}")
    flow = goes_on(plant, "sleep 2")
    assert flow.received == flow.sent, f"sent {flow.sent}, arrived {flow.received}: {flow.counted}"
    assert carrier_changes(plant.a) == before, "the card's link went down"
    said = ping.wait()
    assert " 0% packet loss" in said, said


def link(plant):
    """The link goes down for 2 s, and up"""
    goes_on(plant, "ip link set eth0 down; sleep 2; ip link set eth0 up")


def cable(plant):
    """The cable is out for 2 s: nothing is lost without a counter but what the card had on its way"""
    with serving(plant) as bed:
        with bed.traffic() as flow:
            handed = bed.frames()
            plant.a.monitor("set_link", name="wire", up=False)
            until(lambda: not bed.port()["up"], 20, "ktsnd says that there is no link")
            on_its_way = bed.frames() - handed
            plant.a.run("sleep 2")
            plant.a.monitor("set_link", name="wire", up=True)
            until(lambda: is_whole(bed), 60, "the port is whole again")
            bed.arrives()
        lost = flow.uncounted()
        assert 0 <= lost <= on_its_way, f"{lost} of {flow.sent} frames lost, {on_its_way} were with the card: {flow.counted}\n{bed.log()}"


def mtu(plant):
    """The MTU changes, and changes back"""
    goes_on(plant, "ip link set eth0 mtu 4000; sleep 2; ip link set eth0 mtu 1500")


@on("igb", "virtio")
def queues(plant):
    """ethtool -L: fewer queues, and all of them"""
    goes_on(plant, "ethtool -L eth0 combined 2; sleep 2; ethtool -L eth0 combined 4")


@on("igb", "e1000e")
def rings(plant):
    """ethtool -G: other ring sizes"""
    goes_on(plant, "ethtool -G eth0 rx 512 tx 512")


@on("igb", "e1000e")
def self_test(plant):
    """ethtool -t: the driver holds RTNL for some 16 s, and the worker lives"""
    goes_on(plant, "ethtool -t eth0 offline || true")


def reload(plant):
    """The driver is unloaded and loaded again, twice"""
    one = f"""rmmod $D; sleep 3
ktsn status --json >/tmp/without
modprobe $D; until [ -e /sys/class/net/eth0 ]; do sleep 0.1; done
ip addr add {plant.a.address}/24 dev eth0; ip link set eth0 up
"""
    goes_on(plant, f"D=$(basename $(readlink /sys/class/net/eth0/device/driver)); {one} sleep 8\n{one}")


SCENES = (attach, link, cable, mtu, queues, rings, self_test, reload)
