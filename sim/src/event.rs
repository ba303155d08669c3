// SPDX-License-Identifier: Apache-2.0
//! What can happen, and the list of what will.

use std::collections::BTreeMap;

use ktsnd::worker::ClientKey;

/// One thing that happens at an instant. Instants and spans are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are named as what they are
pub enum Event {
    /// A tenant's next frame (or frames).
    Push { tenant: u16 },
    /// A frame that was claimed before is published.
    Publish { tenant: u16, id: u64 },
    /// A fresh frame after the faults, `left` more to come.
    Fresh { tenant: u16, left: u32 },
    /// A tenant's process is killed.
    Kill { tenant: u16 },
    /// The registrar notices that a client is over.
    Over { key: ClientKey },
    /// A tenant's next process attaches.
    Spawn { tenant: u16 },
    /// A tenant's attachment goes.
    Detach { tenant: u16 },
    /// And comes back.
    Attach { tenant: u16 },
    /// A tenant writes a shared word that is not its own.
    Poke { tenant: u16 },
    /// A tenant rings `left` times, a few µs apart.
    Ring { tenant: u16, left: u32 },
    /// The next hop of a tenant's frames becomes unknown or known.
    Neighbour { tenant: u16, known: bool },
    /// TAI is set.
    Step { span: i64 },
    /// The worker's thread does not run for so long.
    Stall { span: u64 },
    /// The carrier goes or comes.
    Link { up: bool },
    /// The device is removed; the control plane opens it again.
    DeviceGone,
    /// The device is there again.
    DeviceBack,
    /// The number of commits in a thousand that fail.
    PortErrors { permille: u32 },
    /// The kernel fills the link, or stops.
    BestEffort { on: bool },
    /// The gate schedule with this number is sent.
    Schedule { index: u16 },
    /// The worker is asked for its gates, as `ktsn schedule status` does.
    LookAtGates,
    /// All faults end.
    Heal,
    /// The daemon ends.
    Drain,
}

/// Events in the order of their instants; equal instants in the order in which they were added.
#[derive(Debug, Default)]
pub struct Agenda {
    events: BTreeMap<(u64, u64), Event>,
    added: u64,
}

impl Agenda {
    /// Adds an event.
    pub fn add(&mut self, at: u64, event: Event) {
        self.events.insert((at, self.added), event);
        self.added += 1;
    }

    /// When the next one happens.
    #[must_use]
    pub fn next_at(&self) -> Option<u64> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next one if it happens by `until`.
    pub fn take(&mut self, until: u64) -> Option<(u64, Event)> {
        let entry = self.events.first_entry().filter(|entry| entry.key().0 <= until)?;
        let ((at, _), event) = entry.remove_entry();
        Some((at, event))
    }

    /// Forgets all events that `which` names.
    pub fn forget(&mut self, which: impl Fn(&Event) -> bool) {
        self.events.retain(|_, event| !which(event));
    }
}
