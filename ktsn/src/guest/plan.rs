// SPDX-License-Identifier: Apache-2.0
//! Which steps set a device up, and what takes each of them back.
//!
//! In: a [`Request`] and the device's [`Facts`]. Out: a [`Plan`], or the field at fault with its value and what is expected. Pure.

use super::device::Facts;
use ktsn_host::HostError;
use ktsn_model::{GateStates, Priority, PriorityMap, TrafficClass};
use ktsn_schedule::analysis::{self, Link, Window};
use ktsn_schedule::taprio::Clock;
use ktsn_schedule::{Format, Schedule, Taprio};
use ktsn_time::{Nanos, Tai};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// The handle of our root qdisc.
pub(super) const HANDLE: &str = "6b74";
/// Classes without a schedule.
pub(crate) const CLASSES_DEFAULT: u32 = 4;
/// Traffic classes that Linux and 802.1Q know.
const CLASSES_MAX: u32 = 8;
/// Without a schedule's speed: virtio says none, and taprio would count with 10 Mbit/s.
const SPEED_DEFAULT: u64 = 1_000_000_000;
const MEGABIT: u64 = 1_000_000;
/// How much sooner than etf needs it taprio hands a frame to etf.
const HAND_OVER: Nanos = Nanos::from_micros(100);
const FULL_DUPLEX: u8 = 1;
const FLAG_ASSIST: u32 = 1;

/// Who keeps the transmit times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// The kernel: `mqprio` with `etf` below the class of timed frames.
    Etf,
    /// The kernel: the gates of a schedule by `taprio` with txtime-assist, and `etf` below each class.
    Taprio,
    /// A `ktsnd` on the device.
    Ktsnd,
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Etf => "etf",
            Self::Taprio => "taprio",
            Self::Ktsnd => "ktsnd",
        })
    }
}

/// A gate schedule and where it came from.
#[derive(Clone, Debug)]
pub(crate) struct Gates {
    /// The file, absolute.
    pub(crate) file: PathBuf,
    /// What it says.
    pub(crate) schedule: Schedule,
}

/// The `ktsnd` to start.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    /// Its program.
    pub(crate) program: PathBuf,
    /// Its run directory.
    pub(crate) run_dir: PathBuf,
    /// The value of its `--attach`.
    pub(crate) attach: String,
    /// How long it spins before a frame; `None`: its adaptive margin.
    pub(crate) spin_margin: Option<Nanos>,
}

/// What to set up.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Who keeps the transmit times.
    pub(crate) mode: Mode,
    /// The device.
    pub(crate) device: String,
    /// Traffic classes of mode `etf`; `None`: [`CLASSES_DEFAULT`], or fewer where the device has fewer queues.
    pub(crate) classes: Option<u32>,
    /// `SO_PRIORITY` of timed frames.
    pub(crate) priority: u8,
    /// How long before its transmit time `etf` wakes for a frame.
    pub(crate) delta: Nanos,
    /// The gates of the modes `taprio` and `ktsnd`.
    pub(crate) gates: Option<Gates>,
    /// What mode `ktsnd` starts.
    pub(crate) daemon: Option<Daemon>,
}

/// One change of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Action {
    /// Gives the device so many queue pairs.
    Queues(u32),
    /// Says the link's speed in Mbit/s, and its duplex.
    Link(u32, u8),
    /// Takes the device up or down.
    Up(bool),
    /// Calls `tc` with these arguments.
    Tc(Vec<String>),
    /// Starts ktsnd: program, run directory, `--attach`, configuration. Taken back by [`Action::StopDaemon`].
    StartDaemon(PathBuf, PathBuf, String, String),
    /// Ends the process of this number and start time; removes the directory if it is ours.
    StopDaemon { pid: u32, start: u64, run_dir: PathBuf, is_dir_ours: bool },
    /// Gives the ktsnd of a run directory the gates of a file.
    Gates(PathBuf, PathBuf),
}

/// A change with what takes it back. A change without one ends with an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) action: Action,
    pub(super) undo: Option<Action>,
}

