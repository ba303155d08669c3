# SPDX-License-Identifier: BSD-2-Clause
"""Compiles the driver: for the host with the fake device, as guests for QEMU, and as objects to be weighed."""

import itertools
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
BARE = ROOT / "ports" / "bare"
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wshadow", "-Werror"]
INCLUDE = [f"-I{ROOT}/include", f"-I{ROOT}/src"]
DRIVER = sorted((ROOT / "src").glob("*.c"))
FAKE = [HERE / name for name in ("fake.c", "fake_registers.c", "fake_ring.c", "host.c")]
HOOKS = ["-DVNET_TEST_HOOKS", "-DVNET_TEST_REGISTERS", "-g"]
# Bits of include/vnet_options.h.
OPTIONS = {"event index": 1, "packed": 2, "mergeable": 4, "checksum": 8, "queues": 16}
ALL_OPTIONS = sum(OPTIONS.values())
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
FREESTANDING = ["-ffreestanding", "-nostdlib", "-static"]
FAST = ["-O3", "-flto"]

# RISC-V and x86 by gcc, Arm by clang and lld: so both compilers make guests.
GUESTS = {
    "riscv64": ["riscv64-unknown-elf-gcc", "-march=rv64imac_zicsr", "-mabi=lp64", "-mcmodel=medany", *FAST],
    "aarch64": ["clang", "--target=aarch64-none-elf", "-fuse-ld=lld", "-mstrict-align", "-mgeneral-regs-only", "-O2"],
    "i386": ["gcc", "-m32", "-march=i686", "-fno-pic", "-no-pie", "-fno-stack-protector", "-mgeneral-regs-only", "-O2",
             "-Wl,--build-id=none", "-Wl,-z,noexecstack"],
}
# The bar for size is for the ring, the core and one transport.
WEIGHED = {"core": ("ring.c", "net.c", "start.c", "segments.c", "checksum.c", "control.c"), "mmio": ("mmio.c",), "pci legacy": ("pci.c", "pci_legacy.c"),
           "pci modern": ("pci_modern.c",)}


def run(command, environment=None):
    """Runs a compiler. Raises with all that it said."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def host_test(compiler, name, out, sanitized=True, options=(), driver=ALL_OPTIONS):
    """A test program on the host: `name`.c over the fake device. `driver`: the options that are compiled in."""
    program = out / f"{name}-{compiler}-{driver}"
    run([compiler, *WARNINGS, *INCLUDE, *HOOKS, f"-DVNET_OPTIONS={driver}", *(["-O1", *SANITIZERS] if sanitized else ["-O2"]), *options, *DRIVER, *FAKE,
         HERE / f"{name}.c", *([] if name == "fuzz" else [HERE / "check.c"]), "-o", program])
    return program


def fuzzer(out):
    """The fuzzer, guided by edges of driver and device. Comparisons are not traced: an input is a program of small numbers, with no magic
    values to be found, and a third of the time would go there."""
    return host_test("clang", "fuzz", out, options=["-O2", "-fsanitize=fuzzer", "-fno-sanitize-coverage=trace-cmp"])


def freestanding(compiler, out):
    """The driver alone, as strictly as the compiler can be, without any header of a C library."""
    for source, driver in itertools.product(DRIVER, (0, ALL_OPTIONS, *OPTIONS.values())):
        run([compiler, f"-DVNET_OPTIONS={driver}", *WARNINGS, "-Wconversion", "-pedantic", "-ffreestanding", "-O2", *INCLUDE, "-c", source, "-o", out / "strict.o"])


def fences(out):
    """The fences of the driver on aarch64, as words of the assembler."""
    words = set()
    for source in DRIVER:
        run([*GUESTS["aarch64"], f"-DVNET_OPTIONS={ALL_OPTIONS}", "-std=c11", "-ffreestanding", *INCLUDE, "-S", source, "-o", out / "fences.s"])
        words |= {" ".join(line.split()) for line in (out / "fences.s").read_text().splitlines() if line.split()[:1] == ["dmb"]}
    return words


def guest(machine, out, name="guest", options=(), driver=0):
    """A guest. `driver`: the options that are compiled in and asked for."""
    program = out / f"{name}-{machine}-{driver}"
    sources = [BARE / source for source in ("guest.c", "pci.c", "string.c", f"{machine}.c", f"{machine}_start.S")]
    run([*GUESTS[machine], *WARNINGS, *FREESTANDING, *INCLUDE, f"-DVNET_OPTIONS={driver}", *options, *DRIVER, *sources, "-T", BARE / f"{machine}.ld", "-o", program])
    return program


def weigh_sources(out, names, driver):
    octets = 0
    for name in names:
        target = out / f"{name}.o"
        run(["riscv64-unknown-elf-gcc", "-march=rv64imac_zicsr", "-mabi=lp64", "-mcmodel=medany", "-std=c11", "-ffreestanding", "-Os",
             f"-DVNET_OPTIONS={driver}", *INCLUDE, "-c", ROOT / "src" / name, "-o", target])
        octets += int(run(["riscv64-unknown-elf-size", target]).splitlines()[1].split()[3])
    return octets


def weigh(out):
    """Octets of code and data of each part, and what each option adds to the core, for riscv64 and -Os."""
    weights = {part: weigh_sources(out, names, 0) for part, names in WEIGHED.items()}
    for option, bit in OPTIONS.items():
        weights[option] = weigh_sources(out, WEIGHED["core"], bit) - weights["core"]
    weights["all options"] = weigh_sources(out, WEIGHED["core"], ALL_OPTIONS) - weights["core"]
    return weights
