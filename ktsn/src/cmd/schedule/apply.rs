// SPDX-License-Identifier: Apache-2.0
//! `ktsn schedule apply`: the gates of a running ktsnd's port.
//!
//! In: a schedule file and a port. Out: the port's gates as ktsnd has them then, or why it refused. A file with faults
//! never reaches ktsnd.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ktsn_cli::schedule::load;
use ktsn_model::{Priority, PriorityMap};
use ktsn_proto::v1;
use ktsn_schedule::Schedule;

use super::{InputFormat, status};
use crate::control::{self, ControlError};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  ktsn schedule apply examples/schedules/three-classes.yaml --port eth1
  ktsn schedule apply - --port eth1 --run-dir /run/ktsn-test < schedule.json
  ktsn schedule apply --configured --port eth1
  ktsn schedule apply three-classes.yaml --port eth1 --check-only

The change takes place at the schedule's config change time: its base time or, where that has passed, the start of one \
of its cycles. Queued frames stay queued. ktsnd keeps what was applied over a restart, until --configured.

Exit status: 0 done; 1 ktsnd did not answer or refused; 2 wrong usage, or the schedule has faults.";

/// Set the gates of a port of a running ktsnd.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct ApplyArgs {
    /// The schedule; - is standard input.
    #[arg(value_name = "FILE", required_unless_present = "configured")]
    file: Option<PathBuf>,
    /// The port's device.
    #[arg(long, value_name = "DEV")]
    port: String,
    /// Forget what was applied: what ktsnd's configuration says holds again.
    #[arg(long, conflicts_with = "file")]
    configured: bool,
    /// Ask ktsnd whether it would take it, and change nothing.
    #[arg(long)]
    check_only: bool,
    /// The file's format.
    #[arg(long, value_enum, default_value_t)]
    format: InputFormat,
    /// Directory of the ktsnd to ask [default: KTSN_RUN_DIR, else /run/ktsn].
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
}

/// Applies and says what holds then.
pub(super) fn run(args: &ApplyArgs) -> ExitCode {
    let schedule = match args.file.as_ref().map(|file| load(file, args.format.into())).transpose() {
        Ok(schedule) => schedule,
        Err(faults) => {
            eprintln!("{faults}");
            return 2.into();
        }
    };
    let mut request = request(&args.port, schedule.as_ref());
    request.check_only = args.check_only;
    let (what, status) = match ask(args, request) {
        Ok(state) => match output::show(&status::text_of(&[state])) {
            Ok(_) => return ExitCode::SUCCESS,
            Err(what) => (what, 1),
        },
        Err(ControlError::Refused(_, refused)) if refused.code() == tonic::Code::InvalidArgument => {
            (refused.message().to_owned(), 2)
        }
        Err(error) => (error.to_string(), 1),
    };
    eprintln!("ktsn schedule apply: {what}");
    status.into()
}

fn ask(args: &ApplyArgs, request: v1::ApplyScheduleRequest) -> Result<v1::ScheduleState, ControlError> {
    let run_dir = status::directory(args.run_dir.as_deref())?;
    let runtime = control::runtime().map_err(|error| ControlError::Unusable(run_dir.clone(), error))?;
    runtime.block_on(async {
        let mut client = control::connect(&run_dir).await?;
        let reply = control::answer(&run_dir, client.apply_schedule(request)).await?;
        Ok(reply.state.unwrap_or_default())
    })
}

/// The question to ktsnd; without a schedule what was applied is forgotten.
fn request(port: &str, schedule: Option<&Schedule>) -> v1::ApplyScheduleRequest {
    let port = port.to_owned();
    let Some(schedule) = schedule else { return v1::ApplyScheduleRequest { port, ..Default::default() } };
    let limits = (0..).zip(schedule.queue_max_sdu).filter_map(|(traffic_class, octets)| {
        octets.map(|queue_max_sdu| v1::QueueMaxSdu { traffic_class, queue_max_sdu })
    });
    v1::ApplyScheduleRequest {
        port,
        admin: Some((&schedule.admin).into()),
        queue_max_sdu: limits.collect(),
        name: schedule.name.clone().unwrap_or_default(),
        link_speed: schedule.link_speed.unwrap_or(0),
        check_only: false,
        priority_map: schedule.priority_map.map(classes).unwrap_or_default(),
    }
}

fn classes(map: PriorityMap) -> Vec<u32> {
    (0..16).map(|priority| map.class(Priority::capped(priority)).get().into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_schedule::{Format, parse};

    #[test]
    fn everything_that_a_port_acts_on_is_asked_for() {
        let text = "name: s\nlink-speed: 1G\npriority-map: [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]\n\
                    gate-parameter-table:\n  gate-enabled: true\n  admin-gate-states: 3\n  admin-base-time: 5\n  \
                    admin-cycle-time: 1ms\n  admin-cycle-time-extension: 7\n  admin-control-list:\n  \
                    - {gate-states-value: 128, time-interval-value: 300us, operation-name: set-and-hold-mac}\n  \
                    - {gate-states-value: 1, time-interval-value: 700us}\n  \
                    queue-max-sdu-table:\n  - {traffic-class: 7, queue-max-sdu: 256}\n";
        let schedule = parse(text, Format::Yaml).unwrap_or_else(|faults| panic!("{faults}"));
        let asked = request("eth1", Some(&schedule));
        assert_eq!(
            (asked.port.as_str(), asked.name.as_str(), asked.link_speed),
            ("eth1", "s", 1_000_000_000)
        );
        assert_eq!(asked.queue_max_sdu, [v1::QueueMaxSdu { traffic_class: 7, queue_max_sdu: 256 }]);
        assert_eq!(asked.priority_map, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]);
        let admin = asked.admin.unwrap();
        assert!(admin.gate_enabled);
        assert_eq!((admin.gate_states, admin.base_time), (Some(3), 5));
        assert_eq!((admin.cycle_time, admin.cycle_time_extension), (1_000_000, 7));
        let list: Vec<_> = admin
            .control_list
            .iter()
            .map(|e| (e.operation_name.as_str(), e.gate_states_value, e.time_interval_value))
            .collect();
        assert_eq!(list, [("set-and-hold-mac", 128, 300_000), ("set-gate-states", 1, 700_000)]);
        assert!(request("eth1", None).admin.is_none());
    }
}
