// SPDX-License-Identifier: Apache-2.0
//! What a definition says, and what is refused. Real tools read definitions in `tests/tests/vm_config.rs` and `k8s/internal/vmconfig`.

use super::*;
use ktsn_schedule::parse;

/// The part that every schedule has.
const GATES: &str = "gate-parameter-table: {gate-enabled: false}\n";

fn request(format: Format, datapath: Datapath) -> Request {
    let device = match (format, datapath) {
        (Format::Kubevirt, _) => None,
        (_, Datapath::Macvtap) => Some("eth1".to_owned()),
        (_, Datapath::Vfio) => Some("0000:03:10.1".to_owned()),
        _ => None,
    };
    Request {
        name: "guest".to_owned(),
        format,
        datapath,
        classes: Classes {
            schedule: "s".to_owned(),
            labels: vec!["0".to_owned(), "5".to_owned(), "7".to_owned()],
        },
        cpus: None,
        memory_mib: 1024,
        pages: Pages::Huge2M,
        accelerator: Accelerator::Kvm,
        clock: Clock::PtpKvm,
        placement: None,
        disk: None,
        disk_format: DiskFormat::Qcow2,
        bridge: "br0".to_owned(),
        tap: "tsn0".to_owned(),
        device,
        socket: None,
        network: "tsn".to_owned(),
    }
}

fn placement(vcpus: &[u32], emulator: &[u32], priority: Option<u8>) -> Option<Placement> {
    Some(Placement { vcpus: vcpus.to_vec(), emulator: emulator.to_vec(), priority })
}

#[test]
fn queues_are_the_classes_to_which_a_priority_leads() {
    let map = |map: &str| {
        let text = format!("priority-map: [{map}]\nclass-names: {{7: control, 3: unused}}\n{GATES}");
        let schedule = parse(&text, ktsn_schedule::Format::Yaml).unwrap();
        let classes = Classes::of(&schedule, "file.yaml");
        let request = Request { classes, ..request(Format::Qemu, Datapath::TapBridge) };
        (request.classes.labels.clone(), request.queues())
    };
    let (labels, queues) = map("0, 0, 0, 0, 5, 5, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0");
    assert_eq!((labels, queues), (vec!["0".to_owned(), "5".to_owned(), "7 control".to_owned()], 3));
    // taprio and mqprio take no device with one queue.
    assert_eq!(map("0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0").1, 2);
    let whole = parse(&format!("name: all\n{GATES}"), ktsn_schedule::Format::Yaml).unwrap();
    let classes = Classes::of(&whole, "file.yaml");
    assert_eq!((classes.labels.len(), classes.schedule.as_str()), (8, "all"));
}

#[test]
fn each_format_has_queues_interrupts_and_a_cpu_for_each_class() {
    let text = definition(&request(Format::Qemu, Datapath::TapBridge)).unwrap();
    assert!(text.contains("vhost=on,queues=3\n") && text.contains(",mq=on,romfile=,vectors=8\n"), "{text}");
    assert!(text.contains(" -smp 3,"), "{text}");
    let text = definition(&request(Format::Libvirt, Datapath::OvsDpdk)).unwrap();
    assert!(text.contains("<driver queues='3'/>") && text.contains("<access mode='shared'/>"), "{text}");
    let text = definition(&request(Format::Kubevirt, Datapath::Macvtap)).unwrap();
    assert!(text.contains("cores: 3\n") && text.contains("networkInterfaceMultiqueue: true"), "{text}");
}

#[test]
fn offloads_are_off_where_xdp_loses_them_and_nowhere_else() {
    for datapath in Datapath::ALL {
        let is_off = datapath.loses_offloads();
        let text = definition(&request(Format::Qemu, datapath)).unwrap();
        assert_eq!(text.contains("guest_csum=off"), is_off, "{datapath:?}");
        let text = definition(&request(Format::Libvirt, datapath)).unwrap();
        assert_eq!(text.contains("<guest csum='off'"), is_off, "{datapath:?}");
    }
}

#[test]
fn threads_are_pinned_with_the_priority_or_stay_ordinary() {
    for (priority, qemu, libvirt) in [
        (
            Some(40),
            "place \"${task##*/}\" 9 40",
            Some("<vcpusched vcpus='0-2' scheduler='fifo' priority='40'/>"),
        ),
        (None, "place \"${task##*/}\" 9 0", None),
    ] {
        let with = |format| Request {
            placement: placement(&[4, 7, 9], &[1, 2, 3], priority),
            ..request(format, Datapath::TapBridge)
        };
        let text = definition(&with(Format::Qemu)).unwrap();
        assert!(text.contains(&format!("\"CPU 2/\"*) {qemu} ")), "{text}");
        assert!(
            text.contains("isolcpus=managed_irq,domain,4,7,9 ") && text.contains("taskset -c 1-3 "),
            "{text}"
        );
        let text = definition(&with(Format::Libvirt)).unwrap();
        assert!(text.contains("<vcpupin vcpu='2' cpuset='9'/>"), "{text}");
        assert!(text.contains("<emulatorpin cpuset='1-3'/>"), "{text}");
        assert!(libvirt.map_or(!text.contains("vcpusched"), |line| text.contains(line)), "{text}");
    }
}

