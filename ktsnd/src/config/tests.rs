// SPDX-License-Identifier: Apache-2.0
use super::*;
use ktsn_model::LatePolicy;
use ktsn_time::Nanos;

const GOOD: &str = r#"
[daemon]
run_dir = "/run/ktsn-test"
[[port]]
device = "uplink0"
adapter = "af_xdp"
spin_margin = "60us"
spin_duty_max = 0.5
cpu = 1
[[attachment]]
name = "a"
netns = "pod-a"
interface = "eth0"
uplink = "uplink0"
late = "drop"
horizon = "5s"
overlay = { vxlan = { mode = "routed", vni = 1, port = 8472, local = "192.168.50.1", peers = [
  { prefix = "10.244.1.0/24", vtep = "192.168.50.2", mac = "02:00:00:00:00:02" } ] } }
"#;

#[test]
fn a_whole_document() {
    let config = Config::parse(GOOD).unwrap();
    assert_eq!(config.ports[0].spin_margin, SpinMargin::Fixed(Nanos::from_micros(60)));
    assert_eq!(config.ports[0].spin_duty_max_permille, 500);
    let attachment = &config.attachments[0];
    assert_eq!(attachment.netns.to_str(), Some("/run/netns/pod-a"));
    assert_eq!(attachment.late, LatePolicy::Drop);
    assert_eq!(attachment.horizon, Nanos::from_seconds(5));
    assert_eq!(attachment.overrun_limit, crate::limits::OVERRUN_LIMIT_DEFAULT);
    assert_eq!(attachment.allowed(), None, "the peers'");
    assert_eq!(attachment.overlay.routed().unwrap().peers[0].prefix.to_string(), "10.244.1.0/24");
}

/// Expected arrival: the attachment's word, and the node's cap.
#[test]
fn who_may_expect_arrivals() {
    let config = Config::parse(GOOD).unwrap();
    assert_eq!(config.attachments[0].receive, ReceiveMode::Kernel);
    assert_eq!(config.daemon.receive_spin_max_permille, 200);
    assert_eq!(config.daemon, Daemon { run_dir: Some("/run/ktsn-test".into()), ..Daemon::default() });
    let text = GOOD.replace("late = \"drop\"", "receive = \"expect\"");
    let config = Config::parse(&text.replace("[daemon]", "[daemon]\nreceive_spin_max = 1.5")).unwrap();
    assert_eq!(config.attachments[0].receive, ReceiveMode::Expect);
    assert_eq!(config.daemon.receive_spin_max_permille, 1500);
    let flag = parse_attach("a:eth0,receive=expect").unwrap();
    assert_eq!((flag.receive, flag.clients.receive_period), (ReceiveMode::Expect, None));
    for (text, micros) in [("50us", 50), ("1ms", 1_000), ("10s", 10_000_000), ("1ms 500us", 1_500)] {
        let flag = parse_attach(&format!("a:eth0,receive=expect,receive_period={text}")).unwrap();
        assert_eq!(flag.clients.receive_period, Some(Nanos::from_micros(micros)), "{text}");
    }
}

