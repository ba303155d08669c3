// SPDX-License-Identifier: Apache-2.0
//! Every socket option that Linux has for UDP and packet sockets, with values, and every control message of sendmsg.
//!
//! In: nothing. Out: [`Case`]s, each a line for `octets_talker`, and who must send its datagrams. Numbers and names are those of
//! `linux/in.h`, `linux/in6.h`, `asm-generic/socket.h`, `linux/udp.h` and `linux/if_packet.h`.

/// Who sends the datagrams of a case under KTSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The daemon.
    Ktsn,
    /// The kernel, counted.
    Kernel,
    /// Whatever: the kernel refuses the option, or the send.
    Any,
}
use By::{Any, Kernel, Ktsn};

/// One line for the program.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) words: String,
    pub(super) by: By,
    /// Octets of identifications are compared: they are not counted.
    pub(super) has_exact_identifications: bool,
}

const IP: i32 = 0;
const SOCKET: i32 = 1;
const UDP: i32 = 17;
const IPV6: i32 = 41;
const PACKET: i32 = 263;

/// An option: level, number, name, its values as integers, who sends.
type Row = (i32, i32, &'static str, &'static [i32], By);

/// Options whose value is an `int`.
const INTEGERS: &[Row] = &[
    (IP, 1, "IP_TOS", &[0, 0x02, 0x10, 0xb8, 0xff], Ktsn),
    (IP, 2, "IP_TTL", &[1, 63, 255, -1], Ktsn),
    (IP, 3, "IP_HDRINCL", &[1], Any),
    (IP, 5, "IP_ROUTER_ALERT", &[1], Any),
    (IP, 6, "IP_RECVOPTS", &[1], Ktsn),
    (IP, 7, "IP_RETOPTS", &[1], Ktsn),
    (IP, 8, "IP_PKTINFO", &[1], Ktsn),
    (IP, 10, "IP_MTU_DISCOVER", &[0, 1, 2, 3, 4, 5], Ktsn),
    (IP, 11, "IP_RECVERR", &[1], Ktsn),
    (IP, 12, "IP_RECVTTL", &[1], Ktsn),
    (IP, 13, "IP_RECVTOS", &[1], Ktsn),
    (IP, 14, "IP_MTU", &[1400], Any),
    (IP, 15, "IP_FREEBIND", &[0, 1], Ktsn),
    (IP, 18, "IP_PASSSEC", &[1], Ktsn),
    (IP, 19, "IP_TRANSPARENT", &[0, 1], Ktsn),
    (IP, 20, "IP_RECVORIGDSTADDR", &[1], Ktsn),
    (IP, 21, "IP_MINTTL", &[5], Ktsn),
    (IP, 22, "IP_NODEFRAG", &[1], Any),
    (IP, 23, "IP_CHECKSUM", &[1], Ktsn),
    (IP, 24, "IP_BIND_ADDRESS_NO_PORT", &[1], Ktsn),
    (IP, 25, "IP_RECVFRAGSIZE", &[1], Ktsn),
    (IP, 26, "IP_RECVERR_RFC4884", &[1], Ktsn),
    (IP, 33, "IP_MULTICAST_TTL", &[1, 5, 255], Ktsn),
    (IP, 34, "IP_MULTICAST_LOOP", &[0, 1], Ktsn),
    (IP, 49, "IP_MULTICAST_ALL", &[0, 1], Ktsn),
    (IP, 51, "IP_LOCAL_PORT_RANGE", &[0x7530_2710], Ktsn),
    (IP, 52, "IP_PROTOCOL", &[1], Any),
    (IPV6, 1, "IPV6_ADDRFORM", &[2], Any),
    (IPV6, 2, "IPV6_2292PKTINFO", &[1], Ktsn),
    (IPV6, 3, "IPV6_2292HOPOPTS", &[1], Ktsn),
    (IPV6, 4, "IPV6_2292DSTOPTS", &[1], Ktsn),
    (IPV6, 5, "IPV6_2292RTHDR", &[1], Ktsn),
    (IPV6, 7, "IPV6_CHECKSUM", &[2], Any),
    (IPV6, 8, "IPV6_2292HOPLIMIT", &[1], Ktsn),
    (IPV6, 11, "IPV6_FLOWINFO", &[1], Ktsn),
    (IPV6, 16, "IPV6_UNICAST_HOPS", &[1, 33, 255, -1], Ktsn),
    (IPV6, 18, "IPV6_MULTICAST_HOPS", &[0, 1, 5, 255, -1], Ktsn),
    (IPV6, 19, "IPV6_MULTICAST_LOOP", &[0, 1], Ktsn),
    (IPV6, 22, "IPV6_ROUTER_ALERT", &[1], Any),
    (IPV6, 23, "IPV6_MTU_DISCOVER", &[0, 1, 2, 3, 4, 5], Ktsn),
    (IPV6, 24, "IPV6_MTU", &[1280, 1400], Kernel),
    (IPV6, 25, "IPV6_RECVERR", &[1], Ktsn),
    (IPV6, 26, "IPV6_V6ONLY", &[0, 1], Any),
    (IPV6, 29, "IPV6_MULTICAST_ALL", &[0, 1], Ktsn),
    (IPV6, 30, "IPV6_ROUTER_ALERT_ISOLATE", &[1], Any),
    (IPV6, 31, "IPV6_RECVERR_RFC4884", &[1], Ktsn),
    (IPV6, 33, "IPV6_FLOWINFO_SEND", &[1], Kernel),
    (IPV6, 36, "IPV6_HDRINCL", &[1], Any),
    (IPV6, 49, "IPV6_RECVPKTINFO", &[1], Ktsn),
    (IPV6, 51, "IPV6_RECVHOPLIMIT", &[1], Ktsn),
    (IPV6, 53, "IPV6_RECVHOPOPTS", &[1], Ktsn),
    (IPV6, 56, "IPV6_RECVRTHDR", &[1], Ktsn),
    (IPV6, 58, "IPV6_RECVDSTOPTS", &[1], Ktsn),
    (IPV6, 60, "IPV6_RECVPATHMTU", &[1], Ktsn),
    (IPV6, 62, "IPV6_DONTFRAG", &[0, 1], Ktsn),
    (IPV6, 66, "IPV6_RECVTCLASS", &[1], Ktsn),
    (IPV6, 67, "IPV6_TCLASS", &[0, 0x02, 0xb8, 0xff, -1], Ktsn),
    (IPV6, 70, "IPV6_AUTOFLOWLABEL", &[1], Ktsn),
    (IPV6, 70, "IPV6_AUTOFLOWLABEL", &[0], Kernel),
    (IPV6, 72, "IPV6_ADDR_PREFERENCES", &[0x0100, 0x0400], Ktsn),
    (IPV6, 72, "IPV6_ADDR_PREFERENCES", &[0x0001, 0x0002, 0x0004], Kernel),
    (IPV6, 73, "IPV6_MINHOPCOUNT", &[5], Ktsn),
    (IPV6, 74, "IPV6_ORIGDSTADDR", &[1], Ktsn),
    (IPV6, 75, "IPV6_TRANSPARENT", &[0, 1], Ktsn),
    (IPV6, 77, "IPV6_RECVFRAGSIZE", &[1], Ktsn),
    (IPV6, 78, "IPV6_FREEBIND", &[0, 1], Ktsn),
    (SOCKET, 1, "SO_DEBUG", &[1], Ktsn),
    (SOCKET, 2, "SO_REUSEADDR", &[1], Ktsn),
    (SOCKET, 5, "SO_DONTROUTE", &[1], Kernel),
    (SOCKET, 6, "SO_BROADCAST", &[0, 1], Ktsn),
    (SOCKET, 7, "SO_SNDBUF", &[20_000, 4_000_000], Ktsn),
    (SOCKET, 8, "SO_RCVBUF", &[20_000], Ktsn),
    (SOCKET, 9, "SO_KEEPALIVE", &[1], Ktsn),
    (SOCKET, 10, "SO_OOBINLINE", &[1], Ktsn),
    (SOCKET, 11, "SO_NO_CHECK", &[1], Kernel),
    (SOCKET, 12, "SO_PRIORITY", &[0, 3, 6, 7, 100], Ktsn),
    (SOCKET, 15, "SO_REUSEPORT", &[1], Ktsn),
    (SOCKET, 16, "SO_PASSCRED", &[1], Any),
    (SOCKET, 18, "SO_RCVLOWAT", &[5], Ktsn),
    (SOCKET, 29, "SO_TIMESTAMP", &[1], Ktsn),
    (SOCKET, 32, "SO_SNDBUFFORCE", &[4_000_000], Ktsn),
    (SOCKET, 33, "SO_RCVBUFFORCE", &[4_000_000], Ktsn),
    (SOCKET, 34, "SO_PASSSEC", &[1], Any),
    (SOCKET, 35, "SO_TIMESTAMPNS", &[1], Ktsn),
    (SOCKET, 36, "SO_MARK", &[0x77], Kernel),
    (SOCKET, 37, "SO_TIMESTAMPING", &[0, 0x10], Ktsn),
    (SOCKET, 40, "SO_RXQ_OVFL", &[1], Ktsn),
    (SOCKET, 41, "SO_WIFI_STATUS", &[1], Ktsn),
    (SOCKET, 42, "SO_PEEK_OFF", &[0], Any),
    (SOCKET, 44, "SO_LOCK_FILTER", &[1], Ktsn),
    (SOCKET, 45, "SO_SELECT_ERR_QUEUE", &[1], Ktsn),
    (SOCKET, 46, "SO_BUSY_POLL", &[50], Ktsn),
    (SOCKET, 47, "SO_MAX_PACING_RATE", &[1_000_000_000, -1], Ktsn),
    (SOCKET, 49, "SO_INCOMING_CPU", &[0], Ktsn),
    (SOCKET, 53, "SO_CNX_ADVICE", &[1], Ktsn),
    (SOCKET, 60, "SO_ZEROCOPY", &[1], Ktsn),
    (SOCKET, 62, "SO_BINDTOIFINDEX", &[0], Ktsn),
    (SOCKET, 69, "SO_PREFER_BUSY_POLL", &[1], Ktsn),
    (SOCKET, 70, "SO_BUSY_POLL_BUDGET", &[8], Ktsn),
    (SOCKET, 73, "SO_RESERVE_MEM", &[4096], Ktsn),
    (SOCKET, 74, "SO_TXREHASH", &[0, 1], Any),
    (SOCKET, 75, "SO_RCVMARK", &[1], Ktsn),
    (SOCKET, 76, "SO_PASSPIDFD", &[1], Any),
    (SOCKET, 82, "SO_RCVPRIORITY", &[1], Ktsn),
    (SOCKET, 83, "SO_PASSRIGHTS", &[1], Any),
    (UDP, 1, "UDP_CORK", &[0], Ktsn),
    (UDP, 101, "UDP_NO_CHECK6_TX", &[0], Ktsn),
    (UDP, 101, "UDP_NO_CHECK6_TX", &[1], Any),
    (UDP, 102, "UDP_NO_CHECK6_RX", &[1], Ktsn),
    (UDP, 103, "UDP_SEGMENT", &[0, 500], Ktsn),
    (UDP, 104, "UDP_GRO", &[1], Ktsn),
];

