// SPDX-License-Identifier: Apache-2.0
//! The kernel's own keepers of transmit times, on host A's uplink while their paths are measured.
//!
//! In: a path, and how etf is set up. Out: the qdisc on the uplink, and for pods a filter that gives their frames the priority back, which
//! a veth device takes. Both are removed on drop.

use super::path::Path;
use crate::command::run;
use crate::error::LabError;
use crate::observations::PRIORITY;
use crate::testbed::{Host, UPLINK, VXLAN_PORT};
use ktsn_time::Nanos;

/// etf's deltas: the lead divided by these.
const PARTS: [i64; 5] = [64, 16, 8, 4, 2];
/// Linux 6.11 was the first that keeps a pod's transmit time on its way to the uplink.
const KEEPS_FROM: (u32, u32) = (6, 11);

/// How etf is set up, and the program under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Etf {
    /// How long before its time etf sends a frame at the earliest.
    pub(super) delta: Nanos,
    /// The program asks for a time that is later by delta: etf then sends at the first instant after the true one.
    pub(super) is_asked_later: bool,
}

impl Etf {
    /// All that a path is measured with; `None` for a path without etf.
    pub(super) fn all(path: Path, lead: Nanos) -> Vec<Option<Self>> {
        if !matches!(path, Path::PodEtf | Path::BareEtf) {
            return vec![None];
        }
        let delta = |part: i64| Nanos::from_micros(lead.get() / part / 1_000);
        let plain = PARTS.map(|part| Some(Self { delta: delta(part), is_asked_later: false }));
        plain.into_iter().chain([Some(Self { delta: delta(2), is_asked_later: true })]).collect()
    }

    /// What a path's name ends with.
    pub(super) fn suffix(self) -> String {
        let later = if self.is_asked_later { "-later" } else { "" };
        format!("{later}-{}us", self.delta.get() / 1_000)
    }
}

/// The commands that put a path's qdisc on a device, each after `tc -n NAMESPACE`.
fn commands(path: Path, etf: Option<Etf>, device: &str) -> Vec<String> {
    let Some(Etf { delta, .. }) = etf else {
        // Without slack its timer is as exact as etf's; by default it drops from the hundredth frame of a flow on.
        return vec![format!(
            "qdisc replace dev {device} root handle 1: fq timer_slack 1ns flow_limit 10000"
        )];
    };
    // A frame of a pod has no socket here: etf would drop it at its check.
    let unchecked = if path.in_pods() { " skip_sock_check" } else { "" };
    let classes = (0..16).map(|priority| if priority == PRIORITY { "0" } else { "1" });
    // As on a card: one queue is etf's, and what has no transmit time takes another.
    let mut commands = vec![
        format!(
            "qdisc replace dev {device} root handle 1: prio bands 2 priomap {}",
            classes.collect::<Vec<_>>().join(" ")
        ),
        format!(
            "qdisc replace dev {device} parent 1:1 handle 10: etf clockid CLOCK_TAI delta {}{unchecked}",
            delta.get()
        ),
    ];
    if path.in_pods() {
        commands.push(format!("qdisc add dev {device} clsact"));
        commands.push(format!(
            "filter add dev {device} egress protocol ip u32 match ip dport {VXLAN_PORT} 0xffff action skbedit priority {PRIORITY}"
        ));
    }
    commands
}

/// A qdisc on host A's uplink.
#[derive(Debug)]
pub(super) struct Qdisc {
    namespace: String,
    device: &'static str,
}

impl Qdisc {
    /// Puts the path's qdisc on the uplink; `None`: the path has none.
    pub(super) fn put(path: Path, etf: Option<Etf>, host: &Host) -> Result<Option<Self>, LabError> {
        Self::put_on(path, etf, &host.namespace, UPLINK)
    }

    fn put_on(
        path: Path,
        etf: Option<Etf>,
        namespace: &str,
        device: &'static str,
    ) -> Result<Option<Self>, LabError> {
        if !path.has_qdisc() {
            return Ok(None);
        }
        let put = Self { namespace: namespace.to_owned(), device };
        for command in commands(path, etf, device) {
            run(None, &format!("tc -n {namespace} {command}"))?;
        }
        Ok(Some(put))
    }
}

