// SPDX-License-Identifier: Apache-2.0
//! Any driver of DPDK, by its devargs (feature `dpdk`).
//!
//! In: staged frames, each in a buffer of DPDK's own. Out: one `rte_eth_tx_burst` a frame; what that costs is the driver's affair: a
//! few stores to a NIC's ring, or a system call for `net_af_packet`. Nothing is received.
//!
//! ```text
//!  process ── environment (EAL), once: in memory only, no telemetry, no files, no worker threads
//!     └ port ── device (devargs) ── 1 transmit queue ── pool of buffers: one per stage, and the queue's
//! ```
//! A taken buffer is the driver's until it is done with it; the stage is free at once, since the pool has another one for it. So
//! nothing is in flight here, and a driver that holds more than its queue shows as [`StageError::Full`].
//!
//! What a driver hides is hidden here too: `net_af_packet` says yes to a frame that its socket refused (link down), `net_null` to all.

#[allow(unsafe_code)]
mod sys;
#[cfg(test)]
mod tests;

use std::ffi::CString;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::{Device, LinkState, LinkWatch, Options, in_namespace, look_up_ethernet};
use crate::error::{OpenError, SendError, StageError};
use crate::limits::{CHUNK_OCTETS_MIN, ETHERNET_HEADER_OCTETS, VLAN_TAG_OCTETS};
use crate::stages::Stages;
use crate::traits::{Builder, Capabilities, Counters, Occupancy, Port, StageId};

/// Transmit descriptors asked for; a driver may insist on another count.
const DESCRIPTORS: u16 = 512;
/// Memory of the environment without huge pages, shared by all ports, in MiB: a port with 4,096 buffers takes 12.
const MEMORY_MIB: u32 = 64;

/// Whether the environment is up, and if not, what it said: it can be started once in a process.
static ENVIRONMENT: Mutex<Option<Result<(), i32>>> = Mutex::new(None);
/// Pools have names of their own.
static POOLS: AtomicU32 = AtomicU32::new(0);

/// A device that DPDK drives. Dropping it gives the device back; DPDK's environment stays.
#[derive(Debug)]
pub struct Dpdk {
    lane: sys::Lane,
    /// Where the kernel knows the device too, it is asked about the link.
    watch: Option<LinkWatch>,
    stages: Stages,
    capabilities: Capabilities,
}

impl Dpdk {
    /// Opens what `devargs` name (`net_af_packet0,iface=eth1`, `0000:03:00.0`) for transmission. Where the kernel has a `device` of
    /// its own for it, address, MTU and link are that one's, and the driver works in its namespace; else they are the driver's.
    /// [`Options::queue`] has no meaning here.
    ///
    /// Virtual devices (`net_…`) need no huge pages. A device on PCI does, and must be there when the first port of the process is
    /// opened.
    ///
    /// # Errors
    /// An [`OpenError`]; nothing stays open but DPDK's environment.
    pub fn open(device: Option<&Device<'_>>, devargs: &str, options: &Options) -> Result<Self, OpenError> {
        let words = Words::of(devargs)?;
        let netns = device.and_then(|device| device.netns);
        in_namespace(netns, || {
            let stages = Stages::new(options.stage_count)?;
            let link = device.map(|device| look_up_ethernet(device.ifname)).transpose()?;
            start_environment(&words)?;
            let failed = |step| words.failed(step);
            let attached =
                sys::Attached::new(&words.devargs, &words.name).map_err(failed("rte_dev_probe"))?;
            let info = attached.info(DESCRIPTORS).map_err(failed("rte_eth_dev_info_get"))?;
            let (ifindex, mac, mtu_octets) = match &link {
                Some((_, link)) => (link.ifindex, link.mac, link.mtu_octets),
                None => (0, info.mac, usize::from(info.mtu)),
            };
            let frame_octets_max = mtu_octets + ETHERNET_HEADER_OCTETS + VLAN_TAG_OCTETS;
            let slot_octets = u16::try_from(frame_octets_max.max(CHUNK_OCTETS_MIN))
                .map_err(|_| words.failed("MTU")(libc::EMSGSIZE))?;
            let pool = format!("ktsn{}", POOLS.fetch_add(1, Ordering::Relaxed));
            let pool = CString::new(pool).map_err(|_| words.failed("pool")(libc::EINVAL))?;
            let room =
                sys::Room { slots: options.stage_count, slot_octets, reads: words.insists_on_reading() };
            let lane = sys::Lane::start(attached, &pool, &info, room).map_err(failed("rte_eth_dev_start"))?;
            let capabilities = Capabilities {
                adapter: "dpdk",
                ifindex,
                mac,
                mtu_octets,
                frame_octets_max,
                stage_count: options.stage_count,
            };
            Ok(Self { lane, watch: link.map(|(watch, _)| watch), stages, capabilities })
        })
    }

