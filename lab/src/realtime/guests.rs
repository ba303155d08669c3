// SPDX-License-Identifier: Apache-2.0
//! Systems that are guests. In: the programs and sources that guests are made of. Out: command lines that run the probe, or a load, in a
//! guest; or why there is no such guest here. A guest ends with the process of its command line.
//!
//! A Linux guest is one of `ktsn vm run`: it sees this machine's files, so probe and load are the same programs as elsewhere. The guest
//! under FreeRTOS is built from the source tree (`virtio-net/ports/probe`).

use super::commands::{self, Words};
pub use super::plan::Parts;
use super::plan::{Cpus, Plan, System, list};
use crate::command::output_of;
use crate::error::LabError;
use crate::tools::Tools;
use crate::vm::{self, Accelerator, Choice, Renew};
use ktsn_realtime::Profile;
use ktsn_realtime::profile::Load;
use ktsn_realtime::results::Skip;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a guest may take to boot: under TCG, beside loaded neighbours.
pub(super) const BOOT_MAX: Duration = Duration::from_secs(180);
/// How long the end of a Linux guest may take: it is asked to end, so that it removes the record of its run.
pub(super) const END_MAX: Duration = Duration::from_secs(10);
/// The most virtual CPUs of a Linux guest: one for the probe, one for a load.
const CPUS_MAX: usize = 2;
/// Memory of a Linux guest beside its files: its kernel, and room for small programs.
const KERNEL_MIB: u64 = 256;
/// A tick of FreeRTOS: its probe wakes at whole ticks.
const TICK_NS: i64 = 1_000_000;
/// The most workers of each kind in the guest under FreeRTOS.
const RTOS_WORKERS_MAX: u32 = 16;
/// Builds the guest under FreeRTOS.
const BUILDER: &str = "virtio-net/test/probe.py";
/// Its machine, without a disk or a network.
const RTOS_QEMU: &[&str] = &[
    "qemu-system-riscv64",
    "-M",
    "virt",
    "-bios",
    "none",
    "-m",
    "16M",
    "-display",
    "none",
    "-nodefaults",
    "-no-reboot",
    "-serial",
    "stdio",
    "-name",
    "ktsn,debug-threads=on",
];
/// What a neighbour says when its load begins.
pub(super) const LOADED: &str = "the load begins";
/// The builder's exit status where a program is missing.
const MISSING: i32 = 3;

/// The guests of a plan, or why they cannot be had. A system that the plan does not name has none.
#[derive(Clone, Debug, Default)]
pub(super) struct Guests {
    pub(super) qemu: Option<Result<Linux, Skip>>,
    pub(super) rtos: Option<Result<Rtos, Skip>>,
    pub(super) uml: Option<Result<Linux, Skip>>,
}

fn skip(kind: &str, reason: impl Into<String>) -> Skip {
    Skip { kind: kind.to_owned(), reason: reason.into() }
}

impl Guests {
    /// Finds out which guests run here: makes the image, tries KVM, builds the guest under FreeRTOS.
    ///
    /// # Errors
    /// The caller was asked to stop.
    pub(super) fn find(plan: &Plan, watch: &mut dyn FnMut(&str)) -> Result<Self, LabError> {
        let is_asked = |system| plan.systems.contains(&system);
        let mut linux = |kind| match &plan.guests.tools {
            Ok(tools) => skipped(Linux::find(&plan.guests, tools, kind, watch)),
            Err(reason) => Ok(Err(skip("guest_missing", reason))),
        };
        let qemu = is_asked(System::Qemu).then(|| linux(vm::Kind::Qemu)).transpose()?;
        let uml = is_asked(System::Uml).then(|| linux(vm::Kind::Uml)).transpose()?;
        let rtos = is_asked(System::Rtos).then(|| Rtos::build(plan));
        Ok(Self { qemu, uml, rtos: rtos.map(skipped).transpose()? })
    }

    /// The guests of a system of Linux guests.
    pub(super) fn linux(&self, system: System) -> Option<&Linux> {
        match system {
            System::Qemu => self.qemu.as_ref()?.as_ref().ok(),
            System::Uml => self.uml.as_ref()?.as_ref().ok(),
            _ => None,
        }
    }

