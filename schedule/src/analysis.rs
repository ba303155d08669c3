// SPDX-License-Identifier: Apache-2.0
//! What a schedule gives each traffic class, and what people probably did not mean.
//!
//! In: a schedule without faults and what the link is. Out: windows, guard bands, shares, warnings. Pure and plain: it
//! goes through the list entry by entry and knows nothing of the machine that executes it (802.1Q-2022 8.6.9.2).

use std::fmt;

use ktsn_model::{AdminPort, GateOperation, GateStates, TrafficClass};
use ktsn_time::Nanos;

use crate::schedule::Schedule;
use crate::units::show_span;

/// What a largest frame has beside its service data unit: MAC header 14, VLAN tag 4, FCS 4, preamble and
/// delimiter 8, inter-packet gap 12.
pub const OVERHEAD_OCTETS: u64 = 42;
/// The shortest frame on the wire: 64 octets, preamble, gap.
pub const WIRE_OCTETS_MIN: u64 = 84;
/// The service data unit that is assumed where the schedule has none.
pub const MTU_DEFAULT: u32 = 1500;

/// What is known of the port, beside the schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Bit/s.
    pub speed: Option<u64>,
    /// The longest service data unit in octets.
    pub mtu: u32,
    /// From handing a frame over until its first bit is on the wire.
    pub hand_over: Nanos,
}

impl Link {
    /// What the schedule says, with what the caller knows better before it.
    #[must_use]
    pub fn of(schedule: &Schedule, speed: Option<u64>, mtu: Option<u32>, hand_over: Option<Nanos>) -> Self {
        Self {
            speed: speed.or(schedule.link_speed),
            mtu: mtu.or(schedule.mtu).unwrap_or(MTU_DEFAULT),
            hand_over: hand_over.or(schedule.hand_over).unwrap_or_default(),
        }
    }

    /// How long a frame with this service data unit holds the link, rounded up; none if the speed is not known.
    #[must_use]
    pub fn transmission_time(&self, sdu_octets: u32) -> Option<Nanos> {
        let wire_octets = (u64::from(sdu_octets) + OVERHEAD_OCTETS).max(WIRE_OCTETS_MIN);
        let nanos = (u128::from(wire_octets) * 8_000_000_000).div_ceil(u128::from(self.speed?.max(1)));
        Some(Nanos::new(i64::try_from(nanos).unwrap_or(i64::MAX)))
    }

    /// The largest service data unit whose frame fits into a span of a gate; none if not even the shortest does.
    fn sdu_that_fits(&self, span: Nanos) -> Option<u32> {
        let room = u128::try_from(span.saturating_sub(self.hand_over).get()).ok()?;
        let wire_octets = room * u128::from(self.speed?) / 8_000_000_000;
        let octets = u64::try_from(wire_octets).unwrap_or(u64::MAX);
        (octets >= WIRE_OCTETS_MIN).then(|| u32::try_from(octets - OVERHEAD_OCTETS).unwrap_or(u32::MAX))
    }
}

/// A span in which a gate is open, in one cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// From the cycle's start.
    pub opens_at: Nanos,
    /// Its whole length; it may go on in the next cycle.
    pub length: Nanos,
}

/// One entry as it is executed: cut at the cycle's end, the last one up to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// From the cycle's start.
    pub begins_at: Nanos,
    /// How long the states hold.
    pub length: Nanos,
    /// Which gates are open.
    pub states: GateStates,
}

/// What one class gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassUse {
    /// The class.
    pub class: TrafficClass,
    /// Some priority leads to it.
    pub is_used: bool,
    /// Its gate is open in every entry: there is no window's end to guard.
    pub is_always_open: bool,
    /// Maximal spans in which its gate is open, by their start; one of the whole cycle if it is always open.
    pub windows: Vec<Window>,
    /// Its largest service data unit in octets.
    pub sdu_max: u32,
    /// Before the end of a window: the last instant at which its largest frame may be handed over. None: link speed unknown.
    pub guard_band: Option<Nanos>,
    /// How long it is open in a cycle.
    pub open: Nanos,
    /// How long it is open while every other class is closed.
    pub exclusive: Nanos,
    /// How long it may start its largest frame in a cycle. None: link speed unknown.
    pub usable: Option<Nanos>,
    /// How many of its largest frames fit into the windows of a cycle, one after the other. None: link speed unknown.
    pub frames_count: Option<u64>,
}

/// What a schedule gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// The cycle; zero if no list is executed.
    pub cycle_time: Nanos,
    /// Entries in force, by their start.
    pub segments: Vec<Segment>,
    /// Classes from 0 to 7.
    pub classes: Vec<ClassUse>,
    /// What people probably did not mean.
    pub warnings: Vec<Warning>,
}

