# SPDX-License-Identifier: BSD-2-Clause
"""The checks of the ports for FreeRTOS, lwIP and RTEMS; run.py runs them."""

import statistics

import peer
import rtos_build
import rtos_peer
import testpmd

ECHOES, WINDOW = 20_000, 8
STREAM = 8 << 20
BENCH_STREAM, ROUND_TRIPS = 32 << 20, 10_000
COMBINATIONS = [("riscv64", transport) for transport in peer.TRANSPORTS] + [("i386", "pci legacy"), ("i386", "pci modern")]
PLACES = {"riscv64": "mmio 2", "i386": "pci legacy"}
# An installed RTEMS: machine, architecture, BSP, transports.
RTEMS = [("rtems-riscv64", "riscv", "rv64imac", ("mmio 1", "mmio 2")), ("rtems-i386", "i386", "pc686", ("pci legacy", "pci modern"))]
# Settings of a guest, and whether lwIP gets copies: it may hold no buffer of the driver.
STREAMS = {"8 posted": ("", False), "1 posted, 16 KiB": ("rx_min=1,rx_max=1,held_max=0,tcp_octets=16384,tx_max=2", True),
           "255 posted, 128 KiB": ("rx_min=255,rx_max=255,tcp_octets=131072", False)}
FOR_SWITCH = "rx_min=32,rx_max=64"  # testpmd drops what finds no buffer posted (run.py)
MEMORY, SETTINGS, NO_DEVICE = 2, 5, 1
MTU = 1300


def place(machine):
    return PLACES[machine.removeprefix("rtems-")]


def check_echo(run, machine, transport, program, system="freertos"):
    """Frames that the bottom half echoes, and frames that another task echoes."""
    with rtos_peer.Guest(machine, transport, program) as guest:
        before = guest.figures()
        for operation, count, octets in ((b"E", ECHOES, 60), (b"E", 2000, 1514), (b"T", 2000, 60)):
            if (back := guest.echo(count, WINDOW, octets, operation)) != count:
                return f"{back} of {count} frames of {octets} octets came back ({operation}): {guest.said_so_far()}"
        after = guest.figures()
        run.figures[f"{system} {machine} {transport}"] = after
        if after["rx_posted_peak"] != 8 or after["restarts"] or after["rx_frames"] - before["rx_frames"] != ECHOES + 4001:
            return f"unexpected figures: {after}"
        return None if guest.quit() else "the guest did not end well"


def check_protocols(machine, program):
    """ARP, and ICMP echo with the longest and odd lengths."""
    with rtos_peer.Guest(machine, place(machine), program) as guest:
        if guest.ask_address() != guest.mac:
            return "ARP answered with another MAC address"
        for number, octets in enumerate((56, 1472, 1, 333) * 20):  # more than the guest has buffers
            if not guest.ping(number, octets):
                return f"the answer to a ping of {octets} octets is broken"
        return None if guest.quit() else "the guest did not end well"


def check_mtu(machine, program):
    """A device with an MTU: lwIP has it, so TCP announces no longer segments, and a long answer comes in fragments."""
    with rtos_peer.Guest(machine, place(machine), program, device=f",host_mtu={MTU}") as guest:
        if (segment := guest.ask_segment()) != MTU - 40:
            return f"TCP announces segments of {segment} octets, expected {MTU - 40}"
        if not guest.ping(1, MTU - 28):
            return f"a ping of {MTU} octets is not answered"
        guest.ping(2, 1472)  # the first fragment of the answer, or all of it
        if guest.longest != MTU + 14:
            return f"a frame of {guest.longest} octets, expected {MTU + 14} at most"
        return None if guest.quit() else "the guest did not end well"


def check_tcp(run, machine, program, settings, is_copied):
    """Eight MiB in each direction, with the content checked at both ends, and round trips."""
    with rtos_peer.Guest(machine, place(machine), program, settings, user=True) as guest:
        sent = guest.fill(STREAM)
        if sent["octets"] != STREAM or sent["wrong"]:
            return f"the guest did not get what was sent: {sent}"
        octets, said = guest.drain(STREAM)
        if octets != rtos_peer.content(STREAM):
            return f"{len(octets)} octets came, or with another content: {said}"
        for size in (1, rtos_peer.MESSAGE):
            guest.ping_pong(1000, size)
        if (count := guest.echo_datagrams(500, 1000)) != 500:
            return f"{count} of 500 datagrams came back"
        run.figures[f"freertos tcp {machine} {settings}"] = {"sink": sent, "source": said}
        if (sent["held_peak"] == 0) != is_copied or (is_copied and not sent["rx_copied"]) or sent["restarts"] or sent["rx_posted_peak"] != guest.ready["rx_max"]:
            return f"unexpected figures: {sent}"
        return None