    /// Why a system has no guests here.
    pub(super) fn missing(&self, system: System) -> Option<&Skip> {
        match system {
            System::Qemu => self.qemu.as_ref()?.as_ref().err(),
            System::Rtos => self.rtos.as_ref()?.as_ref().err(),
            System::Uml => self.uml.as_ref()?.as_ref().err(),
            _ => None,
        }
    }

    /// What a system's probe runs on, in words; `None`: this machine itself.
    pub(super) fn environment(&self, system: System) -> Option<String> {
        match system {
            System::Rtos => Some("FreeRTOS on QEMU's riscv64 machine `virt`, TCG, one CPU".to_owned()),
            _ => self.linux(system).map(Linux::describe),
        }
    }
}

/// A failure is a typed skip; only a stop ends the run.
fn skipped<T>(found: Result<T, LabError>) -> Result<Result<T, Skip>, LabError> {
    match found {
        Ok(found) => Ok(Ok(found)),
        Err(LabError::Stopped) => Err(LabError::Stopped),
        Err(error) => Ok(Err(skip("guest_missing", one_line(&error.reason())))),
    }
}

/// A text in one line. Of a long one the beginning and the end: a compiler's command line stands before its error.
pub(super) fn one_line(text: &str) -> String {
    const ENDS: [usize; 2] = [120, 280];
    let line: Vec<char> = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().collect();
    if line.len() <= ENDS[0] + ENDS[1] {
        return line.into_iter().collect();
    }
    let end = &line[line.len() - ENDS[1]..];
    line[..ENDS[0]].iter().chain(&[' ', '…', ' ']).chain(end).collect()
}

/// Linux guests of `ktsn vm run`.
#[derive(Clone, Debug)]
pub(super) struct Linux {
    ktsn: PathBuf,
    cache: PathBuf,
    choice: Choice,
    kernel: String,
    /// Memory that the guest's files and its kernel take.
    base_mib: u64,
}

impl Linux {
    fn find(
        parts: &Parts,
        tools: &Tools,
        kind: vm::Kind,
        watch: &mut dyn FnMut(&str),
    ) -> Result<Self, LabError> {
        let choice = if kind == vm::Kind::Uml {
            Choice { accelerator: Accelerator::Uml, reason: String::new() }
        } else if let Some(accelerator) = parts.accelerator {
            Choice { accelerator, reason: format!("--accelerator {accelerator}") }
        } else {
            let mut image = || vm::image(&parts.cache, vm::Kind::Qemu, Renew::Nothing, &mut |_| ());
            vm::choose(&parts.cache, tools, &mut image, watch)?
        };
        let image = vm::image(&parts.cache, kind, Renew::Nothing, watch)?;
        let mut octets = 0;
        for file in [&image.files(), &tools.ktsn, &tools.bench, &tools.ktsnd, &tools.libktsn] {
            octets += std::fs::metadata(file).map_err(LabError::file(file))?.len();
        }
        // As `ktsn vm run` asks for it: the files are unpacked into half of what their archive leaves.
        let base_mib = 3 * octets.div_ceil(1 << 20) + KERNEL_MIB;
        let kernel = image.facts.kernel.clone();
        Ok(Self {
            ktsn: tools.bench.clone(),
            cache: parts.cache.directory().to_owned(),
            choice,
            kernel,
            base_mib,
        })
    }

    /// The word for how guests run, which records must agree about.
    pub(super) fn accelerator(&self) -> Accelerator {
        self.choice.accelerator
    }

    fn is_uml(&self) -> bool {
        self.choice.accelerator == Accelerator::Uml
    }

    /// How many of these CPUs a guest has.
    fn cpus(&self, of: usize) -> usize {
        if self.is_uml() { 1 } else { of.min(CPUS_MAX) }
    }

    fn describe(&self) -> String {
        if self.is_uml() {
            return format!("User-mode Linux {}, a program of this machine, one CPU", self.kernel);
        }
        let accelerator = self.choice.accelerator.to_string().to_uppercase();
        let is_tcg = self.choice.accelerator == Accelerator::Tcg;
        let why = if is_tcg { format!("; no KVM: {}", one_line(&self.choice.reason)) } else { String::new() };
        format!("Linux {} on QEMU with {accelerator}{why}", self.kernel)
    }

