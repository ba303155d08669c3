// SPDX-License-Identifier: Apache-2.0
//! The kernel's own keepers of transmit times, on host A's uplink while their paths are measured.
//!
//! In: a path, and etf's delta. Out: the qdisc on the uplink, and for pods a filter that gives their frames the priority back, which a
//! veth device takes. Both are removed on drop.

use super::path::Path;
use crate::command::run;
use crate::error::LabError;
use crate::observations::PRIORITY;
use crate::testbed::{Host, UPLINK, VXLAN_PORT};
use ktsn_time::Nanos;

/// etf's deltas: parts of the time by which the program sends ahead.
const PARTS: [(i64, i64); 5] = [(1, 16), (1, 8), (1, 4), (1, 2), (3, 4)];

/// The deltas that a path is measured with; one without delta for all that have none.
pub(super) fn deltas(path: Path, lead: Nanos) -> Vec<Option<Nanos>> {
    if !matches!(path, Path::PodEtf | Path::BareEtf) {
        return vec![None];
    }
    PARTS.map(|(part, of)| Some(Nanos::from_micros(lead.get() * part / of / 1_000))).to_vec()
}

/// The commands that put a path's qdisc on a device, each after `tc -n NAMESPACE`.
fn commands(path: Path, delta: Option<Nanos>, device: &str) -> Vec<String> {
    // A frame of a pod has no socket here: etf would drop it at its check.
    let unchecked = if path.in_pods() { " skip_sock_check" } else { "" };
    let mut commands = match delta {
        None => vec![format!("qdisc replace dev {device} root handle 1: fq")],
        // As on a card: one queue is etf's, and what has no transmit time takes another.
        Some(delta) => vec![
            format!(
                "qdisc replace dev {device} root handle 1: prio bands 2 priomap {}",
                (0..16)
                    .map(|priority| if priority == PRIORITY { "0" } else { "1" })
                    .collect::<Vec<_>>()
                    .join(" ")
            ),
            format!(
                "qdisc replace dev {device} parent 1:1 handle 10: etf clockid CLOCK_TAI delta {}{unchecked}",
                delta.get()
            ),
        ],
    };
    if delta.is_some() && path.in_pods() {
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
    pub(super) fn put(path: Path, delta: Option<Nanos>, host: &Host) -> Result<Option<Self>, LabError> {
        Self::put_on(path, delta, &host.namespace, UPLINK)
    }

    fn put_on(
        path: Path,
        delta: Option<Nanos>,
        namespace: &str,
        device: &'static str,
    ) -> Result<Option<Self>, LabError> {
        if !path.has_qdisc() {
            return Ok(None);
        }
        let put = Self { namespace: namespace.to_owned(), device };
        for command in commands(path, delta, device) {
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
    let delta = deltas(path, Nanos::from_millis(1)).first().copied().flatten();
    let error = Qdisc::put_on(path, delta, &host.namespace, "lo").err()?;
    Some(format!(
        "{error}; remedy: a kernel with the qdiscs etf, fq and prio, the filter u32 and the action skbedit, as Debian's"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etf_is_measured_with_five_deltas_of_whole_microseconds() {
        let of = |path| deltas(path, Nanos::from_micros(300));
        let micros = |delta: Option<Nanos>| delta.unwrap().get() / 1_000;
        assert_eq!(of(Path::PodEtf).into_iter().map(micros).collect::<Vec<_>>(), [18, 37, 75, 150, 225]);
        assert_eq!(of(Path::PodFq), [None]);
        assert_eq!(of(Path::Ktsn), [None]);
    }

    #[test]
    fn a_pods_frames_get_their_priority_back_and_a_hosts_are_checked() {
        let delta = Some(Nanos::from_micros(75));
        let pod = commands(Path::PodEtf, delta, UPLINK);
        assert!(pod[0].ends_with("priomap 1 1 1 1 1 1 0 1 1 1 1 1 1 1 1 1"), "{pod:?}");
        assert!(pod[1].ends_with("etf clockid CLOCK_TAI delta 75000 skip_sock_check"), "{pod:?}");
        assert!(pod[3].ends_with("match ip dport 8472 0xffff action skbedit priority 6"), "{pod:?}");
        let host = commands(Path::BareEtf, delta, UPLINK);
        assert_eq!((host.len(), host[1].ends_with("delta 75000")), (2, true), "{host:?}");
        assert_eq!(commands(Path::PodFq, None, UPLINK), ["qdisc replace dev uplink root handle 1: fq"]);
    }
}