def check_switch(run, machine, program):
    """Behind vhost-user and DPDK's testpmd: echoes, round trips, and TCP streams with their content checked."""
    found = testpmd.in_namespace("freertos", machine, place(machine), program, FOR_SWITCH, ECHOES)
    run.figures[f"freertos switch {machine}"] = found
    sink = found["sink"]
    if found["echoes"] != [ECHOES, ECHOES // 10] or sink["octets"] != 100 * ECHOES or sink["wrong"] or not found["is_same"]:
        return f"lost or changed: {found}"
    return None if found["is_content"] and sink["restarts"] == 0 else f"the guest did not end well: {found}"


def check_link(machine, program):
    """The link goes down and up again under traffic."""
    with rtos_peer.Guest(machine, place(machine), program) as guest:
        guest.said("link")
        for is_up in (False, True):
            guest.command({"execute": "set_link", "arguments": {"name": "n", "up": is_up}})
            if (line := guest.said("link"))["is_up"] != is_up:
                return f"the guest says {line}"
        if guest.echo(1000, WINDOW) != 1000 or not guest.ping(1, 56):
            return "no traffic after the link came back"
        return None if guest.quit() else "the guest did not end well"


def check_refusals(program):
    """What cannot be ends the guest with a status and a reason."""
    for transport, settings, status, text in (
            (None, "", NO_DEVICE, "no network device"), ("mmio 2", "rx_min=9,rx_max=8", MEMORY, '"failed","value":1}'),
            ("mmio 2", "rx_min=1,rx_max=1000", MEMORY, '"failed","value":2}'), ("mmio 2", "rx=1", SETTINGS, "unknown"),
            ("mmio 2", "rx_max=many", SETTINGS, "no number"), ("mmio 2", "rx_max=8;check=1", SETTINGS, "no number"),
            ("mmio 2", "tcp_octets=99999999999", SETTINGS, "no number"), ("mmio 2", "tx_max=65544", SETTINGS, "out of range")):
        found, said = rtos_peer.fail("riscv64", transport, program, settings)
        if found != status or text not in said:
            return f"settings {settings!r}: status {found}, expected {status}; the guest said {said!r}"
    return None


class Programs:
    """The guests, each built once, by the first check that needs it."""

    def __init__(self, out):
        self.out, self.built = out, {}

    def find(self, machine):
        if machine not in self.built:
            self.built[machine] = None
            self.built[machine] = rtos_build.rtems_guest(self.out) if machine == "rtems" else rtos_build.guest(machine, self.out)
        if self.built[machine] is None:
            raise RuntimeError(f"the guest for {machine} was not built")
        return self.built[machine]


def tests(run):
    program = Programs(run.out).find
    for machine in PLACES:
        run.check(f"build/freertos/{machine}", lambda machine=machine: program(machine) and None)
    for machine, transport in COMBINATIONS:
        run.check(f"freertos/echo/{machine}/{transport}", lambda machine=machine, transport=transport:
                  check_echo(run, machine, transport, program(machine)))
    for machine in PLACES:
        run.check(f"freertos/protocols/{machine}", lambda machine=machine: check_protocols(machine, program(machine)))
        run.check(f"freertos/mtu/{machine}", lambda machine=machine: check_mtu(machine, program(machine)))
        run.check(f"freertos/link/{machine}", lambda machine=machine: check_link(machine, program(machine)))
        for name, (settings, is_copied) in STREAMS.items():
            run.check(f"freertos/tcp/{machine}/{name}", lambda machine=machine, settings=settings, is_copied=is_copied:
                      check_tcp(run, machine, program(machine), settings, is_copied))
        run.check(f"freertos/switch/{machine}", lambda machine=machine: check_switch(run, machine, program(machine)))
    run.check("freertos/refusals", lambda: check_refusals(program("riscv64")))
    for machine in PLACES:
        run.check(f"build/rtems/{machine}", lambda machine=machine: rtos_build.rtems_objects(machine, run.out))
    # The port for RTEMS over a shim: its logic, not its fit to RTEMS.
    run.check("build/rtems-shim", lambda: program("rtems") and None)
    for transport in ("mmio 1", "mmio 2"):
        run.check(f"rtems-shim/echo/{transport}", lambda transport=transport:
                  check_echo(run, "riscv64", transport, program("rtems"), "rtems-shim"))
    run.check("rtems-shim/protocols", lambda: check_protocols("riscv64", program("rtems")))
    run.check("rtems-shim/tcp", lambda: check_tcp(run, "riscv64", program("rtems"), "", False))


def measure_tcp(run, machine, program, settings):
    """TCP in both directions without a look at the content, and round trips; nothing is judged."""
    with rtos_peer.Guest(machine, place(machine), program, f"check=0,{settings}", user=True) as guest:
        guest.fill(BENCH_STREAM // 4, bytes(BENCH_STREAM // 4))  # QEMU translates the guest's code now
        sink, source = guest.fill(BENCH_STREAM, bytes(BENCH_STREAM)), guest.drain(BENCH_STREAM)[1]
        rates = [said["octets"] * 8e3 / said["nanoseconds"] for said in (sink, source)]
        trips = {size: sorted(guest.ping_pong(ROUND_TRIPS, size)) for size in (1, rtos_peer.MESSAGE)}
    text = ", ".join(f"{size} octets {statistics.median(times) * 1e6:.0f} (99 %: {times[-len(times) // 100] * 1e6:.0f})"
                     for size, times in trips.items())
    print(f"   freertos {machine} {settings}: receives {rates[0]:.0f}, sends {rates[1]:.0f} Mbit/s with {sink['interrupts_here']} and"
          f" {source['interrupts_here']} interrupts, {sink['rx_posted_peak_octets']} octets posted; round trips of {text} µs", flush=True)
    run.figures[f"freertos tcp {machine} {settings}"] = {"sink": sink, "source": source, "round_trips_s": {
        size: {"min": times[0], "p50": statistics.median(times), "p99": times[-len(times) // 100], "max": times[-1]}
        for size, times in trips.items()}}


def bench(run, measure, boot_max, interrupts_max):
    """First frame and interrupts for each frame under FreeRTOS, and TCP. The bar for the first frame is riscv64's."""
    program = Programs(run.out).find
    for machine, transport in COMBINATIONS:
        boot, rate = measure(run, machine, transport, program(machine), f"freertos {machine} {transport}", rtos_peer.Guest)
        if machine == "riscv64":
            run.add(f"boot/freertos/{transport}", None if boot <= boot_max else f"{boot * 1e3:.0f} ms, at most {boot_max * 1e3:.0f}")
        run.add(f"interrupts/freertos/{machine}/{transport}", None if rate <= interrupts_max else f"{rate:.3f}, at most {interrupts_max}")
    for machine in PLACES:
        for posted in (1, 8, 255):
            measure_tcp(run, machine, program(machine), f"rx_min={posted},rx_max={posted},tcp_octets=131072")


def rtems(run, prefix):
    """The guest under an RTEMS that is installed in `prefix`, on both machines."""
    programs = {}
    for machine, architecture, bsp, transports in RTEMS:
        def built(machine=machine, architecture=architecture, bsp=bsp):
            programs[machine] = rtos_build.rtems_program(prefix, architecture, bsp, run.out)
        run.check(f"build/{machine}", built)
        if machine not in programs:
            continue
        program = programs[machine]
        for transport in transports:
            run.check(f"{machine}/echo/{transport}", lambda machine=machine, transport=transport, program=program:
                      check_echo(run, machine, transport, program, "rtems"))
        run.check(f"{machine}/protocols", lambda machine=machine, program=program: check_protocols(machine, program))
        run.check(f"{machine}/link", lambda machine=machine, program=program: check_link(machine, program))
        run.check(f"{machine}/tcp", lambda machine=machine, program=program: check_tcp(run, machine, program, "", False))
