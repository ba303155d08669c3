// SPDX-License-Identifier: Apache-2.0
//! tap + XDP: two of our eBPF programs in front of the kernel's bridge, which is the slow path.
//!
//! In: a tap and an uplink that a bridge joins already, the stations behind them, the uplink's peer. Out: [`Xdp`], which takes the programs
//! off when it is dropped. The peer gets a program that passes everything: without one a veth takes no redirected frames.

use super::bed::Bed;
use crate::error::LabError;
use crate::sys;
use ktsn_bpf::{BpfError, Forward, Forwarded, Mac, Pass};

/// One side: a device of the host, and the station behind it.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The device.
    pub device: &'a str,
    /// The station behind it.
    pub mac: Mac,
}

/// The programs at their devices.
#[derive(Debug)]
pub struct Xdp {
    uplink: Forward,
    guest: Forward,
    _peer: Pass,
}

/// Loads and attaches the programs. `peer`: namespace and name of the other end of the uplink's veth.
///
/// # Errors
/// The kernel refuses a program, or a driver has no XDP; nothing stays.
pub fn set_up(host: &str, guest: Side<'_>, uplink: Side<'_>, peer: (&str, &str)) -> Result<Xdp, LabError> {
    let (guest_index, uplink_index) = (Bed::index(host, guest.device)?, Bed::index(host, uplink.device)?);
    let peer_index = Bed::index(peer.0, peer.1)?;
    let attach = || -> Result<_, BpfError> {
        let (mut to_guest, mut to_uplink) = (Forward::uplink()?, Forward::guest()?);
        for program in [&to_guest, &to_uplink] {
            program.set_station(guest.mac, guest_index)?;
            program.set_station(uplink.mac, uplink_index)?;
        }
        to_guest.attach(uplink_index)?;
        to_uplink.attach(guest_index)?;
        Ok((to_guest, to_uplink))
    };
    // Indexes are those of the namespace of the calling thread.
    let peer = sys::within(peer.0, || Ok(Pass::attach(peer_index)))?.map_err(|error| refused(&error))?;
    let (to_guest, to_uplink) = sys::within(host, || Ok(attach()))?.map_err(|error| refused(&error))?;
    Ok(Xdp { uplink: to_guest, guest: to_uplink, _peer: peer })
}

fn refused(error: &BpfError) -> LabError {
    LabError::Impossible {
        what: format!("the programs of tap + XDP: {error}"),
        remedy: "a kernel with XDP in veth and tun (5.10 or newer), as root".to_owned(),
    }
}

impl Xdp {
    /// What the programs at the uplink and at the tap counted.
    ///
    /// # Errors
    /// The kernel's.
    pub fn counted(&self) -> Result<[Forwarded; 2], LabError> {
        Ok([
            self.uplink.counted().map_err(|error| refused(&error))?,
            self.guest.counted().map_err(|error| refused(&error))?,
        ])
    }
}
