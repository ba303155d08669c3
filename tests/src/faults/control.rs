// SPDX-License-Identifier: Apache-2.0
//! The control API, one question at a time.
//!
//! In: a run directory. Out: answers, or the gRPC status. It waits at most ten seconds for each.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use ktsn_proto::v1::node_client::NodeClient;
use ktsn_proto::v1::{self, AttachmentStatistics, HealthReply, ListReply};
use serde_json::Value;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};

use super::eventually;

const ANSWER_MAX: Duration = Duration::from_secs(10);

/// An attachment with other values for some of its keys.
///
/// # Panics
/// When one of the two is no JSON object.
#[must_use]
pub fn with(mut attachment: Value, changes: &Value) -> Value {
    let fields = attachment.as_object_mut().expect("an object");
    fields.extend(changes.as_object().expect("an object").clone());
    attachment
}

/// A connection to one daemon.
pub struct Control {
    runtime: tokio::runtime::Runtime,
    client: NodeClient<Channel>,
}

impl Control {
    /// Connects.
    ///
    /// # Errors
    /// When no daemon listens.
    pub fn connect(run_dir: &Path) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let path = run_dir.join("ktsnd.sock");
        let client = runtime.block_on(async move {
            let mut once = Some(TokioIo::new(tokio::net::UnixStream::connect(&path).await?));
            let connector = tower::service_fn(move |_: Uri| {
                let stream = once.take().ok_or(io::ErrorKind::NotConnected);
                async move { stream.map_err(io::Error::from) }
            });
            let endpoint = Endpoint::from_static("http://ktsnd").timeout(ANSWER_MAX);
            let channel = endpoint.connect_with_connector(connector).await.map_err(io::Error::other)?;
            Ok::<_, io::Error>(NodeClient::new(channel))
        })?;
        Ok(Self { runtime, client })
    }

    /// Attaches; whether it was attached already. The attachment is a JSON object.
    ///
    /// # Errors
    /// The daemon's.
    #[expect(clippy::needless_pass_by_value, reason = "tests pass what they have just made")]
    pub fn attach(&mut self, attachment: Value) -> Result<bool, Status> {
        self.attach_text(attachment.to_string(), false)
    }

    /// Only checks an attachment; whether it was attached already.
    ///
    /// # Errors
    /// The daemon's.
    pub fn check_attach(&mut self, attachment: &Value) -> Result<bool, Status> {
        self.attach_text(attachment.to_string(), true)
    }

    /// Attaches nothing at all.
    ///
    /// # Errors
    /// The daemon's.
    pub fn attach_nothing(&mut self) -> Result<bool, Status> {
        self.attach_text(String::new(), false)
    }

    fn attach_text(&mut self, attachment: String, check_only: bool) -> Result<bool, Status> {
        let request = v1::AttachRequest { attachment, check_only };
        Ok(self.runtime.block_on(self.client.attach(request))?.into_inner().existed)
    }

    /// Detaches.
    ///
    /// # Errors
    /// The daemon's.
    pub fn detach(&mut self, name: &str) -> Result<(), Status> {
        let request = v1::DetachRequest { name: name.to_owned() };
        self.runtime.block_on(self.client.detach(request)).map(|_| ())
    }

    /// Says what network policies leave of attachments; the names of no attachment.
    ///
    /// # Errors
    /// The daemon's.
    pub fn set_policies(&mut self, policies: Vec<v1::AttachmentPolicy>) -> Result<Vec<String>, Status> {
        let request = v1::SetPoliciesRequest { policies };
        Ok(self.runtime.block_on(self.client.set_policies(request))?.into_inner().unknown)
    }

    /// Sets overlay peers.
    ///
    /// # Errors
    /// The daemon's.
    pub fn set_peers(
        &mut self,
        target: v1::set_peers_request::Target,
        peers: Vec<v1::VxlanPeer>,
    ) -> Result<(), Status> {
        let request = v1::SetPeersRequest { target: Some(target), peers };
        self.runtime.block_on(self.client.set_peers(request)).map(|_| ())
    }

    /// The gates of all ports, as their workers see them.
    ///
    /// # Errors
    /// The daemon's: a worker that does not answer.
    pub fn gates(&mut self) -> Result<Vec<v1::ScheduleState>, Status> {
        let request = v1::GetScheduleRequest { port: String::new() };
        Ok(self.runtime.block_on(self.client.get_schedule(request))?.into_inner().ports)
    }

    /// The overlay peers of an attachment.
    ///
    /// # Errors
    /// The daemon's.
    pub fn peers(&mut self, name: &str) -> Result<Vec<v1::PeerState>, Status> {
        let request = v1::GetPeersRequest { attachment: name.to_owned() };
        Ok(self.runtime.block_on(self.client.get_peers(request))?.into_inner().peers)
    }

    /// Everything there is.
    ///
    /// # Panics
    /// When the daemon does not answer.
    #[must_use]
    pub fn list(&mut self) -> ListReply {
        self.runtime.block_on(self.client.list(v1::ListRequest {})).expect("List").into_inner()
    }

    /// Health.
    ///
    /// # Errors
    /// The daemon's.
    pub fn health(&mut self) -> Result<HealthReply, Status> {
        Ok(self.runtime.block_on(self.client.health(v1::HealthRequest {}))?.into_inner())
    }

    /// Counters by attachment's name.
    ///
    /// # Errors
    /// The daemon's.
    pub fn statistics_of(&mut self, name: &str) -> Result<v1::StatisticsReply, Status> {
        let request = v1::StatisticsRequest { attachment: name.to_owned() };
        Ok(self.runtime.block_on(self.client.statistics(request))?.into_inner())
    }

    /// The counters of one attachment.
    ///
    /// # Panics
    /// When the daemon does not answer, or there is no such attachment.
    #[must_use]
    pub fn counters(&mut self, name: &str) -> AttachmentStatistics {
        self.statistics_of(name).expect("Statistics").attachments.remove(0)
    }

    /// The same, once so many frames are sent or dropped: a frame is at its receiver before the worker has counted it.
    ///
    /// # Panics
    /// As [`Self::counters`], or when they are not counted within `limit`.
    #[must_use]
    pub fn counters_of(&mut self, name: &str, frames: u64, limit: Duration) -> AttachmentStatistics {
        eventually("the frames are counted", limit, || {
            let counters = self.counters(name);
            (counters.sent + counters.dropped.values().sum::<u64>() >= frames).then_some(counters)
        })
    }
}

/// A counter by reason; 0 when it never happened.
#[must_use]
pub fn reason(counters: &BTreeMap<String, u64>, word: &str) -> u64 {
    counters.get(word).copied().unwrap_or(0)
}
