// SPDX-License-Identifier: Apache-2.0
//! The ingress fast path of one uplink: the program, and the attachments that it takes frames for.
//!  
//! In: the tables of the attachments that ask for it. Out: the program's maps (targets, known tunnel ends, the node's own
//! addresses), its place at the uplink, its counters.
//! An address that two attachments claim belongs to neither: the kernel decides. A pod's device is bound to its attachment while
//! no frame can reach it, and checked again once it is bound: the kernel removes a device that goes, and numbers are used again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ktsn_bpf::{BpfError, Delivery, End, Ingress, Place, Routed, Tallied, Target};
use ktsn_resolve::{AttachmentIndex, AttachmentTables, Tables};

use crate::tables::host_end;

/// Why an attachment cannot have the ingress fast path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IngressError {
    /// The device that frames would be handed to does not exist.
    #[error(
        "the interface is no veth with its other end in ktsnd's network namespace; ingress = \"kernel\" serves every pod"
    )]
    NoHostEnd,
    /// Another attachment has the same address.
    #[error("{target} is attachment {other}'s already; one of both has to go, or take ingress = \"kernel\"")]
    Taken {
        /// The address and its network.
        target: String,
        /// The other attachment.
        other: String,
    },
    /// Two attachments' interfaces have the same MAC address.
    #[error("MAC address {mac} in VNI {vni} is attachment {other}'s already; give one of the pods another")]
    SameMac {
        /// The MAC address.
        mac: ktsn_wire::MacAddress,
        /// The network.
        vni: u32,
        /// The other attachment.
        other: String,
    },
    /// The kernel's, or too many addresses.
    #[error(transparent)]
    Bpf(#[from] BpfError),
}

/// An attachment that asks for the ingress fast path.
#[derive(Clone, Debug)]
pub(crate) struct Member<'a> {
    pub(crate) index: AttachmentIndex,
    pub(crate) name: &'a str,
    pub(crate) netns: PathBuf,
}

/// How to recognise frames for an attachment, and what happens to them.
fn targets(index: AttachmentIndex, tables: &AttachmentTables) -> Vec<(Target, Delivery)> {
    let Some(known) = tables.delivery() else { return Vec::new() };
    let interface = tables.interface();
    let delivery = Delivery {
        slot: index.0,
        packet_octets_max: known.packet_octets_max,
        station: known.station.0,
        routed: known.gateway.map(|gateway| Routed { pod: interface.mac().0, gateway: gateway.0 }),
    };
    let target =
        |destination| Target { vni: known.vni.get(), port: known.port, local: known.local, destination };
    known.addresses.iter().map(|address| (target(*address), delivery)).collect()
}

/// The tunnel ends that a member's frames may come from.
fn ends(tables: &AttachmentTables) -> impl Iterator<Item = End> {
    let of = |known: &ktsn_resolve::Delivery| {
        let (vni, port, local) = (known.vni.get(), known.port, known.local);
        known.ends.iter().map(move |remote| End { vni, port, local, remote: *remote }).collect::<Vec<_>>()
    };
    tables.delivery().map(of).into_iter().flatten()
}

/// Whether the attachment's frames can be handed into its pod at all.
pub(crate) fn check_host_end(netns: &Path, tables: &AttachmentTables) -> Result<(), IngressError> {
    let is_known = tables.delivery().is_some();
    let found = || host_end(netns, tables.interface().if_index()).ok().flatten();
    if is_known || found().is_some() { Ok(()) } else { Err(IngressError::NoHostEnd) }
}

