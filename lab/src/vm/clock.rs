// SPDX-License-Identifier: Apache-2.0
//! The host's side of a guest's clock.
//!
//! In: which clock the guest gets. Out: QEMU's arguments and what QEMU inherits; a thread that publishes while the guest runs, or a time
//! server. Page and exchange area are in memory and belong to one guest. QEMU's monitor tells the publisher of pauses.

use super::image::Image;
use super::machine::Accelerator;
use super::protocol::Clock;
use super::qmp::Events;
use super::request::Request;
use super::runs::Record;
use super::time_server::TimeServer;
use crate::error::LabError;
use ktsn_clock::host::{Done, Options, Pace, Publisher, Woken};
use ktsn_clock::region::{OCTETS, Region};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// What the host does for a guest's clock; ends on drop.
#[derive(Debug)]
pub(super) struct HostClock {
    areas: Option<[File; 2]>,
    /// QEMU's end of its monitor.
    monitor: Option<UnixStream>,
    server: Option<TimeServer>,
    stop: Arc<AtomicBool>,
    publisher: Option<JoinHandle<io::Result<Done>>>,
}

/// Publishes until a stop is asked for; wakes by the monitor's events.
struct ByEvents {
    stop: Arc<AtomicBool>,
    events: Events,
}

impl Pace for ByEvents {
    fn goes_on(&mut self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn sleep(&mut self, nap: Duration) -> Woken {
        self.events.sleep(nap)
    }
}

/// Shared memory of an area's length, which it keeps: QEMU has it, too, and a publisher whose memory is cut ends by SIGBUS.
fn memory(name: &str) -> Result<File, LabError> {
    let memory = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|error| LabError::system("memfd_create")(error.into()))?;
    let memory = File::from(memory);
    memory.set_len(OCTETS.into()).map_err(LabError::system("memory for the guest's clock"))?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|error| LabError::system("F_ADD_SEALS")(error.into()))?;
    Ok(memory)
}

impl HostClock {
    /// Starts what the clock needs; `record` gets its process.
    ///
    /// # Errors
    /// [`LabError::Impossible`] if this machine cannot give the guest such a clock; [`LabError::Usage`] if the guest's network cannot.
    pub(super) fn start(image: &Image, request: &Request, record: &mut Record) -> Result<Self, LabError> {
        let (clock, accelerator) = (request.job.clock, request.accelerator);
        let stop = Arc::new(AtomicBool::new(false));
        let mut made = Self { areas: None, monitor: None, server: None, stop, publisher: None };
        match clock {
            Clock::None => {}
            Clock::Kvm if accelerator != Accelerator::Kvm => {
                return Err(LabError::Impossible {
                    what: format!(
                        "--clock kvm needs a guest under KVM, and this one runs under {accelerator}"
                    ),
                    remedy: "--clock vptp".to_owned(),
                });
            }
            Clock::Kvm => {}
            Clock::Chrony => made.server = Some(TimeServer::start(image, &request.machine, record)?),
            Clock::Vptp => made.publish()?,
        }
        Ok(made)
    }

    fn publish(&mut self) -> Result<(), LabError> {
        let areas = [memory("ktsn-page")?, memory("ktsn-exchange")?];
        let map = |area: &File| Region::of(area, true).map_err(LabError::system("mmap"));
        let publisher = Publisher::new(map(&areas[0])?, map(&areas[1])?, Options::default());
        let mut publisher = publisher.map_err(LabError::system("the guest's clock"))?;
        let (ours, theirs) = UnixStream::pair().map_err(LabError::system("socketpair"))?;
        let mut pace = ByEvents { stop: Arc::clone(&self.stop), events: Events::of(ours) };
        let thread = std::thread::Builder::new().name("ktsn-clock".to_owned()).spawn(move || {
            publisher.run(&mut pace)?;
            Ok(publisher.done())
        });
        self.publisher = Some(thread.map_err(LabError::system("a thread"))?);
        (self.areas, self.monitor) = (Some(areas), Some(theirs));
        Ok(())
    }

    /// Where the guest asks for the time: address and port; empty: nowhere.
    pub(super) fn time_server(&self) -> String {
        let address = self.server.as_ref().map(TimeServer::address);
        address.map_or_else(String::new, |address| format!("{} {}", address.ip(), address.port()))
    }

    /// What QEMU inherits.
    pub(super) fn descriptors(&self) -> Vec<RawFd> {
        let areas = self.areas.iter().flatten().map(|area| area.as_raw_fd());
        areas.chain(self.monitor.iter().map(|monitor| monitor.as_raw_fd())).collect()
    }

    /// QEMU's arguments. The guest cannot write the page.
    pub(super) fn arguments(&self) -> Vec<String> {
        let device = |id: &str, fd: RawFd, access: &str| {
            let path = format!("/proc/self/fd/{fd}");
            [
                "-object".to_owned(),
                format!("memory-backend-file,id={id},size={OCTETS},share=on{access},mem-path={path}"),
                "-device".to_owned(),
                // The role that a guest may be migrated with; nothing else differs.
                format!("ivshmem-plain,memdev={id},master=on"),
            ]
        };
        match self.descriptors()[..] {
            [page, exchange, monitor] => {
                let monitor = [
                    "-chardev".to_owned(),
                    format!("socket,id=events,fd={monitor}"),
                    "-mon".to_owned(),
                    "chardev=events,mode=control".to_owned(),
                ];
                [device("page", page, ",readonly=on"), device("exchange", exchange, ""), monitor].concat()
            }
            _ => Vec::new(),
        }
    }
}

impl Drop for HostClock {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The guest has noticed a publisher that failed: its clock was unsynchronised.
        let _ = self.publisher.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest may own its QEMU, which has both areas.
    #[test]
    fn nothing_that_qemu_inherits_can_be_cut() {
        let memory = memory("ktsn-test").unwrap();
        let qemu_s =
            File::options().write(true).open(format!("/proc/self/fd/{}", memory.as_raw_fd())).unwrap();
        for octets in [0, 4096, u64::from(OCTETS) * 2] {
            let refused = qemu_s.set_len(octets).expect_err("cut");
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{octets}");
        }
        assert_eq!(memory.metadata().unwrap().len(), u64::from(OCTETS));
        Region::of(&memory, true).unwrap();
    }
}
