// SPDX-License-Identifier: Apache-2.0
//! One call for a program in a guest: image, accelerator, boot, program, files, end.
//!
//! In: an [`Errand`]. Out: what the program writes, as it comes; then how it ended, by which accelerator, and the files that it left. Nothing
//! of the guest stays.

use super::accelerator::{self, Choice};
use super::cache::Cache;
use super::image::{self, Renew};
use super::kind::Kind;
use super::machine::{Accelerator, Machine};
use super::network::Datapath;
use super::protocol::{Clock, Job};
use super::run::{self, Report, Request, Watch};
use super::runs;
use crate::error::LabError;
use crate::tools::Tools;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// A guest boots in seconds, and in tens of seconds on a busy machine.
const BOOT_WITHIN: Duration = Duration::from_secs(60);

/// A program that a guest is booted for.
#[derive(Clone, Debug)]
pub struct Errand {
    /// What the guest is.
    pub kind: Kind,
    /// How its instructions run; `None`: found out, for the kind `qemu`.
    pub accelerator: Option<Accelerator>,
    /// The guest's machine.
    pub machine: Machine,
    /// What its clock follows.
    pub clock: Clock,
    /// The program sees this machine's files, not the image's; what it changes is gone with the guest.
    pub has_host_files: bool,
    /// The program's working directory; `/` where the guest does not have it.
    pub directory: PathBuf,
    /// The program and its arguments.
    pub program: Vec<OsString>,
    /// Files of the guest that come back when the program has ended.
    pub bring: Vec<PathBuf>,
    /// How long the boot may take.
    pub boot_within: Duration,
    /// How long the program may take; `None`: without limit.
    pub program_within: Option<Duration>,
}

/// How an errand went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// How the guest's instructions ran, and why so.
    pub choice: Choice,
    /// The guest's kernel.
    pub kernel: String,
    /// How the program ended, how long boot and program took, and the files.
    pub report: Report,
}

impl Errand {
    /// This program in a guest of this kind, with the usual machine.
    #[must_use]
    pub fn new(kind: Kind, program: Vec<OsString>) -> Self {
        Self {
            kind,
            accelerator: None,
            machine: Machine::default(),
            clock: Clock::None,
            has_host_files: false,
            directory: "/root".into(),
            program,
            bring: Vec::new(),
            boot_within: BOOT_WITHIN,
            program_within: None,
        }
    }

    /// # Errors
    /// [`LabError::Usage`] names what such a guest cannot have.
    pub fn check(&self) -> Result<(), LabError> {
        self.machine.check()?;
        if self.kind == Kind::Uml {
            self.machine.check_uml(self.clock)?;
        }
        match self.accelerator {
            Some(accelerator) if accelerator.kind() != self.kind => Err(LabError::Usage(format!(
                "--accelerator {accelerator} with --kind {}: it is for guests of the kind {} only",
                self.kind,
                accelerator.kind()
            ))),
            _ => Ok(()),
        }
    }

    /// Boots the guest, runs the program in it, and ends the guest. The image is made if there is none. `step` gets what goes on before the
    /// program starts, `watch` what the program writes while it runs.
    ///
    /// # Errors
    /// Those of [`Self::check`], [`image`](super::image()), [`choose`](super::choose) and [`run`](super::run).
    pub fn carry_out(
        &self,
        cache: &Cache,
        tools: &Tools,
        step: &mut dyn FnMut(&str),
        watch: &mut dyn Watch,
    ) -> Result<Done, LabError> {
        self.check()?;
        runs::clean(cache)?;
        let choice = match (self.accelerator, self.kind) {
            (Some(Accelerator::Tcg), _) => {
                Choice { accelerator: Accelerator::Tcg, reason: "--accelerator tcg".to_owned() }
            }
            (Some(accelerator), _) => Choice { accelerator, reason: String::new() },
            (None, Kind::Uml) => Choice { accelerator: Accelerator::Uml, reason: String::new() },
            (None, Kind::Qemu) => self.choose(cache, tools, step)?,
        };
        let image = image::image(cache, self.kind, Renew::Nothing, step)?;
        let kernel = image.facts.kernel.clone();
        step(&format!("booting a guest ({})", choice.accelerator));
        let request = Request {
            machine: self.machine.clone(),
            accelerator: choice.accelerator,
            job: self.job(),
            tools: tools.clone(),
            boot_within: self.boot_within,
            program_within: self.program_within,
        };
        let report = run::run(cache, image, &request, watch)?;
        Ok(Done { choice, kernel, report })
    }

    fn choose(&self, cache: &Cache, tools: &Tools, step: &mut dyn FnMut(&str)) -> Result<Choice, LabError> {
        let step = std::cell::RefCell::new(step);
        let mut say = |text: &str| (step.borrow_mut())(text);
        let mut image =
            || image::image(cache, self.kind, Renew::Nothing, &mut |text| (step.borrow_mut())(text));
        accelerator::choose(cache, tools, &mut image, &mut say)
    }

    fn job(&self) -> Job {
        Job {
            in_host_tree: self.has_host_files,
            has_user_network: self.machine.datapath == Datapath::User,
            address: self.machine.address.map_or_else(String::new, |address| address.to_string()),
            clock: self.clock,
            time_server: String::new(),
            directory: self.directory.clone(),
            bring: self.bring.clone(),
            program: self.program.clone(),
        }
    }
}
