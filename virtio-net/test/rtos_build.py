# SPDX-License-Identifier: BSD-2-Clause
"""Fetches FreeRTOS and lwIP, and compiles the ports that need them.

Both come as crates from crates.io: `freertos-next` carries the FreeRTOS kernel (MIT), `lwip` carries lwIP (BSD-3-Clause). A crate is
fetched once, its SHA-256 is checked, and it is kept in KTSN_VIRTIO_NET_CACHE (~/.cache/ktsn/virtio-net). Nothing of it is in this
repository. The objects of both are compiled without warnings' being errors; the driver and its ports are held to -Werror.
"""

import concurrent.futures
import hashlib
import os
import pathlib
import shutil
import tarfile
import tempfile
import urllib.request

import build

CRATES = {
    "freertos-next-0.12.0": "b7824fb42660c16e1b3b573eef99c2fe5c5cba6294a631c309084635f6bfcbb0",
    "lwip-0.4.0": "91a6b1dcb50bc8c8c032b7fefb5176aad2ce3eaed5b8307aace0b8d1e348184e",
}
FETCH_SECONDS = 120
PORTS = build.ROOT / "ports"
GUEST = PORTS / "freertos" / "guest"
RTEMS = PORTS / "rtems"
COMPILERS = {
    "riscv64": ["riscv64-unknown-elf-gcc", "-march=rv64imac_zicsr", "-mabi=lp64", "-mcmodel=medany", "-O2"],
    "i386": build.GUESTS["i386"],
}
KERNEL = ["tasks.c", "list.c", "queue.c", "portable/MemMang/heap_4.c"]
KERNEL_PORTS = {
    "riscv64": ("portable/GCC/RISC-V", "portable/GCC/RISC-V/chip_specific_extensions/RISCV_MTIME_CLINT_no_extensions"),
    "i386": ("portable/GCC/IA32_flat",),
}
LWIP = ["core/*.c", "core/ipv4/*.c", "api/api_lib.c", "api/api_msg.c", "api/netbuf.c", "api/tcpip.c", "netif/ethernet.c"]
PORT_SOURCES = [PORTS / "freertos" / "vnet_freertos.c", PORTS / "lwip" / "vnet_netif.c"]
COMMON = sorted((PORTS / "guest").glob("*.c"))
GUEST_SOURCES = [*COMMON, GUEST / "main.c", GUEST / "string.c"]
MACHINE_SOURCES = {
    "riscv64": [GUEST / "riscv64.c", build.BARE / "riscv64.c", build.BARE / "riscv64_start.S"],
    "i386": [GUEST / "i386.c", GUEST / "i386_entry.S", build.BARE / "i386.c", build.BARE / "i386_start.S"],
}


def cache():
    named = os.environ.get("KTSN_VIRTIO_NET_CACHE")
    return pathlib.Path(named) if named else pathlib.Path.home() / ".cache" / "ktsn" / "virtio-net"


def download(crate):
    """The octets of a crate whose digest is right."""
    name, _, _ = crate.rpartition("-")
    address = f"https://static.crates.io/crates/{name}/{crate}.crate"
    try:
        with urllib.request.urlopen(address, timeout=FETCH_SECONDS) as answer:
            octets = answer.read()
    except OSError as error:
        raise RuntimeError(f"{address} cannot be fetched: {error}; put the file into {cache()}") from None
    return octets


def source(crate):
    """The directory with a crate's files; fetches the crate if it is not there."""
    directory = cache() / crate
    if directory.is_dir():
        return directory
    cache().mkdir(parents=True, exist_ok=True)
    archive = cache() / f"{crate}.crate"
    octets = archive.read_bytes() if archive.exists() else download(crate)
    if (found := hashlib.sha256(octets).hexdigest()) != CRATES[crate]:
        raise RuntimeError(f"{crate}.crate has the SHA-256 {found}, expected {CRATES[crate]}: delete {archive}")
    # Unpacked beside its place: a directory of this name is always whole.
    work = pathlib.Path(tempfile.mkdtemp(dir=cache()))
    try:
        (work / "crate").write_bytes(octets)
        with tarfile.open(work / "crate") as packed:
            packed.extractall(work, filter="data") if hasattr(tarfile, "data_filter") else packed.extractall(work)
        if not directory.is_dir():
            (work / crate).rename(directory)
    finally:
        shutil.rmtree(work)
    return directory


def kernel():
    return source("freertos-next-0.12.0") / "FreeRTOS-Kernel"


def lwip():
    return source("lwip-0.4.0")


def lwip_sources():
    return sorted(path for pattern in LWIP for path in (lwip() / "src").glob(pattern))


def includes(machine):
    """Headers of ours by -I, of others by -isystem: those may have warnings."""
    ours = [GUEST, PORTS / "guest", GUEST / "include", PORTS / "freertos", PORTS / "lwip", build.BARE]
    return flags(ours, [*kernel_headers(machine), lwip() / "src" / "include", lwip() / "contrib" / "ports" / "freertos" / "include"])


def rtems_includes():
    """The same for the port for RTEMS and its guest."""
    ours = [RTEMS / "stub", RTEMS, RTEMS / "guest", PORTS / "guest", PORTS / "lwip", build.BARE, GUEST / "include"]
    return ["-D__rtems__", *flags(ours, [lwip() / "src" / "include"])]


