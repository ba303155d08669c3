// SPDX-License-Identifier: Apache-2.0
//! Judgements of recorded facts, and the reading of a recorded file tree.

use super::facts::{Device, Guest, Processes, Thread, Ticks, cpu_list};
use super::*;
use crate::doctor::finding::State;

/// What a guest of QEMU under KVM showed: four vCPUs, a virtio-net device with four queue pairs, ptp_kvm.
fn good_guest() -> Facts {
    Facts {
        hypervisor_flag: Some(true),
        dmi: Some("QEMU Standard PC (Q35 + ICH9, 2009)".to_owned()),
        cpus: vec![0, 1, 2, 3],
        isolated: vec![3],
        clock_source: Some("tsc".to_owned()),
        clock_sources: ["tsc", "kvm-clock", "acpi_pm"].map(str::to_owned).into(),
        phcs: vec!["KVM virtual PTP".to_owned()],
        ticks: Some((Ticks { all: 40_000, stolen: 3 }, Ticks { all: 40_120, stolen: 3 })),
        devices: vec![device(4, Some(4))],
        with_xdp: Some(Vec::new()),
        qdiscs: ["etf", "taprio", "mqprio"].map(|kind| (kind.to_owned(), Ok(true))).into(),
        ..Facts::default()
    }
}

fn device(queues: usize, queues_max: Option<u32>) -> Device {
    Device { name: "eth0".to_owned(), driver: "virtio_net".to_owned(), queues, queues_max }
}

fn thread(name: &str, priority: u32, cpus: &[u32]) -> Thread {
    Thread { name: name.to_owned(), priority, cpus: cpus.to_vec() }
}

/// QEMU as `ktsn vm config` starts it.
fn good_qemu() -> Guest {
    let arguments = "qemu-system-x86_64 -name guest=plc,debug-threads=on -netdev tap,id=net,ifname=tsn0,vhost=on,queues=2 \
                     -device virtio-net-pci,netdev=net,mq=on,vectors=6,csum=off,gso=off,guest_csum=off";
    Guest {
        pid: 4711,
        program: "qemu-system-x86_64".to_owned(),
        configs: Vec::new(),
        has_kvm_machine: Some(true),
        arguments: Some(arguments.split_whitespace().map(str::to_owned).collect()),
        threads: vec![
            thread("qemu-system-x86", 0, &[0, 1]),
            thread("CPU 0/KVM", 1, &[2]),
            thread("CPU 1/KVM", 1, &[3]),
        ],
        vhost: vec![thread("vhost-4711", 1, &[0, 1]), thread("vhost-4711", 1, &[0, 1])],
        huge_kib: Some(1_048_576),
    }
}

pub(super) fn good_host() -> Facts {
    Facts {
        hypervisor_flag: Some(false),
        dmi: Some("Dell Inc. PowerEdge R650".to_owned()),
        cpus: vec![0, 1, 2, 3],
        isolated: vec![2, 3],
        clock_source: Some("tsc".to_owned()),
        clock_sources: ["tsc", "hpet"].map(str::to_owned).into(),
        with_xdp: Some(vec!["tsn0".to_owned()]),
        huge_pages: Some((1024, 512)),
        has_kvm: true,
        guests: vec![good_qemu()],
        ..Facts::default()
    }
}

pub(super) fn named(findings: &[Finding], name: &str) -> Finding {
    findings
        .iter()
        .find(|finding| finding.name == name)
        .unwrap_or_else(|| panic!("no {name}: {findings:?}"))
        .clone()
}

fn is_all_ok(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.state == State::Ok)
}

#[test]
fn a_good_guest_and_a_good_host_have_nothing_to_mend() {
    let guest = judge(Side::Auto, &good_guest());
    assert!(is_all_ok(&guest) && guest.len() == 7, "{guest:?}");
    assert_eq!(guest[0].value, "guest (flag hypervisor, DMI QEMU Standard PC (Q35 + ICH9, 2009))");
    let host = judge(Side::Auto, &good_host());
    assert!(is_all_ok(&host) && host.len() == 12, "{host:?}");
    assert_eq!(host[0].value, "host (no flag hypervisor, DMI Dell Inc. PowerEdge R650, runs 1 QEMU)");
    assert_eq!(named(&host, "vm_guests").value, "plc (process 4711)");
}

