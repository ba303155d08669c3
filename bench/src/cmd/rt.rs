// SPDX-License-Identifier: Apache-2.0
//! `ktsn rt`: whether a system is fit for real time.
//!
//! In: systems, profiles, how long; or two results. Out: progress, the verdict table, `rt.json`, `rt.html`, records; or what changed. Exit
//! status 0 done; 1 failed (with --strict also: a FAIL); 2 wrong usage or input; 3 not possible here.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use ktsn_lab::LabError;
use ktsn_lab::realtime::{self, Other, Parts, Plan, System, WORKER_MIB, WORKERS};
use ktsn_lab::remote::Target;
use ktsn_lab::vm::Cache;
use ktsn_measure::report::{self, Source};
use ktsn_measure::{clock, table};
use ktsn_realtime::advice::advise;
use ktsn_realtime::verdict::{Outcome, Share};
use ktsn_realtime::{Profile, Requirement, requirements};
use ktsn_time::Nanos;

mod compare;
mod probes;

use super::observer::span;
use super::progress::{LOCK, Progress};
use super::remote::{ReachArgs, version};
use crate::{advice, output, programs};

const EXAMPLES: &str = "\
Examples:
  ktsn rt run --profile 1,3 --duration 10s
  ktsn rt run --system host,container-fifo --profile all --duration 8h --out monday
  ktsn rt run --system host,container-fifo --profile all --duration 8h --out monday --resume
  ktsn rt compare monday/rt.json tuesday/rt.json";

/// Say whether this machine, or a container on it, is fit for real time.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RtArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    Run(Box<RunArgs>),
    Compare(compare::CompareArgs),
    Probes(probes::ProbesArgs),
}

const RUN_EXAMPLES: &str = "\
Examples:
  ktsn rt run --profile 1,3 --duration 10s
  ktsn rt run --system host,container-fifo --profile all --duration 8h --out monday
  ktsn rt run --profile all --requirements line.yaml --share 50% --out line
  ktsn rt run --system host,ssh:root@plc-2 --profile 1,3 --duration 1m --out plc-2

Profiles: 1 alone; 2 alone, on one CPU; 3 load inside; 4 load inside, on the other CPUs; 5 two loaded neighbours; 6 the same, on the other \
CPUs; 7 neighbours with network traffic; 8 neighbours that write to a disk.

Systems: host; container (an ordinary thread); container-fifo (SCHED_FIFO, CPUs of its own beside neighbours); container-quota (one \
CPU); container-static (as a pod under the kubelet's static CPU manager: a CPU of its own, an ordinary thread); qemu (a Linux guest; KVM or TCG, which the results say); uml (a User-mode Linux); rtos (a FreeRTOS guest on QEMU's riscv64, built from \
--workspace); ssh:HOST (another machine that has the same ktsn; it measures itself, as host).

The probe is cyclictest. A run that was killed goes on with --resume: no latency is counted twice. Needs root for containers and loads.

Exit status: 0 done; 1 failed (with --strict also: a FAIL); 2 wrong usage or a wrong file; 3 not possible here.";