/// Options whose value is something else, in hexadecimal; 4: of sockets for IPv4, 6: for IPv6.
#[rustfmt::skip]
const OTHERS: &[(char, i32, i32, &str, &str, By)] = &[
    ('4', IP, 4, "IP_OPTIONS", "01010101", Kernel),
    ('4', IP, 4, "IP_OPTIONS", "", Ktsn),
    ('4', SOCKET, 25, "SO_BINDTODEVICE", "6574683000", Ktsn), // eth0
    ('6', SOCKET, 25, "SO_BINDTODEVICE", "6574683000", Ktsn),
    ('4', SOCKET, 13, "SO_LINGER", "0100000005000000", Ktsn),
    ('4', SOCKET, 67, "SO_SNDTIMEO_NEW", "01000000000000000000000000000000", Ktsn),
    ('4', SOCKET, 66, "SO_RCVTIMEO_NEW", "01000000000000000000000000000000", Ktsn),
    ('6', IPV6, 54, "IPV6_HOPOPTS", "0000010400000000", Kernel),
    ('6', IPV6, 59, "IPV6_DSTOPTS", "0000010400000000", Kernel),
    ('6', IPV6, 55, "IPV6_RTHDRDSTOPTS", "0000010400000000", Any),
    // A type 2 routing header (RFC 6275), by fd10:244::7.
    ('6', IPV6, 57, "IPV6_RTHDR", "000202010000000000fd100244000000000000000000000007", Any),
    // ancillary data that sticks: a hop-by-hop header
    ('6', IPV6, 6, "IPV6_2292PKTOPTIONS", "180000000000000029000000360000000000010400000000", Any),
];

