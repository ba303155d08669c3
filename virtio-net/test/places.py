# SPDX-License-Identifier: BSD-2-Clause
"""The bare guests with their network device where hypervisors place it: behind an IOMMU's feature, as a further function of a slot, behind
bridges, beside other devices, with and without firmware."""

import re
import socket
import tempfile

import build
import peer

FRAMES = 500
FUNCTION = (",addr=0x5.1", ("-device", "virtio-rng-pci,addr=0x5.0,multifunction=on"))
BRIDGE = (",bus=b1,addr=3", ("-device", "pci-bridge,id=b1,chassis_nr=1,addr=6"))
BRIDGES = (",bus=b2,addr=0x2.2", ("-device", "pci-bridge,id=b1,chassis_nr=1,addr=6", "-device", "pci-bridge,id=b2,chassis_nr=2,bus=b1,addr=5",
                                  "-device", "virtio-rng-pci,bus=b1,addr=1", "-device", "virtio-rng-pci,bus=b2,addr=2.0,multifunction=on"))
ROOT_PORT = (",bus=p1", ("-device", "pcie-root-port,id=p1,chassis=1,addr=7"))
BESIDE = (",addr=0x5", ("-device", "virtio-rng-pci,addr=0x2", "-device", "virtio-serial-pci,addr=0x3", "-device", "ich9-ahci,addr=0x4"))
PLATFORM = (",iommu_platform=on", ())
CASES = [
    *((machine, "pci modern", "iommu_platform", PLATFORM) for machine in ("i386", "riscv64")),
    *((machine, "mmio 2", "iommu_platform", PLATFORM) for machine in ("aarch64", "riscv64")),
    *((machine, transport, name, case) for machine in ("i386", "riscv64", "aarch64") for transport in ("pci legacy", "pci modern")
      for name, case in (("function", FUNCTION), ("bridge", BRIDGE), ("bridges", BRIDGES), ("beside", BESIDE))),
    *((machine, "pci modern", "root port", ROOT_PORT) for machine in ("riscv64", "aarch64", "q35")),
    ("riscv64", "pci modern", "two", (",addr=0x5", ("-device", "virtio-net-pci,addr=0x6,netdev=other", "-netdev", "user,id=other"))),
]
# What libvirt makes on x86: firmware, PCI Express, every device behind a port of its own.
peer.MACHINES["q35"] = ["qemu-system-i386", "-M", "q35", *peer.MACHINES["i386"][3:]]
peer.GOOD_STATUS["q35"] = peer.GOOD_STATUS["i386"]


def bars(text):
    """The BARs in QEMU's `info pci` that have an address: (kind, first, last)."""
    places = re.findall(r"BAR\d: .*?(I/O|memory) at 0x([0-9a-f]+) \[0x([0-9a-f]+)\]", text)
    return sorted((kind, int(first, 16), int(last, 16)) for kind, first, last in places if int(first, 16) < int(last, 16))


def overlap(text):
    """Two BARs that overlap, or None."""
    found = bars(text)
    return next((f"BARs overlap: {one} and {other}" for one, other in zip(found, found[1:]) if one[0] == other[0] and one[2] >= other[1]), None)


def info_pci(path):
    """What QEMU's monitor says."""
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.settimeout(peer.QUIET_MAX)
        monitor.connect(path)
        said = b""
        monitor.sendall(b"info pci\n")
        while said.count(b"(qemu) ") < 2:
            said += monitor.recv(65536)
        return said.decode(errors="replace").replace("\r", "")


def check(machine, transport, program, case):
    device, before = case
    with tempfile.TemporaryDirectory() as directory:
        monitor = ("-monitor", f"unix:{directory}/monitor,server=on,wait=off")
        with peer.Guest(machine, transport, program, monitor, device=device, before=before) as guest:
            if (count := guest.echo(FRAMES, 4)) != FRAMES:
                return f"{count} of {FRAMES} frames came back: {guest.said_so_far()}"
            text = info_pci(f"{directory}/monitor")
            # Each device has one at least, and the network device two.
            if transport.startswith("pci") and len(bars(text)) < 2 + before.count("-device"):
                return f"the monitor shows too few BARs: {text}"
            return overlap(text) or (None if guest.quit() else "the guest did not end well")


def check_memory(program):
    """A legacy device with large rings, and a guest with too little memory for them: it says how much is missing."""
    try:
        with peer.Guest("riscv64", "pci legacy", program, device=",rx_queue_size=1024"):
            return "the guest found memory"
    except RuntimeError as error:
        return None if "the driver needs 32768 octets more" in f"{error}" and "failed 2" in f"{error}" else f"{error}"


def tests(run, program):
    for machine, transport, name, case in CASES:
        run.check(f"places/{machine}/{transport}/{name}", lambda machine=machine, transport=transport, case=case:
                  check(machine, transport, program("i386" if machine == "q35" else machine), case))
    run.check("places/memory", lambda: check_memory(build.guest("riscv64", run.out, "poor", ["-DMEMORY_OCTETS=40*1024"])))
