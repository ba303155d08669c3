// SPDX-License-Identifier: Apache-2.0
//! The schema of an attachment: what it reads, writes and refuses.

use super::*;
use serde_json::json;

/// The programs in Go have no schema of their own: they read the names of the keys from this file.
#[test]
fn the_file_of_the_keys_is_this_schema() {
    let file = include_str!("../../../k8s/internal/nodeapi/attachment.keys");
    let keys: Vec<&str> = file.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(keys, AttachmentConfig::KEYS);
}

#[test]
fn every_key_is_set_from_text_as_json_sets_it() {
    let mut config = AttachmentConfig::default();
    for (key, text) in [
        ("name", "7"),
        ("classes", "0"),
        ("classes", "7"),
        ("addresses", "10.0.0.1"),
        ("addresses", "fd00::/64"),
        ("take", "4"),
        ("vlan", "9"),
        ("allow_tai", "false"),
        ("overlay", "none"),
        ("memory_max", "1"),
    ] {
        assert_eq!(config.set(key, text), Some(Ok(())), "{key}");
    }
    let expected = json!({
        "name": "7", "classes": [0, 7], "addresses": ["10.0.0.1", "fd00::/64"], "take": { "priority_min": 4 },
        "vlan": 9, "allow_tai": false, "overlay": "none", "memory_max": 1,
    });
    assert_eq!(serde_json::from_str::<Value>(&config.json()).unwrap(), expected);
    assert_eq!(config.set("slots", "many"), Some(Err("a whole number")));
    assert_eq!((config.set("colour", "red"), config.slots), (None, None));
    for key in AttachmentConfig::KEYS {
        assert!(AttachmentConfig::default().set(key, "").is_some(), "{key}");
    }
    let mut vxlan = VxlanConfig::default();
    for text in
        ["10.1.0.0/16@192.0.2.2@02:00:00:00:00:02", "10.2.0.0/16@192.0.2.3", "02:00:00:00:00:04@192.0.2.4"]
    {
        assert_eq!(vxlan.set("peers", text), Some(Ok(())));
    }
    assert_eq!(vxlan.set("ttl", "9"), Some(Ok(())));
    let expected = json!({ "ttl": "9", "peers": [
        { "prefix": "10.1.0.0/16", "vtep": "192.0.2.2", "mac": "02:00:00:00:00:02" },
        { "prefix": "10.2.0.0/16", "vtep": "192.0.2.3" }, { "mac": "02:00:00:00:00:04", "vtep": "192.0.2.4" },
    ] });
    assert_eq!(serde_json::to_value(&vxlan).unwrap(), expected);
}

#[test]
fn every_form_of_a_value_reads_back_as_it_was_written() {
    let whole = json!({
        "name": "a", "netns": "/run/netns/a", "interface": "eth0", "classes": [0, 7], "horizon": "10us",
        "addresses": ["10.0.0.1", "fd00::/64"], "take": { "priority_min": 4 }, "allow_tai": false,
        "overlay": { "vxlan": { "vni": 7, "ttl": 9, "tos": "inherit", "peers": [{ "vtep": "192.0.2.1" }] } },
    });
    let config = AttachmentConfig::parse("attachment", &whole.to_string()).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&config.json()).unwrap(), whole);
    let words = json!({ "overlay": "none", "addresses": "interface", "take": "all" });
    let config = AttachmentConfig::parse("attachment", &words.to_string()).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&config.json()).unwrap(), words);
    assert_eq!(config.overlay, Some(OverlayConfig::None));
}

#[test]
fn an_error_begins_with_the_path_and_names_value_and_expectation() {
    for (json, begin, part) in [
        ("", "attachment: missing", "expected an attachment as a JSON object"),
        ("{", "attachment: ", "EOF"),
        ("[7]", "attachment: missing", "JSON object"),
        ("{} {}", "attachment: ", "trailing"),
        (r#"{"slots": "many"}"#, "attachment.slots: invalid type: string \"many\"", "u32"),
        (r#"{"classes": [1, 300]}"#, "attachment.classes[1]: ", "`300`"),
        (r#"{"colour": 1}"#, "attachment.colour: unknown field `colour`", "expected one of `name`"),
        (r#"{"take": 7}"#, "attachment.take: ", "`7`, expected \"txtime\", \"all\" or { priority_min"),
        (r#"{"take": {"priority_min": "x"}}"#, "attachment.take.priority_min: ", "string \"x\""),
        (r#"{"take": {"priority": 1}}"#, "attachment.take.priority: ", "expected `priority_min`"),
        (r#"{"addresses": {}}"#, "attachment.addresses: ", "expected a list of IP addresses and prefixes"),
        (r#"{"addresses": ["a", 7]}"#, "attachment.addresses[1]: ", "`7`, expected a string"),
        (
            r#"{"overlay": {"geneve": {}}}"#,
            "attachment.overlay.geneve",
            "unknown field `geneve`, expected `vxlan`",
        ),
        (r#"{"overlay": []}"#, "attachment.overlay: ", "sequence, expected \"none\" or { vxlan"),
        (
            r#"{"overlay": {"vxlan": ["routed", 7]}}"#,
            "attachment.overlay.vxlan: ",
            "sequence, expected an object",
        ),
        (
            r#"{"overlay": {"vxlan": {"peers": [["10.0.0.0/8"]]}}}"#,
            "attachment.overlay.vxlan.peers[0]: ",
            "sequence, expected an object",
        ),
        (r#"{"take": [7]}"#, "attachment.take: ", "sequence, expected \"txtime\""),
        (r#"{"overlay": "vxlan"}"#, "attachment.overlay: ", "\"vxlan\", expected \"none\" or { vxlan"),
        (r#"{"overlay": {"vxlan": 7}}"#, "attachment.overlay.vxlan: ", "`7`, expected an object"),
        (r#"{"overlay": {"vxlan": {"vni": -1}}}"#, "attachment.overlay.vxlan.vni: ", "`-1`, expected u32"),
        (
            r#"{"overlay": {"vxlan": {"ttl": -1}}}"#,
            "attachment.overlay.vxlan.ttl: ",
            "expected a number or \"inherit\"",
        ),
        (r#"{"overlay": {"vxlan": {"crypt": 1}}}"#, "attachment.overlay.vxlan.crypt: ", "unknown field"),
        (
            r#"{"overlay": {"vxlan": {"peers": [{"vtep": 1}]}}}"#,
            "attachment.overlay.vxlan.peers[0].vtep: ",
            "`1`",
        ),
    ] {
        let fault = AttachmentConfig::parse("attachment", json).unwrap_err().to_string();
        assert!(fault.starts_with(begin) && fault.contains(part), "{json}: {fault}");
    }
}

#[test]
fn unknown_keys_are_named_and_left_out() {
    let value = json!({ "name": "a", "later": 1, "overlay": { "vxlan": { "vni": 7 } } });
    let (config, unknown) = AttachmentConfig::read_known("a", value).unwrap();
    assert_eq!((config.name.as_deref(), unknown), (Some("a"), vec!["later".to_owned()]));
    let value = json!({ "name": "a", "overlay": { "vxlan": { "vni": 7, "crypt": true } } });
    assert!(AttachmentConfig::read_known("a", value).is_err(), "an overlay is not guessed");
    let fault = AttachmentConfig::read_known("a", json!(["b", "/run/netns/b", "eth0"])).unwrap_err();
    assert_eq!(fault.to_string(), "a: invalid type: sequence, expected an object");
}