/// A control message: socket's kind, level, type, name, values, who sends.
type Message = (char, i32, i32, &'static str, &'static [&'static str], By);

/// Control messages: socket's kind, level, type, name, values in hexadecimal, who sends.
#[rustfmt::skip]
const MESSAGES: &[Message] = &[
    ('4', IP, 1, "IP_TOS", &["00000000", "b8000000", "ff000000", "b8"], Ktsn),
    ('4', IP, 2, "IP_TTL", &["01000000", "21000000", "ff000000"], Ktsn),
    ('4', IP, 2, "IP_TTL", &["00000000", "00010000"], Any),
    ('4', IP, 8, "IP_PKTINFO", &["000000000000000000000000"], Ktsn),
    ('4', IP, 8, "IP_PKTINFO", &["000000000af4000500000000"], Ktsn), // 10.244.0.5, the pod's own
    ('4', IP, 7, "IP_RETOPTS", &["01010101"], Kernel),
    ('4', IP, 52, "IP_PROTOCOL", &["11000000"], Any),
    ('6', IPV6, 67, "IPV6_TCLASS", &["00000000", "b8000000", "ff000000"], Ktsn),
    ('6', IPV6, 67, "IPV6_TCLASS", &["ffffffff"], Kernel),
    ('6', IPV6, 52, "IPV6_HOPLIMIT", &["01000000", "21000000", "ff000000", "ffffffff"], Ktsn),
    ('6', IPV6, 50, "IPV6_PKTINFO", &["0000000000000000000000000000000000000000"], Ktsn),
    ('6', IPV6, 62, "IPV6_DONTFRAG", &["00000000", "01000000"], Kernel),
    ('6', IPV6, 11, "IPV6_FLOWINFO", &["00000000"], Kernel),
    ('6', IPV6, 54, "IPV6_HOPOPTS", &["0000010400000000"], Kernel),
    ('6', IPV6, 59, "IPV6_DSTOPTS", &["0000010400000000"], Kernel),
    ('6', IPV6, 8, "IPV6_2292HOPLIMIT", &["21000000"], Any),
    ('4', SOCKET, 36, "SO_MARK", &["77000000"], Kernel),
    ('4', SOCKET, 12, "SO_PRIORITY", &["00000000", "03000000"], Ktsn),
    ('6', SOCKET, 12, "SO_PRIORITY", &["06000000"], Ktsn),
    ('4', SOCKET, 37, "SO_TIMESTAMPING", &["00000000"], Ktsn),
    ('4', SOCKET, 1, "SCM_RIGHTS", &[""], Any),
    ('4', UDP, 103, "UDP_SEGMENT", &["f401"], Ktsn),
    ('6', UDP, 103, "UDP_SEGMENT", &["f401"], Ktsn),
    ('4', 99, 1, "an unknown level", &["00000000"], Any),
];

/// Options of packet sockets, with SOCK_RAW and with SOCK_DGRAM.
const PACKETS: &[Row] = &[
    (PACKET, 7, "PACKET_COPY_THRESH", &[2], Ktsn),
    (PACKET, 8, "PACKET_AUXDATA", &[1], Ktsn),
    (PACKET, 9, "PACKET_ORIGDEV", &[1], Ktsn),
    (PACKET, 10, "PACKET_VERSION", &[1, 2], Ktsn),
    (PACKET, 12, "PACKET_RESERVE", &[16], Ktsn),
    (PACKET, 14, "PACKET_LOSS", &[1], Kernel),
    (PACKET, 15, "PACKET_VNET_HDR", &[1], Any),
    (PACKET, 16, "PACKET_TX_TIMESTAMP", &[1], Any),
    (PACKET, 17, "PACKET_TIMESTAMP", &[0x10], Ktsn),
    (PACKET, 19, "PACKET_TX_HAS_OFF", &[1], Ktsn),
    (PACKET, 20, "PACKET_QDISC_BYPASS", &[1], Kernel),
    (PACKET, 23, "PACKET_IGNORE_OUTGOING", &[1], Ktsn),
    (PACKET, 24, "PACKET_VNET_HDR_SZ", &[10, 12], Any),
    (SOCKET, 5, "SO_DONTROUTE", &[1], Ktsn),
    (SOCKET, 6, "SO_BROADCAST", &[1], Ktsn),
    (SOCKET, 11, "SO_NO_CHECK", &[1], Ktsn),
    (SOCKET, 12, "SO_PRIORITY", &[0, 3, 7], Ktsn),
    (SOCKET, 36, "SO_MARK", &[0x77], Kernel),
    (SOCKET, 41, "SO_WIFI_STATUS", &[1], Ktsn),
    (SOCKET, 43, "SO_NOFCS", &[1], Any),
    (SOCKET, 60, "SO_ZEROCOPY", &[1], Ktsn),
];

/// Where datagrams go: socket's kind, destination. The second pod of the same host, the pod behind the tunnel, mapped addresses.
const UNICAST: [(&str, &str); 6] = [
    ("4", "10.244.0.6,7788"),
    ("4", "10.244.1.5,7788"),
    ("6", "::ffff:10.244.0.6,7788"),
    ("6", "::ffff:10.244.1.5,7788"),
    ("6", "fd10:244::6,7789"),
    ("6", "fd10:244:0:1::5,7789"),
];
const GROUPS: [(&str, &str); 2] = [("4", "239.1.2.3,7788"), ("6", "ff05::99,7789")];

fn hex(value: i32) -> String {
    value.to_le_bytes().iter().map(|octet| format!("{octet:02x}")).collect()
}

fn is_v6(to: &str) -> bool {
    to.contains(':') && !to.contains("ffff:")
}

/// All cases of UDP sockets.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, words: String, by, has_exact_identifications| {
        cases.push(Case { name, words, by, has_exact_identifications });
    };
    for (kind, to) in UNICAST {
        for connect in [0, 1] {
            add("no option".into(), format!("kind={kind} to={to} connect={connect}"), Ktsn, false);
        }
    }
    for &(level, number, name, values, by) in INTEGERS {
        for value in values {
            let groups = name.contains("MULTICAST").then_some(&GROUPS[..]);
            for &(kind, to) in groups.unwrap_or(&UNICAST) {
                let fits = match level {
                    IP => !is_v6(to),
                    IPV6 => is_v6(to),
                    _ => true,
                };
                // Odd cases of mapped destinations: the socket's IPv6 options mean nothing there.
                if !fits {
                    continue;
                }
                // A hop limit of 0 stays here; one of 1 does not pass a router.
                let ends = (name.ends_with("HOPS") && *value == 0)
                    || (matches!(name, "IP_TTL" | "IPV6_UNICAST_HOPS") && *value == 1 && to.contains('1'));
                for connect in [0, 1] {
                    let segment = number == 103 && level == UDP;
                    let size = if segment || name == "IPV6_MTU" { 1300 } else { 64 };
                    let words = format!(
                        "kind={kind} to={to} connect={connect} size={size} o={level}:{number}:{}",
                        hex(*value)
                    );
                    let is_exact = name == "IP_MTU_DISCOVER" && matches!(value, 2 | 3) && connect == 0;
                    let by = if ends { Any } else { by };
                    add(format!("{name}={value}"), words, by, is_exact);
                }
            }
        }
    }
    for &(family, level, number, name, value, by) in OTHERS {
        for (kind, to) in UNICAST.iter().filter(|(_, to)| is_v6(to) == (family == '6')) {
            let words = format!("kind={kind} to={to} o={level}:{number}:{value}");
            add(format!("{name}={value}"), words, by, false);
        }
    }
    for &(family, level, number, name, values, by) in MESSAGES {
        for value in values {
            let ends = (name.ends_with("HOPLIMIT") || name == "IP_TTL") && *value == "01000000";
            for (kind, to) in UNICAST.iter().filter(|(_, to)| is_v6(to) == (family == '6')) {
                let size = if level == UDP { 1300 } else { 64 };
                let words = format!("kind={kind} to={to} size={size} m={level}:{number}:{value}");
                add(format!("message {name}={value}"), words, if ends { Any } else { by }, false);
            }
        }
    }
    specials(&mut add);
    cases
}