/// Each wrong value is named with its field.
#[test]
fn faults_name_field_value_and_expectation() {
    let cases: &[(&str, &str, &str)] = &[
        ("adapter = \"af_xdp\"", "adapter = \"dpdx\"", "port[0].adapter: \"dpdx\": expected auto"),
        ("spin_margin = \"60us\"", "spin_margin = \"60\"", "port[0].spin_margin: \"60\": expected a time"),
        ("spin_duty_max = 0.5", "spin_duty_max = 1.0", "port[0].spin_duty_max: \"1\": expected 0 to 0.95"),
        ("cpu = 1", "cpus = 1", "unknown field `cpus`"),
        ("cpu = 1", "cpu = \"one\"", "invalid type"),
        ("name = \"a\"", "", "attachment[0].name: missing"),
        (
            "interface = \"eth0\"",
            "interface = \"a-name-that-is-too-long\"",
            "attachment[0].interface: \"a-name",
        ),
        (
            "late = \"drop\"",
            "late = \"never\"",
            "attachment[0].late: \"never\": expected by-clock, drop, send",
        ),
        ("late = \"drop\"", "take = \"some\"", "attachment[0].take: \"some\": expected txtime, all or"),
        (
            "late = \"drop\"",
            "take = { priority_min = 16 }",
            "attachment[0].take.priority_min: \"16\": expected 0",
        ),
        (
            "late = \"drop\"",
            "receive = \"spin\"",
            "attachment[0].receive: \"spin\": expected kernel or expect",
        ),
        (
            "late = \"drop\"",
            "receive_period = \"49us\"",
            "attachment[0].receive_period: \"49us\": expected a time from 50us to 10s with its unit",
        ),
        (
            "late = \"drop\"",
            "receive_period = \"10s 1ns\"",
            "attachment[0].receive_period: \"10s 1ns\": expected a time from 50us to 10s",
        ),
        ("late = \"drop\"", "receive_period = \"1\"", "attachment[0].receive_period: \"1\": expected a time"),
        ("late = \"drop\"", "receive_period = 1000", "invalid type"),
        (
            "[daemon]",
            "[daemon]\nreceive_spin_max = 65",
            "daemon.receive_spin_max: \"65\": expected 0 to 64 CPUs",
        ),
        ("[daemon]", "[daemon]\nreceive_spin_max = -0.1", "daemon.receive_spin_max: \"-0.1\": expected 0 to"),
        ("horizon = \"5s\"", "horizon = \"0s\"", "attachment[0].horizon: \"0s\": expected a time between"),
        ("vni = 1,", "vni = 16777216,", "attachment[0].overlay.vxlan.vni: \"16777216\": expected 1 to"),
        (
            "mode = \"routed\"",
            "mode = \"magic\"",
            "attachment[0].overlay.vxlan.mode: \"magic\": expected routed or bridged",
        ),
        ("10.244.1.0/24", "10.244.1.1/24", "attachment[0].overlay.vxlan.peers[0].prefix: \"10.244.1.1/24\""),
        (
            "vni = 1,",
            "vni = 1, ttl = 9,",
            "attachment[0].overlay.vxlan.ttl: \"9\": only for mode = \"bridged\"; remove it",
        ),
        ("vni = 1,", "vni = 1, flood = [],", "attachment[0].overlay.vxlan.flood: \"[]\": only for mode"),
        ("vtep = \"192.168.50.2\"", "vtep = \"fd00::2\"", "attachment[0].overlay.vxlan.peers[0].vtep"),
        ("02:00:00:00:00:02", "02:00", "attachment[0].overlay.vxlan.peers[0].mac: \"02:00\""),
    ];
    for (from, to, message) in cases {
        assert!(GOOD.contains(from), "{from}");
        let error = Config::parse(&GOOD.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(message), "{to}: {error}");
    }
}

#[test]
fn names_are_unique() {
    let twice = format!("{GOOD}\n[[attachment]]\nname = \"a\"\nnetns = \"b\"\ninterface = \"eth0\"\n");
    let error = Config::parse(&twice).unwrap_err();
    assert_eq!(error, ConfigError::Duplicate { field: "attachment[1].name".into(), value: "a".into() });
}

#[test]
fn the_attach_flag_makes_the_same_values() {
    let a = parse_attach(
        "/run/netns/x:eth0,late=send,slots=64,local=10.0.0.1,peer=10.1.0.0/16@10.0.0.2@02:00:00:00:00:02",
    )
    .unwrap();
    assert_eq!((a.name.as_str(), a.interface.as_str(), a.clients.slots), ("x/eth0", "eth0", 64));
    assert_eq!(a.overlay.routed().map(|o| (o.vni, o.port, o.peers.len())), Some((Some(1), Some(8472), 1)));
    for (text, message) in [
        ("eth0", "NETNS:INTERFACE"),
        ("a:eth0,slots", "key=value"),
        ("a:eth0,colour=red", "one of name"),
        ("a:eth0,slots=many", "--attach slots: \"many\": expected a whole number"),
        ("a:eth0,slots=1", "--attach.slots: \"1\": expected 64 to 4096"),
        ("a:eth0,local=10.0.0.1,peer=10.0.0.0/8@10.0.0.2", "peers[0].mac: missing"),
    ] {
        let error = parse_attach(text).unwrap_err().to_string();
        assert!(error.contains(message), "{text}: {error}");
    }
}

