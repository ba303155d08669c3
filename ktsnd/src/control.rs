// SPDX-License-Identifier: Apache-2.0
//! The control API on RUN_DIR/ktsnd.sock: translates messages, asks the node, translates back. It has a thread of its own, so that
//! `Health` is answered while the node waits for the kernel.

use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use ktsn_proto::v1;
use ktsn_proto::v1::node_server::{Node as NodeService, NodeServer};
use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};

use crate::config::{Attachment, AttachmentConfig, ConfigError};
use crate::messages;
use crate::messages::health::why_busy;
use crate::node::watch::HealthBoard;
use crate::node::{NodeError, NodeRequest};

type Reply<T> = Result<Response<T>, Status>;

/// The service: every call is a request to the node.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    node: mpsc::Sender<NodeRequest>,
    health: HealthBoard,
}

impl Control {
    pub(crate) fn new(node: mpsc::Sender<NodeRequest>, health: HealthBoard) -> Self {
        Self { node, health }
    }

    /// Asks for what the node shows. While the node waits for the kernel, the answer is why.
    async fn ask_to_show<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> NodeRequest,
    ) -> Result<T, Status> {
        tokio::time::timeout(SHOWN_WITHIN, self.ask(request)).await.unwrap_or_else(|_| {
            Err(Status::unavailable(format!(
                "the node does not answer within {SHOWN_WITHIN:?}: {}",
                why_busy()
            )))
        })
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> NodeRequest) -> Result<T, Status> {
        let (reply, answer) = oneshot::channel();
        let ended = || Status::unavailable("ktsnd is ending");
        self.node.send(request(reply)).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())
    }

    /// Serves until `stop` ends.
    pub(crate) async fn serve(
        self,
        path: &Path,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> anyhow::Result<()> {
        let listener = tokio::net::UnixListener::from_std(listen_at(path)?)?;
        tonic::transport::Server::builder()
            .timeout(Duration::from_secs(30))
            .add_service(NodeServer::new(self))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop)
            .await?;
        Ok(())
    }
}

/// How long the node may take for what it shows. `ktsn status` waits a little longer.
const SHOWN_WITHIN: Duration = Duration::from_millis(2500);
/// How long the node may take for its health. Later the answer is what it noted last.
const HEALTH_WITHIN: Duration = Duration::from_millis(50);

/// Connections waiting to be accepted.
const BACKLOG: i32 = 128;

/// Listens at `path`, for root alone: a socket has its mode before it has a name, so there is no instant at which others
/// could connect, whatever the umask is.
fn listen_at(path: &Path) -> std::io::Result<std::os::unix::net::UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

impl From<NodeError> for Status {
    fn from(error: NodeError) -> Self {
        let message = error.to_string();
        match error {
            NodeError::Exists(_) => Self::already_exists(message),
            NodeError::Unknown(_) | NodeError::UnknownPort { .. } => Self::not_found(message),
            NodeError::Invalid(_) | NodeError::Policing(_) => Self::invalid_argument(message),
            NodeError::Full => Self::resource_exhausted(message),
            NodeError::Precondition { .. } | NodeError::Ending | NodeError::Rights { .. } => {
                Self::failed_precondition(message)
            }
            NodeError::Unsaved { .. }
            | NodeError::NoWorker { .. }
            | NodeError::WorkerEnded(_)
            | NodeError::WorkerSilent(_) => Self::internal(message),
        }
    }
}

