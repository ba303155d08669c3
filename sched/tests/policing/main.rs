// SPDX-License-Identifier: Apache-2.0
//! Tests of per-stream filtering and policing (802.1Q-2022 8.6.5): the clauses by example, random worlds against models that
//! were written from the clauses alone, and the bound on a babbling talker.

mod babbling;
mod gate;
mod identification;
mod meter;
mod no_allocation;
mod police;
mod reference;
#[path = "../selection/sys.rs"]
#[allow(unsafe_code)]
mod sys;

use ktsn_model::Priority;
use ktsn_sched::policing::{FlowMeter, Judged, Police, PolicingConfig, StreamFilter};
use ktsn_time::{Monotonic, Now, Tai};

fn at(nanos: u64) -> Now {
    Now { tai: Tai::from_nanos(nanos), monotonic: Monotonic::from_nanos(nanos) }
}

fn priority(value: u32) -> Priority {
    Priority::capped(value)
}

/// One filter for everything, with one meter.
fn metered(meter: FlowMeter) -> Police {
    Police::new(&PolicingConfig {
        stream_filters: vec![StreamFilter { flow_meter: Some(0), ..StreamFilter::default() }],
        flow_meters: vec![meter],
        ..PolicingConfig::default()
    })
    .unwrap()
}

fn passes(police: &mut Police, octets: u32, now: Now) -> bool {
    matches!(police.judge(None, priority(0), octets, octets, now), Judged::Pass { .. })
}

/// For one in `share` of the random worlds that `KTSN_CASES` asks for; 50,000 where it is not set.
fn cases(share: u32) -> proptest::test_runner::Config {
    let wanted =
        std::env::var("KTSN_CASES").map_or(50_000, |text| text.parse().expect("KTSN_CASES is a count"));
    let cases = (wanted / share).max(1);
    proptest::test_runner::Config { cases, failure_persistence: None, ..Default::default() }
}