/// [802.1Q 9.6] The tag that frames get, and MAC addresses among the destinations.
#[test]
fn a_tag_and_mac_addresses() {
    let of = |options: &str| parse_attach(&format!("a:eth0{options}"));
    let tag = |options: &str| of(options).unwrap().tag.map(|tag| (tag.vid.get(), tag.pcp.get()));
    assert_eq!(tag(""), None);
    assert_eq!(tag(",vlan=7"), Some((7, 0)));
    assert_eq!(tag(",vlan=4094,pcp=6"), Some((4094, 6)));
    assert_eq!(tag(",pcp=5"), Some((0, 5)), "a priority tag");
    for (text, message) in [
        (",vlan=0", "vlan: \"0\": expected 1 to 4094"),
        (",vlan=4095", "expected 1 to 4094"),
        (",pcp=8", "pcp: \"8\": expected 0 to 7"),
        (",destination=01:80:c2:00:00", "a prefix"),
    ] {
        let error = of(text).unwrap_err().to_string();
        assert!(error.contains(message), "{text}: {error}");
    }
    let listed = of(",destination=10.0.0.0/8,destination=01:80:c2:00:00:0e").unwrap();
    assert_eq!(listed.allowed(), Some(vec!["10.0.0.0/8".parse().unwrap()]));
    assert_eq!(listed.destination_macs, ["01:80:c2:00:00:0e".parse().unwrap()]);
    assert_eq!(listed.ethernet, Ethernet::Any, "a list of prefixes does not close it");
    assert_eq!(of(",ethernet=listed").unwrap().ethernet, Ethernet::Listed);
    assert!(
        of(",ethernet=all").unwrap_err().to_string().contains("ethernet: \"all\": expected any or listed")
    );
    assert!(of("").unwrap().takes_no_datagram() && !listed.takes_no_datagram());
    let only_macs =
        of(",destination=02:00:00:00:00:01,local=10.0.0.1,peer=10.1.0.0/16@10.0.0.2@02:00:00:00:00:02");
    assert_eq!(only_macs.unwrap().allowed(), None, "MAC addresses leave the peers' prefixes");
    let many: String = (0..17).map(|i| format!(",destination=02:00:00:00:00:{i:02x}")).collect();
    assert!(of(&many).unwrap_err().to_string().contains("at most 16 MAC addresses"));
}

/// What a device knows need not be written; what is written is kept to hold the device against.
#[test]
fn a_learnt_overlay() {
    let of = |options: &str| parse_attach(&format!("a:eth0,{options}"));
    let vxlan = of("learn_from=flannel.1").unwrap().overlay.routed().unwrap().clone();
    assert!(vxlan.is_learnt && vxlan.peers.is_empty());
    assert_eq!((vxlan.vni, vxlan.port, vxlan.local, vxlan.device.as_str()), (None, None, None, "flannel.1"));
    let vxlan =
        of("learn_from=vx0,device=vx0,vni=7,local=fd00::1").unwrap().overlay.routed().unwrap().clone();
    assert_eq!((vxlan.vni, vxlan.local), (Some(7), Some("fd00::1".parse().unwrap())));
    for (text, message) in [
        ("device=flannel.1", "local: missing"),
        ("learn_from=vx0,device=vx1", "device: \"vx1\": expected vx0, which `learn_from` names"),
        ("learn_from=a/b", "learn_from: \"a/b\": expected a device name"),
        ("learn_from=vx0,vni=0", "vni: \"0\": expected 1 to 16777215"),
        ("learn_from=vx0,peer=10.1.0.0/16@10.0.0.2@00:00:00:00:00:00", "peers[0].mac: \"00:00:00"),
        ("learn_from=vx0,peer=10.1.0.0/16@0.0.0.0@02:00:00:00:00:01", "peers[0].vtep: \"0.0.0.0\""),
        (
            "learn_from=vx0,peer=10.1.0.0/16@10.0.0.1@02:00:00:00:00:01,peer=10.2.0.0/16@fd00::1@02:00:00:00:00:02",
            "peers[1].vtep: \"fd00::1\": expected an address of the same family as the others",
        ),
    ] {
        let error = of(text).unwrap_err().to_string();
        assert!(error.contains(message), "{text}: {error}");
    }
}