/// What makes good facts bad, the finding, and words of its value and its remedy.
type Lack = (fn(&mut Facts), &'static str, &'static str, &'static str);

fn lacks_of_devices_and_clocks() -> Vec<Lack> {
    vec![
        (|facts| facts.devices = vec![device(1, Some(1))], "vm_queues", "eth0 (virtio_net): 1 of 1", "mq=on"),
        (
            |facts| facts.devices = vec![device(1, Some(4))],
            "vm_queues",
            "1 of 4",
            "ethtool -L eth0 combined 4",
        ),
        (|facts| facts.devices = vec![device(1, None)], "vm_queues", "1 of ?", "mq=on"),
        (
            |facts| (facts.is_user_mode, facts.devices) = (true, vec![device(1, None)]),
            "vm_queues",
            "1 of ?",
            "type veth peer",
        ),
        (
            |facts| {
                facts.is_user_mode = true;
                facts.phcs.clear();
            },
            "vm_clock",
            "User-mode Linux",
            "--clock vptp",
        ),
        (|facts| facts.devices.clear(), "vm_queues", "no device", "ktsn vm config"),
        (|facts| facts.phcs.clear(), "vm_clock", "neither a PTP device", "modprobe ptp_kvm"),
        (
            |facts| (facts.phcs, facts.shared_memories) = (Vec::new(), 2),
            "vm_clock",
            "follower: none",
            "ktsn clock follow",
        ),
        (
            |facts| {
                (facts.phcs, facts.shared_memories) = (Vec::new(), 2);
                facts.follower = Some("hold-over".to_owned());
            },
            "vm_clock",
            "follower: hold-over",
            "ktsn clock publish",
        ),
    ]
}

fn lacks_of_kernels_and_cpus() -> Vec<Lack> {
    vec![
        (|facts| facts.clock_source = Some("hpet".to_owned()), "vm_clock_source", "hpet", "+invtsc"),
        (
            |facts| {
                facts.clock_source = Some("kvm-clock".to_owned());
                facts.clock_sources.retain(|source| source != "tsc");
            },
            "vm_clock_source",
            "kvm-clock (available: kvm-clock acpi_pm)",
            "+invtsc",
        ),
        (|facts| facts.clock_source = None, "vm_clock_source", "unknown", "mount /sys"),
        (|facts| facts.qdiscs[1].1 = Ok(false), "vm_qdiscs", "missing: taprio", "CONFIG_NET_SCH_TAPRIO"),
        (
            |facts| facts.qdiscs[0].1 = Err("EPERM".to_owned()),
            "vm_qdiscs",
            "not known: etf: EPERM",
            "as root",
        ),
        (|facts| facts.isolated.clear(), "vm_isolation", "4 vCPU(s), isolated: none", "isolcpus="),
        (
            |facts| (facts.isolated, facts.cpus) = (Vec::new(), vec![0]),
            "vm_isolation",
            "1 vCPU(s)",
            "two vCPUs or more",
        ),
        (
            |facts| facts.ticks = Some((Ticks { all: 40_000, stolen: 3 }, Ticks { all: 40_120, stolen: 9 })),
            "vm_steal",
            "0.1 % of the time since boot, 5.0 % now",
            "FIFO vCPU threads",
        ),
        // A hypervisor that does not report stolen time shows the same.
        (
            |facts| facts.ticks = Some((Ticks { all: 40_000, stolen: 0 }, Ticks { all: 40_120, stolen: 0 })),
            "vm_steal",
            "0.0 % of the time",
            "at the host",
        ),
    ]
}

/// What the source does not say is not known; it is no lack.
fn expected(value: &str) -> State {
    let unknown =
        ["unknown", "not known: etf: EPERM", "cannot be listed", "does not say", "0.0 % of the time"];
    if unknown.contains(&value) { State::NotKnown } else { State::Warn }
}

/// One fact of a good guest made bad is one finding.
#[test]
fn each_lack_of_a_guest_is_one_finding_with_a_remedy() {
    for (change, name, value, remedy) in [lacks_of_devices_and_clocks(), lacks_of_kernels_and_cpus()].concat()
    {
        let mut facts = good_guest();
        change(&mut facts);
        let findings = judge(Side::Auto, &facts);
        let finding = named(&findings, name);
        assert!(finding.state == expected(value) && finding.value.contains(value), "{finding:?}");
        assert!(finding.remedy.as_deref().unwrap_or_default().contains(remedy), "{finding:?}");
        assert_eq!(findings.iter().filter(|finding| finding.state != State::Ok).count(), 1, "{findings:?}");
    }
}

/// What spoils good facts, and the finding, its words and its remedy.
type Case = (fn(&mut Facts), &'static str, &'static str, &'static str);

fn qemu(facts: &mut Facts) -> &mut Guest {
    &mut facts.guests[0]
}

fn replace(facts: &mut Facts, from: &str, to: &str) {
    let arguments = qemu(facts).arguments.as_mut().unwrap();
    arguments.iter_mut().for_each(|word| *word = word.replace(from, to));
}

#[test]
fn each_lack_of_a_host_and_its_threads_is_one_finding_with_a_remedy() {
    check_host(&[
        (
            |facts| {
                qemu(facts).has_kvm_machine = Some(false);
                qemu(facts).threads[1].name = "CPU 0/TCG".to_owned();
                qemu(facts).threads[2].name = "CPU 1/TCG".to_owned();
            },
            "vm_kvm",
            "interpreted",
            "-accel kvm",
        ),
        (
            |facts| facts.clock_source = Some("hpet".to_owned()),
            "vm_host_clock_source",
            "hpet",
            "clocksource=tsc",
        ),
        (
            |facts| qemu(facts).threads[2].cpus = vec![2, 3],
            "vm_pinning",
            "not on one CPU: CPU 1/KVM",
            "<vcpupin>",
        ),
        (|facts| facts.isolated = vec![2], "vm_host_isolation", "CPU 3 not isolated", "isolcpus="),
        (
            |facts| qemu(facts).threads[1].priority = 0,
            "vm_priority",
            "ordinary threads: CPU 0/KVM",
            "<vcpusched",
        ),
        (
            |facts| qemu(facts).vhost[1].priority = 0,
            "vm_vhost_threads",
            "1 of 2 vhost threads are ordinary",
            "chrt --fifo",
        ),
        (
            |facts| qemu(facts).vhost[0].cpus = vec![1, 2],
            "vm_vhost_threads",
            "on CPU 2, a vCPU's",
            "taskset -cp",
        ),
    ]);
}

#[test]
fn each_lack_of_a_guest_s_devices_and_memory_is_one_finding_with_a_remedy() {
    check_host(&[
        (
            |facts| {
                replace(facts, "vhost=on", "vhost=off");
            },
            "vm_vhost",
            "no vhost (tap)",
            "vhost=on",
        ),
        (|facts| replace(facts, ",mq=on", ""), "vm_host_queues", "1 of 1 network devices", "ktsn vm config"),
        // Two ends of which one has one queue have one.
        (
            |facts| replace(facts, ",queues=2", ""),
            "vm_host_queues",
            "1 of 1 network devices",
            "ktsn vm config",
        ),
        (
            |facts| replace(facts, ",guest_csum=off", ""),
            "vm_offloads",
            "offloads are on, and XDP on tsn0",
            "guest_csum=off",
        ),
        (|facts| facts.with_xdp = None, "vm_offloads", "cannot be listed", "netlink"),
        (
            |facts| qemu(facts).huge_kib = Some(0),
            "vm_hugepages",
            "no huge page (on this host: 512 of 1024 free)",
            "hugetlb=on",
        ),
        (|facts| qemu(facts).huge_kib = None, "vm_hugepages", "does not say", "hugetlb=on"),
    ]);
}

fn check_host(cases: &[Case]) {
    for &(change, name, value, remedy) in cases {
        let mut facts = good_host();
        change(&mut facts);
        let findings = judge(Side::Auto, &facts);
        let finding = named(&findings, name);
        assert!(finding.state == expected(value) && finding.value.contains(value), "{finding:?}");
        assert!(finding.remedy.as_deref().unwrap_or_default().contains(remedy), "{finding:?}");
        let bad: Vec<&str> = findings
            .iter()
            .filter(|finding| finding.state != State::Ok)
            .map(|finding| finding.name)
            .collect();
        // A vCPU that is not pinned is on no isolated CPU of its own; what else is bad would be a mistake.
        assert!(bad == [name] || (name == "vm_pinning" && bad.len() <= 2), "{bad:?}");
    }
}

#[test]
fn threads_without_names_and_cpus_with_two_vcpus_are_not_taken_for_pinned() {
    let mut facts = good_host();
    facts.guests[0].threads.truncate(1);
    for name in ["vm_pinning", "vm_priority", "vm_host_isolation"] {
        let finding = named(&judge(Side::Auto, &facts), name);
        assert_eq!(finding.state, State::NotKnown, "{finding:?}");
        assert!(finding.value.contains("its threads have no names"), "{finding:?}");
    }
    let mut facts = good_host();
    facts.guests.push(Guest { pid: 4712, ..good_qemu() });
    let finding = named(&judge(Side::Auto, &facts), "vm_pinning");
    assert_eq!(finding.value.matches("shares CPU 2,3 with another vCPU").count(), 2, "{finding:?}");
}

/// libvirt passes devices as JSON.
#[test]
fn arguments_are_understood_in_both_of_qemus_forms() {
    let mut facts = good_host();
    facts.guests[0].arguments = Some(vec![
        "/usr/bin/qemu-system-x86_64".to_owned(),
        "-name".to_owned(),
        "guest=plc,debug-threads=on".to_owned(),
        "-netdev".to_owned(),
        r#"{"type":"tap","fds":"23:24","vhost":true,"vhostfds":"25:26","id":"hostnet0"}"#.to_owned(),
        "-device".to_owned(),
        r#"{"driver":"virtio-net-pci","csum":false,"guest_csum":false,"mq":true,"vectors":6,"netdev":"hostnet0"}"#.to_owned(),
    ]);
    let findings = judge(Side::Auto, &facts);
    assert!(is_all_ok(&findings), "{findings:?}");
}

#[test]
fn the_place_is_never_guessed_in_silence() {
    let place = |flag: Option<bool>, dmi: Option<&str>, side: Side| {
        let dmi = dmi.map(str::to_owned);
        let findings = judge(side, &Facts { hypervisor_flag: flag, dmi, ..Facts::default() });
        let has = |name: &str| findings.iter().any(|finding| finding.name == name);
        (findings[0].state, has("vm_queues"), has("vm_guests"), findings[0].value.clone())
    };
    let (state, is_guest, is_host, value) = place(Some(false), Some("QEMU Standard PC"), Side::Auto);
    assert_eq!((state, is_guest, is_host), (State::NotKnown, true, true));
    assert_eq!(value, "unclear (no flag hypervisor, DMI QEMU Standard PC)");
    let (state, is_guest, is_host, _) = place(None, None, Side::Auto);
    assert_eq!((state, is_guest, is_host), (State::NotKnown, true, true));
    // Not x86: the firmware says it.
    let (state, is_guest, is_host, _) = place(None, Some("QEMU KVM Virtual Machine"), Side::Auto);
    assert_eq!((state, is_guest, is_host), (State::Ok, true, false));
    let (state, is_guest, is_host, value) = place(None, None, Side::Host);
    assert_eq!((state, is_guest, is_host), (State::Ok, false, true));
    assert_eq!(value, "host, as you say (no flags of the processor, no DMI)");
    assert!(!place(Some(true), None, Side::Host).1);
    // A guest that runs guests is judged as both.
    let nested = Facts { guests: vec![good_qemu()], ..good_guest() };
    let findings = judge(Side::Auto, &nested);
    assert!(findings[0].value.starts_with("guest that runs guests (") && findings.len() > 12, "{findings:?}");
}

/// Processes as a kernel shows them, below `root`.
fn write_processes(root: &std::path::Path) {
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let exe = |pid: u32, program: &str| {
        let link = root.join(format!("proc/{pid}/exe"));
        std::os::unix::fs::symlink(program, link).unwrap();
    };
    write("proc/76/comm", "qemu-ga\n");
    exe(76, "/usr/bin/qemu-ga");
    // A program may call itself as it likes.
    write("proc/79/comm", "qemu-system-x86\n");
    exe(79, "/usr/bin/sleep");
    write("proc/77/comm", ".qemu-system-x8\n");
    exe(77, "/nix/store/x/bin/.qemu-system-x86_64-wrapped (deleted)");
    std::fs::create_dir_all(root.join("proc/77/fd")).unwrap();
    std::os::unix::fs::symlink("anon_inode:kvm-vm", root.join("proc/77/fd/9")).unwrap();
    write(
        "proc/77/cwd/etc/net.cfg",
        "# ours\n[netdev \"n\"]\n  type = \"tap\"\n  vhost = \"on\"\n  queues = \"2\"\n",
    );
    write(
        "proc/77/cmdline",
        "qemu-system-x86_64\0-name\0guest=a b,debug-threads=on\0-readconfig\0etc/net.cfg\0",
    );
    write("proc/77/status", "Name:\tqemu\nHugetlbPages:\t    2048 kB\n");
    let stat = |name: &str, priority: u32| {
        let rest: Vec<String> =
            (3..=52).map(|field| if field == 40 { priority } else { field }.to_string()).collect();
        format!("78 ({name}) {}\n", rest.join(" "))
    };
    for (task, name, priority, cpus) in [
        ("77/task/77", "qemu-system-x86", 0, "0-1"),
        ("77/task/78", "CPU 0/KVM) x", 40, "3"),
        ("90", "vhost-77", 7, "0,2"),
    ] {
        write(&format!("proc/{task}/comm"), &format!("{name}\n"));
        write(&format!("proc/{task}/stat"), &stat(name, priority));
        write(
            &format!("proc/{task}/status"),
            &format!("Name:\t{name}\nCpus_allowed:\tf\nCpus_allowed_list:\t{cpus}\n"),
        );
    }
}

/// Files as a kernel writes them.
#[test]
fn facts_are_read_from_files() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu tsc hypervisor lahf_lm\n");
    write("proc/stat", "cpu  10 20 30 40 50 60 70 80 90 100\ncpu0 1 2 3 4 5 6 7 8\n");
    write("proc/meminfo", "MemTotal: 9 kB\nHugePages_Total:      16\nHugePages_Free:        5\n");
    write_processes(root.path());
    write("sys/class/dmi/id/sys_vendor", "QEMU\n");
    write("sys/class/ptp/ptp0/clock_name", "KVM virtual PTP\n");
    write("sys/bus/pci/devices/0000:00:04.0/vendor", "0x1af4\n");
    write("sys/bus/pci/devices/0000:00:04.0/device", "0x1110\n");
    write("sys/devices/system/cpu/online", "0-3\n");
    write("sys/devices/system/cpu/isolated", "2-3\n");
    write("sys/devices/system/clocksource/clocksource0/available_clocksource", "kvm-clock tsc \n");
    write("sys/class/net/no-such-device0/queues/tx-0/x", "");
    write("sys/class/net/no-such-device0/queues/tx-1/x", "");
    write("sys/class/net/no-such-device0/queues/rx-0/x", "");
    write("sys/class/net/no-such-device0/device/x", "");
    std::os::unix::fs::symlink(
        "../drivers/virtio_net",
        root.path().join("sys/class/net/no-such-device0/device/driver"),
    )
    .unwrap();
    write("sys/class/net/lo/queues/tx-0/x", "");

    let facts = Facts::capture(root.path());
    assert_eq!((facts.hypervisor_flag, facts.dmi.as_deref()), (Some(true), Some("QEMU")));
    assert_eq!(facts.ticks.unwrap().1, Ticks { all: 360, stolen: 80 });
    assert_eq!((facts.huge_pages, facts.shared_memories), (Some((16, 5)), 1));
    assert_eq!((facts.cpus.len(), facts.isolated.as_slice(), facts.clock_sources.len()), (4, &[2, 3][..], 2));
    assert_eq!(facts.phcs, ["KVM virtual PTP"]);
    let device = Device {
        name: "no-such-device0".to_owned(),
        driver: "virtio_net".to_owned(),
        queues: 2,
        queues_max: None,
    };
    assert_eq!(facts.devices, [device]);
    let [guest] = &facts.guests[..] else { panic!("{:?}", facts.guests) };
    assert_eq!((guest.pid, guest.huge_kib), (77, Some(2048)));
    assert_eq!((guest.program.as_str(), guest.has_kvm_machine), (".qemu-system-x86_64-wrapped", Some(true)));
    assert_eq!(guest.qemu().unwrap().back_ends.len(), 1);
    assert_eq!(facts.processes, Processes { count: 4, hidden: 0 });
    assert_eq!(guest.threads, [thread("qemu-system-x86", 0, &[0, 1]), thread("CPU 0/KVM) x", 40, &[3])]);
    assert_eq!(guest.vhost, [thread("vhost-77", 7, &[0, 2])]);
    let findings = judge(Side::Host, &facts);
    assert!(named(&findings, "vm_guests").value.starts_with("a b (process 77)"), "{findings:?}");
    assert_eq!(cpu_list(""), Vec::<u32>::new());
}