/// When frames of a check leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rhythm {
    /// `SO_PRIORITY`.
    pub(crate) priority: u8,
    /// Transmit times are whole periods after this instant.
    pub(crate) base: Tai,
    /// The period is a multiple of this.
    pub(crate) cycle: Nanos,
}

/// How a device becomes what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) rhythm: Rhythm,
    /// What the user should know.
    pub(super) notes: Vec<String>,
}

fn usage<T>(text: String) -> Result<T, HostError> {
    Err(HostError::Usage(text))
}

/// What a user calls a device that has too few queues.
fn too_few_queues(facts: &Facts, wanted: u32, why: &str) -> HostError {
    let remedy = match facts.driver.as_str() {
        "virtio_net" => format!(
            "give the guest a device with {wanted}: QEMU `-netdev tap,…,queues={wanted} -device virtio-net-pci,…,mq=on,vectors={}`, libvirt \
             `<driver queues='{wanted}'/>`, `ktsn vm run --datapath tap --queues {wanted}`; or use --mode ktsnd, which needs one queue",
            2 * wanted + 2
        ),
        "uml-vector" => format!(
            "make one in the guest: `ip link add tsn0 numtxqueues {wanted} numrxqueues {wanted} type veth peer name tsn1`, with tsn1 and {} in \
             a bridge; or use --mode ktsnd, which needs one queue",
            facts.device
        ),
        _ => "use a device with more queues, or --mode ktsnd, which needs one queue".to_owned(),
    };
    HostError::Impossible {
        what: format!("device {}: {} queue pair(s); expected {wanted}: {why}", facts.device, facts.queues.0),
        remedy,
    }
}

/// The steps for a request.
///
/// # Errors
/// [`HostError::Usage`] for what the request says; [`HostError::Impossible`] for what the device lacks.
pub(super) fn plan(request: &Request, facts: &Facts) -> Result<Plan, HostError> {
    if request.priority > 15 {
        return usage(format!("--priority {}: expected 0 to 15", request.priority));
    }
    if !(1_000..=1_000_000_000).contains(&request.delta.get()) {
        return usage(format!("--delta {}: expected 1us to 1s", request.delta));
    }
    check_root(facts)?;
    match request.mode {
        Mode::Etf => etf(request, facts),
        Mode::Taprio => taprio(request, facts),
        Mode::Ktsnd => ktsnd(request, facts),
    }
}

/// A qdisc that was set by another hand is not replaced: nothing here could put it back.
fn check_root(facts: &Facts) -> Result<(), HostError> {
    let Some(root) = &facts.root else { return Ok(()) };
    let stalls = if root.is_software_taprio() {
        ". A qdisc below the classes of a software taprio stalls all queues, so none is added to it"
    } else {
        ""
    };
    let (device, kind, handle) = (&facts.device, &root.kind, &root.handle);
    usage(format!(
        "device {device}: its root qdisc is {kind} {handle}; expected the kernel's default{stalls}. Remedy: `tc qdisc del dev {device} root`"
    ))
}

