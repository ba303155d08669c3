// SPDX-License-Identifier: Apache-2.0
//! Gate schedules of the ports: the configuration's, and those that were applied while ktsnd runs.
//!
//! An applied schedule goes before the configuration's and is kept in the state file until it is forgotten. Everything
//! is checked before anything changes; a worker only ever gets programs that it can run.

use std::time::Duration;

use ktsn_model::{AdminPort, Priority, PriorityMap, TrafficClass};
use ktsn_port::{Device, link_info, link_speed};
use ktsn_proto::v1;
use ktsn_resolve::PortIndex;
use ktsn_sched::{ClassOptions, CreditOptions, GateProgram, Order, Shaper, TimeAware, TimeAwareOptions};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::request::States;
use super::{Node, NodeError};
use crate::config::{ClassChoice, ClassOrder, Port as PortConfig, Schedule, SelectionChoice, read_schedule};
use crate::messages::queue_max_sdu_messages;
use crate::run_dir::KeptSchedule;
use crate::worker::{Command, GateView, HAND_OVER_AT_START, tai_now};

/// The longest wait for a worker's answer about its gates.
const LOOK_MAX: Duration = Duration::from_secs(2);

impl Node {
    /// The schedule that is meant to hold on a device.
    pub(super) fn schedule_of(&self, device: &str) -> Option<&Schedule> {
        self.applied.get(device).or_else(|| {
            let name = self.port_config(device).schedule?;
            self.config.schedules.iter().find(|s| s.name.as_ref() == Some(&name))
        })
    }

    /// Makes the queues of an uplink, with its gates when it has a schedule.
    pub(super) fn selection(
        &self,
        config: &PortConfig,
        capacity: usize,
    ) -> Result<(Box<TimeAware>, Option<Box<GateProgram>>), NodeError> {
        let (speed, program) = self.check_selection(config)?;
        let schedule = self.schedule_of(&config.device);
        let tenants = crate::limits::ATTACHMENTS_MAX;
        let mut selection = Box::new(TimeAware::new(match config.selection {
            SelectionChoice::EarliestTxTime => TimeAwareOptions::tx_time(capacity, tenants),
            SelectionChoice::StrictPriority => TimeAwareOptions::strict_priority(capacity, tenants),
            SelectionChoice::CreditBased => {
                let credits = config.classes.map(|class| class.idle_slope.map(CreditOptions::new));
                TimeAwareOptions::credit_based(capacity, tenants, speed, credits)
            }
            SelectionChoice::TimeAware => TimeAwareOptions {
                // Without a schedule or a shaper the speed stays unset: the scheduler then does not pace frames.
                link_speed: speed.filter(|_| config.is_shaped() || schedule.is_some()),
                hand_over: HAND_OVER_AT_START,
                classes: class_options(config, schedule),
                ..TimeAwareOptions::gates(capacity, tenants)
            },
        }));
        // Queues in order of arrival need little memory while they are short.
        if matches!(config.selection, SelectionChoice::EarliestTxTime | SelectionChoice::TimeAware) {
            selection.touch();
        }
        Ok((selection, program))
    }

    /// Whether the schedule and the shapers of an uplink fit its link: the link's speed, and the schedule's gates.
    pub(super) fn check_selection(
        &self,
        config: &PortConfig,
    ) -> Result<(Option<u64>, Option<Box<GateProgram>>), NodeError> {
        let schedule = self.schedule_of(&config.device);
        let speed = self.speed_for(config, config.is_shaped() || schedule.is_some())?;
        check_slopes(config, speed)?;
        if let Some(schedule) = schedule {
            check_fits(config, schedule, speed)?;
        }
        let program = schedule.map(|schedule| compile(name_of(schedule), &schedule.admin)).transpose()?;
        Ok((speed, program))
    }

    /// Priority → traffic class of a device: what its port says, else its schedule, else identity.
    pub(super) fn priority_map(&self, device: &str) -> PriorityMap {
        let of_schedule = || self.schedule_of(device).and_then(|schedule| schedule.priority_map);
        self.port_config(device).priority_map.or_else(of_schedule).unwrap_or_default()
    }

    /// The link's speed in bit/s: the configuration's, else the device's.
    fn speed_for(&self, config: &PortConfig, is_needed: bool) -> Result<Option<u64>, NodeError> {
        let device = Device { ifname: &config.device, netns: None };
        let speed = config.link_speed.or_else(|| link_speed(&device));
        if is_needed && speed.is_none() {
            return Err(NodeError::Precondition(format!(
                "port.link_speed: unknown: {} does not tell its speed, and guard bands and shapers need it; \
                 set link_speed (bit/s) of this port in the configuration",
                config.device
            )));
        }
        Ok(speed)
    }