/// Cases of several options, of addresses, and of one socket's change under way.
fn specials(add: &mut impl FnMut(String, String, By, bool)) {
    let to = "to=10.244.0.6,7788";
    let to6 = "to=fd10:244::6,7789";
    let over = "to=10.244.1.5,7788";
    #[rustfmt::skip]
    let list: &[(&str, String, By, bool)] = &[
        ("segments without counted identifications", format!("kind=4 {over} size=1300 o=0:10:02000000 o=17:103:f4010000"), Ktsn, true),
        ("the same by a message", format!("kind=4 {to} size=1300 o=0:10:03000000 m=17:103:f401"), Ktsn, true),
        ("a foreign source, IP_FREEBIND", format!("kind=4 {to} from=10.99.99.99 o=0:15:01000000"), Kernel, false),
        ("a foreign source, IP_TRANSPARENT", format!("kind=4 {over} from=10.99.99.99 o=0:19:01000000"), Kernel, false),
        ("a foreign source, IPV6_FREEBIND", format!("kind=6 {to6} from=fd99::9 o=41:78:01000000"), Kernel, false),
        ("a foreign source, connected", format!("kind=4 {to} connect=1 from=10.99.99.99 o=0:15:01000000"), Kernel, false),
        ("the pod's own source", format!("kind=4 {to} from=10.244.0.5"), Ktsn, false),
        ("the pod's own source, IPv6", format!("kind=6 {to6} from=fd10:244::5"), Ktsn, false),
        ("MSG_DONTROUTE", format!("kind=4 {to} flags=4"), Kernel, false),
        ("MSG_CONFIRM", format!("kind=4 {to} flags=0x800"), Ktsn, false),
        ("MSG_DONTWAIT and MSG_NOSIGNAL", format!("kind=4 {to} flags=0x4040"), Ktsn, false),
        ("MSG_MORE", format!("kind=4 {to} flags=0x8000"), Kernel, false),
        ("MSG_EOR", format!("kind=4 {to} flags=0x80"), Kernel, false),
        ("SO_BROADCAST to a broadcast address", "kind=4 to=10.244.0.255,7788 o=1:6:01000000".into(), Ktsn, false),
        ("a broadcast address without SO_BROADCAST", "kind=4 to=10.244.0.255,7788".into(), Any, false),
        ("options that change after connect", format!("kind=4 {over} connect=1 O=0:10:00000000 O=0:1:b8000000 O=0:2:09000000"), Ktsn, false),
        ("IP_MTU_DISCOVER back to the default", format!("kind=4 {over} o=0:10:02000000 o=0:10:01000000"), Ktsn, false),
        ("IP_MTU_DISCOVER=DO, connected for a while", format!("kind=4 {over} connect=1 o=0:10:02000000"), Ktsn, false),
        ("IPV6_AUTOFLOWLABEL there and back", format!("kind=6 {to6} o=41:70:00000000 o=41:70:01000000"), Kernel, false),
        // struct in6_flowlabel_req: fd10:244::6, label 0x12345, GET, ANY, CREATE
        ("a flow label of the program's", format!("kind=6 {to6},0,12345 o=41:32:fd1002440000000000000000000000060001234500ff01000000000000000000 o=41:33:01000000"), Kernel, false),
        ("a flow label that stays after connect", format!("kind=6 {to6},0,12345 connect=1 o=41:32:fd1002440000000000000000000000060001234600ff01000000000000000000 o=41:33:01000000 O=41:33:00000000"), Kernel, false),
        ("a flow label that no lease covers", format!("kind=6 {to6},0,54321 o=41:33:01000000"), Any, false),
        ("a flow label without IPV6_FLOWINFO_SEND", format!("kind=6 {to6},0,12345"), Ktsn, false),
        ("UDP_NO_CHECK6_TX", format!("kind=6 {to6} o=17:101:01000000"), Kernel, false),
        ("IP_MULTICAST_IF, the pod's address", "kind=4 to=239.1.2.3,7788 o=0:32:0af40005".into(), Ktsn, false),
        ("IP_UNICAST_IF, none", format!("kind=4 {to} o=0:50:00000000"), Ktsn, false),
        ("IPV6_UNICAST_IF, none", format!("kind=6 {to6} o=41:76:00000000"), Ktsn, false),
        ("two messages of a kind", format!("kind=4 {over} m=0:1:b8000000 m=0:1:10000000 m=0:2:09000000"), Ktsn, false),
        ("IP_TOS, then SO_PRIORITY", format!("kind=4 {over} o=0:1:b8000000 o=1:12:05000000"), Ktsn, false),
    ];
    for (name, words, by, is_exact) in list {
        add((*name).into(), words.clone(), *by, *is_exact);
    }
}

