// SPDX-License-Identifier: Apache-2.0
//! A shell script that makes the network device, starts QEMU, pins its threads, and removes all of it again.

use super::text::{cpu_list, printable, qemu, shell};
use super::{Accelerator, Backend, Clock, Datapath, Pages, Placement, Request, notes};

/// The first descriptor of a macvtap device.
const FIRST_FD: u32 = 3;
/// Octets of a clock's page, and of its exchange area.
const CLOCK_AREA: u32 = 64 << 10;

/// A script in parts.
#[derive(Default)]
struct Script(String);

impl Script {
    fn line(&mut self, line: impl AsRef<str>) {
        self.0.push_str(line.as_ref());
        self.0.push('\n');
    }

    fn comments(&mut self, lines: &[String]) {
        self.line("#");
        for line in lines {
            self.line(format!("# {}", printable(line)));
        }
    }

    /// One or more of QEMU's arguments, with the reason.
    fn arguments(&mut self, why: &str, arguments: &[&str]) {
        if !why.is_empty() {
            self.line(format!("    # {why}"));
        }
        let words: Vec<String> = arguments.iter().map(|word| shell(word)).collect();
        self.line(format!("    set -- \"$@\" {}", words.join(" ")));
    }
}

/// The script.
pub(super) fn script(request: &Request) -> String {
    let mut script = Script::default();
    script.line("#!/bin/sh");
    for line in notes::head(request) {
        script.line(format!("# {}", printable(&line)));
    }
    script.comments(&[
        "Usage, as root: sh FILE start | stop | pin (again, after the guest has started)".to_owned()
    ]);
    script.comments(&notes::host(request));
    script.comments(&notes::guest(request));
    script.line("set -eu");
    script.line(format!("run=${{KTSN_VM_RUN:-/run/ktsn-vm}}/{}", shell(&request.name)));
    network(&mut script, request);
    start(&mut script, request);
    pin(&mut script, request);
    script.line(END);
    script.0
}

const END: &str = r#"
# True if the process in QEMU's file is this QEMU, not a later process with its number.
runs() {
    pid=$(cat "$run/qemu.pid" 2>/dev/null) && tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qxF "$run/qemu.pid"
}

# Ends QEMU, and removes the network device.
stop() {
    [ -d "$run" ] || { echo "$run: there is no such guest" >&2; return 1; }
    if runs; then
        kill "$pid"
        while runs; do sleep 0.1; done
    fi
    network_down
    rm -rf "$run"
}

case ${1:-} in
start) start ;;
stop) stop ;;
pin) pin ;;
*) echo "usage: $0 start | stop | pin" >&2; exit 2 ;;
esac"#;

/// Commands that make the device and remove it; the first one makes it, or fails without a trace.
fn commands(request: &Request) -> (Vec<String>, Vec<String>) {
    let tap = shell(&request.tap);
    let bridge = shell(&request.bridge);
    let make = format!("ip tuntap add dev {tap} mode tap multi_queue");
    let attach = format!("ip link set dev {tap} master {bridge} up");
    let remove = vec![format!("ip link del dev {tap}")];
    match request.datapath {
        Datapath::TapBridge => (vec![make, attach], remove),
        // XDP takes no frame whose checksum or segments are left to the device.
        Datapath::TapXdp => {
            (vec![make, format!("ethtool -K {tap} tx off tso off gso off gro off"), attach], remove)
        }
        Datapath::TapOvs => (
            vec![make, format!("ip link set dev {tap} up"), format!("ovs-vsctl add-port {bridge} {tap}")],
            vec![format!("ovs-vsctl --if-exists del-port {bridge} {tap}"), format!("ip link del dev {tap}")],
        ),
        Datapath::Macvtap => {
            let (device, mac) = (shell(request.device.as_deref().unwrap_or_default()), request.mac());
            let make = format!("ip link add link {device} name {tap} address {mac} type macvtap mode bridge");
            (vec![make, format!("ip link set dev {tap} up")], remove)
        }
        Datapath::OvsAfxdp | Datapath::OvsDpdk => {
            let socket = shell(&request.socket());
            (vec![format!("mkdir -p \"$(dirname {socket})\"")], vec![format!("rm -f {socket}")])
        }
        Datapath::Vfio => (Vec::new(), Vec::new()),
    }
}

fn network(script: &mut Script, request: &Request) {
    let (up, down) = commands(request);
    script.line("\nnetwork_up() {");
    for (at, command) in up.iter().enumerate() {
        let otherwise = if at == 0 { "return 1" } else { "{ network_down; return 1; }" };
        script.line(format!("    {command} || {otherwise}"));
    }
    if up.is_empty() {
        script.line("    : # the device is bound to vfio-pci");
    }
    script.line("}\n\nnetwork_down() {");
    down.iter().for_each(|command| script.line(format!("    {command} 2>/dev/null || true")));
    if down.is_empty() {
        script.line("    :");
    }
    script.line("}");
}