    /// Memory of the guest of the probe, in MiB.
    pub(super) fn memory_mib(&self, plan: &Plan, profile: Profile) -> u64 {
        let load = if profile.load() == Load::Inside { u64::from(plan.workers) * plan.worker_mib } else { 0 };
        self.base_mib + load
    }

    fn line(&self, cpus: usize, memory_mib: u64, pin: Option<&[u32]>, program: Words) -> Words {
        let mut line = Words::from([self.ktsn.display().to_string()]);
        line.extend(["vm", "run", "--quiet", "--host-files"].map(str::to_owned));
        let how = if self.is_uml() { "--kind" } else { "--accelerator" };
        line.extend([how.to_owned(), self.choice.accelerator.to_string()]);
        line.extend(["--cache".to_owned(), self.cache.display().to_string()]);
        line.extend(["--boot-timeout".to_owned(), format!("{}s", BOOT_MAX.as_secs())]);
        line.extend(["--cpus".to_owned(), cpus.to_string(), "--memory".to_owned(), memory_mib.to_string()]);
        line.extend(pin.map(|cpus| ["--pin".to_owned(), list(cpus)]).into_iter().flatten());
        line.push("--".to_owned());
        [line, program].concat()
    }

    /// The probe in a guest, beside its load if the profile has one inside; and the guest's CPU that the probe stays on.
    pub(super) fn probe(
        &self,
        plan: &Plan,
        cpus: &Cpus,
        stress: &str,
        profile: Profile,
        loops: u64,
    ) -> (Words, Option<u32>) {
        let is_alone = profile.has_neighbours() && profile.is_pinned();
        let count = if is_alone { 1 } else { self.cpus(cpus.all.len()) };
        let cpu = profile.is_pinned().then(|| u32::try_from(count - 1).unwrap_or(0));
        let mut program = commands::probe(plan, Some(ktsn_host::cyclictest::FIFO_MAX), cpu, loops);
        if profile.load() == Load::Inside {
            let load = commands::stress(stress, plan.workers, plan.worker_mib);
            let load = if profile.is_pinned() { commands::on_cpus(&[0], load) } else { load };
            program = commands::beside(load, program);
        }
        let own = [cpus.probe];
        let pin = is_alone.then_some(&own[..]);
        (self.line(count, self.memory_mib(plan, profile), pin, program), cpu)
    }

    /// A guest with a load, on these CPUs. It says [`LOADED`] when the load begins.
    pub(super) fn neighbour(&self, plan: &Plan, stress: &str, workers: u32, cpus: &[u32]) -> Words {
        let load = commands::stress(stress, workers, plan.worker_mib);
        let script = format!("echo '{LOADED}'; exec \"$@\"");
        let program = [["sh", "-c", &script, "sh"].map(str::to_owned).to_vec(), load].concat();
        let memory_mib = self.base_mib + u64::from(workers) * plan.worker_mib;
        self.line(self.cpus(cpus.len()), memory_mib, Some(cpus), program)
    }
}

/// The guest under FreeRTOS.
#[derive(Clone, Debug)]
pub(super) struct Rtos {
    program: PathBuf,
}

impl Rtos {
    fn build(plan: &Plan) -> Result<Self, LabError> {
        let program = build_probe(&plan.guests.workspace, &plan.out.join("guests"), "freertos")?;
        if !ktsn_host::is_installed(RTOS_QEMU[0]) {
            return Err(LabError::Impossible {
                what: format!("{} is not installed", RTOS_QEMU[0]),
                remedy: "`make setup`".to_owned(),
            });
        }
        Ok(Self { program })
    }

    /// Why the guest cannot be measured so; `None` when it can.
    pub(super) fn skip(plan: &Plan, profile: Profile) -> Option<Skip> {
        if plan.period.get() % TICK_NS != 0 {
            let period = plan.period.get() / 1000;
            let reason = format!(
                "FreeRTOS wakes at whole ticks of 1000 µs, the period is {period} µs: choose another --period"
            );
            return Some(skip("period_not_possible", reason));
        }
        if profile.load() == Load::Inside && profile.is_pinned() {
            return Some(skip(
                "too_few_cpus",
                "the guest under FreeRTOS has one CPU: probe and load share it",
            ));
        }
        None
    }

