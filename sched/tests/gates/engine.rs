// SPDX-License-Identifier: Apache-2.0
//! The engine as a port under test.

use crate::port::{ATTACHMENTS, ClassSetup, Order, Port, Setup, Status};
use ktsn_model::AdminPort;
use ktsn_sched::{
    ClassOptions, CreditOptions, Decision, Frame, GateProgram, Refused, Shaper, TimeAware, TimeAwareOptions,
};
use ktsn_time::{Nanos, Now};

fn options(class: ClassSetup) -> ClassOptions {
    ClassOptions {
        order: match class.order {
            Order::TxTime => ktsn_sched::Order::TxTime,
            Order::Fifo => ktsn_sched::Order::Fifo,
        },
        queue_max_sdu: class.queue_max_sdu,
        shaper: match class.idle_slope {
            None => Shaper::StrictPriority,
            Some(idle_slope) => Shaper::CreditBased(CreditOptions::new(idle_slope)),
        },
    }
}

pub(crate) fn time_aware(setup: &Setup) -> TimeAware {
    TimeAware::new(TimeAwareOptions {
        link_speed: setup.link_speed,
        hand_over: Nanos::new(setup.hand_over as i64),
        classes: setup.classes.map(options),
        ..TimeAwareOptions::gates(setup.capacity, ATTACHMENTS as usize)
    })
}

pub(crate) fn engine(setup: &Setup) -> Box<dyn Port> {
    Box::new(time_aware(setup))
}

impl Port for TimeAware {
    fn offer(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        TimeAware::offer(self, frame, now)
    }
    fn decide(&mut self, now: Now) -> Decision {
        TimeAware::decide(self, now)
    }
    fn remove_attachment(&mut self, attachment: u32) -> Vec<Frame> {
        let mut gone = Vec::new();
        TimeAware::remove(self, &mut |frame| frame.attachment == attachment, &mut |frame| gone.push(frame));
        // Removed in no particular order: the arrival's is the id's.
        gone.sort_by_key(|frame| frame.id.0);
        gone
    }
    fn set_admin(&mut self, admin: &AdminPort, now: Now) {
        drop(self.take_retired());
        let program = GateProgram::new(admin).expect("the worlds hold lists that can be executed");
        drop(TimeAware::set_admin(self, Box::new(program), now));
    }
    fn status(&mut self, now: Now) -> Status {
        let status = TimeAware::status(self, now);
        Status {
            states: status.oper_gate_states,
            config_pending: status.config_pending,
            config_change_time: status.config_change_time.map(|at| at.as_nanos().into()),
            config_change_error: status.config_change_error,
            cycle_start: status.current_cycle_start.map(|at| at.as_nanos().into()),
        }
    }
    fn set_hand_over(&mut self, hand_over: u64) {
        TimeAware::set_hand_over(self, Nanos::new(hand_over as i64));
    }
    fn set_link_speed(&mut self, link_speed: Option<u64>) {
        TimeAware::set_link_speed(self, link_speed);
    }
    fn set_classes(&mut self, classes: [ClassSetup; 8]) {
        TimeAware::set_classes(self, classes.map(options));
    }
    fn len(&self) -> usize {
        TimeAware::len(self)
    }
}
