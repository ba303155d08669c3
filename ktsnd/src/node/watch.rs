// SPDX-License-Identifier: Apache-2.0
//! What the node watches: the clock, the programs at devices, rules that are not known yet; and what it warns of.
//!
//! In: the clock's state, what others do to programs of captures and of the ingress fast path. Out: an event each 200 ms (each second
//! where there is no program), as soon as the kernel's RTNL lock was free: each look takes that lock, and the node must not wait for
//! it where a driver holds it. A thread does. What `Health` answers while the node is busy is on a board.

mod ingress;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ktsn_port::{Device, link_info};
use tracing::warn;

use super::events::{Event, EventSender};
use crate::clock::{ClockView, Known};
use crate::config::ClockSource;
use crate::ingress::Uplink;
use crate::policy::Unread;
use crate::supervise::{self, Watched};
use crate::tables::Restriction;
pub(crate) use ingress::NO_WAY_IN;

/// Period at which the programs are checked for being in place.
const LOOK: Duration = Duration::from_millis(200);
/// Where there is no program at a device, nothing is urgent.
const LOOK_AT_NONE: Duration = Duration::from_secs(1);
/// Captures are looked at each second.
const LOOKS_FOR_CAPTURES: u64 = 5;

/// What the node watches.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) clock: Known,
    warnings: Vec<String>,
    /// What `Health` answers while the node is busy.
    pub(crate) board: HealthBoard,
    /// The programs of the ingress fast path, by uplink.
    ingress: BTreeMap<String, Uplink>,
    /// The warnings about the ingress fast path that hold now. A warning is logged again only after it has gone away.
    ingress_warnings: BTreeSet<String>,
    /// Whether there is a program at a device.
    is_any_program: Arc<AtomicBool>,
    /// How often programs were looked at.
    looks: u64,
    pub(crate) closed: Closed,
}

impl Watch {
    /// Adds a warning that `Health` shows.
    pub(crate) fn warn(&mut self, warning: String) {
        warn!("{warning}");
        // What goes on happening is shown once.
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    pub(super) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Programs are looked at from now on. The thread ends with the node.
    pub(super) fn start_looks(&self, events: &EventSender) {
        let (is_any, events) = (self.is_any_program.clone(), events.clone());
        let started =
            std::thread::Builder::new().name("ktsn-programs".into()).stack_size(256 << 10).spawn(move || {
                let watched = Watched::enter("ktsn-programs", "");
                let loopback = Device { ifname: "lo", netns: None };
                let mut is_heard = true;
                while is_heard {
                    watched.waits();
                    std::thread::sleep(if is_any.load(Relaxed) { LOOK } else { LOOK_AT_NONE });
                    watched.works();
                    if is_any.load(Relaxed) {
                        // What it says does not matter: the lock was free.
                        let _ = supervise::kernel("before it looks at programs", || link_info(&loopback));
                    }
                    is_heard = events.send(Event::Programs).is_ok();
                }
            });
        if let Err(error) = started {
            warn!(%error, "programs at devices that others remove are not put back");
        }
    }

    /// Programs are to be looked at now; whether those of captures are, too.
    pub(super) fn is_look_for_captures(&mut self) -> bool {
        self.looks += 1;
        self.looks.is_multiple_of(LOOKS_FOR_CAPTURES)
    }

    /// Programs were looked at; `is_any_capture`: there are some of captures.
    pub(super) fn looked(&self, is_any_capture: bool) {
        self.is_any_program.store(is_any_capture || !self.ingress.is_empty(), Relaxed);
    }
}

/// Attachments that stay closed until the rules of the node's packet filter are followed.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    /// Why the rules were not known when the start waited for them. Later attachments of this start do not wait again.
    pub(super) unread: Option<Unread>,
    /// The closed attachments by name, each with the restriction that `ktsn` shows.
    all: BTreeMap<String, Arc<Restriction>>,
}

impl Closed {
    /// What an attachment is closed with; `None`: it is open.
    pub(crate) fn of(&self, name: &str) -> Option<&Arc<Restriction>> {
        self.all.get(name)
    }

    pub(super) fn add(&mut self, name: &str, restriction: Arc<Restriction>) {
        self.all.insert(name.to_owned(), restriction);
    }

    pub(super) fn forget(&mut self, name: &str) {
        self.all.remove(name);
    }

    /// Opens all. Answers their names.
    pub(super) fn open(&mut self) -> Vec<String> {
        std::mem::take(&mut self.all).into_keys().collect()
    }
}

/// What the node noted of itself, once a second and at each question that it answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct HealthNotes {
    pub(crate) warnings: Vec<String>,
    pub(crate) needs_clock: bool,
    pub(crate) is_stopping: bool,
    pub(crate) clock: ClockNotes,
}

/// The clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClockNotes {
    pub(crate) source: ClockSource,
    pub(crate) view: ClockView,
    /// Uplinks whose frames are held or dropped now.
    pub(crate) holding: Vec<String>,
}

/// The node's last notes, for the thread that answers clients: the node may wait for the kernel meanwhile.
#[derive(Clone, Debug, Default)]
pub(crate) struct HealthBoard(Arc<Mutex<HealthNotes>>);

impl HealthBoard {
    pub(super) fn note(&self, notes: HealthNotes) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = notes;
    }

    pub(crate) fn read(&self) -> HealthNotes {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
