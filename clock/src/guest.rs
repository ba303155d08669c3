// SPDX-License-Identifier: Apache-2.0
//! The guest's side: finds the page and the exchange area, and makes exchanges.
//!
//! In: PCI devices of the kind ivshmem-plain, or files. Out: mapped areas, the best exchange of a window.

use crate::exchange::{Client, Exchange, is_area};
use crate::follower::Follower;
use crate::page::{Page, PageError};
use crate::region::Region;
use crate::{Guest, counter};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where the kernel lists PCI devices.
pub const DEVICES: &str = "/sys/bus/pci/devices";
/// ivshmem: Red Hat's vendor number and the device's.
const VENDOR_AND_DEVICE: [&str; 2] = ["0x1af4", "0x1110"];
/// Round trips in a window.
const ROUND_TRIPS: u32 = 24;
/// How long a guest spins in a window.
const SPIN: Duration = Duration::from_micros(2000);
/// How long one round trip may take before the next is tried.
const ROUND_TRIP: Duration = Duration::from_micros(300);
/// How often the page is looked at while a window is about to open.
const LOOK_AGAIN: Duration = Duration::from_micros(300);
/// From when to when around the next page's time it is looked for.
const LOOK_BEFORE: Duration = Duration::from_millis(1);
const LOOK_AFTER: Duration = Duration::from_millis(4);
/// How long a guest in a hurry looks for a window without sleeping: on a busy host it would be woken too late.
const AWAKE: Duration = Duration::from_millis(8);
/// Pages after which a window that was asked for is given up.
const INTERVALS_MAX: u32 = 4;

/// Why there are no areas.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// No device, or none with a page.
    #[error(
        "no ivshmem device (PCI 1af4:1110) holds {what} ({devices} such devices); start the guest with `ktsn vm run --clock vptp`, or give it the two devices of docs/guide/virtual-machines.md"
    )]
    Missing {
        /// What was looked for.
        what: &'static str,
        /// How many devices of the kind there are.
        devices: usize,
    },
    /// The kernel refuses.
    #[error("{path}: {source}; finding the clock's devices needs root")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The two areas, mapped.
#[derive(Debug)]
pub struct Areas {
    /// The page; read-only.
    pub page: Region,
    /// The exchange area.
    pub exchange: Region,
}

/// The memory of the devices below `devices`, which are enabled for it.
fn resources(devices: &Path) -> Result<Vec<PathBuf>, FindError> {
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| FindError::File { path, source }
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(devices).map_err(file(devices))? {
        let device = entry.map_err(file(devices))?.path();
        let reads = |name: &str| fs::read_to_string(device.join(name)).unwrap_or_default();
        if [reads("vendor").trim(), reads("device").trim()] != VENDOR_AND_DEVICE {
            continue;
        }
        let enable = device.join("enable");
        if reads("enable").trim() == "0" {
            fs::write(&enable, "1").map_err(file(&enable))?;
        }
        found.push(device.join("resource2"));
    }
    found.sort();
    Ok(found)
}

impl Areas {
    /// Finds them among the PCI devices.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn find(devices: &Path) -> Result<Self, FindError> {
        let resources = resources(devices)?;
        let (mut page, mut exchange) = (None, None);
        for path in &resources {
            let open = |is_writable| {
                Region::open(path, is_writable)
                    .map_err(|source| FindError::File { path: path.clone(), source })
            };
            let region = open(false)?;
            if is_area(&region) {
                exchange = Some(open(true)?);
            } else if !matches!(Page::read(&region, counter::KIND), Err(PageError::Magic(_))) {
                page = Some(region);
            }
        }
        let missing = |what| FindError::Missing { what, devices: resources.len() };
        Ok(Self {
            page: page.ok_or(missing("a published page"))?,
            exchange: exchange.ok_or(missing("an exchange area"))?,
        })
    }

    /// Opens them as files.
    ///
    /// # Errors
    /// [`FindError::File`].
    pub fn open(page: &Path, exchange: &Path) -> Result<Self, FindError> {
        let open = |path: &Path, is_writable| {
            Region::open(path, is_writable)
                .map_err(|source| FindError::File { path: path.to_owned(), source })
        };
        Ok(Self { page: open(page, false)?, exchange: open(exchange, true)? })
    }

    /// Reads the page.
    ///
    /// # Errors
    /// [`PageError`].
    pub fn read(&self) -> Result<(Page, u32), PageError> {
        Page::read(&self.page, counter::KIND)
    }
}

/// Asks for a window, waits for it, and makes round trips in it. The one that took the guest the least; `None`: there was no window, or no
/// answer in it. In a hurry the guest stays awake at first: after a pause the host looks for its request at once.
pub fn exchange(
    areas: &Areas,
    client: &mut Client,
    follower: &Follower,
    is_hurried: bool,
) -> Option<Exchange> {
    let wanted = client.ask(&areas.exchange);
    let asked = Instant::now();
    let is_wanted = || areas.read().is_ok_and(|(page, _)| page.window == wanted);
    let mut is_open = false;
    while is_hurried && !is_open && asked.elapsed() < AWAKE {
        is_open = is_wanted();
        std::hint::spin_loop();
    }
    let interval = areas.read().ok().map_or(crate::host::INTERVAL, |(page, _)| {
        Duration::from_nanos(u64::try_from(page.interval.get()).unwrap_or(0))
    });
    let until = Instant::now() + interval * INTERVALS_MAX;
    // With a line, it is known when the next page comes; until then the guest sleeps. The host may have no time for a window at this page.
    let first = until_next(areas, follower, interval);
    let mut nap = first.unwrap_or(LOOK_AGAIN * 3);
    let mut waited_since = Instant::now() + nap;
    while !is_open {
        std::thread::sleep(nap);
        is_open = is_wanted();
        if is_open {
            break;
        }
        if Instant::now() > until {
            client.withdraw(&areas.exchange);
            return None;
        }
        nap = LOOK_AGAIN;
        if first.is_some()
            && waited_since.elapsed() > LOOK_BEFORE + LOOK_AFTER
            && let Some(next) = until_next(areas, follower, interval)
        {
            (nap, waited_since) = (next, Instant::now() + next);
        }
    }
    let began = Instant::now();
    let mut best: Option<Exchange> = None;
    for _ in 0..ROUND_TRIPS {
        let sent = Instant::now();
        let mut goes_on = || sent.elapsed() < ROUND_TRIP && began.elapsed() < SPIN;
        let made = client.exchange(&areas.exchange, &mut counter::read, &mut goes_on);
        let took = |one: &Exchange| one.returned.0.wrapping_sub(one.sent.0);
        if let Some(made) = made
            && best.is_none_or(|best| took(&made) < took(&best))
        {
            best = Some(made);
        }
        if began.elapsed() >= SPIN {
            break;
        }
    }
    client.done(&areas.exchange);
    best
}

/// How long until shortly before the next page, if that is known.
fn until_next(areas: &Areas, follower: &Follower, interval: Duration) -> Option<Duration> {
    let (page, _) = areas.read().ok()?;
    let line = follower.line()?;
    let age = page.age(line.host_at(Guest(counter::read())));
    let age = Duration::from_nanos(u64::try_from(age.get()).ok()?);
    Some(interval.checked_sub(age)?.saturating_sub(LOOK_BEFORE).max(LOOK_AGAIN))
}
