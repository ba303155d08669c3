// SPDX-License-Identifier: Apache-2.0
//! The control API of ktsnd, generated from `ktsn/v1/node.proto`: messages, client and server. Beside it the configuration of
//! an attachment, which is JSON in these messages, and the messages' form of gate parameters.
#![forbid(unsafe_code)]

pub mod attachment;
mod counted;

/// `ktsn.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("ktsn.v1");
}

/// Gate parameters as a message. Spans must not be negative, as in checked parameters.
impl From<&ktsn_model::AdminPort> for v1::GateParameters {
    fn from(admin: &ktsn_model::AdminPort) -> Self {
        Self {
            gate_enabled: admin.gate_enabled,
            gate_states: Some(admin.gate_states.bits().into()),
            base_time: admin.base_time.as_nanos(),
            cycle_time: admin.cycle_time.get().unsigned_abs(),
            cycle_time_extension: admin.cycle_time_extension.get().unsigned_abs(),
            control_list: admin
                .control_list
                .iter()
                .map(|entry| v1::GateControlEntry {
                    operation_name: entry.operation.word().to_owned(),
                    gate_states_value: entry.states.bits().into(),
                    time_interval_value: entry.interval.get().unsigned_abs(),
                })
                .collect(),
        }
    }
}