impl Drop for Qdisc {
    fn drop(&mut self) {
        for what in ["root", "clsact"] {
            // The kernel has a default at the root, and clsact only pods' paths.
            let _ = run(None, &format!("tc -n {} qdisc del dev {} {what}", self.namespace, self.device));
        }
    }
}

/// Why this kernel cannot serve a path; it is tried on the host's loopback device.
pub(super) fn missing(path: Path, host: &Host) -> Option<String> {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    if path.in_pods() && version(&release).is_some_and(|version| version < KEEPS_FROM) {
        let (major, minor) = KEEPS_FROM;
        return Some(format!(
            "Linux {release} drops a pod's transmit time on the way to the uplink; remedy: Linux {major}.{minor}"
        ));
    }
    let etf = Etf::all(path, Nanos::from_millis(1)).first().copied().flatten();
    let error = Qdisc::put_on(path, etf, &host.namespace, "lo").err()?;
    Some(format!(
        "{error}; remedy: a kernel with the qdiscs etf, fq and prio, the filter u32 and the action skbedit, as Debian's"
    ))
}

/// The two first numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::output;

    const ETF: Option<Etf> = Some(Etf { delta: Nanos::from_micros(75), is_asked_later: false });

    #[test]
    fn etf_is_measured_with_five_deltas_and_asked_for_later() {
        let of = |path| Etf::all(path, Nanos::from_micros(300));
        let names =
            |all: Vec<Option<Etf>>| all.into_iter().map(|one| one.unwrap().suffix()).collect::<Vec<_>>();
        assert_eq!(names(of(Path::PodEtf)), ["-4us", "-18us", "-37us", "-75us", "-150us", "-later-150us"]);
        assert_eq!((of(Path::PodFq), of(Path::Ktsn)), (vec![None], vec![None]));
    }

    #[test]
    fn a_pods_frames_get_their_priority_back_and_a_hosts_are_checked() {
        let pod = commands(Path::PodEtf, ETF, UPLINK);
        assert!(pod[0].ends_with("priomap 1 1 1 1 1 1 0 1 1 1 1 1 1 1 1 1"), "{pod:?}");
        assert!(pod[1].ends_with("etf clockid CLOCK_TAI delta 75000 skip_sock_check"), "{pod:?}");
        assert!(pod[3].ends_with("match ip dport 8472 0xffff action skbedit priority 6"), "{pod:?}");
        let host = commands(Path::BareEtf, ETF, UPLINK);
        assert_eq!((host.len(), host[1].ends_with("delta 75000")), (2, true), "{host:?}");
        assert_eq!(commands(Path::PodFq, None, UPLINK).len(), 1);
    }

    #[test]
    fn releases_are_compared_by_their_numbers() {
        assert_eq!(version("7.3.4+deb13-rt-amd64"), Some((7, 3)));
        assert!(version("6.1.0-50-amd64").unwrap() < KEEPS_FROM);
        assert_eq!(version("unknown"), None);
    }

    /// What cannot be put is undone, too.
    #[test]
    fn a_device_is_as_before_whatever_the_kernel_has() {
        let testbed = crate::testbed::Testbed::new().expect("a testbed");
        let shown =
            || output(None, &format!("tc -n {} qdisc show dev {UPLINK}", testbed.a.namespace)).unwrap();
        let before = shown();
        for path in [Path::PodEtf, Path::BareEtf, Path::PodFq, Path::BareFq] {
            let put = Qdisc::put(path, Etf::all(path, Nanos::from_millis(1))[0], &testbed.a);
            assert_eq!(put.is_err(), missing(path, &testbed.a).is_some(), "{path}: {put:?}");
            assert!(put.is_err() || shown() != before, "{path}");
            drop(put);
            assert_eq!(shown(), before, "{path}");
        }
    }
}
