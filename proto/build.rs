// SPDX-License-Identifier: Apache-2.0
//! Compiles the control API; protox is a protobuf compiler in Rust, so that no `protoc` has to be installed. Messages can be
//! written as JSON: `ktsn status --json` is those of ktsnd.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=ktsn/v1/node.proto");
    let files = protox::compile(["ktsn/v1/node.proto"], ["."])?;
    tonic_prost_build::configure()
        .btree_map(".")
        .type_attribute(".", "#[derive(serde::Serialize)]")
        .type_attribute("StreamFilterStatistics", "#[serde(rename_all = \"kebab-case\")]")
        .field_attribute("AttachmentStatistics.transmit_error", "#[serde(rename = \"transmit_error_ns\")]")
        .field_attribute("AttachmentStatistics.capture_lag", "#[serde(rename = \"capture_lag_ns\")]")
        .field_attribute("Histogram.hdr_v2", "#[serde(skip)]")
        .field_attribute("PeerState.peer", "#[serde(flatten)]")
        .compile_fds(files)?;
    Ok(())
}
