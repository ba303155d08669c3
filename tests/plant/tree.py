# SPDX-License-Identifier: Apache-2.0
"""The plant's Debian 13: QEMU 11, what its hosts run, and the kernels of Debian 12, Debian 13 and backports with their modules.

In: mmdebstrap, the package mirror of this machine, root. Out: a directory that is made once for each list of packages: QEMU runs in it,
and the hosts boot from it and never write to it. Nothing of it is installed on this machine.
"""

import hashlib
import json
import pathlib
import re
import shutil
import subprocess

from kit.checks import Skip
from machine import apt_options

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ("systemd-sysv", "udev", "iproute2", "ethtool", "kmod", "linuxptp", "python3-minimal", "tcpdump", "procps", "iputils-ping",
            "busybox-static", "iptables", "nftables", "iperf3", "openssh-client", "openssh-server", "strace")
# The suite of each kernel, and the package that names it.
KERNELS = {
    "6.1": ("bookworm", "linux-image-amd64"),
    "6.12": ("trixie", "linux-image-amd64"),
    "7": ("trixie-backports", "linux-image-amd64"),
    "7-rt": ("trixie-backports", "linux-image-rt-amd64"),
}
# Modules that no host has a device for.
UNUSED = ("drivers/gpu", "drivers/media", "drivers/infiniband", "drivers/staging", "drivers/scsi", "drivers/usb", "drivers/iio", "drivers/hid",
          "drivers/input", "drivers/mtd", "drivers/nvme", "drivers/md", "drivers/net/wireless", "sound", "drivers/accel", "drivers/hwmon", "fs/xfs", "fs/btrfs")
ROOM_GB = 3
# Runs in the tree while apt's lists are there: QEMU of backports, then each kernel's packages, unpacked and not installed.
FILL = r"""
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get install -y --no-install-recommends -t trixie-backports qemu-system-x86
mkdir /kernels
while read -r name suite package; do
    mkdir -p "/tmp/$name/root"
    cd "/tmp/$name"
    # shellcheck disable=SC2046 # a word for each package
    apt-get download $(apt-get install -s --no-install-recommends -t "$suite" "$package" |
        sed -nE 's/^Inst (linux-(image|binary|modules|base)-[0-9][^ ]*) \(([^ ]*) .*/\1=\3/p')
    for file in ./*.deb; do dpkg-deb -x "$file" root; done
    version=$(ls root/usr/lib/modules 2>/dev/null || ls root/lib/modules)
    modules=$(echo root/usr/lib/modules/* root/lib/modules/* | tr ' ' '\n' | grep -v '\*$')
    mkdir -p /usr/lib/modules
    for part in UNUSED; do rm -rf "$modules/kernel/$part"; done
    kernel=$(find root -name 'vmlinuz*' -type f | head -n 1)
    cp "$kernel" "/kernels/$name"
    echo "$version" >"/kernels/$name.version"
    rm -f "$modules"/vmlinuz*
    cp -a "$modules" /usr/lib/modules/
    depmod "$version"
    cd /
    rm -rf "/tmp/$name"
done <<'KERNELS'
LIST
KERNELS
dpkg-query -W >/kernels/packages
"""


def mirror():
    """The address of this machine's own mirror."""
    for path in (pathlib.Path("/etc/apt/sources.list"), *sorted(pathlib.Path("/etc/apt/sources.list.d").glob("*"))):
        if path.is_file() and (found := re.search(r"^(?:URIs:|deb(?: \[.*\])?)\s+(https?://\S+?/debian)/?\s", path.read_text(), re.MULTILINE)):
            return found[1]
    return "http://deb.debian.org/debian"


def request():
    """What is asked for; another request makes another tree."""
    rows = "\n".join(" ".join((name, *how)) for name, how in KERNELS.items())
    return {"packages": PACKAGES, "script": FILL.replace("LIST", rows).replace("UNUSED", " ".join(UNUSED))}


def made():
    """The tree, made if it is not there. Raises Skip where it cannot be made here."""
    asked = request()
    place = ROOT / "out/plant" / hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]
    if (place / "kernels/packages").exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(place.parent).free < ROOM_GB << 30:
        raise Skip("plant_disk", f"{place.parent} has less than {ROOM_GB} GB free")
    for old in place.parent.glob("????????????"):
        subprocess.run(["rm", "-rf", "--one-file-system", old], check=True)
    print("plant: making a Debian 13 with QEMU 11 and four kernels (2 to 4 minutes)", flush=True)
    fresh, log = place.parent / f"new-{place.name}", place.parent / "tree.log"
    subprocess.run(["rm", "-rf", "--one-file-system", fresh], check=True)
    base, suites = mirror(), ("trixie", "trixie-backports", "bookworm")
    hook = place.parent / "fill.sh"
    hook.write_text(asked["script"])
    argv = ["mmdebstrap", "--variant=minbase", "--skip=check/empty", f"--include={','.join(PACKAGES)}", *apt_options(),
            f"--customize-hook=cp {hook} \"$1/fill.sh\"", "--customize-hook=chroot \"$1\" sh /fill.sh", "trixie", fresh,
            *(f"deb {base} {suite} main" for suite in suites)]
    with open(log, "w", encoding="utf-8") as said:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        text = log.read_text(errors="replace")
        subprocess.run(["rm", "-rf", "--one-file-system", fresh], check=True)
        if re.search(r"Temporary failure resolving|Could not resolve|Failed to fetch|Unable to locate|has no installation candidate", text):
            raise Skip("plant_packages", f"Debian 13 and its backports cannot be fetched from {base}; see {log}")
        raise AssertionError(f"the tree could not be made, see {log}:\n{text[-1500:]}")
    fresh.rename(place)
    return place