    /// A link that has come up with another speed: guard bands and pacing follow it. What the configuration says stays.
    pub(super) fn look_at_speeds(&mut self) {
        let uplinks = self.ports.iter().filter(|(_, port)| port.netns.is_empty());
        let uplinks: Vec<(u16, String)> =
            uplinks.map(|(index, port)| (*index, port.device.clone())).collect();
        for (index, device) in uplinks {
            let config = self.port_config(&device);
            if config.link_speed.is_some() {
                continue;
            }
            // A link that is down says nothing; it keeps its speed until it is up again.
            let Some(speed) = link_speed(&Device { ifname: &device, netns: None }) else { continue };
            let is_needed = config.is_shaped() || self.schedule_of(&device).is_some();
            let Some(port) = self.ports.get_mut(&index).filter(|port| port.link_speed != speed) else {
                continue;
            };
            let before = std::mem::replace(&mut port.link_speed, speed);
            warn!(device, before, speed, "the link has another speed now");
            if let Some(worker) = self.workers.get(&device).filter(|_| is_needed) {
                worker.send(Command::SetLinkSpeed(PortIndex(index), Some(speed)));
            }
        }
    }

    /// Sets the gates of a port, or (`None`) gives it back to the configuration; with `check_only` nothing changes. Answers
    /// with the port's state.
    pub(super) fn apply_schedule(
        &mut self,
        device: &str,
        schedule: Option<Schedule>,
        check_only: bool,
        reply: oneshot::Sender<States>,
    ) {
        if let Err(error) = self.change_schedule(device, schedule, check_only) {
            let _ = reply.send(Err(error));
            return;
        }
        self.get_schedule(device, reply);
    }

    fn change_schedule(
        &mut self,
        device: &str,
        schedule: Option<Schedule>,
        check_only: bool,
    ) -> Result<(), NodeError> {
        if self.stopping {
            return Err(NodeError::Precondition("ktsnd is ending".to_owned()));
        }
        let open = self.open_index(device);
        if open.is_none() && !self.config.ports.iter().any(|p| p.device == device) {
            return Err(self.unknown_port(device));
        }
        let config = self.port_config(device);
        if config.selection != SelectionChoice::TimeAware {
            return Err(NodeError::Precondition(format!(
                "port: {device:?}: its strategy is {}; gates are time-aware's: change `strategy` in the configuration",
                config.selection.word()
            )));
        }
        // Where neither the configuration nor the request has one, the gates stay open.
        let next = schedule.as_ref().or_else(|| {
            let name = config.schedule.as_ref()?;
            self.config.schedules.iter().find(|s| s.name.as_ref() == Some(name))
        });
        let program = compile("admin", next.map_or(&AdminPort::default(), |s| &s.admin))?;
        let classes = class_options(&config, next);
        let is_asked = next.is_some() || config.is_shaped();
        // A port that is not there yet is judged when it is opened.
        let is_there = open.is_some() || link_info(&Device { ifname: device, netns: None }).is_ok();
        let speed = self.speed_for(&config, is_asked && is_there)?;
        if let Some(next) = next {
            check_fits(&config, next, speed)?;
        }
        if check_only {
            return Ok(());
        }
        let (name, is_applied) =
            (next.map_or_else(String::new, |s| name_of(s).to_owned()), schedule.is_some());
        self.keep_schedule(device, schedule)?;
        if let (Some(index), Some(worker)) = (open, self.workers.get(device)) {
            // Without a schedule or a shaper, `link_speed` stays unset: the scheduler then does not pace frames.
            worker.send(Command::SetLinkSpeed(index, speed.filter(|_| is_asked)));
            worker.send(Command::SetClasses(index, Box::new(classes)));
            worker.send(Command::ChangeSchedule(index, program));
        }
        self.send_priority_map(device);
        info!(device, schedule = name, is_applied, "gate schedule changed");
        Ok(())
    }

    /// What is in force must be what a restart takes up again: a schedule that cannot be kept is not applied.
    fn keep_schedule(&mut self, device: &str, schedule: Option<Schedule>) -> Result<(), NodeError> {
        let before = match schedule {
            Some(schedule) => self.applied.insert(device.to_owned(), schedule),
            None => self.applied.remove(device),
        };
        let Err(error) = self.try_save() else { return Ok(()) };
        match before {
            Some(schedule) => drop(self.applied.insert(device.to_owned(), schedule)),
            None => drop(self.applied.remove(device)),
        }
        Err(NodeError::Internal(format!("state file: {error}; nothing was changed")))
    }

    /// Frames that are offered from now on find their class by the map that holds now.
    fn send_priority_map(&self, device: &str) {
        let map = self.priority_map(device);
        let Some(worker) = self.workers.get(device) else { return };
        let interfaces =
            self.attached.iter().flatten().filter(|a| a.uplink == device).map(|a| a.interface_port);
        for index in self.open_index(device).into_iter().chain(interfaces) {
            worker.send(Command::SetPriorityMap(index, map));
        }
    }

