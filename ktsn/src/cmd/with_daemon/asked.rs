// SPDX-License-Identifier: Apache-2.0
//! What a daemon of `ktsn run --with-daemon` answers about itself.

use std::path::Path;

use ktsn_proto::v1::{HealthReply, HealthRequest, StatisticsReply, StatisticsRequest};
use tokio::net::UnixStream;

use crate::control;

/// Counters of the daemon with this runtime directory.
pub(super) async fn statistics(run_dir: &Path) -> Result<StatisticsReply, control::ControlError> {
    let mut client = control::connect(run_dir).await?;
    control::answer(run_dir, client.statistics(StatisticsRequest::default())).await
}

/// Health of the daemon with this process number; another daemon in the same place is recognised by its socket.
pub(super) async fn health(run_dir: &Path, pid: u32) -> Result<HealthReply, String> {
    let stream = UnixStream::connect(control::socket(run_dir)).await.map_err(|error| error.to_string())?;
    let server = stream.peer_cred().ok().and_then(|credentials| credentials.pid());
    if server != i32::try_from(pid).ok() {
        return Err("another process serves the control socket".into());
    }
    let asked = async {
        let mut client = control::connect(run_dir).await?;
        control::answer(run_dir, client.health(HealthRequest {})).await
    };
    asked.await.map_err(|error: control::ControlError| error.to_string())
}
