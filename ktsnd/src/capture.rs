// SPDX-License-Identifier: Apache-2.0
//! Kernel capture of one attachment: the program at the host end of its veth.
//!
//! In: the attachment's tables. Out: the ring that a worker takes frames from. The program is at its device exactly as long as
//! this value lives and its rules are those of `resolve`. If the program was removed, the next check notices it and puts it
//! there again. Nothing here keeps the pod's namespace open.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use ktsn_bpf::{BpfError, Capture, Destination, Options};
use ktsn_resolve::{AttachmentIndex, Tables, Verdict, captured_destinations};

use crate::tables::host_end;
use crate::worker::Ring;

/// Why an attachment cannot have kernel capture.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaptureError {
    /// The device for the program does not exist.
    #[error(
        "the interface is no veth with its other end in ktsnd's network namespace; capture = \"preload\" serves \
         programs that can be preloaded"
    )]
    NoHostEnd,
    /// The devices cannot be read.
    #[error("devices: {0}")]
    Devices(#[from] io::Error),
    /// The kernel's, or too many rules.
    #[error(transparent)]
    Bpf(#[from] BpfError),
}

/// The result of a check.
#[derive(Debug)]
pub(crate) enum Looked {
    /// The program is where it was put, or its device is gone.
    Unchanged,
    /// The program had been removed; it is there again.
    Reattached,
    /// The program was removed, and cannot be put there again.
    Failed(CaptureError),
}

/// The program of one attachment.
#[derive(Debug)]
pub(crate) struct HostEnd {
    capture: Capture,
    netns: PathBuf,
    interface_index: u32,
}

impl HostEnd {
    /// Loads a program for the peer of this interface. It is at no device yet.
    pub(crate) fn new(netns: &Path, interface_index: u32) -> Result<Self, CaptureError> {
        host_end(netns, interface_index)?.ok_or(CaptureError::NoHostEnd)?;
        let capture = Capture::load(&Options::default())?;
        Ok(Self { capture, netns: netns.to_owned(), interface_index })
    }

    /// The ring that a worker reads.
    pub(crate) fn ring(&self) -> Result<Ring, CaptureError> {
        Ok(Ring { frames: self.capture.frames()?, counters: self.capture.counters()? })
    }

    /// The rules that follow from these tables.
    pub(crate) fn set_tables(&mut self, tables: &Tables, index: AttachmentIndex) -> Result<(), CaptureError> {
        let rules: Vec<Destination> = captured_destinations(tables, index)
            .iter()
            .map(|rule| {
                let (address, bits) = rule.prefix.mapped();
                let take = match rule.verdict {
                    // The pod's kernel has asked for SO_BROADCAST already.
                    Verdict::Take { payload_max } | Verdict::Broadcast { payload_max } => Some(payload_max),
                    // The pod's kernel has chosen their way already.
                    Verdict::Asked { .. } | Verdict::Bypass(_) => None,
                };
                Destination { address, bits, take }
            })
            .collect();
        let mapped = |address: IpAddr| -> Ipv6Addr {
            match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            }
        };
        let interface = tables.attachment(index).map(ktsn_resolve::AttachmentTables::interface);
        let sources: Vec<Ipv6Addr> = interface
            .iter()
            .flat_map(|link| link.addresses().iter().map(|(address, _)| mapped(*address)))
            .collect();
        self.capture.set_destinations(&rules)?;
        self.capture.set_sources(&sources)?;
        Ok(())
    }

    /// Takes frames from here on.
    pub(crate) fn attach(&mut self) -> Result<(), CaptureError> {
        let device = host_end(&self.netns, self.interface_index)?.ok_or(CaptureError::NoHostEnd)?;
        Ok(self.capture.attach(device)?)
    }

    /// Leaves frames to the kernel from here on.
    pub(crate) fn detach(&mut self) {
        self.capture.detach();
    }

    /// Checks that the program is where it was put, and puts it there again if not.
    pub(crate) fn look(&mut self) -> Looked {
        match self.capture.is_attached() {
            Ok(true) => Looked::Unchanged,
            Ok(false) => match self.attach() {
                Ok(()) => Looked::Reattached,
                // The pod is going away: the attachment follows.
                Err(CaptureError::NoHostEnd | CaptureError::Devices(_)) => Looked::Unchanged,
                Err(error) => Looked::Failed(error),
            },
            Err(error) => Looked::Failed(error.into()),
        }
    }
}