/// Something that is allowed and probably not meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The gates are disabled: the list is not executed.
    Disabled,
    /// There is no list: the gates stay at `admin-gate-states`.
    NoList,
    /// Nobody says how fast the link is: guard bands are unknown.
    LinkSpeedUnknown,
    /// The intervals are shorter than the cycle by this: the last entry holds until its end.
    ListShorter(Nanos),
    /// The intervals are longer than the cycle by this: what lies beyond is never executed.
    ListLonger(Nanos),
    /// The first of the entries that hold or release the MAC: without effect in software.
    Preemption(usize),
    /// A class that priorities lead to never opens.
    NeverOpens(TrafficClass),
    /// The largest frame of the class fits into none of its windows; the largest service data unit that does.
    NeverFits(TrafficClass, u32, Option<u32>),
    /// This many windows of the class, the first of them at the instant, are shorter than its guard band.
    ShortWindows(TrafficClass, usize, Window, Nanos),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = |nanos: &Nanos| show_span(nanos.get());
        match self {
            Self::Disabled => write!(f, "gate-enabled is false: the list is not executed"),
            Self::NoList => write!(f, "the list is empty: the gates stay at admin-gate-states"),
            Self::LinkSpeedUnknown => {
                write!(f, "link speed unknown: no guard bands; say it by link-speed or --link-speed")
            }
            Self::ListShorter(by) => {
                write!(
                    f,
                    "the intervals are {} shorter than the cycle: the last entry holds until its end",
                    span(by)
                )
            }
            Self::ListLonger(by) => {
                write!(f, "the intervals are {} longer than the cycle: what lies beyond is cut off", span(by))
            }
            Self::Preemption(index) => {
                write!(
                    f,
                    "admin-control-list[{index}] holds or releases the MAC: in software it only sets the gates"
                )
            }
            Self::NeverOpens(class) => write!(f, "class {} never opens", class.get()),
            Self::NeverFits(class, sdu, fits) => {
                write!(
                    f,
                    "class {}: a frame with {sdu} octets fits into none of its windows; ",
                    class.get()
                )?;
                match fits {
                    Some(octets) => write!(f, "queue-max-sdu {octets} does"),
                    None => write!(f, "not even the shortest does"),
                }
            }
            Self::ShortWindows(class, count, window, guard) => write!(
                f,
                "class {}: {count} window(s) shorter than the guard band of {}, the first at {} of the cycle with {}",
                class.get(),
                span(guard),
                span(&window.opens_at),
                span(&window.length)
            ),
        }
    }
}

/// Looks at a schedule whose parameters have no fault.
#[must_use]
pub fn analyse(schedule: &Schedule, link: &Link) -> Analysis {
    let admin = &schedule.admin;
    let segments = segments(admin);
    let is_executed = admin.gate_enabled && !admin.control_list.is_empty();
    let cycle_time = if is_executed { admin.cycle_time } else { Nanos::ZERO };
    let classes: Vec<ClassUse> = (0..TrafficClass::COUNT as u8)
        .filter_map(|class| TrafficClass::new(class).ok())
        .map(|class| class_use(schedule, link, class, &segments, cycle_time))
        .collect();
    let mut warnings = Vec::new();
    if !admin.gate_enabled {
        warnings.push(Warning::Disabled);
    } else if admin.control_list.is_empty() {
        warnings.push(Warning::NoList);
    }
    if is_executed {
        list_warnings(admin, link, &mut warnings);
    }
    warnings
        .extend(classes.iter().filter(|class| class.is_used).filter_map(|class| class_warning(class, link)));
    Analysis { cycle_time, segments, classes, warnings }
}

/// The entries as they are executed; one without length for gates that never change.
fn segments(admin: &AdminPort) -> Vec<Segment> {
    if !admin.gate_enabled || admin.control_list.is_empty() {
        return vec![Segment { begins_at: Nanos::ZERO, length: Nanos::ZERO, states: admin.gate_states }];
    }
    let mut segments = Vec::new();
    let mut begins_at = Nanos::ZERO;
    for entry in &admin.control_list {
        let length = entry.interval.get().min(admin.cycle_time.saturating_sub(begins_at).get());
        if length > 0 {
            segments.push(Segment { begins_at, length: Nanos::new(length), states: entry.states });
        }
        begins_at = begins_at.saturating_add(entry.interval);
    }
    if let Some(last) = segments.last_mut() {
        last.length = last.length.max(admin.cycle_time.saturating_sub(last.begins_at));
    }
    segments
}