mod hostile {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// A damaged document is refused or understood; it never stops the daemon's start with a panic.
        #[test]
        fn any_damage_gives_an_answer(
            at in any::<prop::sample::Index>(),
            cut in 0usize..40,
            put in "\\PC{0,12}",
            is_policed in any::<bool>(),
        ) {
            let good = if is_policed { policing_tests::GOOD } else { GOOD };
            let start = good.floor_char_boundary(at.index(good.len()));
            let end = good.floor_char_boundary((start + cut).min(good.len()));
            let damaged = format!("{}{put}{}", &good[..start], &good[end.max(start)..]);
            if let Err(error) = Config::parse(&damaged) {
                prop_assert!(!error.to_string().is_empty());
            }
        }

        #[test]
        fn any_attach_flag_gives_an_answer(text in "[a-z0-9:/,=@.]{0,60}") {
            if let Ok(attachment) = parse_attach(&text) {
                prop_assert!(!attachment.name.is_empty() && !attachment.interface.is_empty());
            }
        }

        /// What was accepted is accepted again from its raw form, with the same meaning: the state file depends on it.
        #[test]
        fn raw_forms_round_trip(slots in 64u32..4096, horizon_ms in 1u64..3_600_000, class in 0u8..8) {
            let raw = AttachmentConfig {
                name: Some("x".into()),
                netns: Some("y".into()),
                interface: Some("eth0".into()),
                slots: Some(slots),
                horizon: Some(format!("{horizon_ms}ms")),
                classes: Some(vec![class]),
                ..AttachmentConfig::default()
            };
            let first = Attachment::check("a", raw).unwrap();
            let text = serde_json::to_string(&first.raw).unwrap();
            prop_assert!(!text.contains("null"), "{}", text);
            let again = Attachment::check("a", serde_json::from_str(&text).unwrap()).unwrap();
            prop_assert_eq!(first, again);
        }
    }
}

mod segments {
    use super::*;

    /// Everything but `flood_interface` is the device's; destinations must be named, as stations have no prefixes.
    #[test]
    fn a_learnt_segment() {
        let of = |options: &str| parse_attach(&format!("a:eth0,mode=bridged,learn_from=vx7,{options}"));
        let attachment = of("destination=10.9.0.0/24,flood_interface=true").unwrap();
        let from = SegmentFrom { device: "vx7".to_owned(), flood_interface: true };
        assert_eq!(attachment.overlay, Overlay::BridgedFrom(from));
        for (options, message) in [
            ("flood_interface=false", "destinations: missing; expected prefixes or MAC addresses"),
            (
                "destination=::/0,vni=7",
                "vni: \"7\": in bridged mode `learn_from` takes it from vx7; remove it",
            ),
            ("destination=::/0,flood=10.0.0.1", "flood: \"10.0.0.1\": in bridged mode"),
            ("destination=::/0,device=vx7", "device: \"vx7\": in bridged mode"),
        ] {
            let error = of(options).unwrap_err().to_string();
            assert!(error.contains(message), "{options}: {error}");
        }
    }

    use ktsn_resolve::{MemberAt, OuterDf, OuterDs, OuterTtl};
    use ktsn_wire::DsField;

    const SEGMENT: &str = r#"
[[attachment]]
name = "a"
netns = "pod-a"
interface = "eth0"
vlan = 7
overlay = { vxlan = { mode = "bridged", vni = 42, port = 4789, local = "192.168.50.1", ttl = "inherit", tos = 184, df = "set", udp_checksum = false,
  peers = [ { prefix = "10.9.0.0/28", vtep = "192.168.50.2" }, { mac = "02:00:00:00:00:03", vtep = "192.168.50.3" } ],
  flood = ["192.168.50.2", "192.168.50.3"], flood_interface = true } }
"#;

