// SPDX-License-Identifier: Apache-2.0
//! Gate schedules of the ports: the configuration's, and those that were applied while ktsnd runs.
//!
//! An applied schedule goes before the configuration's and is kept in the state file until it is forgotten. Everything
//! is checked before anything changes; a worker only ever gets programs that it can run.

use std::time::Duration;

use ktsn_model::{AdminPort, Priority, TrafficClass};
use ktsn_port::{Device, link_info, link_speed};
use ktsn_sched::{ClassOptions, CreditOptions, GateProgram, Order, Shaper, TimeAware, TimeAwareOptions};
use tokio::sync::oneshot;
use tracing::info;

use super::request::States;
use super::{Node, NodeError};
use crate::config::{ClassChoice, ClassOrder, Port as PortConfig, Schedule, SelectionChoice};
use crate::messages::schedule::{asked_state, fill_state, name_of};
use crate::supervise;
use crate::worker::{Command, HAND_OVER_AT_START};

/// The longest wait for a worker's answer about its gates.
const LOOK_MAX: Duration = Duration::from_secs(2);

impl Node {
    /// Makes the queues of an uplink, with its gates when it has a schedule.
    pub(super) fn selection(
        &self,
        config: &PortConfig,
        capacity: usize,
    ) -> Result<(Box<TimeAware>, Option<Box<GateProgram>>), NodeError> {
        let (speed, program) = self.check_selection(config)?;
        let schedule = self.intent.schedule_of(&config.device);
        let attachments = crate::limits::ATTACHMENTS_MAX;
        let mut selection = Box::new(TimeAware::new(match config.selection {
            SelectionChoice::EarliestTxTime => TimeAwareOptions::tx_time(capacity, attachments),
            SelectionChoice::StrictPriority => TimeAwareOptions::strict_priority(capacity, attachments),
            SelectionChoice::CreditBased => {
                let credits = config.classes.map(|class| class.idle_slope.map(CreditOptions::new));
                TimeAwareOptions::credit_based(capacity, attachments, speed, credits)
            }
            SelectionChoice::TimeAware => TimeAwareOptions {
                // Without a schedule or a shaper the speed stays unset: the scheduler then does not pace frames.
                link_speed: speed.filter(|_| config.is_shaped() || schedule.is_some()),
                hand_over: HAND_OVER_AT_START,
                classes: class_options(config, schedule),
                ..TimeAwareOptions::gates(capacity, attachments)
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
        let schedule = self.intent.schedule_of(&config.device);
        let speed = self.speed_for(config, config.is_shaped() || schedule.is_some())?;
        check_slopes(config, speed)?;
        if let Some(schedule) = schedule {
            check_fits(config, schedule, speed)?;
        }
        let program = schedule.map(|schedule| compile(name_of(schedule), &schedule.admin)).transpose()?;
        Ok((speed, program))
    }

    /// The link's speed in bit/s: the configuration's, else the device's.
    fn speed_for(&self, config: &PortConfig, is_needed: bool) -> Result<Option<u64>, NodeError> {
        let device = Device { ifname: &config.device, netns: None };
        let ask = || supervise::kernel("for the speed of a port's device", || link_speed(&device));
        let speed = config.link_speed.or_else(ask);
        if is_needed && speed.is_none() {
            return Err(NodeError::precondition(
                "port.link_speed",
                &format_args!(
                    "unknown: {} does not tell its speed, and guard bands and shapers need it; \
                 set link_speed (bit/s) of this port in the configuration",
                    config.device
                ),
            ));
        }
        Ok(speed)
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
            return Err(NodeError::Ending);
        }
        let open = self.open_index(device);
        if open.is_none() && !self.intent.config().ports.iter().any(|p| p.device == device) {
            return Err(self.unknown_port(device));
        }
        let config = self.intent.port(device);
        if config.selection != SelectionChoice::TimeAware {
            return Err(NodeError::precondition(
                "port",
                &format_args!(
                    "{device:?}: its strategy is {}; gates are time-aware's: change `strategy` in the configuration",
                    config.selection.word()
                ),
            ));
        }
        // Where neither the configuration nor the request has one, the gates stay open.
        let next = schedule.as_ref().or_else(|| self.intent.configured_schedule(config.schedule.as_ref()?));
        let program = compile("admin", next.map_or(&AdminPort::default(), |s| &s.admin))?;
        let classes = class_options(&config, next);
        let is_asked = next.is_some() || config.is_shaped();
        // A port that is not there yet is judged when it is opened.
        let ask = || link_info(&Device { ifname: device, netns: None }).is_ok();
        let is_there = open.is_some() || supervise::kernel("for a port's device", ask);
        let speed = self.speed_for(&config, is_asked && is_there)?;
        if let Some(next) = next {
            check_fits(&config, next, speed)?;
        }
        if check_only {
            return Ok(());
        }
        let (name, is_applied) =
            (next.map_or_else(String::new, |s| name_of(s).to_owned()), schedule.is_some());
        self.intent.apply_schedule(device, schedule)?;
        if let Some(index) = open {
            // Without a schedule or a shaper, `link_speed` stays unset: the scheduler then does not pace frames.
            self.workers.send(device, Command::SetLinkSpeed(index, speed.filter(|_| is_asked)));
            self.workers.send(device, Command::SetClasses(index, Box::new(classes)));
            self.workers.send(device, Command::ChangeSchedule(index, program));
        }
        self.send_priority_map(device);
        info!(device, schedule = name, is_applied, "gate schedule changed");
        Ok(())
    }

    /// Frames that are offered from now on find their class by the map that holds now.
    fn send_priority_map(&self, device: &str) {
        let map = self.intent.priority_map(device);
        let interfaces = self.served.iter().filter(|a| a.uplink == device).map(|a| a.interface_port);
        for index in self.open_index(device).into_iter().chain(interfaces) {
            self.workers.send(device, Command::SetPriorityMap(index, map));
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
            let state = asked_state(self, &device);
            let look = self.open_index(&device).map(|index| self.workers.look_at_gates(&device, index));
            parts.push((state, look));
        }
        tokio::spawn(async move {
            let mut states = Vec::new();
            for (mut state, look) in parts {
                if let Some(look) = look {
                    match tokio::time::timeout(LOOK_MAX, look).await {
                        Ok(Ok(view)) => fill_state(&mut state, &view),
                        Ok(Err(_)) | Err(_) => {
                            let _ = reply.send(Err(NodeError::WorkerSilent(state.port)));
                            return;
                        }
                    }
                }
                states.push(state);
            }
            let _ = reply.send(Ok(states));
        });
    }

    /// Ports of the configuration and open uplinks.
    fn gated_devices(&self) -> Vec<String> {
        let mut devices: Vec<String> = self.intent.config().ports.iter().map(|p| p.device.clone()).collect();
        devices.extend(self.ports.uplinks().map(|p| p.device.clone()));
        devices.sort();
        devices.dedup();
        devices
    }

    fn unknown_port(&self, device: &str) -> NodeError {
        let known = self.gated_devices();
        let hint = if known.is_empty() { "none is known yet".to_owned() } else { known.join(", ") };
        NodeError::UnknownPort { device: device.to_owned(), known: hint }
    }
}

fn compile(field: &str, admin: &AdminPort) -> Result<Box<GateProgram>, NodeError> {
    let fault = |fault: &_| NodeError::Invalid(crate::config::gate_fault(field, fault));
    admin.check().map_err(|f| fault(&f))?;
    GateProgram::new(admin).map(Box::new).map_err(|f| fault(&f))
}

fn check_slopes(config: &PortConfig, speed: Option<u64>) -> Result<(), NodeError> {
    let slopes: u64 = config.classes.iter().filter_map(|class| class.idle_slope).sum();
    match speed {
        Some(speed) if slopes > speed => Err(NodeError::precondition(
            "port.class",
            &format_args!(
                "the idle-slopes of {} add up to {slopes} bit/s, its link has {speed} bit/s",
                config.device
            ),
        )),
        _ => Ok(()),
    }
}

/// Whether the port is one that the schedule was made for.
fn check_fits(config: &PortConfig, schedule: &Schedule, speed: Option<u64>) -> Result<(), NodeError> {
    if let (Some(made_for), Some(speed)) = (schedule.link_speed, speed)
        && speed < made_for
    {
        return Err(NodeError::precondition(
            "link-speed",
            &format_args!(
                "schedule {:?} was made for {made_for} bit/s, {} has {speed}: frames would outlast their \
             windows; give the port's speed and make its windows longer",
                name_of(schedule),
                config.device
            ),
        ));
    }
    if let (Some(made_for), Some(map)) = (schedule.priority_map, config.priority_map)
        && made_for != map
    {
        let classes: Vec<u8> = (0..16).map(|p| made_for.class(Priority::capped(p)).get()).collect();
        return Err(NodeError::precondition(
            "priority-map",
            &format_args!(
                "schedule {:?} was made for another one than port {} has; set its priority_map to \
             {classes:?}, or leave it out",
                name_of(schedule),
                config.device
            ),
        ));
    }
    Ok(())
}

fn class_options(config: &PortConfig, schedule: Option<&Schedule>) -> [ClassOptions; TrafficClass::COUNT] {
    let limits = config.queue_max_sdu(schedule);
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
