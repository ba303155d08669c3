// SPDX-License-Identifier: Apache-2.0
//! Whether KVM runs guests on this machine: a guest that boots is the proof.
//!
//! In: what the user wants, and what was found since the machine started. Out: a [`Choice`] with its reason. A `/dev/kvm` that opens proves
//! nothing: inside some virtual machines it is there, and ordinary kernels hang or QEMU ends.

use super::cache::Cache;
use super::image::Image;
use super::machine::{Accelerator, Machine};
use super::protocol::Job;
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
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// How guests run, and why so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// How guests run.
    pub accelerator: Accelerator,
    /// Why it is not KVM, or empty.
    pub reason: String,
}

/// KVM if a guest has booted with it since this machine started; else a guest is booted now, once. `image` opens the image for the probe,
/// `watch` hears that it runs.
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
    let boot = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
    let path = cache.directory.join("kvm");
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    match known.split_once('\n') {
        Some((id, verdict)) if id == boot.trim() => {
            return Ok(if verdict == "works" { kvm } else { tcg(verdict.to_owned()) });
        }
        _ => {}
    }
    watch("trying KVM");
    let choice = match run::run(cache, image()?, &probe(tools), &mut Silent) {
        Ok(_) => kvm,
        Err(LabError::Process { problem, .. }) => tcg(format!("{DEVICE}: a guest {problem}")),
        Err(error) => return Err(error),
    };
    let verdict = if choice.reason.is_empty() { "works" } else { &choice.reason };
    // Where it cannot be kept, the next run tries again.
    if std::fs::write(&path, format!("{}\n{verdict}", boot.trim())).is_err() {
        let _ = std::fs::remove_file(&path);
    }
    Ok(choice)
}

fn probe(tools: &Tools) -> Request {
    Request {
        machine: Machine::default(),
        accelerator: Accelerator::Kvm,
        job: Job {
            in_host_tree: false,
            has_user_network: false,
            directory: PathBuf::from("/"),
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

    fn wrote(&mut self, _: Stream, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}