/// Cases that sysctls bear on. `labels`: IPV6_AUTOFLOWLABEL of a new socket.
pub(super) fn of_sysctls(labels: i32) -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, to) in UNICAST.iter().chain(&GROUPS) {
        for connect in [0, 1] {
            let mut add = |option: &str, by, has_exact_identifications| {
                let words = format!("kind={kind} to={to} connect={connect} {option}");
                cases.push(Case { name: option.to_owned(), words, by, has_exact_identifications });
            };
            add("", Ktsn, false);
            let is_v4 = !is_v6(to);
            for value in [64, 30, -1] {
                add(&format!("o={}:{}", if is_v4 { "0:2" } else { "41:16" }, hex(value)), Ktsn, false);
            }
            if is_v6(to) {
                for value in [0, 1] {
                    let by = if value == labels { Ktsn } else { Kernel };
                    add(&format!("o={IPV6}:70:{}", hex(value)), by, false);
                }
            } else {
                (0..6).for_each(|value| {
                    let is_exact = matches!(value, 2 | 3) && connect == 0;
                    add(&format!("o={IP}:10:{}", hex(value)), Ktsn, is_exact);
                });
            }
        }
    }
    cases
}

/// Cases of packet sockets. `header`: Ethernet, IP and UDP headers that stand before the payload, in hexadecimal.
pub(super) fn packets(header: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in ["raw", "dgram"] {
        let plain = [(0, 0, "no option", &[0][..], Ktsn)];
        for &(level, number, name, values, by) in plain.iter().chain(PACKETS) {
            for value in values {
                let option =
                    if level == 0 { String::new() } else { format!(" o={level}:{number}:{}", hex(*value)) };
                let words = format!("kind={kind} frame={header}{option}");
                cases.push(Case {
                    name: format!("{kind} {name}={value}"),
                    words,
                    by,
                    has_exact_identifications: true,
                });
            }
        }
    }
    cases
}