    /// Why the driver took no frame: it does not say.
    #[cold]
    fn refusal(&self) -> SendError {
        match &self.watch {
            Some(watch) if watch.state() != LinkState::Up => LinkWatch::reason(watch.state()),
            None if !self.lane.link_up() => SendError::LinkDown,
            _ => SendError::Busy,
        }
    }
}

/// The devargs as DPDK wants them, and the device's name in front.
struct Words {
    devargs: CString,
    name: CString,
}

impl Words {
    fn of(devargs: &str) -> Result<Self, OpenError> {
        let wrong = || OpenError::Devargs { devargs: devargs.to_owned() };
        let name = devargs.split(',').next().unwrap_or_default();
        let fits = !name.is_empty() && name.len() < 64 && !devargs.contains(char::is_whitespace);
        match (CString::new(devargs), CString::new(name)) {
            (Ok(devargs), Ok(name)) if fits => Ok(Self { devargs, name }),
            _ => Err(wrong()),
        }
    }

    /// Virtual devices are called `net_…`; whatever else there is lies on a bus.
    fn is_virtual(&self) -> bool {
        self.name.as_bytes().starts_with(b"net_")
    }

    /// `net_memif` starts without a ring to read, but then its ends never find each other.
    fn insists_on_reading(&self) -> bool {
        self.name.as_bytes().starts_with(b"net_memif")
    }

    fn failed(&self, step: &'static str) -> impl Fn(i32) -> OpenError + use<> {
        let devargs = self.devargs.to_string_lossy().into_owned();
        move |errno| OpenError::Dpdk { step, devargs: devargs.clone(), errno }
    }
}

/// Starts the environment for a process whose first device is `first`. On a thread of its own: DPDK pins the one that starts it.
fn start_environment(first: &Words) -> Result<(), OpenError> {
    let mut state = ENVIRONMENT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let said = *state.get_or_insert_with(|| {
        let arguments: Vec<CString> =
            arguments(first).into_iter().filter_map(|word| CString::new(word).ok()).collect();
        let thread = std::thread::Builder::new().name("ktsn-eal".to_owned());
        match thread.spawn(move || initialise(arguments)).map(std::thread::JoinHandle::join) {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(libc::EIO),
            Err(error) => Err(error.raw_os_error().unwrap_or(libc::EAGAIN)),
        }
    });
    said.map_err(first.failed("rte_eal_init"))
}

fn initialise(arguments: Vec<CString>) -> Result<(), i32> {
    sys::init(arguments)?;
    // Nothing is shared, so the directory is empty, and no other process would remove it in the end.
    let _kept_by_others = std::fs::remove_dir(sys::directory());
    Ok(())
}

/// The environment's command line: nothing on disk, nothing shared, no thread but the one that starts it.
fn arguments(first: &Words) -> Vec<String> {
    let (cpu, memory) = (first_cpu().to_string(), MEMORY_MIB.to_string());
    let prefix = format!("--file-prefix=ktsn-{}", std::process::id());
    let devargs = first.devargs.to_string_lossy();
    let always = ["ktsn", "--no-telemetry", "--log-level=error", &prefix, "-l", &cpu];
    let by_kind: &[&str] = if first.is_virtual() {
        &["--no-pci", "--no-huge", "-m", &memory, "--no-shconf"]
    } else {
        // Other devices of the bus are left alone.
        &["--in-memory", "-a", &devargs]
    };
    always.iter().chain(by_kind).map(|&word| word.to_owned()).collect()
}

/// A CPU that this process may run on.
fn first_cpu() -> usize {
    let allowed = rustix::thread::sched_getaffinity(None);
    allowed
        .ok()
        .and_then(|set| (0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| set.is_set(cpu)))
        .unwrap_or(0)
}

impl Port for Dpdk {
    fn stage(&mut self, build: &mut Builder<'_>) -> Result<StageId, StageError> {
        let index = usize::from(self.stages.next_free()?);
        let buffer = self.lane.buffer(index).ok_or(StageError::Full)?;
        self.stages.build(buffer, build, self.capabilities.frame_octets_max)
    }

    fn staged_frame(&self, stage: StageId) -> Option<&[u8]> {
        let octets = self.stages.staged_octets(stage)?;
        self.lane.frame(stage.index(), octets)
    }

    #[inline]
    fn commit(&mut self, stage: StageId) -> Result<(), SendError> {
        let octets = self.stages.launch(stage)?;
        if self.lane.send(stage.index(), octets) {
            self.stages.deliver(stage);
            return Ok(());
        }
        self.stages.withdraw(stage);
        Err(self.refusal())
    }

    fn reap(&mut self) -> usize {
        0
    }

    fn link_up(&self) -> bool {
        match &self.watch {
            Some(watch) => watch.state() == LinkState::Up,
            None => self.lane.link_up(),
        }
    }

    crate::stages::stage_methods!();
}