    #[test]
    fn a_whole_segment() {
        let config = Config::parse(SEGMENT).unwrap();
        let attachment = &config.attachments[0];
        let segment = attachment.overlay.bridged().unwrap();
        let tunnel = &segment.tunnel;
        assert_eq!((tunnel.vni.get(), tunnel.port, tunnel.udp_checksum), (42, 4789, false));
        assert_eq!((tunnel.ttl, tunnel.ds), (OuterTtl::Inherit, OuterDs::Fixed(DsField(184))));
        assert_eq!((tunnel.df, segment.flood.len(), segment.flood_interface), (OuterDf::Set, 2, true));
        assert!(matches!(segment.members[1].at, MemberAt::Mac(_)));
        assert_eq!(attachment.allowed(), None, "those of the peers");
        assert_eq!(segment.members[0].at, MemberAt::Prefix("10.9.0.0/28".parse().unwrap()));
        // What it is attached by again after a restart.
        let text = serde_json::to_string(&attachment.raw).unwrap();
        assert_eq!(Attachment::check("a", serde_json::from_str(&text).unwrap()).as_ref(), Ok(attachment));
        let flag = "pod-a:eth0,name=a,vlan=7,mode=bridged,vni=42,port=4789,local=192.168.50.1,ttl=inherit,tos=184,df=set,\
                    udp_checksum=false,peer=10.9.0.0/28@192.168.50.2,peer=02:00:00:00:00:03@192.168.50.3,flood=192.168.50.2,\
                    flood=192.168.50.3,flood_interface=true";
        let by_flag = parse_attach(flag).unwrap();
        assert_eq!((&by_flag.overlay, by_flag.tag), (&attachment.overlay, attachment.tag));
    }

    #[test]
    fn faults_name_field_value_and_expectation() {
        for (from, to, message) in [
            ("vni = 42, ", "", "vxlan.vni: missing"),
            ("vni = 42", "vni = 0", "vxlan.vni: \"0\": expected 1 to 16777215"),
            (
                "vni = 42",
                "device = \"vx0\", vni = 42",
                "vxlan.device: \"vx0\": expected nothing in bridged mode",
            ),
            ("ttl = \"inherit\"", "ttl = 256", "vxlan.ttl: \"256\": expected 0 (64) to 255, or inherit"),
            ("tos = 184", "tos = 185", "vxlan.tos: \"185\": expected a multiple of 4"),
            ("df = \"set\"", "df = \"maybe\"", "vxlan.df: \"maybe\": expected unset, set or inherit"),
            (
                "mac = \"02:00:00:00:00:03\"",
                "mac = \"33:33:00:00:00:01\"",
                "peers[1].mac: \"33:33:00:00:00:01\": expected a station's",
            ),
            (
                "mac = \"02",
                "prefix = \"::/0\", mac = \"02",
                "peers[1].mac: \"02:00:00:00:00:03\": expected either",
            ),
            ("{ mac = \"02:00:00:00:00:03\", ", "{ ", "peers[1].prefix: missing"),
            (
                "flood = [\"192.168.50.2\"",
                "flood = [\"fd00::2\"",
                "flood[0]: \"fd00::2\": expected an address of the same family",
            ),
            (
                "flood = [\"192.168.50.2\"",
                "flood = [\"224.0.0.1\"",
                "flood[0]: \"224.0.0.1\": expected the address of one node",
            ),
            (
                "prefix = \"10.9.0.0/28\"",
                "mac = \"02:00:00:00:00:03\"",
                "peers[1].mac: \"02:00:00:00:00:03\" is used twice",
            ),
            (
                "prefix = \"10.9.0.0/28\"",
                "mac = \"02:00:00:00:00:02\"",
                "attachment[0].destinations: missing",
            ),
        ] {
            assert!(SEGMENT.contains(from), "{from}");
            let error = Config::parse(&SEGMENT.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(message), "{to}: {error}");
        }
    }
}