    /// State of the gates of one port, or (empty) of all.
    pub(super) fn get_schedule(&mut self, device: &str, reply: oneshot::Sender<States>) {
        let known = self.gated_devices();
        if !device.is_empty() && !known.iter().any(|d| d == device) {
            let _ = reply.send(Err(self.unknown_port(device)));
            return;
        }
        let mut parts = Vec::new();
        for device in known.into_iter().filter(|d| device.is_empty() || d == device) {
            let state = self.asked_state(&device);
            let look = self.open_index(&device).map(|index| self.look(&device, index));
            parts.push((state, look));
        }
        tokio::spawn(async move {
            let mut states = Vec::new();
            for (mut state, look) in parts {
                if let Some(look) = look {
                    match tokio::time::timeout(LOOK_MAX, look).await {
                        Ok(Ok(view)) => fill_state(&mut state, &view),
                        Ok(Err(_)) | Err(_) => {
                            let text = format!("the worker of {} does not answer", state.port);
                            let _ = reply.send(Err(NodeError::Internal(text)));
                            return;
                        }
                    }
                }
                states.push(state);
            }
            let _ = reply.send(Ok(states));
        });
    }

    /// Asks a worker for the gates of its uplink.
    fn look(&mut self, device: &str, index: PortIndex) -> oneshot::Receiver<Box<GateView>> {
        let (sender, receiver) = oneshot::channel();
        self.gate_requests.retain(|_, request| !request.is_closed());
        self.gate_requests_count += 1;
        let number = self.gate_requests_count;
        if let Some(worker) = self.workers.get(device) {
            self.gate_requests.insert(number, sender);
            worker.send(Command::LookAtGates(index, Box::new(GateView::new(number))));
        }
        receiver
    }

    /// Ports of the configuration and open uplinks.
    fn gated_devices(&self) -> Vec<String> {
        let mut devices: Vec<String> = self.config.ports.iter().map(|p| p.device.clone()).collect();
        devices.extend(self.ports.values().filter(|p| p.netns.is_empty()).map(|p| p.device.clone()));
        devices.sort();
        devices.dedup();
        devices
    }

    fn unknown_port(&self, device: &str) -> NodeError {
        let known = self.gated_devices();
        let hint = if known.is_empty() { "none is known yet".to_owned() } else { known.join(", ") };
        NodeError::UnknownPort { device: device.to_owned(), known: hint }
    }

    /// The index of an open uplink.
    pub(super) fn open_index(&self, device: &str) -> Option<PortIndex> {
        let served = self.workers.contains_key(device);
        let found = self.ports.iter().find(|(_, p)| p.device == device && p.netns.is_empty());
        found.filter(|_| served).map(|(index, _)| PortIndex(*index))
    }

    /// What is known without the worker.
    fn asked_state(&self, device: &str) -> v1::ScheduleState {
        let config = self.port_config(device);
        let schedule = self.schedule_of(device);
        let open = self.open_index(device).and_then(|index| self.ports.get(&index.0));
        let limits = merged_limits(&config, schedule);
        let stats = open.map(|p| &p.stats);
        let count = |counters: &[std::sync::atomic::AtomicU64]| {
            counters.iter().map(|c| c.load(std::sync::atomic::Ordering::Relaxed)).collect()
        };
        v1::ScheduleState {
            port: device.to_owned(),
            name: schedule.map(|s| name_of(s).to_owned()).unwrap_or_default(),
            is_open: open.is_some(),
            oper_gate_states: 255,
            admin: schedule.map(|s| (&s.admin).into()),
            config_pending: open.is_none() && schedule.is_some(),
            current_time: tai_now().as_nanos(),
            tick_granularity: tick_granularity(),
            supported_list_max: AdminPort::ENTRIES_MAX as u64,
            supported_cycle_max: AdminPort::CYCLE_TIME_MAX.get().unsigned_abs(),
            supported_interval_max: AdminPort::CYCLE_TIME_MAX.get().unsigned_abs(),
            link_speed: open.map_or(config.link_speed.unwrap_or(0), |p| p.link_speed),
            hand_over_ns: stats.map_or(HAND_OVER_AT_START.get().unsigned_abs(), |s| {
                s.hand_over_ns.load(std::sync::atomic::Ordering::Relaxed)
            }),
            queue_max_sdu: queue_max_sdu_messages(&limits),
            transmission_overrun: stats.map_or_else(Vec::new, |s| count(&s.transmission_overrun)),
            frames: stats.map_or_else(Vec::new, |s| count(&s.frames)),
            ..v1::ScheduleState::default()
        }
    }

