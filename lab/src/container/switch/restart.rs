// SPDX-License-Identifier: Apache-2.0
//! The switch is killed under traffic and started again. In: the testbed of the paths through it. Out: how soon ktsnd's port is
//! connected again, and where each frame of the time between is.
//!
//! ```text
//!  talker  ────────────────────────────────────────────────────────────► until it is asked to end
//!  switch  ── runs ──┤ killed        started ── answers ── connected ── reads ───
//! ```

use super::Switched;
use crate::carry_out::Measured;
use crate::container::one_run::Bench;
use crate::container::plan::Plan;
use crate::container::{Path, bars};
use crate::daemon::Daemon;
use crate::error::LabError;
use crate::observations::{DaemonUse, Observations};
use crate::observers::{READY_MAX, finish};
use ktsn_measure::clock;
use ktsn_measure::results::{Check, Document, Micro};
use ktsn_proto::v1;
use ktsn_time::{Nanos, Tai};
use std::time::{Duration, Instant};

/// Milliseconds from the switch's answer until ktsnd's port is connected.
const ATTACHED: &str = "switch.attached_again";
/// Milliseconds from the switch's answer until a frame of a later transmit time is on the wire.
const ON_WIRE: &str = "switch.on_wire_again";
/// The greatest [`ATTACHED`].
const ATTACHED_MAX_MS: f64 = 2000.0;
/// Frames that the killed switch may have taken out of the ring and not sent: one burst of its.
const BURST_MAX: u64 = 32;
/// Time before the kill, before the start, and after the connection.
const BEFORE: Duration = Duration::from_millis(600);
const DEAD: Duration = Duration::from_millis(300);
const AFTER: Duration = Duration::from_secs(2);
/// Longest wait for the port's state to change.
const CHANGE_MAX: Duration = Duration::from_secs(30);

/// Instants of the restart.
struct Restart {
    answered: Tai,
    dead: Duration,
    attached: Duration,
}

/// Adds what is judged.
pub(in crate::container) fn compare(document: &mut Document) {
    document.compare_micro(ATTACHED, None, ATTACHED_MAX_MS);
}

/// Kills the switch under traffic, once.
pub(in crate::container) fn measure(switched: &mut Switched, plan: &Plan) -> Result<Measured, LabError> {
    let plan = &Plan { frames: 0, ..plan.clone() };
    let (pid, lost) = (switched.daemon.pid(), lost(&switched.daemon)?);
    let before = switched.daemon.statistics()?;
    let bench = Bench::through(switched, plan);
    bench.observers().forget(&["talk", "listen", "tap"])?;
    switched.switch.ovs.go_on()?;
    let mut tap = bench.tap().start(bench.directory)?;
    let mut listener = bench.listener(Path::KtsnOvsDpdk).start(bench.directory)?;
    tap.wait_ready(READY_MAX)?;
    listener.wait_ready(READY_MAX)?;
    let mut talker =
        bench.talker(Path::KtsnOvsDpdk, bars::PAYLOAD_OCTETS, 0, Nanos::ZERO).start(bench.directory)?;
    talker.wait_ready(READY_MAX)?;
    let restart = restart(switched)?;
    std::thread::sleep(AFTER);
    for process in [&mut talker, &mut listener, &mut tap] {
        finish(process)?;
    }
    let bench = Bench::through(switched, plan);
    let observers = bench.observers();
    let observations = Observations::read(&observers, &observers, &observers)?;
    let counted = DaemonUse::since(&switched.daemon, &switched.daemon.statistics()?, &before)?;
    let frames = Frames {
        sent: observations.talked.len() as u64,
        arrived: observations.tapped.len() as u64,
        link_down: counted.counters.attachment.dropped.get("link_down").copied().unwrap_or(0),
        lost: self::lost(&switched.daemon)?.saturating_sub(lost),
        not_forwarded: switched.switch.taken_of_pod()?.saturating_sub(
            observations.tapped.iter().filter(|record| record.kernel_at >= Some(restart.answered)).count()
                as u64,
        ),
    };
    let later = observations.tapped.iter().filter(|record| record.probe.tx_time >= restart.answered);
    let on_wire = later.filter_map(|record| record.kernel_at).min();
    let ms = |nanos: i64| nanos as f64 / 1e6;
    let mut micro = vec![Micro::figure(ATTACHED, "ms", restart.attached.as_secs_f64() * 1e3, 1)];
    if let Some(at) = on_wire {
        micro.push(Micro::figure(ON_WIRE, "ms", ms(at.since(restart.answered).get()), 1));
    }
    let is_same = switched.daemon.pid() == pid && switched.daemon.statistics().is_ok();
    let name = "OVS killed under traffic: the same ktsnd goes on, and every frame is accounted for";
    let reason = format!("{}; without a switch for {:.1} s", frames.describe(), restart.dead.as_secs_f64());
    let check = Check::of(name, is_same && on_wire.is_some() && frames.are_counted(), Some(reason));
    Ok(Measured { checks: vec![check], ..Measured::micro(micro) })
}