def kernel_headers(machine):
    return [kernel() / "include", *(kernel() / part for part in KERNEL_PORTS[machine])]


def flags(ours, others):
    return [*build.INCLUDE, *(f"-I{path}" for path in ours), *(part for path in others for part in ("-isystem", path))]


def kernel_sources(machine):
    port = kernel() / KERNEL_PORTS[machine][0]
    return [*(kernel() / name for name in KERNEL), port / "port.c", port / "portASM.S"]


def third_party(machine, out, sources, options):
    """Compiles sources of others, and returns the objects."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    names = [out / f"{index}-{path.name}.o" for index, path in enumerate(sources)]
    commands = [[*COMPILERS[machine], "-std=gnu11", "-w", "-ffreestanding", "-ffunction-sections", "-D__riscv_float_abi_soft",
                 *options, "-c", path, "-o", name] for path, name in zip(sources, names)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build.run, commands))
    return names


def libgcc(machine):
    """The compiler's own library, where the guest needs it. gcc finds the one without floating point only by an architecture without
    `_zicsr`."""
    if machine != "riscv64":
        return []
    return [build.run([*(flag.replace("_zicsr", "") for flag in COMPILERS[machine]), "-print-libgcc-file-name"]).strip()]


def link(machine, program, options, sources):
    build.run([*COMPILERS[machine], *build.WARNINGS, "-ffreestanding", "-nostdlib", "-static", "-Wl,--gc-sections", *options, *sources,
               *libgcc(machine), "-T", build.BARE / f"{machine}.ld", "-o", program])
    return program


def guest(machine, out):
    """The FreeRTOS guest with lwIP."""
    options = includes(machine)
    others = [*kernel_sources(machine), *lwip_sources(), lwip() / "contrib" / "ports" / "freertos" / "sys_arch.c"]
    return link(machine, out / f"freertos-{machine}.elf", options,
                [*build.DRIVER, *PORT_SOURCES, *GUEST_SOURCES, *MACHINE_SOURCES[machine], build.BARE / "pci.c",
                 *third_party(machine, out / f"freertos-{machine}", others, options)])


def rtems_sources(machine):
    """The port for RTEMS and its guest."""
    bsp = {"riscv64": [RTEMS / "riscv_virt.c"], "i386": [RTEMS / "pc386.c", build.BARE / "pci.c"]}[machine]
    return [*build.DRIVER, RTEMS / "vnet_rtems.c", *bsp, RTEMS / "guest" / "sys_arch.c", RTEMS / "guest" / "init.c", *COMMON,
            PORTS / "lwip" / "vnet_netif.c"]


def rtems_objects(machine, out):
    """The port for RTEMS, compiled against the stubs of ports/rtems/stub; there is nothing to link it with."""
    for source in rtems_sources(machine):
        build.run([*COMPILERS[machine], *build.WARNINGS, "-ffreestanding", *rtems_includes(), "-c", source, "-o", out / "rtems.o"])


def rtems_guest(out):
    """The port for RTEMS and its guest on riscv64, over RTEMS' calls made of FreeRTOS."""
    machine, headers = "riscv64", flags([GUEST], kernel_headers("riscv64"))
    objects = [*third_party(machine, out / "rtems-kernel", kernel_sources(machine), [*headers, f"-I{GUEST / 'include'}"]),
               *third_party(machine, out / "rtems-lwip", lwip_sources(), rtems_includes())]
    return link(machine, out / "rtems-riscv64.elf", [*rtems_includes(), *headers],
                [*rtems_sources(machine), build.HERE / "rtems_shim.c", GUEST / "string.c", *MACHINE_SOURCES[machine][1:],
                 build.BARE / "pci.c", *objects])


def rtems_program(prefix, architecture, bsp, out):
    """The guest for an installed RTEMS 6: `prefix` has the compiler and the BSP (docs/guide/rtems.md)."""
    package, name = f"{architecture}-rtems6-{bsp}", f"{architecture}-rtems6"
    environment = {**os.environ, "PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig"}
    compile_flags, link_flags = (build.run(["pkg-config", option, package], environment).split() for option in ("--cflags", "--libs"))
    compiler = [f"{prefix}/bin/{name}-gcc", *compile_flags, "-std=gnu11", "-O2", "-ffunction-sections"]
    headers = flags([RTEMS, RTEMS / "guest", PORTS / "guest", PORTS / "lwip", build.BARE], [lwip() / "src" / "include"])
    work = out / package
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    own = rtems_sources("riscv64" if architecture == "riscv" else architecture)
    warnings = {**{source: ["-Wall", "-Wextra"] for source in own}, **{source: ["-w"] for source in lwip_sources()}}
    objects = []
    for index, (source, options) in enumerate(warnings.items()):
        objects.append(work / f"{index}-{source.name}.o")
        build.run([*compiler, *options, *headers, "-c", source, "-o", objects[-1]])
    program = out / f"{package}.exe"
    build.run([compiler[0], *objects, *link_flags, "-qrtems", "-Wl,--gc-sections", "-o", program])
    return program
