// SPDX-License-Identifier: Apache-2.0
//! A pod's own packet filter, and ICMP messages that come into its namespace.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::{Command, Stdio};

use ktsn_resolve::AskedFamilies;
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};

use super::place::{INDEX, Place, Seen, ip};

const NONE: AskedFamilies = AskedFamilies { is_v4: false, is_v6: false };

/// Has `nft` read this text in a namespace.
fn nft(namespace: &str, text: &str) {
    let mut child = Command::new("ip")
        .args(["netns", "exec", namespace, "nft", "-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("nft");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{text:.300}");
}

fn prefixes(tables: &ktsn_resolve::AttachmentTables) -> Vec<String> {
    tables.filtered().map(|prefix| prefix.to_string()).collect()
}

#[test]
fn rules_are_followed_and_those_that_cannot_be_read_concern_every_datagram() {
    Place::run(async |place, mut seen: Seen| {
        let pod = &place.pod;
        nft(pod, "add table ip t; add chain ip t o { type filter hook output priority 0; }");
        nft(pod, "add rule ip t o ip daddr 10.244.7.0/24 drop");
        let added = seen.manager.add(place.tracked()).await.unwrap();
        let first = added.tables.attachment(INDEX).map(prefixes);
        assert_eq!(first.unwrap(), ["10.244.7.0/24"], "from the beginning");
        nft(pod, "add rule ip t o ip daddr 10.244.8.0/24 ip dscp set ef");
        seen.until("a rule more", |tables| prefixes(tables).len() == 2).await;
        assert_eq!(seen.warnings, [""; 0]);
        let many: String = (0..9000).map(|port| format!("add rule ip t o tcp dport {port} drop\n")).collect();
        nft(pod, &many);
        seen.until("too many", |tables| prefixes(tables) == ["0.0.0.0/0", "::/0"]).await;
        let told = seen.warnings.iter().find(|text| text.contains("more than 8192 entries"));
        assert!(told.is_some_and(|text| text.contains("routing_rules")), "{:?}", seen.warnings);
        nft(pod, "delete table ip t");
        seen.until("none", |tables| tables.filtered().next().is_none()).await;
    });
}

/// A redirect for 10.244.0.99 that no router sent.
fn forged() -> Vec<u8> {
    let mut message = vec![5, 1, 0, 0, 10, 244, 0, 3, 0x45, 0, 0, 28];
    message.resize(8 + 16, 0);
    message.extend([10, 244, 0, 99]);
    message
}

#[test]
fn a_forged_message_changes_nothing_and_lost_ones_have_the_kernel_asked() {
    Place::run(async |place, mut seen: Seen| {
        seen.manager.add(place.tracked()).await.unwrap();
        seen.until("plain", |tables| tables.asked() == NONE).await;
        let socket = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).unwrap();
        let to = SocketAddrV4::new(Ipv4Addr::new(10, 244, 0, 5), 0);
        let send = || sendto(&socket, &forged(), SendFlags::empty(), &to).map(drop);
        send().unwrap();
        // What comes later has been followed: then the message had been.
        ip(&format!("-n {} route add 10.50.0.0/16 via 10.244.0.2", place.pod));
        let added = "10.50.0.0/16".parse().unwrap();
        seen.until("a route", |tables| tables.interface().routes().any(|route| route.prefix == added)).await;
        assert_eq!(seen.attachment().unwrap().asked(), NONE);
        assert_eq!(seen.attachment().unwrap().answers_revision(), 0, "no answer is needed");
        // More than a socket holds.
        for _ in 0..5000 {
            let _ = send();
        }
        seen.until("both families", |tables| tables.asked().is_v4 && tables.asked().is_v6).await;
    });
}
