// SPDX-License-Identifier: Apache-2.0
//! Compiles the control API; protox is a protobuf compiler in Rust, so that no `protoc` has to be installed.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=ktsn/v1/node.proto");
    let files = protox::compile(["ktsn/v1/node.proto"], ["."])?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
