# SPDX-License-Identifier: Apache-2.0
"""Ports that are not the card itself: VLAN, bond, macvlan, a virtual function."""

from bed import serving
from host import on
from kit.space import until


def passes(plant, device, to):
    """Datagrams of the pod leave by the device and arrive; which adapter the port has. A slower one is said with its reason."""
    with serving(plant, device, to=to) as bed:
        with bed.traffic() as flow:
            plant.a.run("sleep 2")
        port, lost = bed.port(), flow.uncounted()
    assert lost == 0, f"{lost} of {flow.sent} frames neither arrived ({flow.received}) nor were counted: {flow.counted}"
    assert port["adapter"] == "af_xdp" or port["adapter_reason"], port


def vlan(plant):
    """A VLAN device"""
    try:
        for host, address in ((plant.a, "10.5.0.1"), (plant.b, "10.5.0.2")):
            host.run(f"set -e; ip link add link eth0 name eth0.5 type vlan id 5; ip addr add {address}/24 dev eth0.5; ip link set eth0.5 up")
        passes(plant, "eth0.5", "10.5.0.2")
    finally:
        for host in (plant.a, plant.b):
            host.tried("ip link del eth0.5")


def macvlan(plant):
    """A macvlan device"""
    try:
        plant.a.run("set -e; ip link add link eth0 name mac0 type macvlan mode bridge; ip addr add 10.6.0.1/24 dev mac0; ip link set mac0 up")
        plant.b.run("ip addr add 10.6.0.2/24 dev eth0")
        passes(plant, "mac0", "10.6.0.2")
    finally:
        plant.a.tried("ip link del mac0")
        plant.b.tried("ip addr del 10.6.0.2/24 dev eth0")


def bond(plant):
    """A bond with one card"""
    address = f"{plant.a.address}/24"
    try:
        plant.a.run(f"""set -e
modprobe bonding max_bonds=0
ip link add bond0 type bond mode active-backup miimon 100
ip addr del {address} dev eth0
ip link set eth0 down
ip link set eth0 master bond0
ip addr add {address} dev bond0
ip link set bond0 up""")
        until(lambda: plant.a.tried(f"ping -c 1 -W 1 {plant.b.address}")[0] == 0, 30, "the bond passes")
        passes(plant, "bond0", plant.b.address)
    finally:
        plant.a.tried(f"ip link del bond0; ip link set eth0 up; ip addr add {address} dev eth0")


@on("igb")
def virtual_function(plant):
    """A virtual function of the card"""
    device = "/sys/class/net/eth0/device"
    try:
        plant.a.run(f"""set -e
modprobe igbvf
echo 1 >{device}/sriov_numvfs
ip link set eth0 vf 0 mac 02:00:00:00:0b:11
rmmod igbvf; modprobe igbvf
until [ -e /sys/class/net/eth1 ]; do sleep 0.2; done
ip addr add 10.7.0.1/24 dev eth1; ip link set eth1 up""")
        plant.b.run("ip addr add 10.7.0.2/24 dev eth0")
        until(lambda: plant.a.tried("ping -c 1 -W 1 10.7.0.2")[0] == 0, 30, "the function passes")
        passes(plant, "eth1", "10.7.0.2")
    finally:
        plant.a.tried(f"echo 0 >{device}/sriov_numvfs")
        plant.b.tried("ip addr del 10.7.0.2/24 dev eth0")


SCENES = (vlan, macvlan, bond, virtual_function)
