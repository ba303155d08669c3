// SPDX-License-Identifier: Apache-2.0
//! Where the tests happen: a node, a pod on it, and a neighbour on the node's wire, each a namespace of its own.
//!
//! ```text
//!  pod eth0 10.244.0.5/24 ── pod0 10.244.0.1/24 node up0 192.168.77.1/24 ── up0 192.168.77.2/24 far
//!                                               └ flannel.1
//! ```

use std::io::Write as _;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ktsn_resolve::{AttachmentIndex, AttachmentTables, PortIndex, Tables};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::mpsc;

use super::super::{Event, Manager, OverlayState, TrackedAttachment};
use crate::config::{Attachment, AttachmentConfig, Overlay, Vxlan, VxlanPeer};

pub(super) const INDEX: AttachmentIndex = AttachmentIndex(2);
/// How long anything is waited for that comes at all.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

impl TrackedAttachment {
    /// The attachment with a changed attachment.
    pub(super) fn changed(mut self, change: impl FnOnce(&mut Attachment)) -> Self {
        change(Arc::make_mut(&mut self.attachment));
        self
    }

    /// The attachment with a changed overlay in routed mode.
    pub(super) fn with_vxlan(self, change: impl FnOnce(&mut Vxlan)) -> Self {
        self.changed(|attachment| {
            let Overlay::Routed(vxlan) = &mut attachment.overlay else { panic!("routed mode") };
            change(vxlan);
        })
    }
}

/// The namespaces; removed whatever happens.
pub(super) struct Place {
    pub(super) node: String,
    pub(super) pod: String,
    pub(super) far: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        for name in [&self.node, &self.pod, &self.far] {
            // A test may have removed one itself.
            let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
        }
    }
}

pub(super) fn path_of(namespace: &str) -> PathBuf {
    PathBuf::from("/run/netns").join(namespace)
}

/// `ip …`, which must work.
pub(super) fn ip(arguments: &str) -> String {
    run("ip", arguments)
}

/// `bridge …`, which must work.
pub(super) fn bridge(arguments: &str) -> String {
    run("bridge", arguments)
}

fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split_whitespace()).output().expect("it runs");
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it writes UTF-8")
}

/// Many commands at once.
pub(super) fn ip_batch(namespace: &str, commands: &str) {
    batch("ip", namespace, commands);
}

/// Many commands of `bridge` at once.
pub(super) fn bridge_batch(namespace: &str, commands: &str) {
    batch("bridge", namespace, commands);
}