/// Characters that end a comment, a string or a line of some format.
const HOSTILE: &str = "a\n--><x/>\u{2028}b: \u{85}\"'$(touch /x)`\\ # <!-- \u{202e}c\u{0}";

#[test]
fn what_a_schedule_says_stays_inside_comments() {
    let labels = vec![format!("0 {HOSTILE}"), "1".to_owned()];
    let classes = Classes { schedule: HOSTILE.to_owned(), labels };
    for format in Format::value_variants() {
        let plain = Request { cpus: Some(2), ..request(*format, Datapath::TapBridge) };
        let plain = Request {
            classes: Classes { schedule: "s".to_owned(), labels: vec!["0".to_owned(), "1".to_owned()] },
            ..plain
        };
        let hostile = Request { classes: classes.clone(), ..plain.clone() };
        let (plain, hostile) = (definition(&plain).unwrap(), definition(&hostile).unwrap());
        let differing: Vec<(&str, &str)> =
            plain.lines().zip(hostile.lines()).filter(|(plain, hostile)| plain != hostile).collect();
        assert_eq!(plain.lines().count(), hostile.lines().count(), "{hostile}");
        assert_eq!(differing.len(), 2, "{differing:?}");
        for (_, line) in differing {
            let is_comment = line.starts_with("# ") || (*format == Format::Libvirt && !line.contains("--"));
            assert!(is_comment && !line.chars().any(char::is_control), "{line:?}");
        }
    }
}

