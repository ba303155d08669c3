// SPDX-License-Identifier: Apache-2.0
//! Scrapes over real connections, of a node that the tests play.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::*;
use ktsn_eventually::eventually;

/// A server at a free port, and how often it has asked its node. Without `answers` the node says nothing.
fn server(answers: bool) -> (Server, SocketAddr, Arc<AtomicUsize>) {
    let listener = Server::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let (node, mut requests) = mpsc::channel(64);
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    std::thread::spawn(move || {
        let mut unanswered = Vec::new();
        while let Some(NodeRequest::Metrics(reply)) = requests.blocking_recv() {
            counter.fetch_add(1, SeqCst);
            if answers {
                let _ = reply.send(Box::default());
            } else {
                unanswered.push(reply);
            }
        }
    });
    (Server::start(listener, node).unwrap(), address, asked)
}

fn connect(address: SocketAddr) -> std::net::TcpStream {
    let stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// What the server answers to these octets until it closes.
fn answer(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(address);
    // The server may close before all was written.
    let _ = stream.write_all(request);
    let mut octets = Vec::new();
    let _ = stream.read_to_end(&mut octets);
    String::from_utf8_lossy(&octets).into_owned()
}

#[test]
fn a_scrape_is_answered_and_the_connection_ends() {
    let (_server, address, asked) = server(true);
    let text = answer(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(
        text.to_lowercase().contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{text}"
    );
    assert!(text.contains("\nktsn_up 1.0\n") && text.ends_with("# EOF\n"), "{text}");
    let head = answer(address, b"HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.0 200") && head.ends_with("\r\n\r\n"), "{head}");
    assert_eq!(asked.load(SeqCst), 1, "an answer holds for a second");
}

#[test]
fn other_requests_are_refused() {
    let (_server, address, asked) = server(true);
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
        ("GET /metrics/../x HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n", "405"),
        ("nonsense\r\n\r\n", "400"),
        ("\u{16}\u{3}\u{1}\u{2}\r\n\r\n", "400"),
    ] {
        let text = answer(address, request.as_bytes());
        assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {text}");
    }
    let long = format!("GET /metrics HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(4 * HEAD_MAX));
    assert!(answer(address, long.as_bytes()).starts_with("HTTP/1.1 431"));
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(2 * HEADERS_MAX));
    assert!(answer(address, many.as_bytes()).starts_with("HTTP/1.1 431"));
    assert_eq!(asked.load(SeqCst), 0, "none of these reaches the node");
}

/// Connections beyond the limit are closed at once; those that send nothing are closed after a while, and make room.
#[test]
fn silent_connections_are_bounded_and_end() {
    let (_server, address, _) = server(true);
    let mut silent: Vec<_> = (0..CONNECTIONS_MAX).map(|_| connect(address)).collect();
    for stream in &mut silent {
        // The server has taken it.
        stream.write_all(b"GET /met").unwrap();
    }
    // Until the last of the silent ones is taken there may still be room.
    let is_refused = || answer(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").is_empty();
    eventually("a connection is refused", Duration::from_secs(20), is_refused);
    for stream in &mut silent {
        let mut octets = Vec::new();
        let _ = stream.read_to_end(&mut octets);
    }
    let text = answer(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(text.contains("ktsn_up 1.0"), "{text}");
}

/// A client that ends its half at once, or never reads, harms no other one.
#[test]
fn clients_that_do_not_read_hold_nothing_up() {
    let (_server, address, _) = server(true);
    let mut deaf = Vec::new();
    for _ in 0..CONNECTIONS_MAX / 2 {
        let mut stream = connect(address);
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        deaf.push(stream);
    }
    let half = connect(address);
    half.shutdown(Shutdown::Write).unwrap();
    assert!(answer(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").contains("ktsn_up 1.0"));
}

#[test]
fn a_node_that_does_not_answer_is_shown_as_down() {
    let (server, address, asked) = server(false);
    let text = answer(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(text.contains("ktsn_up 0.0") && !text.contains("ktsn_up 1.0"), "{text}");
    assert_eq!(asked.load(SeqCst), 1);
    drop(server);
    assert!(std::net::TcpStream::connect(address).is_err(), "the server has ended");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let listener = Server::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let fault = Server::bind(address).unwrap_err().to_string();
    assert!(
        fault.starts_with(&format!("daemon.metrics_listen: {address}: Address already in use")),
        "{fault}"
    );
    assert!(fault.contains("choose another port"), "{fault}");
    let foreign = "192.0.2.1:9190".parse().unwrap();
    let fault = Server::bind(foreign).unwrap_err().to_string();
    assert!(fault.contains("this machine has no such address"), "{fault}");
}