    /// Takes up the schedules of the state file again; a schedule that is no longer valid is logged and forgotten.
    pub(crate) fn restore_schedules(&mut self, kept: Vec<KeptSchedule>) {
        for KeptSchedule { port, schedule } in kept {
            match read_schedule("state.json", &schedule) {
                Ok(schedule) => {
                    if let Some(configured) = self.port_config(&port).schedule {
                        info!(
                            device = port,
                            applied = schedule.name,
                            configured,
                            "the schedule applied last goes before the configuration's"
                        );
                    }
                    self.applied.insert(port, schedule);
                }
                Err(error) => {
                    self.warn(format!("schedule of port {port} in the state file is forgotten: {error}"));
                }
            }
        }
    }
}

/// What a schedule is called.
pub(super) fn name_of(schedule: &Schedule) -> &str {
    schedule.name.as_deref().unwrap_or("applied")
}

/// Clock steps that the gates tell apart, in tenths of a nanosecond.
fn tick_granularity() -> u64 {
    let resolution = rustix::time::clock_getres(rustix::time::ClockId::Monotonic);
    u64::try_from(resolution.tv_nsec).map_or(10, |nanos| nanos.max(1) * 10)
}

fn compile(field: &str, admin: &AdminPort) -> Result<Box<GateProgram>, NodeError> {
    let fault = |fault: &_| NodeError::Invalid(crate::config::gate_fault(field, fault).to_string());
    admin.check().map_err(|f| fault(&f))?;
    GateProgram::new(admin).map(Box::new).map_err(|f| fault(&f))
}

fn check_slopes(config: &PortConfig, speed: Option<u64>) -> Result<(), NodeError> {
    let slopes: u64 = config.classes.iter().filter_map(|class| class.idle_slope).sum();
    match speed {
        Some(speed) if slopes > speed => Err(NodeError::Precondition(format!(
            "port.class: the idle-slopes of {} add up to {slopes} bit/s, its link has {speed} bit/s",
            config.device
        ))),
        _ => Ok(()),
    }
}

/// Whether the port is one that the schedule was made for.
fn check_fits(config: &PortConfig, schedule: &Schedule, speed: Option<u64>) -> Result<(), NodeError> {
    if let (Some(made_for), Some(speed)) = (schedule.link_speed, speed)
        && speed < made_for
    {
        return Err(NodeError::Precondition(format!(
            "link-speed: schedule {:?} was made for {made_for} bit/s, {} has {speed}: frames would outlast their \
             windows; give the port's speed and make its windows longer",
            name_of(schedule),
            config.device
        )));
    }
    if let (Some(made_for), Some(map)) = (schedule.priority_map, config.priority_map)
        && made_for != map
    {
        let classes: Vec<u8> = (0..16).map(|p| made_for.class(Priority::capped(p)).get()).collect();
        return Err(NodeError::Precondition(format!(
            "priority-map: schedule {:?} was made for another one than port {} has; set its priority_map to \
             {classes:?}, or leave it out",
            name_of(schedule),
            config.device
        )));
    }
    Ok(())
}

/// What limits each class: the schedule's word, else the port's.
fn merged_limits(config: &PortConfig, schedule: Option<&Schedule>) -> [Option<u32>; TrafficClass::COUNT] {
    let mut limits = config.classes.map(|class| class.queue_max_sdu);
    if let Some(schedule) = schedule {
        for (limit, octets) in limits.iter_mut().zip(schedule.queue_max_sdu) {
            *limit = octets.or(*limit);
        }
    }
    limits
}

fn class_options(config: &PortConfig, schedule: Option<&Schedule>) -> [ClassOptions; TrafficClass::COUNT] {
    let limits = merged_limits(config, schedule);
    let mut index = 0;
    config.classes.map(|ClassChoice { order, idle_slope, .. }| {
        let queue_max_sdu = limits[index];
        index += 1;
        ClassOptions {
            order: match order {
                Some(ClassOrder::Fifo) => Order::Fifo,
                Some(ClassOrder::TxTime) | None => Order::TxTime,
            },
            queue_max_sdu,
            shaper: idle_slope.map_or(Shaper::StrictPriority, |idle_slope| {
                Shaper::CreditBased(CreditOptions::new(idle_slope))
            }),
        }
    })
}

fn fill_state(state: &mut v1::ScheduleState, view: &GateView) {
    let Some(gates) = &view.status else { return };
    let oper = gates.oper.as_deref();
    state.current_time = view.at.tai.as_nanos();
    state.oper = oper.map(Into::into);
    state.admin = gates.admin.as_deref().map(Into::into).or_else(|| state.admin.take());
    state.gate_enabled = oper.is_some_and(|oper| oper.gate_enabled);
    state.oper_gate_states = u32::from(gates.oper_gate_states.bits());
    state.config_pending = gates.config_pending;
    state.config_change_time = gates.config_change_time.map_or(0, ktsn_time::Tai::as_nanos);
    state.config_change_error = gates.config_change_error;
}