    /// The probe in the guest; QEMU stays on `cpu`.
    pub(super) fn probe(&self, plan: &Plan, profile: Profile, cpu: Option<u32>, loops: u64) -> Words {
        let workers = if profile.load() == Load::Inside { plan.workers.min(RTOS_WORKERS_MAX) } else { 0 };
        let settings = format!("period_us={},loops={loops},workers={workers}", plan.period.get() / 1000);
        let mut line: Words = RTOS_QEMU.iter().map(|&word| word.to_owned()).collect();
        line.extend([
            "-kernel".to_owned(),
            self.program.display().to_string(),
            "-append".to_owned(),
            settings,
        ]);
        cpu.map_or(line.clone(), |cpu| commands::on_cpus(&[cpu], line))
    }
}

/// Builds our own probe: `freertos`, a guest, or `linux`, a program of this machine.
///
/// # Errors
/// [`LabError::Impossible`] without the source tree or a compiler.
pub(super) fn build_probe(workspace: &Path, out: &Path, kind: &str) -> Result<PathBuf, LabError> {
    let builder = workspace.join(BUILDER);
    if !builder.is_file() {
        return Err(LabError::Impossible {
            what: format!("{} does not exist, which builds our own probe", builder.display()),
            remedy: "run it in the source tree".to_owned(),
        });
    }
    let mut command = Command::new("python3");
    command.arg(&builder).arg("--out").arg(out).args(["--only", kind]).stdin(std::process::Stdio::null());
    let missing = format!("exit status: {MISSING}");
    let said = output_of(command, || format!("python3 {BUILDER}")).map_err(|error| match error {
        LabError::Command { stderr, status, .. } if status == missing => {
            LabError::Impossible { what: stderr, remedy: "`make setup`".to_owned() }
        }
        other => other,
    })?;
    Ok(PathBuf::from(said.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_time::Nanos;

    fn linux(accelerator: Accelerator) -> Linux {
        let reason = if accelerator == Accelerator::Tcg { "/dev/kvm: none" } else { "" }.to_owned();
        Linux {
            ktsn: "/bin/ktsn".into(),
            cache: "/cache".into(),
            choice: Choice { accelerator, reason },
            kernel: "6.1".to_owned(),
            base_mib: 700,
        }
    }

    fn profile(number: usize) -> Profile {
        Profile::ALL[number - 1]
    }

    #[test]
    fn a_guest_is_started_as_the_profile_says() {
        let plan = super::super::tests::plan(Path::new("/nowhere"));
        let cpus = Cpus::choose(vec![0, 1, 2], None).unwrap();
        let line = |number| {
            let (line, cpu) = linux(Accelerator::Tcg).probe(&plan, &cpus, "stress", profile(number), 9);
            (line.join(" "), cpu)
        };
        let (alone, cpu) = line(2);
        assert_eq!(cpu, Some(1));
        assert!(
            alone.starts_with("/bin/ktsn vm run --quiet --host-files --accelerator tcg --cache /cache"),
            "{alone}"
        );
        assert!(alone.contains("--cpus 2 --memory 700 -- cyclictest ") && alone.ends_with("-a 1"), "{alone}");
        let (inside, cpu) = line(4);
        assert_eq!(cpu, Some(1));
        // Two workers of 8 MiB.
        assert!(
            inside.contains("--memory 716 ") && inside.contains(" taskset --cpu-list 0 stress "),
            "{inside}"
        );
        let (apart, cpu) = line(6);
        assert_eq!(cpu, Some(0));
        assert!(apart.contains("--cpus 1 --memory 700 --pin 2 -- cyclictest"), "{apart}");
        assert_eq!(line(5).1, None);
        // User-mode Linux has one CPU.
        let (uml, cpu) = linux(Accelerator::Uml).probe(&plan, &cpus, "stress", profile(2), 9);
        let uml = uml.join(" ");
        assert_eq!(cpu, Some(0));
        assert!(
            uml.contains("--host-files --kind uml --cache") && uml.contains("--cpus 1 --memory"),
            "{uml}"
        );
        let load = linux(Accelerator::Kvm).neighbour(&plan, "stress", 1, &[0, 1]).join(" ");
        assert!(
            load.contains("--accelerator kvm") && load.contains("--memory 708 --pin 0,1 -- sh -c"),
            "{load}"
        );
    }

    #[test]
    fn how_a_guest_runs_is_always_said() {
        let guests = |accelerator| Guests { qemu: Some(Ok(linux(accelerator))), ..Guests::default() };
        let said = |accelerator| guests(accelerator).environment(System::Qemu).unwrap();
        assert_eq!(said(Accelerator::Tcg), "Linux 6.1 on QEMU with TCG; no KVM: /dev/kvm: none");
        assert_eq!(said(Accelerator::Kvm), "Linux 6.1 on QEMU with KVM");
        assert!(guests(Accelerator::Kvm).environment(System::Rtos).unwrap().contains("TCG"));
        assert_eq!(guests(Accelerator::Kvm).environment(System::Host), None);
        let guests = Guests { uml: Some(Ok(linux(Accelerator::Uml))), ..Guests::default() };
        assert!(guests.environment(System::Uml).unwrap().starts_with("User-mode Linux 6.1"));
    }

    #[test]
    fn what_freertos_cannot_do_is_a_typed_skip() {
        let plan = super::super::tests::plan(Path::new("/nowhere"));
        let odd = Plan { period: Nanos::from_micros(1_500), ..plan.clone() };
        let kind = |plan: &Plan, number| Rtos::skip(plan, profile(number)).map(|skip| skip.kind);
        assert_eq!(kind(&plan, 1), None);
        assert_eq!(kind(&plan, 3), None);
        assert_eq!(kind(&plan, 4).as_deref(), Some("too_few_cpus"));
        assert_eq!(kind(&odd, 1).as_deref(), Some("period_not_possible"));
        let line = Rtos { program: "/p.elf".into() }.probe(&plan, profile(3), Some(1), 7).join(" ");
        assert!(line.starts_with("taskset --cpu-list 1 qemu-system-riscv64 "), "{line}");
        assert!(line.ends_with("-kernel /p.elf -append period_us=1000,loops=7,workers=2"), "{line}");
    }

    #[test]
    fn a_guest_that_cannot_be_had_is_a_typed_skip() {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = super::super::tests::plan(folder.path());
        plan.systems = vec![System::Qemu, System::Uml, System::Rtos];
        let guests = Guests::find(&plan, &mut |_| ()).unwrap();
        for (system, word) in [(System::Qemu, "no tools"), (System::Uml, "no tools"), (System::Rtos, BUILDER)]
        {
            let skip = guests.missing(system).unwrap();
            assert_eq!(skip.kind, "guest_missing");
            assert!(skip.reason.contains(word), "{}", skip.reason);
        }
        assert!(guests.missing(System::Host).is_none());
    }

    /// The reason has its remedy already.
    #[test]
    fn a_missing_program_is_said_once_with_its_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = super::super::tests::plan(folder.path());
        plan.systems = vec![System::Uml, System::Rtos];
        plan.guests.tools = Err("ktsnd is not at /x; `make build` puts it beside ktsn".to_owned());
        // The builder ends as it does without a compiler, with many words before it.
        let builder = plan.guests.workspace.join(BUILDER);
        std::fs::create_dir_all(builder.parent().unwrap()).unwrap();
        let script = "import sys; print('cc is not here', file=sys.stderr); sys.exit(3)";
        std::fs::write(&builder, script).unwrap();
        let reason = |system| {
            let guests = Guests::find(&plan, &mut |_| ()).unwrap();
            guests.missing(system).unwrap().reason.clone()
        };
        assert_eq!(reason(System::Uml), "ktsnd is not at /x; `make build` puts it beside ktsn");
        assert_eq!(reason(System::Rtos), "cc is not here; `make setup`");
        // What a compiler says stands behind its long command line.
        let script = "import sys; sys.exit('gcc ' + '-Wx ' * 400 + '\\nNo space left on device')";
        std::fs::write(&builder, script).unwrap();
        let reason = reason(System::Rtos);
        let (begin, end) = ("`python3 virtio-net/test/probe.py` failed", "-Wx No space left on device");
        assert!(reason.starts_with(begin) && reason.ends_with(end) && reason.len() < 450, "{reason}");
    }
}
