// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::experiment::Setup;
use ktsn_measure::results::Series;
use ktsn_time::Nanos;

const SITE: &str = r#"{"tap_enter": ["nsenter"], "tap_device": "eth0", "daemon_run_dir": "/run/ktsn", "daemon_pid": 7, "ways": [
    {"path": "tsn-cni", "to": "10.99.1.2", "vxlan_port": 4789,
     "talker": {"enter": ["kubectl", "exec"], "ktsn": "/bin/ktsn", "inside": "/out", "outside": "/a"},
     "listener": {"enter": [], "ktsn": "/bin/ktsn", "inside": "/out", "outside": "/b"}}]}"#;

fn site(text: &str) -> Result<Site, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("site.json");
    std::fs::write(&file, text).unwrap();
    Site::load(&file).map_err(|error| error.to_string())
}

fn plan(site: Site) -> Plan {
    Plan {
        site,
        payloads: vec![64, 256],
        rounds: 3,
        frames: 10,
        period: Nanos::from_millis(1),
        setup: Setup::nowhere(),
    }
}

#[test]
fn a_site_is_read_and_wrong_ones_are_named() {
    let good = site(SITE).unwrap();
    assert_eq!((good.ways[0].path, good.ways[0].to.to_string()), (WayName::TsnCni, "10.99.1.2".to_owned()));
    for (from, to, word) in [
        ("tsn-cni", "wifi", "host-network"),
        ("10.99.1.2", "host-b", "IP address"),
        ("daemon_pid", "daemon_pod", "daemon_pod"),
    ] {
        let error = site(&SITE.replace(from, to)).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn a_plan_refuses_nonsense() {
    let mut plan = plan(site(SITE).unwrap());
    plan.check().unwrap();
    plan.site.ways.push(plan.site.ways[0].clone());
    assert!(plan.check().unwrap_err().to_string().contains("twice"));
    plan.site.ways.clear();
    assert!(plan.check().unwrap_err().to_string().contains("nothing to measure"));
}

#[test]
fn what_must_never_be_is_found() {
    let mut document = Document::new("k8s", Vec::new());
    let series = Series {
        path: "tsn-cni".to_owned(),
        payload_octets: 64,
        load: Some("idle".to_owned()),
        frames_intended: Some(10),
        frames_sent: Some(10),
        lost: Some(1),
        early: Some(0),
        duplicates: Some(0),
        reordered: Some(0),
        ..Series::default()
    };
    document.add_rounds(vec![series]);
    bars::compare(&mut document);
    let found = violations(&document).join("\n");
    assert!(found.contains("lost is 1") && found.contains("ktsnd sent nothing"), "{found}");
    assert!(!found.contains("early") && !found.contains("accepted"), "{found}");
    assert!(missed(&document).iter().any(|line| line.contains("lost")), "{document:?}");
}