/// Kills the switch, starts it again, and waits for its connection.
fn restart(switched: &mut Switched) -> Result<Restart, LabError> {
    std::thread::sleep(BEFORE);
    let killed = Instant::now();
    switched.switch.ovs.kill()?;
    wait_until(&switched.daemon, false)?;
    std::thread::sleep(DEAD);
    switched.switch.ovs.start_switch()?;
    let (answered, begun) = (clock::tai_now(), Instant::now());
    // What was not in its database, the bridge's address first: without it the tunnel has no route.
    switched.switch.be_underlay(&switched.testbed)?;
    wait_until(&switched.daemon, true)?;
    let attached = begun.elapsed();
    switched.switch.pin(&switched.testbed)?;
    switched.switch.ovs.go_on()?;
    Ok(Restart { answered, dead: begun.duration_since(killed), attached })
}

/// Waits until ktsnd's port to the switch is up, or down.
fn wait_until(daemon: &Daemon, up: bool) -> Result<(), LabError> {
    let begun = Instant::now();
    while super::is_connected(daemon)? != up {
        if begun.elapsed() > CHANGE_MAX {
            let state = if up { "up" } else { "down" };
            return Err(LabError::Control(format!(
                "the port to the switch was not {state} within {CHANGE_MAX:?}"
            )));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Frames that lay in the rings of ended connections, so far.
fn lost(daemon: &Daemon) -> Result<u64, LabError> {
    let request = v1::StatisticsRequest { attachment: String::new() };
    let reply = daemon.ask(|mut client| async move { client.statistics(request).await })?;
    Ok(reply.ports.iter().filter_map(|port| port.refused.get("lost")).sum())
}

/// Where the frames of the run are.
#[derive(Clone, Copy, Debug)]
struct Frames {
    sent: u64,
    arrived: u64,
    link_down: u64,
    lost: u64,
    /// Taken by the new switch and not forwarded: it had no route yet.
    not_forwarded: u64,
}

impl Frames {
    const fn known(self) -> u64 {
        self.arrived + self.link_down + self.lost + self.not_forwarded
    }

    fn describe(self) -> String {
        let Self { sent, arrived, link_down, lost, not_forwarded } = self;
        format!(
            "{sent} sent: {arrived} on the wire, {link_down} dropped as link_down, {lost} lost in the ring, {not_forwarded} not \
             forwarded by the new switch, {} in the killed switch's hands",
            sent.saturating_sub(self.known())
        )
    }

    /// Some were dropped, all are known but a burst of the switch. A killed switch may have forwarded frames of its last burst and not given
    /// their buffers back: ktsnd counts these as lost, too.
    fn are_counted(self) -> bool {
        let known = self.known();
        self.link_down > 0
            && known <= self.sent + self.lost.min(BURST_MAX)
            && self.sent.saturating_sub(known) <= BURST_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_once_but_for_a_burst_of_the_killed_switch() {
        let frames =
            |arrived, link_down, lost| Frames { sent: 1000, arrived, link_down, lost, not_forwarded: 2 };
        assert!(frames(500, 490, 8).are_counted() && frames(500, 466, 0).are_counted());
        // Forwarded, and lost by ktsnd's count.
        assert!(frames(508, 490, 8).are_counted());
        // Some are missing; one is counted twice, and none or too few are lost; there was no time without a switch.
        for wrong in [frames(500, 465, 0), frames(509, 490, 0), frames(509, 490, 8), frames(1000, 0, 0)] {
            assert!(!wrong.are_counted(), "{wrong:?}");
        }
        assert!(frames(500, 480, 8).describe().ends_with("10 in the killed switch's hands"));
    }
}