impl From<ConfigError> for Status {
    fn from(error: ConfigError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

#[tonic::async_trait]
impl NodeService for Control {
    async fn attach(&self, request: Request<v1::AttachRequest>) -> Reply<v1::AttachReply> {
        let v1::AttachRequest { attachment, check_only } = request.into_inner();
        let config = AttachmentConfig::parse("attachment", &attachment)
            .map_err(|fault| Status::invalid_argument(fault.to_string()))?;
        let attachment = Attachment::check("attachment", config)?.by_api();
        let existed =
            self.ask(|reply| NodeRequest::Attach(Box::new(attachment), check_only, reply)).await??;
        Ok(Response::new(v1::AttachReply { existed }))
    }

    async fn detach(&self, request: Request<v1::DetachRequest>) -> Reply<v1::DetachReply> {
        let name = request.into_inner().name;
        self.ask(|reply| NodeRequest::Detach(name, reply)).await??;
        Ok(Response::new(v1::DetachReply {}))
    }

    async fn set_peers(&self, request: Request<v1::SetPeersRequest>) -> Reply<v1::SetPeersReply> {
        let (target, peers) = messages::peers(request.into_inner())?;
        self.ask(|reply| NodeRequest::SetPeers(target, peers, reply)).await??;
        Ok(Response::new(v1::SetPeersReply {}))
    }

    async fn get_peers(&self, request: Request<v1::GetPeersRequest>) -> Reply<v1::GetPeersReply> {
        let name = request.into_inner().attachment;
        let peers = self.ask_to_show(|reply| NodeRequest::GetPeers(name, reply)).await??;
        Ok(Response::new(v1::GetPeersReply { peers }))
    }

    async fn set_policies(&self, request: Request<v1::SetPoliciesRequest>) -> Reply<v1::SetPoliciesReply> {
        let policies = messages::policies(request.into_inner())?;
        let unknown = self.ask(|reply| NodeRequest::SetPolicies(policies, reply)).await?;
        Ok(Response::new(v1::SetPoliciesReply { unknown: unknown? }))
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Reply<v1::ListReply> {
        Ok(Response::new(self.ask_to_show(NodeRequest::List).await?))
    }

    async fn apply_schedule(
        &self,
        request: Request<v1::ApplyScheduleRequest>,
    ) -> Reply<v1::ApplyScheduleReply> {
        let request = request.into_inner();
        if request.port.is_empty() {
            return Err(Status::invalid_argument("port: missing; expected the device of an uplink"));
        }
        let (port, check_only) = (request.port.clone(), request.check_only);
        let schedule = messages::gate_schedule(request)?.map(Box::new);
        let states = self.ask(|reply| NodeRequest::ApplySchedule(port, schedule, check_only, reply)).await?;
        let state = states?.into_iter().next();
        Ok(Response::new(v1::ApplyScheduleReply { state }))
    }

    async fn get_schedule(&self, request: Request<v1::GetScheduleRequest>) -> Reply<v1::GetScheduleReply> {
        let port = request.into_inner().port;
        let states = self.ask_to_show(|reply| NodeRequest::GetSchedule(port, reply)).await?;
        Ok(Response::new(v1::GetScheduleReply { ports: states? }))
    }

    async fn statistics(&self, request: Request<v1::StatisticsRequest>) -> Reply<v1::StatisticsReply> {
        let name = request.into_inner().attachment;
        let reply = self.ask_to_show(|reply| NodeRequest::Statistics(name, reply)).await?;
        Ok(Response::new(reply?))
    }

    type WatchStatisticsStream = Pin<Box<dyn Stream<Item = Result<v1::StatisticsReply, Status>> + Send>>;

    async fn watch_statistics(
        &self,
        request: Request<v1::WatchStatisticsRequest>,
    ) -> Reply<Self::WatchStatisticsStream> {
        let request = request.into_inner();
        if request.period_ns < 100_000_000 {
            let found = request.period_ns;
            return Err(Status::invalid_argument(format!("period_ns: {found}: expected at least 100000000")));
        }
        let control = self.clone();
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_nanos(request.period_ns));
            loop {
                ticks.tick().await;
                let name = request.attachment.clone();
                let item = match control.ask_to_show(|reply| NodeRequest::Statistics(name, reply)).await {
                    Ok(reply) => reply.map_err(Status::from),
                    Err(ended) => Err(ended),
                };
                let last = item.is_err();
                if sender.send(item).await.is_err() || last {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn health(&self, _: Request<v1::HealthRequest>) -> Reply<v1::HealthReply> {
        let asked = tokio::time::timeout(HEALTH_WITHIN, self.ask(NodeRequest::Health)).await;
        Ok(Response::new(asked.unwrap_or_else(|_| Ok(messages::health::reply(&self.health)))?))
    }

    async fn version(&self, _: Request<v1::VersionRequest>) -> Reply<v1::VersionReply> {
        Ok(Response::new(v1::VersionReply {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ring_abi_min: ktsn_ring::layout::ABI,
            ring_abi_max: ktsn_ring::layout::ABI,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};

    /// Nothing changes the mode after `bind`: it is the one that the socket has from its first instant on.
    #[test]
    fn the_socket_is_made_for_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ktsnd.sock");
        for _ in 0..2 {
            let listener = listen_at(&path).unwrap();
            let found = std::fs::symlink_metadata(&path).unwrap();
            assert!(found.file_type().is_socket());
            assert_eq!(found.permissions().mode() & 0o7777, 0o600);
            std::os::unix::net::UnixStream::connect(&path).unwrap();
            drop(listener);
        }
    }
}
