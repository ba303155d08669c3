// SPDX-License-Identifier: Apache-2.0
//! Whether this is a guest or a host.
//!
//! In: facts, and what the user says. Out: the sides to look at, and a finding that names the evidence. Evidence that contradicts
//! itself, or is missing, is a warning: then both sides are looked at.

use super::Side;
use super::facts::Facts;
use crate::doctor::finding::{Finding, Look};

const LOOK: Look = Look::at("vm_place", "/proc/cpuinfo, /sys/class/dmi/id");
const MEANING: &str = "a guest is judged by what its hypervisor gives it, a host by what it gives its guests";
/// What makers of hypervisors write into a guest's DMI tables.
const HYPERVISORS: [&str; 10] = [
    "QEMU",
    "KVM",
    "Bochs",
    "VMware",
    "VirtualBox",
    "innotek",
    "Xen",
    "Virtual Machine",
    "KubeVirt",
    "OpenStack",
];

/// Where this is.
pub(super) struct Place {
    pub(super) is_guest: bool,
    pub(super) is_host: bool,
    pub(super) finding: Finding,
}

/// The place.
pub(super) fn judge(side: Side, facts: &Facts) -> Place {
    let runs_guests = !facts.guests.is_empty();
    let dmi = facts.dmi.as_deref();
    let names_hypervisor = dmi.is_some_and(|dmi| HYPERVISORS.iter().any(|name| dmi.contains(name)));
    let shown_dmi = dmi.map_or("no DMI".to_owned(), |dmi| format!("DMI {dmi}"));
    let flag = match facts.hypervisor_flag {
        Some(true) => "flag hypervisor",
        Some(false) => "no flag hypervisor",
        None => "no flags of the processor",
    };
    let mut evidence = format!("{flag}, {shown_dmi}");
    if facts.is_user_mode {
        evidence.push_str(", User Mode Linux");
    }
    if runs_guests {
        evidence.push_str(&format!(", runs {} QEMU", facts.guests.len()));
    }
    let of = |is_guest: bool, is_host: bool, finding: Finding| Place { is_guest, is_host, finding };
    let both = |word: &str, is_guest: bool| {
        let also = if is_guest && runs_guests { " that runs guests" } else { "" };
        LOOK.ok(format!("{word}{also} ({evidence})"), MEANING)
    };
    match (side, facts.hypervisor_flag) {
        (Side::Guest, _) => {
            of(true, false, LOOK.ok(format!("guest, as you say ({evidence})"), MEANING))
        }
        (Side::Host, _) => {
            of(false, true, LOOK.ok(format!("host, as you say ({evidence})"), MEANING))
        }
        _ if facts.is_user_mode => of(true, runs_guests, both("guest", true)),
        (Side::Auto, Some(true)) => of(true, runs_guests, both("guest", true)),
        (Side::Auto, Some(false)) if !names_hypervisor => of(false, true, both("host", false)),
        // A processor without such a flag (not x86): DMI alone decides, if it says something.
        (Side::Auto, None) if names_hypervisor => of(true, runs_guests, both("guest", true)),
        (Side::Auto, _) => of(
            true,
            true,
            LOOK.not_known(format!("unclear ({evidence})"),
                "it is not known whether this is a guest or a host: both are looked at, and half of the findings do not apply",
                "say which: ktsn doctor --vm=guest or ktsn doctor --vm=host",
            ),
        ),
    }
}
