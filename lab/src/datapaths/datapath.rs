// SPDX-License-Identifier: Apache-2.0
//! A datapath that stands: its bed, its parts, and the virtual machine's side.
//!
//! In: which path, what is on the virtual machine's side, the remote host, how a switch may use the machine. Out: a [`Datapath`]
//! through which frames have passed both ways. Everything ends with the value, in the order of its fields.

use super::bed::{Bed, FAR, TAP, UPLINK};
use super::endpoint::{Endpoint, Tap};
use super::far::Question;
use super::frame::{self, GUEST_MAC, Kind, REMOTE_MAC, text};
use super::guest::{Guest, Guests, Wire};
use super::near::{Near, PASSES_MAX, has_trial};
use super::path::{Direction, Path};
use super::remote::Remote;
use super::switch::{self, Port};
use super::{bridge, macvtap, xdp};
use crate::command::run;
use crate::error::LabError;
use crate::ovs::{self, Ovs, Polling};
use crate::sys;
use crate::testbed::check_name;
use crate::tools::Tools;
use crate::vm::{self, Accelerator, Opened};
use ktsn_measure::clock::{RealTime, stop_requested};
use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BRIDGE: &str = "br0";
const TRY_AGAIN: Duration = Duration::from_millis(5);

/// How the machine is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placement {
    /// CPU of a switch's polling thread, and of a switch's main thread where that reads the ports.
    pub(super) switch_cpu: usize,
    /// CPU of its other threads.
    pub(super) other_cpu: usize,
    /// What the polling thread does when it found nothing.
    pub(super) polling: Polling,
    /// CPU and priority of the sender and of the receiver; `None`: they are ordinary threads.
    pub(super) ends: Option<[RealTime; 2]>,
    /// CPU of all of a guest's threads; `None`: any.
    pub(super) guest_cpu: Option<usize>,
}

/// What is to be on the virtual machine's side.
#[derive(Clone, Copy)]
pub(super) enum With<'a> {
    /// The stand-in.
    StandIn,
    /// A guest, with the programs that it gets.
    Guest(&'a Guests, &'a Tools),
}

impl With<'_> {
    /// The owner of a tap. `offloads`: whether it may leave checksums and segments to the device.
    fn at_tap(self, tap: Tap, offloads: bool, placement: Placement) -> Result<Near, LabError> {
        let Self::Guest(guests, tools) = self else { return Ok(Near::StandIn(Endpoint::Tap(tap))) };
        let opened = Opened { end: Arc::new(tap.into_descriptor()), offloads };
        let wire = Wire { datapath: vm::Datapath::Opened(opened), cpu: placement.guest_cpu };
        Guest::start(guests, tools, wire).map(Near::Guest)
    }

    /// The owner of a vhost-user port of the switch, by a socket in `directory`.
    fn at_port(self, ovs: &mut Ovs, placement: Placement, directory: &FilePath) -> Result<Near, LabError> {
        let Self::Guest(guests, tools) = self else {
            return switch::connect(ovs, TAP, directory).map(|link| Near::StandIn(Endpoint::front(link)));
        };
        let socket = directory.join(format!("{TAP}.sock"));
        let wire = Wire { datapath: vm::Datapath::VhostUser(socket.clone()), cpu: placement.guest_cpu };
        let guest = Guest::start(guests, tools, wire)?;
        // The switch tries to connect until QEMU listens.
        ovs.add_front_end(switch::BRIDGE, TAP, &socket, 1)?;
        Ok(Near::Guest(guest))
    }
}

/// What a path has beside the two ends.
enum Parts {
    /// Devices of the kernel only.
    Kernel,
    Xdp(xdp::Xdp),
    Switch(Box<Ovs>),
}

/// A datapath that stands. Fields end in this order.
pub(crate) struct Datapath {
    pub(super) near: Near,
    parts: Parts,
    bed: Bed,
    path: Path,
}

/// Why a path is not possible on this machine, before it is tried. `is_apart`: the remote host is another machine.
pub(super) fn missing(path: Path, is_apart: bool) -> Option<String> {
    match path {
        Path::TapXdp if is_apart => Some(NO_XDP.to_owned()),
        Path::Vfio => Some(no_vfio(FilePath::new("/sys/bus/pci/drivers/vfio-pci"))),
        _ if path.has_switch() => switch::check().err().map(|error| error.to_string()),
        _ => None,
    }
}

/// The programs of tap + XDP run in drivers.
const NO_XDP: &str = "xdp_driver_missing: the uplink to another host is a macvlan, whose driver runs no XDP programs; remedy: measure tap-xdp \
                      on one machine (--hosts local)";

/// VFIO needs a device that is given away, and a remote host at its other end.
fn no_vfio(driver: &FilePath) -> String {
    let devices = std::fs::read_dir(driver).into_iter().flatten().flatten();
    let devices: Vec<String> = devices
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains(':'))
        .collect();
    match devices.first() {
        None => "vfio_device_missing: no network device is bound to vfio-pci; remedy: bind one that the host can spare".to_owned(),
        Some(device) => format!(
            "vfio_remote_missing: {device} is bound to vfio-pci, and its cable leads to no remote host of this experiment; remedy: measure \
             it with `ktsn talk` in the guest and `ktsn listen` on the host at the other end"
        ),
    }
}

