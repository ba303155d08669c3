// SPDX-License-Identifier: Apache-2.0
//! What the network cards of this machine offer to TSN.
//!
//! In: /sys/class/net and the kernel's answers. Out: one finding. No card is configured or tried.

use std::path::Path;

use super::finding::{Finding, Look};
use super::netlink::Netlink;
use super::vm::facts::{Device, devices};

const LOOK: Look = Look::at(
    "network_devices",
    "/sys/class/net/*/device (driver, ptp), queues, ETHTOOL_GCHANNELS, the list of devices with XDP programs (RTM_GETLINK)",
);

/// The finding.
pub(super) fn finding() -> Finding {
    let sys = Path::new("/sys");
    let with_xdp = Netlink::open().and_then(|netlink| netlink.with_xdp()).ok();
    let clocks =
        |device: &str| super::vm::facts::names(sys.join("class/net").join(device).join("device/ptp"));
    of(&devices(sys), clocks, with_xdp.as_deref())
}

fn of(devices: &[Device], clocks: impl Fn(&str) -> Vec<String>, with_xdp: Option<&[String]>) -> Finding {
    const MEANING: &str = "KTSN needs none of it and sends by AF_XDP in copy mode; a hardware clock (/dev/ptpN) lets ptp4l follow a \
                           grandmaster closely; whether a card has launch time (etf offload) or zero-copy is not asked";
    let shown = |device: &Device| {
        let most = device.queues_max.map_or_else(String::new, |most| format!(" of {most}"));
        let clocks = clocks(&device.name);
        let clock = if clocks.is_empty() {
            "no hardware clock".to_owned()
        } else {
            format!("/dev/{}", clocks.join(", /dev/"))
        };
        let xdp = match with_xdp {
            None => "XDP program not known",
            Some(names) if names.contains(&device.name) => "an XDP program",
            Some(_) => "no XDP program",
        };
        format!(
            "{} ({}): {}{most} transmit queues, {clock}, {xdp}",
            device.name, device.driver, device.queues
        )
    };
    let value = devices.iter().map(shown).collect::<Vec<_>>().join("; ");
    if devices.is_empty() {
        let remedy = "run doctor in the network namespace of the uplink, with /sys mounted";
        return LOOK.not_known("no device with a driver is seen here", MEANING, remedy);
    }
    if with_xdp.is_none() {
        return LOOK.not_known(value, MEANING, "allow netlink sockets in the sandbox");
    }
    LOOK.ok(value, MEANING)
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn a_card_is_described_and_none_is_not_known() {
        let card = Device { name: "eth1".into(), driver: "igb".into(), queues: 4, queues_max: Some(8) };
        let clocks = |name: &str| if name == "eth1" { vec!["ptp0".to_owned()] } else { Vec::new() };
        let finding = of(std::slice::from_ref(&card), clocks, Some(&["eth1".to_owned()]));
        assert_eq!(finding.state, State::Ok);
        assert_eq!(finding.value, "eth1 (igb): 4 of 8 transmit queues, /dev/ptp0, an XDP program");
        let finding = of(&[Device { queues_max: None, ..card }], |_| Vec::new(), None);
        assert_eq!(finding.state, State::NotKnown);
        assert!(
            finding.value.ends_with("4 transmit queues, no hardware clock, XDP program not known"),
            "{finding:?}"
        );
        assert_eq!(of(&[], clocks, Some(&[])).state, State::NotKnown);
    }
}
