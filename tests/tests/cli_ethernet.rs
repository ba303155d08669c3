// SPDX-License-Identifier: Apache-2.0
//! Ethernet talkers under plain `ktsn run --with-daemon IFACE`, as users start them: every EtherType, unicast, multicast,
//! broadcast, tagged or not, whole frames and payloads. The sockets and messages are Python's own.

#[allow(dead_code)]
use ktsn_tests::cli::{err, inside, out};

/// Sends 20 frames of each kind, 3 ms ahead; says what `sendmsg` returned for them in all.
const TALKER: &str = r#"
import socket, struct, sys, time
TAI, TXTIME = 11, 61
def timed(kind):
    s = socket.socket(socket.AF_PACKET, kind, 0)
    s.bind(("va", 0))
    s.setsockopt(socket.SOL_SOCKET, TXTIME, struct.pack("iI", TAI, 0))
    return s
raw, payload = timed(socket.SOCK_RAW), timed(socket.SOCK_DGRAM)
own = raw.getsockname()[4]
def ip(last):
    head = bytearray(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 0, 0, 64, 17, 0, bytes([192, 0, 2, 1]), bytes([192, 0, 2, last])))
    total = sum(struct.unpack("!10H", head))
    while total >> 16: total = (total & 0xffff) + (total >> 16)
    head[10:12] = struct.pack("!H", ~total & 0xffff)
    return bytes(head) + struct.pack("!HHHH", 4000, 4000, 8, 0)
arp = struct.pack("!HHBBH6s4s6s4s", 1, 0x800, 6, 4, 1, own, bytes([192, 0, 2, 1]), bytes(6), bytes([192, 0, 2, 2]))
tag = struct.pack("!HH", 0x8100, 0xc007)
peer, group, every = bytes.fromhex("020000000002"), bytes.fromhex("91e0f0000e80"), b"\xff" * 6
kinds = {
    "avtp": [(peer, b"", 0x22f0, b"x" * 50), (group, tag, 0x22f0, b"x" * 50)],
    "profinet": [(peer, tag, 0x8892, b"x" * 40), (every, b"", 0x8892, b"x" * 40)],
    "ip": [(peer, b"", 0x800, ip(2)), (peer, tag, 0x800, ip(3)), (every, b"", 0x806, arp)],
    "reserved": [(bytes.fromhex("0180c200000e"), b"", 0x88cc, b"x" * 40)],
}[sys.argv[1]]
sent = 0
for _ in range(20):
    for to, tagged, kind, rest in kinds:
        at = [(socket.SOL_SOCKET, TXTIME, struct.pack("Q", time.clock_gettime_ns(TAI) + 3_000_000))]
        kind = struct.pack("!H", kind)
        sent += raw.sendmsg([to + own + tagged + kind + rest], at) > 0
        if not tagged:
            sent += payload.sendmsg([rest], at, 0, ("va", struct.unpack("!H", kind)[0], 0, 0, to)) > 0
    time.sleep(0.002)
print(sent)
"#;

/// How many frames were sent, and the counters of ktsnd's only attachment.
fn talk(attach: &str, kind: &str) -> (u64, serde_json::Value) {
    let script = "sent=$(python3 -c \"$TALKER\" $KIND) && echo $sent && python3 -c \"$COUNTED\" $sent";
    let mut command = inside(&["run", "--with-daemon", attach, "--", "sh", "-c", script]);
    let output = command.env("TALKER", TALKER).env("KIND", kind).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let text = out(&output);
    let (sent, status) = text.split_once('\n').unwrap();
    let status: serde_json::Value = serde_json::from_str(status).unwrap_or_else(|e| panic!("{e}: {text}"));
    (sent.parse().unwrap(), status["statistics"]["attachments"][0].clone())
}

/// On a busy machine a frame may be too late to be sent; none goes another way.
fn all_taken(attach: &str, kind: &str) {
    let (sent, of) = talk(attach, kind);
    let count = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    assert!(sent > 0);
    assert_eq!(count(&of["taken"]), sent, "{attach} {kind}: {of}");
    let late = count(&of["dropped"]["missed"]) + count(&of["dropped"]["overrun"]);
    assert_eq!(count(&of["sent"]) + late, sent, "{attach} {kind}: {of}");
    assert!(count(&of["sent"]) > 0, "{attach} {kind}: {of}");
}

fn none_taken(attach: &str, kind: &str) {
    let (sent, of) = talk(attach, kind);
    assert_eq!(of["taken"], 0, "{attach} {kind}: {of}");
    assert_eq!(of["bypassed"]["not_allowed"], sent, "{attach} {kind}: {of}");
}

#[test]
fn every_ether_type_is_served_by_default() {
    for kind in ["avtp", "profinet", "ip"] {
        all_taken("va", kind);
    }
    none_taken("va", "reserved");
}

/// A list of one kind neither opens nor closes the other.
#[test]
fn each_kind_has_its_list() {
    all_taken("va,destination=192.0.2.0/24", "avtp");
    all_taken("va,destination=192.0.2.0/24", "ip");
    none_taken("va,destination=198.51.100.0/24", "ip");
    all_taken("va,destination=02:00:00:00:00:77", "ip");
    none_taken("va,destination=02:00:00:00:00:77,ethernet=listed", "avtp");
    let both = "va,destination=02:00:00:00:00:02,destination=ff:ff:ff:ff:ff:ff,ethernet=listed";
    all_taken(both, "profinet");
    all_taken("va,destination=01:80:c2:00:00:0e", "reserved");
}