fn batch(program: &str, namespace: &str, commands: &str) {
    let mut child = Command::new(program)
        .args(["-n", namespace, "-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("ip runs");
    child.stdin.take().expect("piped").write_all(commands.as_bytes()).expect("ip reads");
    assert!(child.wait().expect("ip ends").success());
}

/// `ip -j …` as JSON.
pub(super) fn ip_json(arguments: &str) -> serde_json::Value {
    let text = ip(arguments);
    if text.trim().is_empty() { serde_json::json!([]) } else { serde_json::from_str(&text).expect("JSON") }
}

impl Place {
    pub(super) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let tag = format!("ktsnd{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let place = Self { node: format!("{tag}n"), pod: format!("{tag}p"), far: format!("{tag}f") };
        let Self { node, pod, far } = &place;
        for name in [node, pod, far] {
            ip(&format!("netns add {name}"));
            // Addresses are usable at once, not when a second of duplicate detection is over.
            ip(&format!("netns exec {name} sysctl -qw net.ipv6.conf.default.accept_dad=0"));
            ip(&format!("-n {name} link set lo up"));
        }
        ip(&format!("-n {node} link add up0 type veth peer name up0 netns {far}"));
        ip(&format!("-n {node} link add pod0 type veth peer name eth0 netns {pod}"));
        for (namespace, device, address) in [
            (node, "up0", "192.168.77.1/24"),
            (far, "up0", "192.168.77.2/24"),
            (node, "pod0", "10.244.0.1/24"),
            (pod, "eth0", "10.244.0.5/24"),
        ] {
            ip(&format!("-n {namespace} addr add {address} dev {device}"));
            ip(&format!("-n {namespace} link set {device} up"));
        }
        ip(&format!("-n {pod} link set eth0 mtu 1450"));
        ip(&format!("-n {pod} addr add fd00:244::5/64 dev eth0 nodad"));
        ip(&format!("-n {pod} route add default via 10.244.0.1"));
        ip(&format!("-n {node} route add default via 192.168.77.2"));
        ip(&format!(
            "-n {node} link add flannel.1 type vxlan id 1 local 192.168.77.1 dstport 8472 nolearning dev up0"
        ));
        place
    }

    pub(super) fn tracked(&self) -> TrackedAttachment {
        let peer = VxlanPeer {
            prefix: "10.244.1.0/24".parse().unwrap(),
            vtep: "192.168.77.2".parse().unwrap(),
            mac: "02:00:00:00:f4:02".parse().unwrap(),
        };
        let overlay = Vxlan {
            vni: Some(1),
            port: Some(8472),
            local: Some("192.168.77.1".parse().unwrap()),
            is_learnt: false,
            device: "flannel.1".to_owned(),
            peers: vec![peer],
        };
        let config = AttachmentConfig {
            name: Some("pod".to_owned()),
            netns: Some(path_of(&self.pod).display().to_string()),
            interface: Some("eth0".to_owned()),
            destinations: Some(vec!["10.244.0.0/16".to_owned()]),
            ..AttachmentConfig::default()
        };
        let attachment = Attachment::check("attachment", config).unwrap();
        let attachment = Arc::new(Attachment { overlay: Overlay::Routed(overlay), ..attachment });
        let uplink = ("up0".to_owned(), PortIndex(0));
        let tracked = TrackedAttachment::new(INDEX, attachment, PortIndex(1), uplink, Arc::default());
        TrackedAttachment { addresses: crate::config::Given::Interface, ..tracked }
    }

    /// Runs a test in the node's namespace, on a runtime like the daemon's.
    pub(super) fn run<F: AsyncFnOnce(&Self, Seen) + Send>(test: F) {
        let place = Self::new();
        let path = path_of(&place.node);
        let inside = || {
            let file = std::fs::File::open(&path).unwrap();
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (sender, events) = mpsc::unbounded_channel();
                let manager = Manager::start(move |event| {
                    let _ = sender.send(event);
                });
                test(
                    &place,
                    Seen {
                        manager: manager.await.unwrap(),
                        events,
                        latest: None,
                        overlay: None,
                        warnings: Vec::new(),
                    },
                )
                .await;
            });
        };
        std::thread::scope(|scope| scope.spawn(inside).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}

/// A manager and what it reported.
pub(super) struct Seen {
    pub(super) manager: Manager,
    pub(super) events: mpsc::UnboundedReceiver<Event>,
    pub(super) latest: Option<Arc<Tables>>,
    /// The attachment's overlay as it was reported last, and how many conflicts there were.
    pub(super) overlay: Option<(Arc<OverlayState>, u64)>,
    /// All warnings so far.
    pub(super) warnings: Vec<String>,
}

impl Seen {
    /// The next event but those of overlays; a generation must be the last one plus one.
    pub(super) async fn next(&mut self, patience: Duration) -> Option<Event> {
        loop {
            let event =
                tokio::time::timeout(patience, self.events.recv()).await.ok()?.expect("the task runs");
            match &event {
                Event::Tables(tables) => {
                    let before = self.latest.as_ref().map_or(0, |latest| latest.generation());
                    assert_eq!(tables.generation(), before + 1);
                    self.latest = Some(tables.clone());
                }
                Event::Overlay(news) => {
                    self.overlay = Some((news.state.clone(), news.conflicts_count));
                    continue;
                }
                Event::Warning(text) => self.warnings.push(text.clone()),
                Event::NamespaceGone(_) | Event::Rules(_) | Event::RulesRead | Event::Route(..) => {}
            }
            return Some(event);
        }
    }

    /// The present overlay: everything that was reported up to this moment.
    pub(super) fn overlay(&mut self) -> &OverlayState {
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Tables(tables) => self.latest = Some(tables),
                Event::Overlay(news) => self.overlay = Some((news.state, news.conflicts_count)),
                Event::Warning(text) => self.warnings.push(text),
                Event::NamespaceGone(_) | Event::Rules(_) | Event::RulesRead | Event::Route(..) => {}
            }
        }
        &self.overlay.as_ref().expect("an overlay").0
    }

    pub(super) fn attachment(&self) -> Option<&AttachmentTables> {
        self.latest.as_ref()?.attachment(INDEX)
    }

    /// Waits until the attachment's tables are as wanted.
    pub(super) async fn until(&mut self, what: &str, wanted: impl Fn(&AttachmentTables) -> bool) {
        let began = Instant::now();
        while !self.attachment().is_some_and(&wanted) {
            let left = PATIENCE.saturating_sub(began.elapsed());
            assert!(self.next(left).await.is_some(), "{what}: not seen; {:?}", self.attachment());
        }
    }
}
