// SPDX-License-Identifier: Apache-2.0
//! What an older ktsnd makes of a newer one's file, and what is left of a damaged one.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn read(value: &Value) -> Reading {
    read_state(value.to_string().as_bytes()).unwrap()
}

fn written(state: &State) -> Value {
    serde_json::from_slice(&write_state(state).unwrap()).unwrap()
}

#[test]
fn an_unknown_field_is_ignored_and_written_back() {
    let file = json!({
        "version": 1, "later": { "x": 1 }, "schedules": [],
        "attachments": [{ "name": "a", "slots": 64, "colour": "red" }, { "name": "b" }],
    });
    let reading = read(&file);
    let names: Vec<_> =
        reading.state.attachments.iter().filter_map(|kept| kept.raw.name.as_deref()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(reading.state.attachments[0].raw.slots, Some(64));
    assert!(reading.notes.iter().any(|note| note.contains("colour")), "{:?}", reading.notes);
    assert!(reading.notes.iter().any(|note| note.contains("later")), "{:?}", reading.notes);
    assert!(!reading.is_damaged);
    assert_eq!(written(&reading.state), file);
}

#[test]
fn an_attachment_that_needs_what_is_unknown_is_not_served_and_kept() {
    let newer = json!({ "name": "a", "slots": 64, "fence": ["x"], "needs": ["fence"] });
    for needs in [json!(["fence"]), json!([7]), json!("fence"), json!(["not_there"])] {
        let mut entry = newer.clone();
        entry["needs"] = needs;
        let file = json!({ "version": 1, "schedules": [], "attachments": [{ "name": "b" }, entry] });
        let reading = read(&file);
        assert_eq!(reading.state.attachments.len(), 1, "{file}");
        assert!(reading.notes[0].contains("attachment a: it needs "), "{:?}", reading.notes);
        assert_eq!(written(&reading.state), file);
    }
    // What this ktsnd knows may be needed.
    let file = json!({ "version": 1, "schedules": [], "attachments": [{ "name": "a", "slots": 64, "needs": ["slots"] }] });
    assert_eq!(read(&file).state.attachments.len(), 1);
}

/// Where frames go is not guessed.
#[test]
fn an_unknown_field_of_an_overlay_or_of_peers_is_not_left_out() {
    let file = json!({
        "version": 2, "schedules": [{ "port": "eth1", "schedule": {}, "when": 1 }],
        "attachments": [{ "name": "a", "overlay": { "vxlan": { "vni": 7, "crypt": true } } },
                        { "name": "b", "overlay": { "geneve": {} } }],
        "peers": [{ "vni": 7, "peers": [{ "vtep": "192.0.2.1", "crypt": true }] }],
    });
    let reading = read(&file);
    let State { attachments, schedules, peers, policies: _, foreign } = &reading.state;
    assert!(attachments.is_empty() && schedules.is_empty() && peers.is_empty());
    assert_eq!((foreign.attachments.len(), foreign.schedules.len(), foreign.peers.len()), (2, 1, 1));
    assert_eq!(reading.notes.len(), 4, "{:?}", reading.notes);
    assert_eq!(written(&reading.state), file);
}

/// The addresses that are given when it is attached hold from then on, also where the file says more than this ktsnd knows.
#[test]
fn given_addresses_are_kept_and_needed() {
    let file = json!({ "version": 1, "schedules": [], "attachments": [{ "name": "a", "colour": "red" }, { "name": "b" }] });
    let mut state = read(&file).state;
    for kept in &mut state.attachments {
        kept.raw.addresses = Some(crate::config::AddressesConfig::List(vec!["10.0.0.5".to_owned()]));
    }
    let back = written(&state);
    let expected = json!([
        { "name": "a", "colour": "red", "addresses": ["10.0.0.5"], "needs": ["addresses"] },
        { "name": "b", "addresses": ["10.0.0.5"], "needs": ["addresses"] },
    ]);
    assert_eq!(back["attachments"], expected);
    assert_eq!(read(&back).state.attachments[0].raw, state.attachments[0].raw);
    assert_eq!(written(&read(&back).state), back);
}

/// An older ktsnd that does not know `egress` would send the frames out of the pod's interface.
#[test]
fn a_virtual_switch_is_needed() {
    let attachment = |egress: &str| {
        let raw = AttachmentConfig {
            name: Some("a".to_owned()),
            egress: Some(egress.to_owned()),
            ..AttachmentConfig::default()
        };
        written(&State { attachments: vec![raw.into()], ..State::default() })["attachments"][0]["needs"]
            .clone()
    };
    assert_eq!(attachment("vhost-user"), json!(["egress"]));
    assert_eq!(attachment("interface"), Value::Null);
}

#[test]
fn a_value_that_is_unknown_is_kept() {
    let file = json!({ "version": 1, "schedules": [], "attachments": [{ "name": "a", "slots": "many" }] });
    let reading = read(&file);
    assert!(reading.state.attachments.is_empty() && !reading.is_damaged);
    assert_eq!(written(&reading.state), file);
}

/// JSON of any shape, of a few leaves.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::btree_map("[a-z]{1,4}", inner, 0..3)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Fields that no ktsnd will ever have.
fn unknown_fields() -> impl Strategy<Value = Map<String, Value>> {
    proptest::collection::btree_map("x_[a-z]{1,6}", any_json(), 0..4)
        .prop_map(|fields| fields.into_iter().collect())
}

proptest! {
    /// Whatever fields a newer ktsnd adds: each attachment is served as before, and the file comes back as it was.
    #[test]
    fn random_unknown_fields_lose_nothing(
        of_file in unknown_fields(),
        of_attachments in proptest::collection::vec(unknown_fields(), 0..5),
    ) {
        let attachments = of_attachments.iter().enumerate().map(|(i, unknown)| {
            let mut entry = unknown.clone();
            entry.insert("name".to_owned(), format!("pod-{i}").into());
            entry.insert("interface".to_owned(), "eth0".into());
            Value::Object(entry)
        });
        let mut file = of_file;
        file.insert("version".to_owned(), 1.into());
        file.insert("schedules".to_owned(), json!([]));
        file.insert("attachments".to_owned(), attachments.collect());
        let file = Value::Object(file);
        let reading = read(&file);
        prop_assert_eq!(reading.state.attachments.len(), of_attachments.len());
        for (i, kept) in reading.state.attachments.iter().enumerate() {
            let name = format!("pod-{i}");
            prop_assert_eq!(kept.raw.name.as_deref(), Some(name.as_str()));
            prop_assert_eq!(kept.raw.interface.as_deref(), Some("eth0"));
        }
        prop_assert!(!reading.is_damaged);
        prop_assert_eq!(written(&reading.state), file.clone());
        prop_assert_eq!(read(&written(&reading.state)).state, reading.state);
    }

    /// Anything may stand in the place of an entry: the others are read, and what has a name is written back.
    #[test]
    fn a_damaged_entry_loses_only_itself(mut entry in any_json(), at in 0usize..3, has_name in any::<bool>()) {
        if let Some(fields) = entry.as_object_mut().filter(|_| has_name) {
            fields.insert("name".to_owned(), "odd".into());
        }
        let mut entries = vec![json!({ "name": "a" }), json!({ "name": "b", "slots": 64 })];
        entries.insert(at, entry.clone());
        let reading = read(&json!({ "version": 1, "attachments": entries }));
        let is_there = |name: &str| {
            reading.state.attachments.iter().filter(|kept| kept.raw.name.as_deref() == Some(name)).count() == 1
        };
        prop_assert!(is_there("a") && is_there("b"));
        let is_named = entry.get("name").is_some_and(Value::is_string);
        prop_assert_eq!(reading.is_damaged, !is_named);
        let back = written(&reading.state);
        let is_back = back["attachments"].as_array().is_some_and(|all| all.contains(&entry));
        prop_assert!(is_back || !is_named || entry.as_object().is_some_and(|fields| fields.values().any(Value::is_null)));
    }

    #[test]
    fn no_octets_bring_it_down(octets in proptest::collection::vec(any::<u8>(), 0..200), value in any_json()) {
        let _ = read_state(&octets);
        let _ = read_state(value.to_string().as_bytes());
    }
}

/// What policies forbid is in force again after a restart; an entry that is not understood permits nothing.
#[test]
fn network_policies_are_kept_and_never_read_as_permission() {
    let entry = json!({ "attachment": "a", "egress_allowed": ["10.0.0.0/8"], "ingress_blocked": true, "reason": "x" });
    let file =
        json!({ "version": 1, "schedules": [], "attachments": [{ "name": "a" }], "policies": [entry] });
    let reading = read(&file);
    assert!(reading.notes.is_empty(), "{:?}", reading.notes);
    assert_eq!(written(&reading.state), file);
    let mut newer = file.clone();
    newer["policies"][0]["later"] = json!(1);
    for entry in [newer["policies"][0].clone(), json!({ "attachment": "a", "egress_allowed": 7 })] {
        let mut file = file.clone();
        file["policies"] = json!([entry]);
        let reading = read(&file);
        let policy = &reading.state.policies[0];
        assert_eq!(
            (policy.attachment.as_str(), &policy.egress_allowed, policy.ingress_blocked),
            ("a", &Some(Vec::new()), true)
        );
        assert!(
            reading.notes[0].contains("network policies of a") && !reading.is_damaged,
            "{:?}",
            reading.notes
        );
    }
    assert!(!written(&State::default()).to_string().contains("policies"));
}
