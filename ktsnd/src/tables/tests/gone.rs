// SPDX-License-Identifier: Apache-2.0
//! What is removed is let go.

use std::time::{Duration, Instant};

use super::super::Event;
use super::place::{INDEX, PATIENCE, Place, Seen, ip, path_of};

/// The node's end of the pod's veth vanishes with the namespace, once no process holds it; the kernel decides when.
pub(super) async fn veth_goes(place: &Place) {
    let began = Instant::now();
    while ip(&format!("-n {} -o link", place.node)).contains("pod0") {
        assert!(began.elapsed() < PATIENCE, "the namespace is still held");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn until_gone(seen: &mut Seen) {
    loop {
        match seen.next(PATIENCE).await.expect("an event") {
            Event::NamespaceGone(index) => return assert_eq!(index, INDEX),
            Event::Tables(_) | Event::Overlay(..) | Event::Rules(_) | Event::RulesRead | Event::Route(..) => {
            }
            Event::Warning(text) => panic!("{text}"),
        }
    }
}

#[test]
fn a_removed_namespace_is_released() {
    Place::run(async |place, mut seen: Seen| {
        seen.manager.add(place.tracked()).await.unwrap();
        ip(&format!("netns del {}", place.pod));
        until_gone(&mut seen).await;
        assert!(seen.attachment().is_none());
        veth_goes(place).await;
        // The node removes it then; that changes nothing.
        seen.manager.remove(INDEX).await;
        assert!(seen.next(Duration::from_millis(50)).await.is_none());
    });
}

#[test]
fn without_inotify_it_is_noticed_as_well() {
    Place::run(async |place, mut seen: Seen| {
        // /proc reports nothing, and the path leads to the namespace as long as the process lives.
        let mut child = std::process::Command::new("ip")
            .args(["netns", "exec", &place.pod, "sleep", "60"])
            .spawn()
            .unwrap();
        let path = std::path::PathBuf::from(format!("/proc/{}/ns/net", child.id()));
        let there = |path: &std::path::Path| {
            super::super::kernel::namespace::Identity::of(path).ok()
                == super::super::kernel::namespace::Identity::of(&path_of(&place.pod)).ok()
        };
        while !there(&path) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let tracked = place.tracked().changed(|a| a.netns = path);
        seen.manager.add(tracked).await.unwrap();
        ip(&format!("netns del {}", place.pod));
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert!(ip(&format!("-n {} -o link", place.node)).contains("pod0"), "its process still holds it");
        child.kill().unwrap();
        child.wait().unwrap();
        until_gone(&mut seen).await;
        veth_goes(place).await;
    });
}

#[test]
fn another_namespace_at_the_same_path_is_another_one() {
    Place::run(async |place, mut seen: Seen| {
        let first = seen.manager.add(place.tracked()).await.unwrap();
        ip(&format!("netns del {}", place.pod));
        ip(&format!("netns add {}", place.pod));
        until_gone(&mut seen).await;
        veth_goes(place).await;
        ip(&format!("-n {} link add pod0 type veth peer name eth0 netns {}", place.node, place.pod));
        let second = seen.manager.add(place.tracked()).await.unwrap();
        assert_ne!(first.netns_cookie, second.netns_cookie);
    });
}

#[test]
fn an_interface_that_is_gone_ends_its_attachment() {
    Place::run(async |place, mut seen: Seen| {
        seen.manager.add(place.tracked()).await.unwrap();
        ip(&format!("-n {} link set eth0 down", place.pod));
        ip(&format!("-n {} link set eth0 name eth9", place.pod));
        // A new name is no new device.
        loop {
            match seen.next(PATIENCE).await.expect("an event") {
                Event::Warning(text) => {
                    assert!(text.ends_with("eth0 is called eth9 now"), "{text}");
                    break;
                }
                Event::NamespaceGone(_) => panic!("the device is still there"),
                Event::Tables(_)
                | Event::Overlay(..)
                | Event::Rules(_)
                | Event::RulesRead
                | Event::Route(..) => {}
            }
        }
        ip(&format!("-n {} link del pod0", place.node));
        until_gone(&mut seen).await;
        assert!(seen.attachment().is_none());
    });
}

#[test]
fn removing_an_attachment_lets_its_namespace_go() {
    Place::run(async |place, mut seen: Seen| {
        seen.manager.add(place.tracked()).await.unwrap();
        seen.manager.remove(INDEX).await;
        ip(&format!("netns del {}", place.pod));
        veth_goes(place).await;
        while let Some(event) = seen.next(Duration::from_millis(300)).await {
            assert!(matches!(event, Event::Tables(_)), "{event:?}");
        }
        assert!(seen.attachment().is_none());
    });
}