/// The steps before any qdisc: queues, and a device that is up.
fn prepare(facts: &Facts, queues: u32, why: &str) -> Result<Vec<Step>, HostError> {
    let (most, now) = facts.queues;
    if most < queues {
        return Err(too_few_queues(facts, queues, why));
    }
    let mut steps = Vec::new();
    let mut add = |action, undo| steps.push(Step { action, undo: Some(undo) });
    if now != queues && (queues > 1 || now < queues) {
        add(Action::Queues(queues), Action::Queues(now));
    }
    if !facts.is_up {
        add(Action::Up(true), Action::Up(false));
    }
    Ok(steps)
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn root_step(device: &str, arguments: Vec<String>) -> Step {
    Step {
        action: Action::Tc(arguments),
        undo: Some(Action::Tc(words(&format!("qdisc del dev {device} root")))),
    }
}

fn etf_step(facts: &Facts, class: u32, delta: Nanos, rest: &str) -> Step {
    let (device, minor, delta) = (&facts.device, class + 1, delta.get());
    let line =
        format!("qdisc add dev {device} parent {HANDLE}:{minor} etf clockid CLOCK_TAI delta {delta}{rest}");
    Step { action: Action::Tc(words(&line)), undo: None }
}

fn etf(request: &Request, facts: &Facts) -> Result<Plan, HostError> {
    if let Some(gates) = &request.gates {
        let file = gates.file.display();
        return usage(format!("--schedule {file}: mode etf has no gates; use --mode taprio or --mode ktsnd"));
    }
    // Fewer where the device has fewer; one queue is refused by name below.
    let classes = request.classes.unwrap_or_else(|| CLASSES_DEFAULT.min(facts.queues.0.max(2)));
    if !(2..=CLASSES_MAX).contains(&classes) {
        return usage(format!("--classes {classes}: expected 2 to {CLASSES_MAX}"));
    }
    let mut steps = prepare(facts, classes, "one for each traffic class (--classes)")?;
    let map = classes_of(classes, request.priority).map(|class| class.to_string()).join(" ");
    let ranges: Vec<String> = (0..classes).map(|class| format!("1@{class}")).collect();
    let (device, queues) = (&facts.device, ranges.join(" "));
    steps.push(root_step(
        device,
        words(&format!(
            "qdisc add dev {device} root handle {HANDLE}: mqprio num_tc {classes} map {map} queues {queues} hw 0"
        )),
    ));
    steps.push(etf_step(facts, classes - 1, request.delta, ""));
    let note = format!(
        "priority {} has traffic class {} alone: etf drops frames without a transmit time there",
        request.priority,
        classes - 1
    );
    let rhythm = Rhythm { priority: request.priority, base: Tai::ZERO, cycle: Nanos::from_micros(1) };
    Ok(Plan { steps, rhythm, notes: vec![note] })
}

/// Priority → class: the timed priority alone in the highest one, the others as 802.1Q-2022 Table 8-5 recommends for one class less.
pub(super) fn classes_of(count: u32, timed: u8) -> [u32; 16] {
    // Rows: 1 to 7 classes; columns: priorities 0 to 7.
    const TABLE: [[u32; 8]; 7] = [
        [0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 1],
        [0, 0, 0, 0, 1, 1, 2, 2],
        [0, 0, 1, 1, 2, 2, 3, 3],
        [0, 0, 1, 1, 2, 2, 3, 4],
        [1, 0, 2, 2, 3, 3, 4, 5],
        [1, 0, 2, 3, 4, 4, 5, 6],
    ];
    let row = TABLE[usize::try_from(count.saturating_sub(2)).unwrap_or(0).min(6)];
    std::array::from_fn(|priority| match priority {
        _ if priority == usize::from(timed) => count - 1,
        0..8 => row[priority],
        // Linux has priorities above 7; 802.1Q gives them nothing.
        _ => row[0],
    })
}

/// The schedule with the classes that some priority leads to, numbered from 0, so that each needs one queue.
pub(super) fn compact(schedule: &Schedule) -> (Schedule, Vec<TrafficClass>) {
    let classes = (0..8).filter_map(|number| TrafficClass::new(number).ok());
    let used: Vec<TrafficClass> = classes.filter(|&class| schedule.is_class_used(class)).collect();
    let number = |class: TrafficClass| used.iter().position(|&one| one == class).unwrap_or(0);
    let map = schedule.priority_map.unwrap_or_default();
    let numbers = std::array::from_fn(|priority| {
        let class = map.class(Priority::capped(u32::try_from(priority).unwrap_or(0)));
        u8::try_from(number(class)).unwrap_or(0)
    });
    let states = |states: GateStates| {
        let open = used.iter().enumerate().filter(|(_, class)| states.is_open(**class));
        GateStates::from_bits(open.fold(0, |bits, (number, _)| bits | 1 << number))
    };
    let mut compact = schedule.clone();
    compact.priority_map = PriorityMap::new(numbers).ok();
    for entry in &mut compact.admin.control_list {
        entry.states = states(entry.states);
    }
    compact.queue_max_sdu = [None; TrafficClass::COUNT];
    compact.class_names = [const { None }; TrafficClass::COUNT];
    for (number, class) in used.iter().enumerate() {
        compact.queue_max_sdu[number] = schedule.queue_max_sdu[usize::from(class.get())];
    }
    (compact, used)
}

/// The longest span in a cycle in which the class of `priority` may send.
fn window_of(gates: &Gates, priority: u8) -> Result<Window, HostError> {
    let schedule = &gates.schedule;
    let class = schedule.priority_map.unwrap_or_default().class(Priority::capped(priority.into()));
    let analysis = analysis::analyse(schedule, &Link::of(schedule, None, None, None));
    let of_class = analysis.classes.into_iter().find(|use_| use_.class == class);
    let windows = of_class.map(|use_| use_.windows).unwrap_or_default();
    windows.into_iter().max_by_key(|window| window.length).ok_or_else(|| {
        HostError::Usage(format!(
            "--priority {priority}: its traffic class {} has no open gate in {}; expected a priority with a window",
            class.get(),
            gates.file.display()
        ))
    })
}

/// Transmit times that lie in a window of the priority's class.
fn rhythm_in(gates: &Gates, priority: u8) -> Result<Rhythm, HostError> {
    let window = window_of(gates, priority)?;
    let admin = &gates.schedule.admin;
    let offset = window.opens_at.saturating_add(Nanos::new(window.length.get() / 4));
    Ok(Rhythm { priority, base: admin.base_time.saturating_add(offset), cycle: admin.cycle_time })
}

/// The flags of a schedule that came as a `tc` command: only txtime-assist can be had here.
fn check_flags(gates: &Gates) -> Result<(), HostError> {
    let file = gates.file.display();
    match gates.schedule.taprio.as_ref().and_then(|taprio| taprio.flags) {
        None | Some(FLAG_ASSIST) => Ok(()),
        Some(0) => usage(format!(
            "--schedule {file}: flags 0x0: a qdisc below the classes of a software taprio stalls all queues; expected flags 0x1 (txtime-assist) or none"
        )),
        Some(flags) => usage(format!(
            "--schedule {file}: flags {flags:#x}: offload needs a device with gates and a PTP clock, which virtio lacks; expected flags 0x1 \
             (txtime-assist) or none"
        )),
    }
}

/// The schedule's speed becomes the device's: virtio tells none, and gates cannot be held without one.
fn add_speed(schedule: &Schedule, facts: &Facts, steps: &mut Vec<Step>, notes: &mut Vec<String>) {
    let Some((before, duplex)) = facts.link else { return };
    let told = (!matches!(before, 0 | u32::MAX)).then(|| u64::from(before) * MEGABIT);
    let speed = schedule.link_speed.or(told).unwrap_or(SPEED_DEFAULT);
    if u64::from(before).checked_mul(MEGABIT) != Some(speed) {
        let megabits = u32::try_from(speed / MEGABIT).unwrap_or(u32::MAX);
        let undo = Some(Action::Link(before, duplex));
        steps.push(Step { action: Action::Link(megabits, FULL_DUPLEX), undo });
        notes.push(format!(
            "the device tells a speed of {megabits} Mbit/s now: transmission times are computed with it"
        ));
    }
}

fn taprio(request: &Request, facts: &Facts) -> Result<Plan, HostError> {
    let Some(gates) = &request.gates else {
        return usage(
            "--schedule: missing; mode taprio needs a gate schedule (docs/guide/schedules.md)".to_owned(),
        );
    };
    if request.classes.is_some() {
        return usage(
            "--classes: the classes of mode taprio are those of --schedule; leave it out".to_owned(),
        );
    }
    check_flags(gates)?;
    let rhythm = rhythm_in(gates, request.priority)?;
    let (mut schedule, used) = compact(&gates.schedule);
    let count = u32::try_from(used.len()).unwrap_or(CLASSES_MAX);
    if count < 2 {
        let file = gates.file.display();
        return usage(format!(
            "--schedule {file}: its priority-map uses {count} traffic class; expected 2 or more"
        ));
    }
    let mut steps =
        prepare(facts, count, "one for each traffic class that the schedule's priority-map uses")?;
    let mut notes = Vec::new();
    if schedule.admin.gate_states != GateStates::ALL_OPEN {
        notes.push(
            "admin-gate-states: taprio has no gate states before the first cycle; they are left out"
                .to_owned(),
        );
        schedule.admin.gate_states = GateStates::ALL_OPEN;
    }
    add_speed(&schedule, facts, &mut steps, &mut notes);
    steps.push(root_step(&facts.device, taprio_words(request, facts, gates, schedule, &used)?));
    steps.extend((0..count).map(|class| etf_step(facts, class, request.delta, " skip_sock_check")));
    Ok(Plan { steps, rhythm, notes })
}

/// The arguments of `tc` that say the schedule.
fn taprio_words(
    request: &Request,
    facts: &Facts,
    gates: &Gates,
    mut schedule: Schedule,
    used: &[TrafficClass],
) -> Result<Vec<String>, HostError> {
    let delay = request.delta.saturating_add(HAND_OVER);
    schedule.taprio = Some(Taprio {
        device: Some(facts.device.clone()),
        parent: "root".to_owned(),
        handle: Some(format!("{HANDLE}:")),
        num_tc: u8::try_from(used.len()).ok(),
        queues: (0..).take(used.len()).map(|offset| (1, offset)).collect(),
        stab: None,
        clock: Some(Clock::Tai),
        flags: Some(FLAG_ASSIST),
        txtime_delay: u32::try_from(delay.get()).ok(),
        is_preemptible: Vec::new(),
    });
    let text = ktsn_schedule::write(&schedule, Format::Taprio).map_err(|faults| {
        let (file, mut lines) = (gates.file.display(), Vec::new());
        lines.extend(faults.as_slice().iter().map(|fault| format!("--schedule {file}: {fault}")));
        HostError::Usage(lines.join("\n"))
    })?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let all: Vec<String> =
        lines.flat_map(|line| words(line.trim_end_matches('\\'))).skip_while(|word| word == "tc").collect();
    // `add`: a root qdisc that came meanwhile is an error, not lost.
    Ok(all.into_iter().map(|word| if word == "replace" { "add".to_owned() } else { word }).collect())
}

fn ktsnd(request: &Request, facts: &Facts) -> Result<Plan, HostError> {
    let Some(daemon) = &request.daemon else {
        return usage("mode ktsnd: no ktsnd to start".to_owned());
    };
    if request.classes.is_some() {
        return usage("--classes: ktsnd has eight traffic classes on one queue; leave it out".to_owned());
    }
    let rhythm = match &request.gates {
        Some(gates) => rhythm_in(gates, request.priority)?,
        None => Rhythm { priority: request.priority, base: Tai::ZERO, cycle: Nanos::from_micros(1) },
    };
    let (mut steps, mut notes) = (prepare(facts, 1, "")?, Vec::new());
    if let Some(gates) = &request.gates {
        if facts.link.is_none() {
            return Err(HostError::Impossible {
                what: format!(
                    "device {}: it tells no speed and takes none; ktsnd needs one for --schedule",
                    facts.device
                ),
                remedy: "use a veth pair on top of it, which tells 10 Gbit/s, or leave --schedule out"
                    .to_owned(),
            });
        }
        add_speed(&gates.schedule, facts, &mut steps, &mut notes);
    }
    let mut config = String::new();
    if let Some(margin) = daemon.spin_margin {
        config = format!("[[port]]\ndevice = {:?}\nspin_margin = \"{}ns\"\n", facts.device, margin.get());
        notes.push(format!(
            "ktsnd spins {} us before each frame (--spin-margin): so late a wake-up may be",
            margin.get() / 1000
        ));
    }
    let Daemon { program, run_dir, attach, .. } = daemon.clone();
    // Its undo is known once it runs.
    steps.push(Step { action: Action::StartDaemon(program, run_dir, attach, config), undo: None });
    steps.extend(
        request.gates.as_ref().map(|gates| Step {
            action: Action::Gates(daemon.run_dir.clone(), gates.file.clone()),
            undo: None,
        }),
    );
    Ok(Plan { steps, rhythm, notes })
}