mod keys {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    const BRIDGED: &str = r#"
[[attachment]]
name = "a"
netns = "/run/netns/a"
interface = "eth0"
uplink = "up0"
addresses = ["10.9.0.2", "fd00::/64"]
destinations = ["10.9.0.0/24", "02:00:00:00:00:09"]
ethernet = "listed"
classes = [2, 5]
late = "send"
overrun_limit = "10us"
horizon = "3s"
allow_tai = false
allow_policy_bypass = true
take = { priority_min = 3 }
vlan = 7
pcp = 4
ingress = "short"
egress = "vhost-user"
vhost_socket = "/run/vhost/"
vhost_queues = 3
receive = "expect"
receive_period = "1ms 500us"
capture = "kernel"
capture_priority = 6
slots = 64
clients_max = 5
octets_max = 1000000
memory_max = 2000000
overlay = { vxlan = { mode = "bridged", vni = 42, port = 4789, local = "192.0.2.1", ttl = 9, tos = "inherit", df = "set",
  udp_checksum = false, flood_interface = true, flood = ["192.0.2.2"], peers = [ { mac = "02:00:00:00:00:03", vtep = "192.0.2.3" } ] } }
"#;
    const ROUTED: &str = r#"
[[attachment]]
name = "a"
netns = "/run/netns/a"
interface = "eth0"
overlay = { vxlan = { mode = "routed", vni = 7, port = 8472, local = "192.0.2.1", device = "vx7", learn_from = "vx7",
  peers = [ { prefix = "10.1.0.0/16", vtep = "192.0.2.2", mac = "02:00:00:00:00:02" } ] } }
"#;

    /// Both forms of the first attachment of a TOML file: as it was written, and as it is listed.
    fn forms(toml: &str) -> (Value, Value) {
        let attachment = Config::parse(toml).unwrap().attachments.remove(0);
        let value = |config: &AttachmentConfig| serde_json::to_value(config).unwrap();
        (value(&attachment.raw), value(&attachment.config()))
    }

    fn keys(value: &Value) -> BTreeSet<&str> {
        value.as_object().unwrap().keys().map(String::as_str).collect()
    }

    /// A new key must be checked and listed: this test has every key in its examples, and each comes back as it was written.
    #[test]
    fn every_key_goes_through_the_check_to_the_listing() {
        let (written, listed) = forms(BRIDGED);
        assert_eq!(keys(&written), AttachmentConfig::KEYS.iter().copied().collect());
        assert_eq!(listed, written);
        let (routed, listed) = forms(ROUTED);
        assert_eq!(listed["overlay"], routed["overlay"]);
        let (bridged, routed) = (&written["overlay"]["vxlan"], &routed["overlay"]["vxlan"]);
        let both: BTreeSet<&str> = keys(bridged).union(&keys(routed)).copied().collect();
        assert_eq!(both, VxlanConfig::KEYS.iter().copied().collect());
    }

    /// A listing can be attached again, with the same meaning.
    #[test]
    fn every_default_is_filled_in_and_reads_back() {
        let toml = "[[attachment]]\nname = \"a\"\nnetns = \"a\"\ninterface = \"eth0\"\n";
        let attachment = Config::parse(toml).unwrap().attachments.remove(0);
        let config = attachment.config();
        let optional =
            ["uplink", "addresses", "vlan", "pcp", "vhost_socket", "vhost_queues", "receive_period"];
        let value = serde_json::to_value(&config).unwrap();
        let missing = AttachmentConfig::KEYS.iter().filter(|key| value.get(key).is_none());
        assert!(missing.eq(optional.iter()), "{value}");
        assert_eq!((&value["horizon"], &value["overrun_limit"]), (&"10s".into(), &"100ms".into()));
        assert_eq!((&value["take"], &value["overlay"]), (&"txtime".into(), &"none".into()));
        let again =
            Attachment::check("attachment", AttachmentConfig::parse("a", &config.json()).unwrap()).unwrap();
        assert_eq!(again.config(), config);
    }
}