impl Datapath {
    /// Sets the path up and passes a frame through it both ways. `directory` is for sockets.
    ///
    /// # Errors
    /// [`LabError::Impossible`] with the remedy, else what failed. Nothing is left behind.
    pub(super) fn set_up(
        path: Path,
        with: With<'_>,
        placement: Placement,
        directory: &FilePath,
        remote: &mut Remote,
    ) -> Result<Self, LabError> {
        check_name(TAP)?;
        let bed = remote.bed(path, placement.ends)?;
        let (near, parts) = match path {
            Path::Vfio => {
                let what = missing(path, false).unwrap_or_default();
                return Err(LabError::Impossible { what, remedy: "another path".to_owned() });
            }
            Path::Macvtap => (with.at_tap(open_macvtap(&bed)?, true, placement)?, Parts::Kernel),
            Path::TapBridge => (with.at_tap(behind_bridge(&bed, true)?, true, placement)?, Parts::Kernel),
            Path::TapXdp => {
                let owned = behind_bridge(&bed, false)?;
                let (tap, uplink) = (
                    xdp::Side { device: TAP, mac: GUEST_MAC },
                    xdp::Side { device: UPLINK, mac: REMOTE_MAC },
                );
                let Some(namespace) = &bed.remote else {
                    return Err(LabError::Impossible {
                        what: NO_XDP.to_owned(),
                        remedy: "another path".to_owned(),
                    });
                };
                let xdp = xdp::set_up(&bed.host, tap, uplink, (namespace, FAR))?;
                (with.at_tap(owned, false, placement)?, Parts::Xdp(xdp))
            }
            Path::TapOvs | Path::OvsAfxdp | Path::OvsDpdk => {
                through_switch(&bed, path, with, placement, directory)?
            }
        };
        let mut datapath = Self { near, parts, bed, path };
        if let Near::Guest(guest) = &mut datapath.near {
            guest.wait_until_ready()?;
        }
        let tried = datapath.try_out(remote);
        // A switch that has ended explains why nothing passed.
        datapath.check()?;
        tried.map(|()| datapath)
    }

    /// How the instructions of the guest run, if there is one.
    pub(super) const fn accelerator(&self) -> Option<Accelerator> {
        match &self.near {
            Near::StandIn(_) => None,
            Near::Guest(guest) => Some(guest.accelerator),
        }
    }

    /// Sends frames that are not measured until one has arrived at both ends.
    fn try_out(&mut self, remote: &mut Remote) -> Result<(), LabError> {
        let () = remote.ask(Question::Forget)?;
        let frame = frame::build(Direction::Egress, Kind::Trial, frame::PAYLOAD_OCTETS);
        let (begun, mut out, mut back) = (Instant::now(), false, false);
        loop {
            if let Near::StandIn(near) = &mut self.near {
                let _may_be_refused = near.send(&frame, false).map_err(LabError::system("send"))?;
            }
            out |= remote.ask::<bool>(Question::Try)?;
            back |= match &mut self.near {
                Near::StandIn(near) => has_trial(near)?,
                // It answers a trial by another one.
                Near::Guest(_) => out,
            };
            if out && back {
                return Ok(());
            }
            if stop_requested() {
                return Err(LabError::Stopped);
            }
            if begun.elapsed() > PASSES_MAX {
                let direction = if out { Direction::Ingress } else { Direction::Egress };
                return Err(remote.passes_nothing(self.path, direction, self.said()));
            }
            std::thread::sleep(TRY_AGAIN);
        }
    }

    /// The end of what the switch said, if there is one.
    fn said(&self) -> String {
        match &self.parts {
            Parts::Switch(ovs) => format!("; Open vSwitch said:\n{}", crate::process::end_of(&ovs.log())),
            _ => String::new(),
        }
    }

    /// Whether all parts are alive.
    ///
    /// # Errors
    /// The switch has ended, or has closed the guest's port.
    pub(super) fn check(&mut self) -> Result<(), LabError> {
        if let Parts::Switch(ovs) = &mut self.parts {
            ovs.check_running()?;
        }
        match &mut self.near {
            Near::StandIn(near) => near.check(),
            Near::Guest(guest) => guest.check(),
        }
    }

    /// Frames that the parts dropped so far, by counter.
    ///
    /// # Errors
    /// `ip` or the switch fails.
    pub(super) fn drops(&self) -> Result<BTreeMap<String, u64>, LabError> {
        let mut drops = self.bed.drops()?;
        match &self.parts {
            Parts::Switch(ovs) => drops.extend(switch::drops(ovs)?),
            Parts::Xdp(xdp) => {
                // No losses, but frames that the slow path may lose: they explain where a frame went.
                let [uplink, guest] = xdp.counted()?;
                let slow = uplink.unknown + guest.unknown + guest.foreign;
                drops.insert(SLOW_PATH.to_owned(), slow);
            }
            Parts::Kernel => {}
        }
        Ok(drops)
    }

