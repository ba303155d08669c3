// SPDX-License-Identifier: Apache-2.0
//! How a program becomes a client.
//!
//! In: a Hello with the facts of its socket. Out: a region and a doorbell, or a refusal with its reason. Budgets are checked before
//! any memory is made. The worker gets the client when its region is sealed (`looking.rs`), not here.

use std::os::fd::AsFd;

use ktsn_ring::control::{self, HelloReply, HelloStatus};
use ktsn_ring::{Consumer, Layout, layout};
use ktsn_time::Nanos;
use tracing::{debug, warn};

use super::{Registered, Registrar, SealState};
use crate::clients::answer::{client_tables, layout_for, memory_of};
use crate::clients::budget::{RefusedBy, portion};
use crate::clients::connection;
use crate::clients::directory::{ClientView, Known, ServedAttachment};
use crate::clients::examiner::Unsealed;
use crate::clients::following::Round;
use crate::clients::socket::SocketFacts;
use crate::clients::streams::Streams;
use crate::config::ClientLimits;
use crate::limits;
use crate::stats::count;
use crate::worker::{Client, ClientKey, ClientTables};

/// The region of a new client of this attachment and of this process.
fn region_for<P>(
    known: &Known<P>,
    served: &ServedAttachment<P>,
    pid: u32,
) -> anyhow::Result<Result<Layout, RefusedBy>> {
    let of_process = known.clients.values().filter(|c| pid != 0 && c.pid == pid && !c.ending).count();
    if of_process >= limits::CLIENTS_A_PROCESS {
        return Ok(Err(RefusedBy::ProcessMax));
    }
    let clients = known.clients.values().filter(|c| c.attachment == served.index).count();
    if clients >= served.attachment.clients.clients_max as usize {
        return Ok(Err(RefusedBy::ClientsMax));
    }
    let available = known.available(served.index);
    let (whole, least) = (layout_for(served, u64::MAX)?, layout_for(served, 0)?);
    match portion(available, memory_of(&whole), memory_of(&least), clients as u64) {
        None => Ok(Err(RefusedBy::MemoryMax)),
        Some(octets) => Ok(Ok(layout_for(served, octets)?)),
    }
}

impl<P: Send + 'static> Registrar<P> {
    fn reply(&self, number: u64, status: HelloStatus) -> bool {
        if let Some(connection) = self.connections.get(&number) {
            let _ = connection::write(&connection.fd, &HelloReply::refusing(status).encode(), &[]);
        }
        false
    }

    /// Answers a Hello; false ends the connection.
    pub(super) fn hello(&mut self, number: u64, hello: control::Hello, facts: &SocketFacts) -> bool {
        let Some(connection) = self.connections.get(&number).filter(|c| c.client.is_none()) else {
            return false;
        };
        if self.is_closing() {
            return false;
        }
        let pid = connection.pid;
        let abi = layout::ABI as u16;
        if control::select_abi((hello.abi_min, hello.abi_max), (abi, abi)).is_none() {
            if self.log_limit.allows() {
                warn!(
                    min = hello.abi_min,
                    max = hello.abi_max,
                    ours = abi,
                    "a client speaks no ring ABI of ours"
                );
            }
            return self.reply(number, HelloStatus::Version);
        }
        let served = {
            let known = self.directory.lock();
            known.find(facts.netns_cookie, hello.interface_index).cloned()
        };
        let Some(served) = served else { return self.reply(number, HelloStatus::NotAttached) };
        let region = region_for(&self.directory.lock(), &served, pid);
        let admitted = match region {
            Ok(Err(reason)) => {
                count(&served.stats.clients_refused[reason as usize]);
                if self.log_limit.allows() {
                    let (attachment, reason) = (served.name(), reason.word());
                    let ClientLimits { clients_max, memory_max, .. } = served.attachment.clients;
                    warn!(attachment, reason, pid, clients_max, memory_max, "a client is refused");
                }
                return self.reply(number, HelloStatus::ClientsMax);
            }
            Ok(Ok(layout)) => self.make_client(number, &served, layout),
            Err(error) => Err(error),
        };
        match admitted {
            Ok(()) => true,
            Err(error) => {
                if self.log_limit.allows() {
                    warn!(attachment = served.name(), %error, "a client cannot be served");
                }
                self.reply(number, HelloStatus::Refused)
            }
        }
    }

    /// Makes the region and the doorbell. The client stays here until its program has mapped the region and it is sealed.
    fn make_client(
        &mut self,
        number: u64,
        served: &ServedAttachment<P>,
        layout: Layout,
    ) -> anyhow::Result<()> {
        let (mut consumer, memfd) = Consumer::create(layout)?;
        let (ours, theirs) = connection::doorbell()?;
        let (client_tables, tables, version) = {
            let known = self.directory.lock();
            let tables = known.tables.attachments().get(usize::from(served.index.0)).cloned().flatten();
            let others = known.others(served.netns_cookie, served.index);
            (ClientTables { others, ..client_tables(&known.tables, served.index) }, tables, known.version)
        };
        consumer.set_destinations(&client_tables.table)?;
        consumer.set_link(&client_tables.link);
        consumer.set_sole_v4(client_tables.sole_v4);
        consumer.set_others(&client_tables.others);
        let horizon = served.attachment.horizon.get().unsigned_abs().div_ceil(1_000_000);
        consumer.set_later_horizon(u32::try_from(horizon).unwrap_or(u32::MAX).max(1));
        let key = ClientKey(number);
        let (markers, receive) = (consumer.markers(), consumer.receive_area());
        // Its program does not have the region yet.
        receive.set_period(served.attachment.clients.receive_period.unwrap_or(Nanos::ZERO));
        let client =
            Client::new(key, served.index, consumer, ours, layout.slots_count(), layout.payload_max());
        let client = Box::new(client.on_interface(served.interface_index));
        client.promise_to_begin();
        let region_octets = u32::try_from(layout.shared_octets())?;
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
        let reply = HelloReply::attached(layout::ABI as u16, region_octets, served.interface_index);
        let view = ClientView {
            key,
            pid: connection.pid,
            attachment: served.index,
            streams: Streams::default(),
            octets: memory_of(&layout),
            ending: false,
        };
        self.directory.lock().clients.insert(key, view);
        self.directory.add_process(key, connection.process.as_ref(), served.netns_cookie, markers);
        served.stats.transmit_error.make_room();
        let written = connection::write(&connection.fd, &reply.encode(), &[memfd.as_fd(), theirs.as_fd()]);
        connection.client = Some(Registered {
            key,
            attachment: served.index,
            netns_cookie: served.netns_cookie,
            seal: SealState::Unsealed(Unsealed { client, memfd }),
            worker: served.worker.clone(),
            client_tables,
            are_client_tables_changed: false,
            tables,
            version,
            round: Round::default(),
            receive,
            is_followed: false,
        });
        written?;
        debug!(pid = connection.pid, attachment = served.name(), "client attached");
        Ok(())
    }
}
