# SPDX-License-Identifier: Apache-2.0
"""Process 1 of one machine of the cluster.

In: a kind (`control` or `node`), a directory of its own, a cgroup's name; new mount, pid, network, UTS and IPC namespaces.
Out: mounts as a machine has them, one line `ready`, then the dead are collected for ever. When it is killed the kernel ends
every process of the machine and drops every mount, link and address: that is its power switch.
It must never: change a mount, a sysctl or a file that the machine outside can see.
"""

import os
import pathlib
import signal
import subprocess
import sys

# Kubelet sets these, and they are not namespaced: it is shown what it wants to see.
SYSCTLS = {"vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
           "kernel/keys/root_maxkeys": 1000000, "kernel/keys/root_maxbytes": 25000000}
# Directories that get a layer of their own: what the machine writes there ends in its directory.
LAYERED = ("etc", "var", "opt")
# Those of which the test or another overlay needs the real files.
BOUND = {"kubelet": "/var/lib/kubelet", "pods": "/var/log/pods", "containers": "/var/log/containers"}


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


def machine(directory):
    """What every machine has: its own /proc, /run and name resolution."""
    mount("-t", "proc", "proc", "/proc")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for name in ("netns", "lock"):
        pathlib.Path("/run", name).mkdir()
    for name in LAYERED:
        upper, work = directory / "layer" / name, directory / "layer" / f"{name}.work"
        upper.mkdir(parents=True, exist_ok=True)
        work.mkdir(exist_ok=True)
        mount("-t", "overlay", "overlay", "-o", f"lowerdir=/{name},upperdir={upper},workdir={work}", f"/{name}")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def node(directory, cgroup):
    """What a node has beyond: its own /sys, directories of kubelet, a branch of each cgroup hierarchy."""
    kept = directory / "cgroup"
    kept.mkdir(exist_ok=True)
    mount("--rbind", "/sys/fs/cgroup", kept)
    mount("-t", "sysfs", "sysfs", "/sys")  # of this network namespace: its own /sys/class/net
    mount("--rbind", kept, "/sys/fs/cgroup")
    subprocess.run(["umount", "--lazy", str(kept)], check=True)
    mount("-t", "bpf", "bpf", "/sys/fs/bpf")
    for name, place in BOUND.items():
        (directory / name).mkdir(exist_ok=True)
        pathlib.Path(place).mkdir(parents=True, exist_ok=True)
        mount("--bind", directory / name, place)
    (directory / "sysctl").mkdir(exist_ok=True)
    for key, value in SYSCTLS.items():
        shown = directory / "sysctl" / key.replace("/", ".")
        shown.write_text(f"{value}\n")
        mount("--bind", shown, f"/proc/sys/{key}")
    pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    pathlib.Path("/proc/sys/net/ipv6/conf/all/forwarding").write_text("1")
    for hierarchy in pathlib.Path("/sys/fs/cgroup").iterdir():
        if hierarchy.name == "unified":
            continue
        branch = hierarchy / cgroup
        branch.mkdir(parents=True, exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # empty in a new cgroup: nothing may run there
            for level in (branch.parent, branch):
                if (level / file).exists() and not (level / file).read_text().strip():
                    (level / file).write_text((level.parent / file).read_text())
    mount("--make-rshared", "/")


def main():
    kind, directory, cgroup = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    directory.mkdir(parents=True, exist_ok=True)
    machine(directory)
    if kind == "node":
        node(directory, cgroup)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    print("ready", flush=True)
    while True:
        signal.sigwait([signal.SIGCHLD])
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


if __name__ == "__main__":
    main()
