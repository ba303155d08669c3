// SPDX-License-Identifier: Apache-2.0
//! `examples/systemd/ktsnd.service`: how much a taken-over ktsnd could do, by systemd's own measure, and that the unit forbids nothing that
//! ktsnd calls.

use std::process::Command;

/// Tenths of the exposure that `systemd-analyze security` may find.
const EXPOSURE_MOST: &str = "42";

fn analyze(arguments: &[&str]) -> (bool, String) {
    let output = Command::new("systemd-analyze")
        .args(arguments)
        .output()
        .expect("systemd-analyze, of Debian's package systemd");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn unit() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/systemd/ktsnd.service").to_owned()
}

/// The values of a setting, in order.
fn values(text: &str, name: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned).collect()
}

#[test]
fn the_unit_is_exposed_to_4_2_at_most() {
    let threshold = format!("--threshold={EXPOSURE_MOST}");
    let (is_within, said) = analyze(&["security", "--offline=true", &threshold, &unit()]);
    assert!(is_within, "{said}");
    assert!(said.contains("Overall exposure level for ktsnd.service"), "{said}");
}

/// System calls that ktsnd makes and that are in a group that other services do without.
#[test]
fn the_unit_forbids_no_call_of_ktsnd() {
    let text = std::fs::read_to_string(unit()).unwrap();
    let filters = values(&text, "SystemCallFilter");
    let (denied, allowed) = (filters[0].strip_prefix('~').expect("a list of what is denied"), &filters[1]);
    let mut calls = Vec::new();
    for group in denied.split(' ') {
        let (is_known, said) = analyze(&["syscall-filter", group]);
        assert!(is_known, "{group}: {said}");
        calls.extend(
            said.lines().map(str::trim).filter(|call| !call.starts_with(['#', '@'])).map(str::to_owned),
        );
    }
    assert!(calls.iter().any(|call| call == "mount"), "{calls:?}");
    calls.retain(|call| !allowed.split(' ').any(|other| other == call));
    for call in [
        "adjtimex",
        "clock_adjtime",
        "pidfd_getfd",
        "pidfd_open",
        "setns",
        "unshare",
        "bpf",
        "mlockall",
        "sched_setscheduler",
        "sched_setaffinity",
        "memfd_create",
        "sendmmsg",
        "recvmmsg",
        "prlimit64",
        "setrlimit",
    ] {
        assert!(!calls.iter().any(|denied| denied == call), "{call} is denied");
    }
    assert_eq!(
        values(&text, "RestrictNamespaces"),
        ["net"],
        "setns and unshare of ktsnd are about network namespaces"
    );
    let families = values(&text, "RestrictAddressFamilies").join(" ");
    for family in ["AF_UNIX", "AF_NETLINK", "AF_PACKET", "AF_XDP", "AF_INET", "AF_INET6"] {
        assert!(families.split(' ').any(|one| one == family), "{family} is missing: {families}");
    }
    for off in [
        "PrivateDevices",
        "ProtectClock",
        "PrivateNetwork",
        "PrivateUsers",
        "RestrictRealtime",
        "ProcSubset",
        "DevicePolicy",
    ] {
        assert!(values(&text, off).is_empty(), "{off} must stay off");
        assert!(
            text.contains(&format!("#   {off}=")) || text.contains(&format!(", {off}=")),
            "{off} has no reason"
        );
    }
}