fn start(script: &mut Script, request: &Request) {
    script.line("\nstart() {");
    script.line("    mkdir -p \"$(dirname \"$run\")\"");
    script.line(
        "    mkdir -m 700 \"$run\" || { echo \"$run: the guest runs, or was not stopped: $0 stop\" >&2; exit 1; }",
    );
    script.line("    network_up || { rm -rf \"$run\"; exit 1; }");
    script.line("    set -- qemu-system-x86_64 -nodefaults -no-user-config -display none");
    script.arguments(
        "Threads have names: vCPU n is `CPU n/KVM` (or `CPU n/TCG`).",
        &["-name", &format!("guest={},debug-threads=on", qemu(&request.name))],
    );
    if request.accelerator == Accelerator::Kvm {
        let machine = "q35,hpet=off,vmport=off,mem-merge=off,dump-guest-core=off,memory-backend=ram";
        script.arguments("", &["-machine", machine, "-accel", "kvm"]);
        script.arguments(
            "The host's own counter, which never stops; no performance counters, because their interrupts cost time.",
            &["-cpu", "host,migratable=no,+invtsc,pmu=off"],
        );
    } else {
        script.arguments(
            "",
            &["-machine", "q35,hpet=off,vmport=off,memory-backend=ram", "-accel", "tcg,thread=multi"],
        );
        script.arguments("", &["-cpu", "max"]);
    }
    let cpus = format!("{0},sockets=1,cores={0},threads=1", request.cpus());
    script.arguments("", &["-smp", &cpus, "-rtc", "base=utc,clock=host"]);
    memory(script, request);
    device(script, request);
    for (why, arguments) in clock_arguments(request) {
        script.arguments(why, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    }
    if let Some(disk) = &request.disk {
        let drive = format!(
            "file={},if=none,id=root,format={},cache=none,discard=unmap",
            qemu(disk),
            request.disk_format.name()
        );
        script.arguments(
            "The disk has a thread of its own, so that it delays no frame.",
            &[
                "-object",
                "iothread,id=io",
                "-drive",
                &drive,
                "-device",
                "virtio-blk-pci,drive=root,iothread=io",
            ],
        );
    }
    script.line("    # Console and monitor are sockets in the run directory.");
    script.line("    set -- \"$@\" -chardev \"socket,id=console,path=$run/console.sock,server=on,wait=off\" -serial chardev:console");
    script.line("    set -- \"$@\" -qmp \"unix:$run/qmp.sock,server=on,wait=off\"");
    script.line("    set -- \"$@\" -device virtio-rng-pci -pidfile \"$run/qemu.pid\" -daemonize");
    let prefix = request.placement.as_ref().map_or(String::new(), |placement| {
        script.line("    # Every thread begins on the CPUs of QEMU's own threads; `pin` moves the vCPUs.");
        format!("taskset -c {} ", cpu_list(&placement.emulator))
    });
    if request.datapath == Datapath::Macvtap {
        let count = request.queues();
        script.line("    # Each queue pair is one opening of the macvtap device.");
        script.line(format!("    tap=/dev/tap$(cat /sys/class/net/{}/ifindex)", shell(&request.tap)));
        let opened: Vec<String> = (0..count).map(|queue| format!("{}<>\"$tap\"", FIRST_FD + queue)).collect();
        script.line(format!("    {prefix}\"$@\" {} || {{ stop; exit 1; }}", opened.join(" ")));
    } else {
        script.line(format!("    {prefix}\"$@\" || {{ stop; exit 1; }}"));
    }
    script.line("    pin || { stop; exit 1; }");
    script.line("}");
}

/// The devices of the clock's page and of its exchange area.
pub(super) fn clock_arguments(request: &Request) -> Vec<(&'static str, [String; 4])> {
    let Clock::Page(file) = &request.clock else { return Vec::new() };
    let area = |id: &str, file: &str, rights: &str| {
        let object =
            format!("memory-backend-file,id={id},mem-path={},size={CLOCK_AREA},share=on{rights}", qemu(file));
        ["-object".to_owned(), object, "-device".to_owned(), format!("ivshmem-plain,memdev={id},master=on")]
    };
    vec![
        ("The host's time: this guest can only read it.", area("clock-page", file, ",readonly=on")),
        (
            "Where this guest asks the host for its counter; it is this guest's own.",
            area("clock-exchange", &notes::exchange(file), ""),
        ),
    ]
}

fn memory(script: &mut Script, request: &Request) {
    let size = request.memory_mib;
    let pages = match request.pages {
        Pages::Huge1G => ",hugetlb=on,hugetlbsize=1G",
        Pages::Huge2M => ",hugetlb=on,hugetlbsize=2M",
        Pages::None => "",
    };
    let why = if request.backend() == Backend::VhostUser {
        "Shared: Open vSwitch reads and writes frames in this memory. All of it is there from the start."
    } else {
        "All of it is there from the start: no page fault later."
    };
    let object = format!("memory-backend-memfd,id=ram,size={size}M,share=on,prealloc=on{pages}");
    script.arguments(why, &["-m", &format!("{size}M"), "-object", &object]);
    if request.accelerator == Accelerator::Kvm && request.placement.is_some() {
        script.arguments(
            "No page is swapped out. Idle vCPUs stay in the guest (the host shows 100 %), so that they wake at once.",
            &["-overcommit", "mem-lock=on,cpu-pm=on"],
        );
    } else {
        script.arguments("No page is swapped out.", &["-overcommit", "mem-lock=on"]);
    }
}

fn device(script: &mut Script, request: &Request) {
    let queues = request.queues();
    let netdev = match request.backend() {
        Backend::Device => {
            let address = request.device.clone().unwrap_or_default();
            return script.arguments("", &["-device", &format!("vfio-pci,host={}", qemu(&address))]);
        }
        Backend::Tap => format!(
            "tap,id=net,ifname={},script=no,downscript=no,vhost={},queues={queues}",
            qemu(&request.tap),
            vhost(request)
        ),
        Backend::Macvtap => {
            let fds: Vec<String> = (0..queues).map(|queue| (FIRST_FD + queue).to_string()).collect();
            format!("tap,id=net,fds={},vhost={}", fds.join(":"), vhost(request))
        }
        Backend::VhostUser => {
            let chardev = format!("socket,id=vhost,path={},server=on", qemu(&request.socket()));
            script.arguments(
                "Open vSwitch connects to this socket; QEMU starts the guest then.",
                &["-chardev", &chardev],
            );
            format!("vhost-user,id=net,chardev=vhost,queues={queues}")
        }
    };
    let why = match (request.backend(), request.accelerator) {
        (Backend::VhostUser, _) => "",
        (_, Accelerator::Kvm) => "vhost: the kernel moves the frames, one thread for each queue pair.",
        (_, Accelerator::Tcg) => "No vhost: QEMU moves the frames.",
    };
    script.arguments(why, &["-netdev", &netdev]);
    let mut device = format!("virtio-net-pci,netdev=net,mac={},mq=on,romfile=", request.mac());
    let mut why = "One interrupt for each direction of each queue.".to_owned();
    if request.accelerator == Accelerator::Tcg && request.backend() == Backend::VhostUser {
        device.push_str(",vectors=0");
        "No message-signalled interrupts: QEMU 7.2 ends by a fault with them, with vhost-user under TCG."
            .clone_into(&mut why);
    } else {
        device.push_str(&format!(",vectors={}", request.vectors()));
    }
    if request.datapath.loses_offloads() {
        device.push_str(
            ",csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ufo=off,guest_ecn=off",
        );
        why.push_str(" No offloads: XDP would lose the frames that use them.");
    }
    script.arguments(&why, &["-device", &device]);
}

const fn vhost(request: &Request) -> &'static str {
    match request.accelerator {
        Accelerator::Kvm => "on",
        Accelerator::Tcg => "off",
    }
}

