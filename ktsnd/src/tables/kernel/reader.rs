// SPDX-License-Identifier: Apache-2.0
//! A pod's namespace, read by a thread of its own.
//!
//! In: a path. Out: a snapshot, or why there is none. A pod's root decides how much there is to read and how long that takes:
//! no other thread waits for it, what is read has a bound in entries, octets and time, and the rest of an answer goes with its
//! socket. The thread enters the namespace and ends.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{mpsc, oneshot};

use super::ask::{Question, ask};
use super::namespace::{Entered, Identity};
use super::netlink::{Bounds, Hints, Netlink};
use super::pod_filter::PodFilter;
use super::snapshot::Snapshot;
use super::space::dump;
use crate::tables::error::{TablesError, netlink_error};

/// Entries of each kind that are looked at: links, addresses, routes and neighbours of each family. As many as tables hold.
const ENTRIES_MAX: usize = ktsn_resolve::limits::ROUTES_MAX;
/// Octets of one dump.
const OCTETS_MAX: usize = 8 << 20;
/// The time for all dumps of a namespace together.
const TIME_MAX: Duration = Duration::from_secs(2);

/// What a namespace shows.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) path: PathBuf,
    /// The number that the reading was given.
    pub(crate) number: u64,
    pub(crate) identity: Option<Identity>,
    pub(crate) snapshot: Result<Snapshot, TablesError>,
    /// The CPU time that it took.
    pub(crate) cost: Duration,
}

/// A namespace that is read for the first time: a socket that hears of changes, and what there was after that.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) entered: Entered,
    pub(crate) snapshot: Snapshot,
    pub(crate) cost: Duration,
}

/// Opens and reads the namespace at `path`.
///
/// # Errors
/// `Namespace`, `TooLarge`, `Netlink`; `Ended`: there is no thread to be had.
pub(crate) async fn open(path: PathBuf) -> Result<Opened, TablesError> {
    let (answer, answered) = oneshot::channel();
    spawn(move || {
        let opened = enter(&path).and_then(|()| Entered::here());
        let opened = opened.map_err(|source| TablesError::Namespace { path: path.clone(), source });
        let opened = opened.and_then(|entered| {
            let snapshot = read_here(&path, entered.identity, None, Hints::all())?;
            Ok(Opened { entered, snapshot, cost: cpu_time() })
        });
        // Where the caller is gone, the namespace is let go.
        let _ = answer.send(opened);
    })?;
    answered.await.map_err(|_| TablesError::Ended)?
}

/// Reads again what is hinted at of the namespace at `path`. `excepted`: destinations whose routes may have exceptions. The answer comes by
/// `results`.
///
/// # Errors
/// `Ended`: there is no thread to be had.
pub(crate) fn read_again(
    path: PathBuf,
    before: Arc<Snapshot>,
    hints: Hints,
    excepted: BTreeSet<IpAddr>,
    number: u64,
    results: mpsc::UnboundedSender<Read>,
) -> Result<(), TablesError> {
    spawn(move || {
        let identity = enter(&path).and_then(|()| Identity::of(Path::new("/proc/thread-self/ns/net")));
        let (identity, snapshot) = match identity {
            Ok(identity) => (Some(identity), read_here(&path, identity, Some((&before, &excepted)), hints)),
            Err(source) => (None, Err(TablesError::Namespace { path: path.clone(), source })),
        };
        let _ = results.send(Read { path, number, identity, snapshot, cost: cpu_time() });
    })
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), TablesError> {
    let thread = std::thread::Builder::new().name("ktsn-netns".into()).stack_size(512 << 10);
    thread.spawn(work).map(drop).map_err(|_| TablesError::Ended)
}

/// Moves the calling thread, for good.
fn enter(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Reads the namespace that the calling thread is in.
fn read_here(
    path: &Path,
    identity: Identity,
    before: Option<(&Snapshot, &BTreeSet<IpAddr>)>,
    hints: Hints,
) -> Result<Snapshot, TablesError> {
    let failed = netlink_error("socket");
    let mut netlink = Netlink::open_unsubscribed().map_err(failed)?;
    // The node's own namespace needs no bounds.
    if Identity::of(Path::new("/proc/self/ns/net")).ok() != Some(identity) {
        let until = Instant::now() + TIME_MAX;
        netlink.bounds = Some(Bounds { entries_max: ENTRIES_MAX, octets_max: OCTETS_MAX, until });
    }
    let bounds = netlink.bounds;
    let mut snapshot = before.map(|(before, _)| before.clone()).unwrap_or_default();
    let hints = if before.is_none() { Hints::all() } else { hints };
    for destination in before.into_iter().flat_map(|(_, excepted)| excepted) {
        // Linux lists an exception once a datagram has taken its route, or a question.
        let _ = ask(&mut netlink, &Question::to(*destination));
    }
    let read = dump(&mut netlink, &mut snapshot, hints, &Default::default());
    read.map_err(|error| match error {
        TablesError::Netlink { what, source } if netlink.is_beyond_bounds => {
            TablesError::TooLarge { path: path.to_owned(), what, why: source.to_string() }
        }
        other => other,
    })?;
    if hints.filter {
        snapshot.filter = PodFilter::read(bounds);
    }
    Ok(snapshot)
}

/// The CPU time of the calling thread.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}