/// Measure wake-up latencies under load and hold them against requirements.
#[derive(Args, Clone, Debug)]
#[command(after_help = RUN_EXAMPLES)]
struct RunArgs {
    /// Where the probe runs: host, container, container-fifo, container-quota, container-static, qemu, uml, rtos, ssh:HOST.
    #[arg(long, default_value = "host", value_delimiter = ',', value_name = "SYSTEM,…", value_parser = place)]
    system: Vec<Place>,
    /// Test profiles: 1 to 8, or all.
    #[arg(long, default_value = "all", value_delimiter = ',', value_name = "N,…", value_parser = profile)]
    profile: Vec<Profiles>,
    /// How long each system is measured under each profile.
    #[arg(long, default_value = "8h", value_name = "TIME", value_parser = span)]
    duration: Nanos,
    /// Time between two wake-ups.
    #[arg(long, default_value = "10ms", value_name = "TIME", value_parser = span)]
    period: Nanos,
    /// A wake-up later than this is looked into.
    #[arg(long, default_value = "100us", value_name = "TIME", value_parser = span)]
    excursion: Nanos,
    /// What services ask for (YAML) instead of the usual table of eight.
    #[arg(long, value_name = "FILE")]
    requirements: Option<PathBuf>,
    /// The share of a requirement that processing may use.
    #[arg(long, default_value = "40%", value_name = "SHARE")]
    share: Share,
    /// Workers of each kind (square roots, memory) of the load, all together.
    #[arg(long, default_value_t = WORKERS, value_name = "N")]
    workers: u32,
    /// Memory of one worker.
    #[arg(long, default_value_t = WORKER_MIB, value_name = "MIB")]
    worker_mib: u64,
    /// The CPU of a probe that stays on one [default: the last one].
    #[arg(long, value_name = "N")]
    cpu: Option<u32>,
    /// Where records, rt.json and rt.html are kept.
    #[arg(long, default_value = "out/rt", value_name = "DIR")]
    out: PathBuf,
    /// Images of Linux guests [default: KTSN_VM_CACHE, else ktsn/vm in the user's cache directory].
    #[arg(long, value_name = "DIR")]
    vm_cache: Option<PathBuf>,
    /// How the instructions of Linux guests run.
    #[arg(long, default_value = "auto")]
    accelerator: super::vm::Wish,
    #[command(flatten)]
    reach: ReachArgs,
    /// The source tree, from which the FreeRTOS guest is built.
    #[arg(long, default_value = ".", value_name = "DIR")]
    workspace: PathBuf,
    /// Go on where the records in DIR end.
    #[arg(long)]
    resume: bool,
    /// Exit with status 1 when a verdict is FAIL.
    #[arg(long)]
    strict: bool,
}

/// One word of `--profile`.
#[derive(Clone, Copy, Debug)]
enum Profiles {
    All,
    One(Profile),
}

fn profile(word: &str) -> Result<Profiles, String> {
    if word == "all" { Ok(Profiles::All) } else { word.parse().map(Profiles::One) }
}

/// One word of `--system`.
#[derive(Clone, Debug)]
enum Place {
    Here(System),
    There(Target),
}

fn place(word: &str) -> Result<Place, String> {
    match word.starts_with("ssh") {
        true => word.parse().map(Place::There),
        false => word.parse().map(Place::Here).map_err(|error| format!("{error}")),
    }
}

impl RunArgs {
    /// The systems, and the other machine among them.
    fn systems(&self) -> Result<(Vec<System>, Option<Other>), LabError> {
        let mut targets = self.system.iter().filter_map(|place| match place {
            Place::Here(_) => None,
            Place::There(target) => Some(target),
        });
        let other = targets
            .next()
            .map(|target| Other { remote: self.reach.remote(target.clone()), version: version() });
        if let Some(second) = targets.next() {
            let text =
                format!("--system {second}: expected one other machine; measure it in a run of its own");
            return Err(LabError::Usage(text));
        }
        let systems = self.system.iter().map(|place| match place {
            Place::Here(system) => *system,
            Place::There(_) => System::Ssh,
        });
        Ok((systems.collect(), other))
    }

    fn plan(&self) -> Result<Plan, LabError> {
        let (systems, other) = self.systems()?;
        let mut profiles = Vec::new();
        for word in &self.profile {
            match word {
                Profiles::All => profiles.extend(Profile::ALL),
                Profiles::One(profile) => profiles.push(*profile),
            }
        }
        let requirements = match &self.requirements {
            None => requirements::table_1(),
            Some(file) => read_requirements(file)?,
        };
        let plan = Plan {
            systems,
            profiles,
            period: self.period,
            duration: self.duration,
            limit: self.excursion,
            requirements,
            share: self.share,
            workers: self.workers,
            worker_mib: self.worker_mib,
            cpu: self.cpu,
            out: self.out.clone(),
            resume: self.resume,
            lock: Some(PathBuf::from(LOCK)),
            other,
            guests: Parts {
                tools: super::vm::tools().map_err(|error| error.reason()),
                cache: Cache::find(self.vm_cache.as_deref()),
                accelerator: self.accelerator.accelerator(),
                workspace: self.workspace.clone(),
            },
            command: std::iter::once("ktsn".to_owned()).chain(std::env::args().skip(1)).collect(),
        };
        plan.check().map(|()| plan)
    }
}