fn pin(script: &mut Script, request: &Request) {
    script.line("\n# place TASK CPUS PRIORITY: moves a thread; a priority of 0 leaves it an ordinary one.");
    script.line("place() {");
    script.line("    taskset -cp \"$2\" \"$1\" >/dev/null || return 1");
    script.line("    [ \"$3\" -eq 0 ] || chrt --fifo -p \"$3\" \"$1\"");
    script.line("}\n");
    let Some(Placement { vcpus, emulator, priority }) = &request.placement else {
        script.line("# No CPU was given: the threads stay where the scheduler puts them.");
        return script.line("pin() { :; }");
    };
    let priority = priority.unwrap_or(0);
    script.line("pin() {");
    script.line("    runs || { echo \"$run: the guest does not run\" >&2; return 1; }");
    script.line("    for task in /proc/\"$pid\"/task/*; do");
    script.line("        case $(cat \"$task/comm\") in");
    for (vcpu, cpu) in vcpus.iter().enumerate() {
        script.line(format!(
            "        \"CPU {vcpu}/\"*) place \"${{task##*/}}\" {cpu} {priority} || return 1 ;;"
        ));
    }
    script.line("        esac");
    script.line("    done");
    if matches!(request.backend(), Backend::Tap | Backend::Macvtap) {
        let cpus = cpu_list(emulator);
        script.line(
            "    # vhost's threads are QEMU's own since Linux 6.4; before, they are threads of the kernel.",
        );
        script.line("    for comm in /proc/[0-9]*/comm /proc/\"$pid\"/task/*/comm; do");
        script.line("        [ \"$(cat \"$comm\" 2>/dev/null)\" = \"vhost-$pid\" ] || continue");
        script.line("        task=${comm%/comm}");
        script.line(format!("        place \"${{task##*/}}\" {cpus} {priority} || return 1"));
        script.line("    done");
    }
    script.line("}");
}
