// SPDX-License-Identifier: Apache-2.0
//! Where publisher and subscriber run, and what their scripts name. In: the plan, the row, a host. Out: a [`Place`], an [`End`].

use super::ends::Place;
use super::plan::{Datapath, Keeper, Plan, Row};
use super::script::End;
use super::site::{self, Host};
use crate::vm::{self, Machine};
use std::path::Path;

/// SCHED_FIFO priorities of publisher and subscriber. The publisher's is above that of ktsnd's worker, which spins on the same CPU.
const FIFO: [u8; 2] = [60, 40];

/// Where the end of a host runs.
pub(super) fn place(plan: &Plan, row: Row, host: &Host) -> Place {
    let datapath = match row.datapath {
        Datapath::NoVm => return Place::Namespace(host.namespace.clone()),
        Datapath::Bridge => vm::Datapath::Bridge(vm::Bridge {
            tap: site::GUEST.to_owned(),
            ..vm::Bridge::new(site::BRIDGE, Some(&host.namespace))
        }),
        Datapath::OvsDpdk => vm::Datapath::VhostUser(host.socket()),
    };
    let address = format!("{}/{}", host.address(), site::PREFIX);
    Place::Guest(Box::new(Machine {
        datapath,
        // mqprio needs a queue for each class.
        queues: if row.keeper == Keeper::Etf { 2 } else { 1 },
        address: address.parse().ok(),
        pin: (!plan.setup.functional).then(|| vm::Cpus::one(host.cpu)),
        ..Machine::default()
    }))
}

/// The end of a host, as its script names it.
pub(super) fn end(plan: &Plan, host: &Host, directory: &Path) -> End {
    let (is_host, index) = (host.datapath == Datapath::NoVm, host.which.index());
    let peer = host.addresses.ends[1 - index];
    let has_rights = !plan.setup.functional || !is_host;
    End {
        device: if is_host { site::UPLINK } else { "eth0" },
        peer,
        peer_mac: site::mac_of(peer),
        directory: if is_host {
            directory.join(format!("end-{index}")).display().to_string()
        } else {
            "/tmp/end".to_owned()
        },
        fifo: has_rights.then_some(FIFO[index]),
        cpu: (has_rights && is_host).then_some(host.cpu),
    }
}