/// Maximal spans of open segments; the one that crosses the cycle's end counts once, where it opens.
fn windows(segments: &[Segment], class: TrafficClass) -> Vec<Window> {
    let mut windows: Vec<Window> = Vec::new();
    for segment in segments.iter().filter(|segment| segment.states.is_open(class)) {
        match windows.last_mut() {
            Some(last) if last.opens_at.saturating_add(last.length) == segment.begins_at => {
                last.length = last.length.saturating_add(segment.length);
            }
            _ => windows.push(Window { opens_at: segment.begins_at, length: segment.length }),
        }
    }
    let is_open = |segment: Option<&Segment>| segment.is_some_and(|segment| segment.states.is_open(class));
    if windows.len() > 1 && is_open(segments.first()) && is_open(segments.last()) {
        let first = windows.remove(0);
        if let Some(last) = windows.last_mut() {
            last.length = last.length.saturating_add(first.length);
        }
    }
    windows
}

fn class_use(
    schedule: &Schedule,
    link: &Link,
    class: TrafficClass,
    segments: &[Segment],
    cycle_time: Nanos,
) -> ClassUse {
    let windows = windows(segments, class);
    let is_always_open = segments.iter().all(|segment| segment.states.is_open(class));
    let sdu_max =
        schedule.queue_max_sdu[usize::from(class.get())].map_or(link.mtu, |octets| octets.min(link.mtu));
    let time = link.transmission_time(sdu_max);
    let guard_band = time.map(|time| time.saturating_add(link.hand_over));
    let sum = |span: &dyn Fn(&Window) -> i64| windows.iter().map(span).fold(0, i64::saturating_add);
    let usable = guard_band.map(|guard| {
        let guard = if is_always_open { 0 } else { guard.get() };
        Nanos::new(sum(&|window| (window.length.get() - guard).max(0)))
    });
    let frames_count = time.map(|time| {
        let hand_over = if is_always_open { 0 } else { link.hand_over.get() };
        sum(&|window| (window.length.get() - hand_over).max(0) / time.get().max(1)) as u64
    });
    let alone = |segment: &&Segment| segment.states == GateStates::from_bits(1 << class.get());
    let exclusive =
        segments.iter().filter(alone).fold(Nanos::ZERO, |sum, segment| sum.saturating_add(segment.length));
    let open = Nanos::new(sum(&|window| window.length.get()));
    debug_assert!(open <= cycle_time || cycle_time == Nanos::ZERO);
    ClassUse {
        class,
        is_used: schedule.is_class_used(class),
        is_always_open,
        windows,
        sdu_max,
        guard_band,
        open,
        exclusive,
        usable,
        frames_count,
    }
}

fn list_warnings(admin: &AdminPort, link: &Link, warnings: &mut Vec<Warning>) {
    if link.speed.is_none() {
        warnings.push(Warning::LinkSpeedUnknown);
    }
    let sum = admin.control_list.iter().fold(Nanos::ZERO, |sum, entry| sum.saturating_add(entry.interval));
    let short = admin.cycle_time.saturating_sub(sum);
    if short > Nanos::ZERO {
        warnings.push(Warning::ListShorter(short));
    } else if short.is_negative() {
        warnings.push(Warning::ListLonger(short.abs()));
    }
    let holds = |entry: &ktsn_model::GateControlEntry| entry.operation != GateOperation::SetGateStates;
    warnings.extend(admin.control_list.iter().position(holds).map(Warning::Preemption));
}

fn class_warning(class: &ClassUse, link: &Link) -> Option<Warning> {
    let Some(longest) = class.windows.iter().map(|window| window.length).max() else {
        return Some(Warning::NeverOpens(class.class));
    };
    let guard = class.guard_band.filter(|_| !class.is_always_open)?;
    if longest < guard {
        return Some(Warning::NeverFits(class.class, class.sdu_max, link.sdu_that_fits(longest)));
    }
    let mut short = class.windows.iter().filter(|window| window.length < guard);
    let first = *short.next()?;
    Some(Warning::ShortWindows(class.class, short.count() + 1, first, guard))
}

/// A part of a cycle in hundredths of a per cent, rounded down.
#[must_use]
pub fn share(part: Nanos, cycle_time: Nanos) -> u64 {
    let whole = i128::from(cycle_time.get().max(1));
    u64::try_from(i128::from(part.get().max(0)) * 10_000 / whole).unwrap_or(0)
}

/// `12.34 %`.
#[must_use]
pub fn show_share(part: Nanos, cycle_time: Nanos) -> String {
    let share = share(part, cycle_time);
    format!("{}.{:02} %", share / 100, share % 100)
}