    /// Kills the switch, as a crash does; nothing on other paths.
    #[cfg(test)]
    pub(super) fn kill_switch(&mut self) {
        if let Parts::Switch(ovs) = &mut self.parts {
            ovs.kill().expect("a process of ours");
        }
    }

    /// Frames that the bridge's own device saw: those that the bridge flooded or took.
    #[cfg(test)]
    pub(super) fn bridged(&self) -> Result<u64, LabError> {
        let line = format!("ip -n {} -s -j link show dev {BRIDGE}", self.bed.host);
        let text = crate::command::output(None, &line)?;
        let links: serde_json::Value = serde_json::from_str(&text).expect("ip prints JSON");
        Ok(links[0]["stats64"]["rx"]["packets"].as_u64().expect("a counter"))
    }

    /// Frames that other drivers' XDP programs have handed to the uplink.
    #[cfg(test)]
    pub(super) fn redirected(&self) -> Result<u64, LabError> {
        let text = crate::command::output(Some(&self.bed.host), &format!("ethtool -S {UPLINK}"))?;
        let count = text.lines().find_map(|line| line.trim().strip_prefix("tx_queue_0_xdp_xmit: "));
        Ok(count.expect("a counter of veth").parse().expect("a number"))
    }

    /// The names of the namespaces.
    #[cfg(test)]
    pub(super) fn namespaces(&self) -> [String; 2] {
        [self.bed.host.clone(), self.bed.remote.clone().unwrap_or_default()]
    }
}

/// Frames that the programs of tap + XDP left to the bridge; these are not lost.
pub(super) const SLOW_PATH: &str = "xdp_slow_path";

fn open_tap(bed: &Bed, offloads: bool) -> Result<Tap, LabError> {
    let tap = sys::within(&bed.host, || Tap::open(TAP, offloads))?;
    run(None, &format!("ip -n {} link set {TAP} up", bed.host))?;
    Ok(tap)
}

fn open_macvtap(bed: &Bed) -> Result<Tap, LabError> {
    let node = macvtap::set_up(&bed.host, UPLINK, TAP, &text(GUEST_MAC))?;
    Tap::of(node, TAP, true).map_err(LabError::system("ioctl(macvtap)"))
}

/// A tap behind the bridge. `offloads`: XDP loses them.
fn behind_bridge(bed: &Bed, offloads: bool) -> Result<Tap, LabError> {
    let tap = open_tap(bed, offloads)?;
    bridge::set_up(&bed.host, BRIDGE, &[TAP, UPLINK])?;
    bridge::pin(&bed.host, TAP, &text(GUEST_MAC))?;
    bridge::pin(&bed.host, UPLINK, &text(REMOTE_MAC))?;
    Ok(tap)
}

fn through_switch(
    bed: &Bed,
    path: Path,
    with: With<'_>,
    placement: Placement,
    directory: &FilePath,
) -> Result<(Near, Parts), LabError> {
    let Placement { switch_cpu, other_cpu, polling, .. } = placement;
    // On tap-ovs the main thread reads the ports.
    let main_cpu = if path == Path::TapOvs { switch_cpu } else { other_cpu };
    let options = ovs::Options {
        cpu: switch_cpu,
        main_cpu,
        polling,
        dpdk: path == Path::OvsDpdk,
        ..ovs::Options::default()
    };
    // The tap is older than the switch: it ends before it, in this function's errors as well.
    let tap = if path == Path::OvsDpdk { None } else { Some(open_tap(bed, false)?) };
    let mut ovs = switch::start(&bed.host, &options)?;
    let port = if path == Path::TapOvs { Port::System } else { Port::Afxdp };
    switch::add_device(&ovs, UPLINK, port)?;
    let near = match tap {
        Some(tap) => {
            switch::add_device(&ovs, TAP, port)?;
            with.at_tap(tap, false, placement)?
        }
        None => with.at_port(&mut ovs, placement, directory)?,
    };
    ovs.pin(switch::BRIDGE, TAP, &text(GUEST_MAC))?;
    ovs.pin(switch::BRIDGE, UPLINK, &text(REMOTE_MAC))?;
    if path != Path::TapOvs {
        ovs.place_polling_thread()?;
    }
    Ok((near, Parts::Switch(Box::new(ovs))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vfio_is_skipped_with_its_reason() {
        let directory = tempfile::tempdir().unwrap();
        assert!(no_vfio(&directory.path().join("none")).starts_with("vfio_device_missing"));
        std::fs::write(directory.path().join("bind"), "").unwrap();
        assert!(no_vfio(directory.path()).starts_with("vfio_device_missing"));
        std::fs::create_dir(directory.path().join("0000:01:00.0")).unwrap();
        let with = no_vfio(directory.path());
        assert!(with.starts_with("vfio_remote_missing") && with.contains("0000:01:00.0"), "{with}");
    }
}
