// SPDX-License-Identifier: Apache-2.0
//! What resolving one datagram costs with 10 and with 1,000 peers, and what its frame costs in whole.
//!
//! In: how many turns. Out: JSON on standard output, entries as in `ktsn bench micro`: nanoseconds by datagram, median and 90th
//! percentile of batches. `resolve.*`: an answer anew, which a worker needs once for each destination; `frame.*`: the answer
//! and a frame of 64 octets written from it, as if no answer was ever remembered. The worlds take turns, batch by
//! batch; destinations go through all peers in a scattered order. Run it in the release profile.
//!
//! ```text
//! cargo run --release -p ktsn-resolve --example resolve_cost -- 400
//! ```

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use ktsn_resolve::{
    Attachment, AttachmentIndex, AttachmentTables, Bridged, Flow, Link, LinkTable, Member, MemberAt,
    Neighbour, Overlay, Peer, PortIndex, Route, Tables, Tunnel, Via, Vxlan, VxlanBridged, VxlanRouted,
    resolve,
};
use ktsn_wire::{MacAddress, Vni};

/// Datagrams of one batch.
const BATCH: u32 = 256;
const PAYLOAD: [u8; 64] = [7; 64];
/// Turns that warm up, uncounted.
const WARM_UP: usize = 20;

type Failed = Box<dyn std::error::Error>;

struct World {
    name: &'static str,
    tables: Tables,
    peers: u32,
    /// Picoseconds per datagram: resolved; resolved and written.
    samples: [Vec<u64>; 2],
}

fn mac(number: u32) -> MacAddress {
    let [_, b, c, d] = number.to_be_bytes();
    MacAddress([2, 0, 0, b, c, d])
}

/// Host `number` of the underlay 10.128.0.0/16.
fn end(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a80_0001 + number).into()
}

/// A pod of node `number`, 10.0.0.0/9 in networks of 256.
fn pod(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0007 + (number << 8)).into()
}

fn link(port: u16, address: &str, on_link: &str, neighbours: Vec<Neighbour>) -> Result<LinkTable, Failed> {
    Ok(LinkTable::new(Link {
        port: PortIndex(port),
        if_index: 2,
        mac: mac(0xff_0000 + u32::from(port)),
        mtu: 1500,
        addresses: vec![(address.parse()?, 24)],
        routes: vec![Route { prefix: on_link.parse()?, via: Via::OnLink, source: None }],
        neighbours,
    })?)
}

/// `peers` other nodes, each with a tunnel end and a network of pods of its own.
fn world(name: &'static str, peers: u32, is_bridged: bool) -> Result<World, Failed> {
    let numbers = || 1..=peers;
    let tunnel = Tunnel::new(Vni::new(1).ok_or("VNI 1")?, 8472, end(0));
    let network = |number| Ok::<_, Failed>(format!("10.{}.{}.0/24", number >> 8, number & 255).parse()?);
    let overlay = if is_bridged {
        let members =
            numbers().map(|number| Member { at: MemberAt::Mac(mac(number)), vtep: end(number) }).collect();
        Overlay::VxlanBridged(VxlanBridged::new(Bridged {
            tunnel,
            members,
            flood: Vec::new(),
            flood_interface: false,
        })?)
    } else {
        let peer =
            |number| Ok::<_, Failed>(Peer { prefix: network(number)?, vtep: end(number), mac: mac(number) });
        let peers = numbers().map(peer).collect::<Result<Vec<_>, _>>()?;
        Overlay::VxlanRouted(VxlanRouted::new(Vxlan { tunnel, device_mac: mac(0xaa_0000), peers })?)
    };
    let ends = numbers().map(|number| Neighbour { address: end(number), mac: mac(number) }).collect();
    let stations = numbers().map(|number| Neighbour { address: pod(number), mac: mac(number) }).collect();
    let attachment = AttachmentTables::new(Attachment {
        interface: link(1, "10.0.0.5", "10.0.0.0/9", stations)?,
        uplink: link(0, "10.128.0.1", "10.128.0.0/16", ends)?.into(),
        overlay,
        destinations: Some(vec!["10.0.0.0/9".parse()?]),
        own: Vec::new(),
        vlan: None,
    })?;
    Ok(World {
        name,
        tables: Tables::new(1, vec![Some(attachment)])?,
        peers,
        samples: [Vec::new(), Vec::new()],
    })
}

impl World {
    fn flow(&self, number: u32) -> Flow {
        Flow {
            attachment: AttachmentIndex(0),
            bound: None,
            source_port: 5000,
            // A step that shares no factor with 10 or 1,000.
            destination: pod(1 + number.wrapping_mul(7919) % self.peers),
            destination_port: 6000,
            scope: 0,
            traffic_class: 0,
            hop_limit: 0,
        }
    }

    /// One batch; an error when a datagram does not leave.
    fn turn(&mut self, turn: usize, is_counted: bool) -> Result<(), Failed> {
        for (kind, writes) in [(0, false), (1, true)] {
            let mut frame = [0; 256];
            let first = turn as u32 * BATCH;
            let began = Instant::now();
            for number in first..first + BATCH {
                let resolved = resolve(black_box(&self.tables), black_box(&self.flow(number)));
                let resolved = resolved.map_err(|refusal| format!("{}: {refusal:?}", self.name))?;
                if writes {
                    black_box(resolved.template.write_frame(black_box(&PAYLOAD), &mut frame)?);
                }
                black_box(&resolved);
            }
            let picos = began.elapsed().as_nanos() as u64 * 1_000 / u64::from(BATCH);
            if is_counted {
                self.samples[kind].push(picos);
            }
        }
        Ok(())
    }

    fn entries(&mut self) -> impl Iterator<Item = String> {
        let name = self.name;
        self.samples.iter_mut().zip(["resolve", "frame"]).map(move |(samples, kind)| {
            samples.sort_unstable();
            let at =
                |part: usize| samples.get(samples.len() * part / 100).copied().unwrap_or(0) as f64 / 1_000.0;
            format!(
                "{{\"name\":\"{kind}.{name}\",\"unit\":\"ns\",\"p50\":{:.3},\"p90\":{:.3},\"samples\":{}}}",
                at(50),
                at(90),
                samples.len()
            )
        })
    }
}

fn main() -> Result<(), Failed> {
    let turns = std::env::args().nth(1).map_or(Ok(400), |text| text.parse::<usize>())?;
    let mut worlds = [
        world("peers10", 10, false)?,
        world("peers1000", 1_000, false)?,
        world("stations10", 10, true)?,
        world("stations1000", 1_000, true)?,
    ];
    for turn in 0..WARM_UP + turns {
        for world in &mut worlds {
            world.turn(turn, turn >= WARM_UP)?;
        }
    }
    let entries: Vec<String> =
        worlds.iter_mut().flat_map(|world| world.entries().collect::<Vec<_>>()).collect();
    println!("{{\"micro\":[{}]}}", entries.join(","));
    Ok(())
}