/// The other attachments with an address or the MAC address of the attachment at `index`.
pub(crate) fn conflict(
    index: AttachmentIndex,
    members: &[Member<'_>],
    tables: &Tables,
) -> Result<(), IngressError> {
    let Some(own) = tables.attachment(index) else { return Ok(()) };
    // Without one nothing is taken until the VXLAN device is there.
    let Some(delivery) = own.delivery() else { return Ok(()) };
    let wanted: BTreeMap<_, _> = targets(index, own).into_iter().map(|(t, _)| (key(&t), t)).collect();
    for member in members.iter().filter(|member| member.index != index) {
        let Some(other) = tables.attachment(member.index) else { continue };
        let Some(known) = other.delivery().filter(|known| known.vni == delivery.vni) else { continue };
        if other.interface().mac() == own.interface().mac() && known.port == delivery.port {
            let (mac, vni) = (own.interface().mac(), delivery.vni.get());
            return Err(IngressError::SameMac { mac, vni, other: member.name.to_owned() });
        }
        for (target, _) in targets(member.index, other) {
            if wanted.contains_key(&key(&target)) {
                let target = format!("{} in VNI {}", target.destination, target.vni);
                return Err(IngressError::Taken { target, other: member.name.to_owned() });
            }
        }
    }
    Ok(())
}

type Key = (u32, u16, std::net::IpAddr, std::net::IpAddr);

fn key(target: &Target) -> Key {
    (target.vni, target.port, target.local, target.destination)
}

/// The pod's interface on its network.
type StationKey = (u32, u16, ktsn_wire::MacAddress);

fn station(tables: &AttachmentTables) -> Option<StationKey> {
    let known = tables.delivery()?;
    Some((known.vni.get(), known.port, tables.interface().mac()))
}

/// MAC addresses that several of the members have in one network.
fn stations_twice(members: &[Member<'_>], tables: &Tables) -> BTreeSet<StationKey> {
    let mut seen = BTreeSet::new();
    let all = members.iter().filter_map(|member| station(tables.attachment(member.index)?));
    all.filter(|station| !seen.insert(*station)).collect()
}

/// The program at one uplink.
#[derive(Debug)]
pub(crate) struct Uplink {
    program: Ingress,
    /// Number of the uplink's device that the program was put at.
    device: u32,
    /// Bound devices, by slot.
    bound: BTreeMap<u16, u32>,
}

impl Uplink {
    /// Loads the program. It is at no device and takes nothing.
    pub(crate) fn load() -> Result<Self, BpfError> {
        Ok(Self { program: Ingress::load()?, device: 0, bound: BTreeMap::new() })
    }

    /// Clears the counters of a slot's last attachment.
    pub(crate) fn begin(&self, index: AttachmentIndex) -> Result<(), BpfError> {
        self.program.clear_tallies(index.0)
    }

    /// Takes these attachments' frames and no others'. Returns addresses that several of them claim.
    pub(crate) fn set_members(
        &mut self,
        members: &[Member<'_>],
        tables: &Tables,
    ) -> Result<Vec<String>, BpfError> {
        let (mut wanted, mut twice) = (BTreeMap::new(), BTreeSet::new());
        let stations = stations_twice(members, tables);
        for member in members {
            let Some(of_member) = tables.attachment(member.index) else { continue };
            if station(of_member).is_some_and(|station| stations.contains(&station)) {
                continue;
            }
            for (target, delivery) in targets(member.index, of_member) {
                if wanted.insert(key(&target), (target, delivery)).is_some() {
                    twice.insert(key(&target));
                }
            }
        }
        wanted.retain(|key, _| !twice.contains(key));
        if let Err(error) = self.set_wanted(&wanted, members, tables) {
            // What could not be added waits; what is not wanted any more must not stay.
            self.program.keep_targets(wanted.into_values())?;
            return Err(error);
        }
        let addresses = twice.into_iter().map(|(vni, _, _, address)| (address.to_string(), vni));
        let stations = stations.into_iter().map(|(vni, _, mac)| (format!("MAC address {mac}"), vni));
        let told = |(what, vni): (String, u32)| {
            format!(
                "{what} in VNI {vni} is claimed by several attachments with ingress = \"short\": left to the kernel"
            )
        };
        Ok(addresses.chain(stations).map(told).collect())
    }

    /// Puts everything in force. After an error a part of it is in force.
    fn set_wanted(
        &mut self,
        wanted: &BTreeMap<Key, (Target, Delivery)>,
        members: &[Member<'_>],
        tables: &Tables,
    ) -> Result<(), BpfError> {
        self.set_senders(members, tables)?;
        let unbound = self.unbound(members, tables);
        // A slot without a bound device gets nothing meanwhile.
        let safe = wanted.values().filter(|(_, delivery)| !unbound.contains_key(&delivery.slot)).copied();
        self.program.set_targets(safe.collect::<Vec<_>>())?;
        self.bind(&unbound, members, tables)?;
        let served = wanted.values().filter(|(_, delivery)| self.bound.contains_key(&delivery.slot)).copied();
        self.program.set_targets(served.collect::<Vec<_>>())?;
        let device = members.iter().find_map(|member| tables.attachment(member.index));
        self.place(device.map_or(0, |of_any| of_any.uplink().if_index()))
    }

    /// Sets which frames are taken, before any target leads into a pod. Both are set, whatever becomes of the first.
    fn set_senders(&mut self, members: &[Member<'_>], tables: &Tables) -> Result<(), BpfError> {
        let of_members = || members.iter().filter_map(|member| tables.attachment(member.index));
        let own = of_members().filter_map(AttachmentTables::delivery).flat_map(|known| known.own.iter());
        let own = self.program.set_own(own.copied());
        let ends = self.program.set_ends(of_members().flat_map(ends));
        own.and(ends)
    }

    /// Slots with another device than the wanted one.
    fn unbound(&mut self, members: &[Member<'_>], tables: &Tables) -> BTreeMap<u16, Option<u32>> {
        let host_end = |member: &Member<'_>| Some(tables.attachment(member.index)?.delivery()?.host_end);
        let wanted: BTreeMap<u16, u32> =
            members.iter().filter_map(|member| Some((member.index.0, host_end(member)?))).collect();
        let mut unbound: BTreeMap<u16, Option<u32>> = BTreeMap::new();
        for (slot, device) in &wanted {
            let is_bound =
                self.bound.get(slot) == Some(device) && self.program.device(*slot) == Some(*device);
            if !is_bound {
                unbound.insert(*slot, Some(*device));
            }
        }
        for slot in self.bound.keys().filter(|slot| !wanted.contains_key(slot)) {
            unbound.insert(*slot, None);
        }
        unbound
    }

    /// Binds devices while nothing is sent to them, and checks afterwards that they are still the right ones.
    fn bind(
        &mut self,
        unbound: &BTreeMap<u16, Option<u32>>,
        members: &[Member<'_>],
        tables: &Tables,
    ) -> Result<(), BpfError> {
        for (slot, device) in unbound {
            self.bound.remove(slot);
            self.program.set_device(*slot, None)?;
            let member = members.iter().find(|member| member.index.0 == *slot);
            let (Some(device), Some(member)) = (*device, member) else { continue };
            // It is gone meanwhile: the next tables follow.
            if self.program.set_device(*slot, Some(device)).is_err() {
                continue;
            }
            let interface = tables.attachment(member.index).map(|of_it| of_it.interface().if_index());
            let found = interface.and_then(|interface| host_end(&member.netns, interface).ok().flatten());
            if found == Some(device) {
                self.bound.insert(*slot, device);
            } else {
                self.program.set_device(*slot, None)?;
            }
        }
        Ok(())
    }

    /// Puts the program at the uplink's device, if that has changed.
    fn place(&mut self, device: u32) -> Result<(), BpfError> {
        if device != self.device {
            self.device = 0;
            self.program.detach();
            if device != 0 {
                self.program.attach(device)?;
                self.device = device;
            }
        }
        Ok(())
    }

    /// Checks that the program is where it was put, and puts it there again if not. Returns whether that was needed.
    pub(crate) fn look(&mut self) -> Result<bool, BpfError> {
        if self.device == 0 || self.program.place()? == Place::First {
            return Ok(false);
        }
        self.program.attach(self.device)?;
        Ok(true)
    }

    /// Whether frames of an attachment are taken now.
    pub(crate) fn is_taking(&self, index: AttachmentIndex) -> bool {
        self.device != 0 && self.bound.contains_key(&index.0)
    }

    /// What was counted for an attachment, by the numbers of [`Tallied`].
    pub(crate) fn tallies(&self, index: AttachmentIndex) -> Result<[u64; Tallied::ALL.len()], BpfError> {
        self.program.tallies(index.0)
    }
}

#[cfg(test)]
#[path = "ingress_tests.rs"]
mod tests;