#[test]
fn paths_are_quoted_for_each_format() {
    let with = |format| Request {
        disk: Some("/d/a b,'c&<\".img".to_owned()),
        clock: Clock::Page("/dev/shm/$(x),'y.page".to_owned()),
        ..request(format, Datapath::TapBridge)
    };
    let text = definition(&with(Format::Qemu)).unwrap();
    assert!(text.contains(r#"'file=/d/a b,,'\''c&<".img,if=none"#), "{text}");
    assert!(
        text.contains(r#"mem-path=/dev/shm/$(x),,'\''y.page,size=65536,share=on,readonly=on' "#),
        "{text}"
    );
    let text = definition(&with(Format::Libvirt)).unwrap();
    assert!(text.contains("<source file='/d/a b,&apos;c&amp;&lt;&quot;.img'/>"), "{text}");
    assert!(text.contains("mem-path=/dev/shm/$(x),,&apos;y.exchange,size=65536,share=on'/>"), "{text}");
}

#[test]
fn two_names_have_two_addresses() {
    let mac =
        |name: &str| Request { name: name.to_owned(), ..request(Format::Qemu, Datapath::TapBridge) }.mac();
    let mut all: Vec<String> = (0..100).map(|number| mac(&format!("guest-{number}"))).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 100);
    assert!(all[0].starts_with("52:54:00:"));
    assert_eq!(mac("guest-1"), mac("guest-1"));
}

fn refusal(request: &Request) -> String {
    definition(request).expect_err("refused").to_string()
}

#[test]
fn bad_values_are_named_with_what_was_expected() {
    let base = || request(Format::Qemu, Datapath::TapBridge);
    let cases = [
        (Request { name: "../x".to_owned(), ..base() }, "--name ../x: expected 1 to 50 of"),
        (Request { name: "a\n".to_owned(), ..base() }, "--name a\\n: expected"),
        (Request { cpus: Some(0), ..base() }, "--cpus 0: expected 1 to 64"),
        (Request { memory_mib: 7, ..base() }, "--memory 7: expected 128 to"),
        (Request { memory_mib: 1025, ..base() }, "--memory 1025: expected a multiple of 2 (--hugepages)"),
        (
            Request { memory_mib: 1536, pages: Pages::Huge1G, ..base() },
            "--memory 1536: expected a multiple of 1024 (--hugepages)",
        ),
        (
            Request { tap: "sixteen-octets-x".to_owned(), ..base() },
            "--tap sixteen-octets-x: expected an interface",
        ),
        (Request { bridge: "-b".to_owned(), ..base() }, "--bridge -b: expected an interface name"),
        (Request { disk: Some("d.img".to_owned()), ..base() }, "--disk d.img: expected an absolute path"),
        (Request { disk: Some("/a\n".to_owned()), ..base() }, "--disk /a\\n: expected an absolute path"),
        (Request { device: Some("eth0".to_owned()), ..base() }, "--device eth0: expected no device"),
        (
            Request { device: None, ..request(Format::Qemu, Datapath::Macvtap) },
            "--device (missing): expected the host's interface",
        ),
        (
            Request { device: Some("03:1".to_owned()), ..request(Format::Libvirt, Datapath::Vfio) },
            "--device 03:1: expected a PCI address, such as 0000:03:10.0",
        ),
        (
            Request {
                socket: Some(format!("/{}", "x".repeat(107))),
                ..request(Format::Qemu, Datapath::OvsDpdk)
            },
            "expected a path of at most 107 octets",
        ),
        (Request { accelerator: Accelerator::Tcg, ..base() }, "--clock ptp-kvm: expected none or page"),
        (
            Request { placement: placement(&[1, 2], &[0], None), ..base() },
            "--pin 1-2: expected 3 CPUs, one for each vCPU (--cpus)",
        ),
        (
            Request { placement: placement(&[1, 2, 2], &[0], None), ..base() },
            "--pin 1-2: expected CPU 2 once",
        ),
        (
            Request { placement: placement(&[1, 2, 3], &[0, 3], None), ..base() },
            "--emulator-cpus 0,3: expected no CPU of --pin",
        ),
        (
            Request { placement: placement(&[1, 2, 3], &[], None), ..base() },
            "--emulator-cpus (missing): expected CPUs",
        ),
        (
            Request { placement: placement(&[1, 2, 3], &[0], Some(99)), ..base() },
            "--priority 99: expected 1 to 98",
        ),
    ];
    for (request, expected) in cases {
        let refusal = refusal(&request);
        assert!(refusal.contains(expected), "{refusal}\n{expected}");
    }
}

#[test]
fn what_kubevirt_cannot_do_is_refused() {
    let base = || request(Format::Kubevirt, Datapath::TapBridge);
    let cases = [
        (request(Format::Kubevirt, Datapath::OvsDpdk), "--datapath ovs-dpdk: expected tap-bridge, tap-ovs"),
        (request(Format::Kubevirt, Datapath::TapXdp), "--datapath tap-xdp: expected tap-bridge, tap-ovs"),
        (
            Request { cpus: Some(2), ..base() },
            "--cpus 2: expected 3 or more: KubeVirt gives a guest one queue",
        ),
        (Request { pages: Pages::None, ..base() }, "--hugepages none: expected 2M or 1G"),
        (Request { clock: Clock::Page("/p".to_owned()), ..base() }, "--clock-page /p: expected no page"),
        (Request { placement: placement(&[1, 2, 3], &[0], None), ..base() }, "--pin 1-3: expected no list"),
        (
            Request { network: "a/b/c".to_owned(), ..base() },
            "--network a/b/c: expected the NAME or NAMESPACE/NAME",
        ),
        (
            Request { disk: Some("/x".to_owned()), ..base() },
            "--disk /x: expected the name of a PersistentVolumeClaim",
        ),
        (Request { name: "A".to_owned(), ..base() }, "--name A: expected the name of a Kubernetes object"),
        (
            Request { name: "a..b".to_owned(), ..base() },
            "--name a..b: expected the name of a Kubernetes object",
        ),
        (Request { network: "plant/tsn.a".to_owned(), ..base() }, "--network plant/tsn.a: expected the NAME"),
        (Request { device: Some("eth1".to_owned()), ..base() }, "--device eth1: expected no device with"),
    ];
    for (request, expected) in cases {
        let refusal = refusal(&request);
        assert!(refusal.contains(expected), "{refusal}\n{expected}");
    }
    // Kubernetes takes dots in the names of these objects.
    let dots = Request { name: "line1.plc".to_owned(), disk: Some("plc.root".to_owned()), ..base() };
    assert!(
        definition(&dots).is_ok_and(|text| text.contains("\"line1.plc\"") && text.contains("\"plc.root\""))
    );
    // A passed-through device has the queues of its hardware.
    assert!(definition(&Request { cpus: Some(1), ..request(Format::Kubevirt, Datapath::Vfio) }).is_ok());
}

/// Other guests' threads of vhost stay as they are.
#[test]
fn the_hint_about_vhost_threads_is_of_this_guest() {
    let placement = placement(&[1, 2, 3], &[0], Some(1));
    let request =
        Request { name: "a--b".to_owned(), placement, ..request(Format::Libvirt, Datapath::TapBridge) };
    let text = definition(&request).unwrap();
    let hint = text.lines().find(|line| line.contains("chrt -f")).unwrap();
    assert!(hint.contains("cat /run/libvirt/qemu/a-?b.pid") && hint.contains("\"vhost-'$p'\""), "{hint}");
}

#[test]
fn lists_of_cpus_are_read_and_written() {
    assert_eq!(parse_cpu_list("2,4-6"), Ok(vec![2, 4, 5, 6]));
    assert_eq!(text::cpu_list(&[6, 2, 4, 5]), "2,4-6");
    for bad in ["", "a", "3-1", "1,,2", "1-", "-1", "9999", "1-2-3", "0-4294967295"] {
        assert!(parse_cpu_list(bad).is_err(), "{bad}");
    }
    assert_eq!(parse_pci("03:10.0"), Some([0, 3, 0x10, 0]));
    for bad in
        ["", "0000:03:10", "0000:03:20.0", "0000:03:10.8", "0:03:10.0", "0000:+3:10.0", "x:0000:03:10.0"]
    {
        assert_eq!(parse_pci(bad), None, "{bad}");
    }
}
