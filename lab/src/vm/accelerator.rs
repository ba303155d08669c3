// SPDX-License-Identifier: Apache-2.0
//! Whether KVM runs guests on this machine: a guest that boots is the proof.
//!
//! In: what the user wants, and what was found since the machine started. Out: a [`Choice`] with its reason. A `/dev/kvm` that opens proves
//! nothing: inside some virtual machines it is there, and ordinary kernels hang or QEMU ends.

use super::cache::Cache;
use super::image::Image;
use super::machine::{Accelerator, Machine};
use super::protocol::{Clock, Job};
use super::run::{self, Request, Stream, Watch};
use crate::error::LabError;
use crate::tools::Tools;
use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

const DEVICE: &str = "/dev/kvm";
/// A guest with KVM boots in a second or two.
const PROBE_WITHIN: Duration = Duration::from_secs(10);
/// How long a first failure keeps others from trying KVM again.
const BELIEVED_SECONDS: u64 = 60;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// How guests run, and why so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// How guests run.
    pub accelerator: Accelerator,
    /// Why it is not KVM, or empty.
    pub reason: String,
}

/// KVM if a guest has booted with it since this machine started; else a guest is booted now, unless one has just failed. `image` opens the
/// image for the probe, `watch` hears that it runs.
///
/// # Errors
/// The image's, or the caller was asked to stop.
pub fn choose(
    cache: &Cache,
    tools: &Tools,
    image: &mut dyn FnMut() -> Result<Image, LabError>,
    watch: &mut dyn FnMut(&str),
) -> Result<Choice, LabError> {
    let tcg = |reason: String| Choice { accelerator: Accelerator::Tcg, reason };
    if let Err(error) = OpenOptions::new().read(true).write(true).open(DEVICE) {
        return Ok(tcg(format!("{DEVICE}: {error}")));
    }
    let kvm = Choice { accelerator: Accelerator::Kvm, reason: String::new() };
    let path = cache.directory.join("kvm");
    let (boot, up) = (std::fs::read_to_string(BOOT_ID).unwrap_or_default(), seconds_since_boot());
    let known = Finding::read(&std::fs::read_to_string(&path).unwrap_or_default(), boot.trim());
    match &known {
        Some(Finding::Works) => return Ok(kvm),
        Some(Finding::Failed(failure)) if failure.is_believed(up) => return Ok(tcg(failure.reason.clone())),
        _ => {}
    }
    watch("trying KVM");
    let (choice, finding) = match run::run(cache, image()?, &probe(tools), &mut Silent) {
        Ok(_) => (kvm, Finding::Works),
        Err(LabError::Process { problem, .. }) => {
            let reason = format!("{DEVICE}: a guest {problem}");
            let times = known.map_or(1, |known| known.failures() + 1);
            (tcg(reason.clone()), Finding::Failed(Failure { times, up: seconds_since_boot(), reason }))
        }
        Err(error) => return Err(error),
    };
    // Where it cannot be kept, the next run tries again.
    if std::fs::write(&path, finding.write(boot.trim())).is_err() {
        let _ = std::fs::remove_file(&path);
    }
    Ok(choice)
}

/// Seconds since this machine started.
fn seconds_since_boot() -> u64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    text.split('.').next().and_then(|seconds| seconds.parse().ok()).unwrap_or(0)
}

/// What was found about KVM since the machine started.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    /// A guest has booted.
    Works,
    /// None has booted yet.
    Failed(Failure),
}

/// Guests that did not boot. A single one may have had another cause: too little memory, a busy machine, a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure {
    /// How many guests did not boot, one after the other.
    times: u32,
    /// When the last of them failed, in seconds since the machine started.
    up: u64,
    /// What the last of them did.
    reason: String,
}

impl Failure {
    /// Whether no other guest is tried at `up`: after one failure for a minute, after each further one ten times as long.
    fn is_believed(&self, up: u64) -> bool {
        let longest = BELIEVED_SECONDS.saturating_mul(10_u64.saturating_pow(self.times.saturating_sub(1)));
        (self.up..self.up.saturating_add(longest)).contains(&up)
    }
}

impl Finding {
    const fn failures(&self) -> u32 {
        match self {
            Self::Works => 0,
            Self::Failed(failure) => failure.times,
        }
    }

    /// What [`Self::write`] wrote since the machine started; anything else is nothing known.
    fn read(text: &str, boot: &str) -> Option<Self> {
        let (id, finding) = text.split_once('\n')?;
        if id != boot {
            return None;
        }
        if finding.trim_end() == "works" {
            return Some(Self::Works);
        }
        let (numbers, reason) = finding.strip_prefix("failed ")?.split_once('\n')?;
        let (times, up) = numbers.split_once(' ')?;
        let (times, up) = (times.parse().ok().filter(|&times| times > 0)?, up.parse().ok()?);
        Some(Self::Failed(Failure { times, up, reason: reason.trim_end().to_owned() }))
    }

    fn write(&self, boot: &str) -> String {
        match self {
            Self::Works => format!("{boot}\nworks\n"),
            Self::Failed(Failure { times, up, reason }) => format!("{boot}\nfailed {times} {up}\n{reason}\n"),
        }
    }
}

fn probe(tools: &Tools) -> Request {
    Request {
        machine: Machine::default(),
        accelerator: Accelerator::Kvm,
        job: Job {
            in_host_tree: false,
            has_user_network: false,
            address: String::new(),
            clock: Clock::None,
            time_server: String::new(),
            directory: PathBuf::from("/"),
            bring: Vec::new(),
            program: vec!["true".into()],
        },
        tools: tools.clone(),
        boot_within: PROBE_WITHIN,
        program_within: Some(PROBE_WITHIN),
    }
}

struct Silent;

impl Watch for Silent {
    fn ready(&mut self) {}

    fn wrote(&mut self, _: Stream, octets: &[u8]) -> io::Result<usize> {
        Ok(octets.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_tried_again_and_less_and_less_often() {
        let failed = |times, up| Failure { times, up, reason: "/dev/kvm: a guest (kvm) hung".to_owned() };
        for (times, seconds) in [(1, 60), (2, 600), (3, 6000)] {
            let failure = failed(times, 1000);
            assert!(failure.is_believed(1000) && failure.is_believed(1000 + seconds - 1), "{times}");
            assert!(!failure.is_believed(1000 + seconds) && !failure.is_believed(999), "{times}");
        }
        assert!(failed(u32::MAX, 5).is_believed(u64::MAX - 1));
    }

    #[test]
    fn a_finding_is_of_one_start_of_the_machine() {
        let failure = Failure { times: 2, up: 77, reason: "hung\nwith a second line".to_owned() };
        for finding in [Finding::Works, Finding::Failed(failure)] {
            let text = finding.write("boot");
            assert_eq!(Finding::read(&text, "boot").as_ref(), Some(&finding));
            assert_eq!(Finding::read(&text, "other"), None);
            assert_eq!(Finding::read(&text[..9], "boot"), None);
        }
        // What an earlier version wrote, and what is damaged.
        for other in ["boot\n/dev/kvm: a guest hung", "boot\nfailed 0 5\nx", "boot\nfailed 1\nx", ""] {
            assert_eq!(Finding::read(other, "boot"), None, "{other}");
        }
    }
}