fn read_requirements(file: &Path) -> Result<Vec<Requirement>, LabError> {
    let usage = |problem: String| LabError::Usage(format!("{}: {problem}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| usage(error.to_string()))?;
    requirements::read(&text).map_err(|fault| usage(fault.to_string()))
}

/// Runs or compares.
pub(crate) fn run(args: &RtArgs) -> ExitCode {
    clock::stop_on_signals();
    let (name, done) = match &args.command {
        Command::Run(args) => ("run", measure(args)),
        Command::Compare(args) => ("compare", compare::run(args)),
        Command::Probes(args) => ("probes", probes::run(args)),
    };
    done.unwrap_or_else(|failed| {
        eprintln!("ktsn rt {name}: {failed}");
        let status = failed.downcast_ref::<LabError>().map_or(1, LabError::exit_status);
        ExitCode::from(status)
    })
}

fn measure(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan()?;
    let progress = Progress::of("ktsn rt run");
    let document = realtime::run(&plan, &mut |event| progress.show(event));
    drop(progress);
    let mut document = document?;
    let cpu = document.parameters.get("probe_cpu").and_then(serde_json::Value::as_u64);
    let cpu = cpu.and_then(|cpu| u32::try_from(cpu).ok()).unwrap_or(0);
    if let Some(found) = &mut document.realtime {
        match programs::ktsn().and_then(|ktsn| advice::advice(&ktsn, cpu)) {
            Ok(findings) => found.advice = advise(found, findings),
            Err(error) => eprintln!("ktsn rt run: the results have no advice: {error}"),
        }
    }
    let (json, page) = (plan.out.join("rt.json"), plan.out.join("rt.html"));
    document.save(&json)?;
    report::write(&page, &[Source::of(&json.display().to_string(), &document, &[])?])?;
    let files = format!("results: {}\nreport: {}\n", json.display(), page.display());
    output::write(&format!("{}\n{files}", table::document(&document)))?;
    let mut verdicts = document.realtime.iter().flat_map(|found| &found.verdicts);
    let has_failed = verdicts.any(|verdict| verdict.judgement.outcome == Outcome::Fail);
    Ok(if args.strict && has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::parsed;

    fn plan(line: &str) -> Result<Plan, String> {
        let args: RtArgs = parsed(line)?;
        let Command::Run(args) = args.command else { return Err("another command".to_owned()) };
        args.plan().map_err(|error| error.to_string())
    }

    #[test]
    fn a_plan_is_read() {
        let usual = plan("run").unwrap();
        assert_eq!((usual.profiles.len(), usual.samples(), usual.requirements.len()), (8, 2_880_000, 8));
        assert_eq!((usual.workers, usual.worker_mib, usual.systems.len()), (10, 64, 1));
        let own =
            plan("run --system host,container-fifo --profile 1,3 --duration 10s --period 1ms --share 50%")
                .unwrap();
        assert_eq!((own.profiles.len(), own.samples(), own.systems.len()), (2, 10_000, 2));
        assert!((f64::from(own.share) - 0.5).abs() < 1e-9);
        assert!(own.other.is_none());
        let far = plan("run --system ssh:root@plc,host --remote-ktsn /opt/ktsn").unwrap();
        let names: Vec<String> = far.systems.iter().map(|&system| far.name(system)).collect();
        assert_eq!(
            (names, far.other.unwrap().remote.ktsn),
            (vec!["ssh:root@plc".into(), "host".into()], "/opt/ktsn".into())
        );
    }

    #[test]
    fn wrong_values_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("r.yaml");
        std::fs::write(&file, "requirements:\n  - {service: a, latency: 5 parsec, jitter: 1 us}\n").unwrap();
        for (line, words) in [
            ("run --system xen", ["container-fifo", "xen"]),
            ("run --system ssh", ["ssh:HOST", "ssh"]),
            ("run --system ssh:-oProxyCommand=x", ["ssh:HOST", "-oProxyCommand"]),
            ("run --system ssh:a,ssh:b", ["ssh:b", "one other machine"]),
            ("run --profile 9", ["9", "1 to 8"]),
            ("run --profile 1,1", ["named twice", "1"]),
            ("run --period 1", ["250us", "1"]),
            ("run --share 0", ["40%", "0"]),
            ("run --share 1e-310", ["--share", "`1e-310`: expected 0.1 % to 100 %"]),
            ("run --duration 1ms", ["duration", "8 periods"]),
            ("run --requirements /nowhere.yaml", ["/nowhere.yaml", "No such file"]),
            (&format!("run --requirements {}", file.display()), ["requirements[0].latency", "5 parsec"]),
        ] {
            let error = plan(line).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{line}: {error}");
        }
    }
}
