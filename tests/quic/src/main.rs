// SPDX-License-Identifier: Apache-2.0
//! A QUIC server and client on tokio-quiche, with its own pacing: GSO and SO_TXTIME.
//!
//! In: `server CERT KEY OCTETS` or `client`, both then ADDRESS:PORT. Out: `ready`, and what the client was sent. Nothing here
//! knows of KTSN.

use std::sync::Arc;

use futures::{SinkExt as _, StreamExt as _};
use tokio::net::UdpSocket;
use tokio_quiche::http3::driver::{
    ClientH3Event, H3Event, InboundFrame, IncomingH3Headers, NewClientRequest, OutboundFrame, ServerH3Event,
};
use tokio_quiche::http3::settings::Http3Settings;
use tokio_quiche::metrics::DefaultMetrics;
use tokio_quiche::quic::SimpleConnectionIdGenerator;
use tokio_quiche::quiche::h3::Header;
use tokio_quiche::settings::{CertificateKind, Hooks, QuicSettings, TlsCertificatePaths};
use tokio_quiche::socket::{QuicListener, SocketCapabilitiesBuilder};
use tokio_quiche::{ConnectionParams, QuicResult, ServerH3Driver, listen_with_capabilities};

async fn answer(headers: IncomingH3Headers, octets: usize) {
    let mut send = headers.send;
    let _ = send.send(OutboundFrame::Headers(vec![Header::new(b":status", b"200")], None)).await;
    let mut left = octets;
    while left > 0 {
        let part = left.min(16_384);
        left -= part;
        if send.send(OutboundFrame::Body(vec![b'q'; part].into(), left == 0)).await.is_err() {
            return;
        }
    }
}

async fn server(address: &str, cert: &str, key: &str, octets: usize) -> QuicResult<()> {
    let socket = UdpSocket::bind(address).await?;
    let mut builder = SocketCapabilitiesBuilder::new(&socket);
    builder.gso()?;
    builder.txtime()?;
    let capabilities = builder.finish();
    let listener =
        QuicListener { socket, cid_generator: Arc::new(SimpleConnectionIdGenerator), capabilities };
    let tls = TlsCertificatePaths { cert, private_key: key, kind: CertificateKind::X509 };
    let mut settings = QuicSettings::default();
    settings.enable_pacing = true;
    let params = ConnectionParams::new_server(settings, tls, Hooks::default());
    let mut listeners = listen_with_capabilities([listener], params, DefaultMetrics)?;
    println!("ready");
    while let Some(connection) = listeners[0].next().await {
        let (driver, mut controller) = ServerH3Driver::new(Http3Settings::default());
        connection?.start(driver);
        tokio::spawn(async move {
            while let Some(event) = controller.event_receiver_mut().recv().await {
                if let ServerH3Event::Headers { incoming_headers, .. } = event {
                    tokio::spawn(answer(incoming_headers, octets));
                }
            }
        });
    }
    Ok(())
}

async fn client(address: &str) -> QuicResult<()> {
    let socket = UdpSocket::bind("0.0.0.0:0").await?;
    socket.connect(address).await?;
    let (_connection, mut controller) = tokio_quiche::quic::connect(socket, Some("localhost")).await?;
    let header = |name: &str, value: &str| Header::new(name.as_bytes(), value.as_bytes());
    let headers = vec![
        header(":method", "GET"),
        header(":scheme", "https"),
        header(":authority", "localhost"),
        header(":path", "/"),
    ];
    let request = NewClientRequest { request_id: 0, headers, body_writer: None };
    if controller.request_sender().send(request).is_err() {
        return Err("no request".into());
    }
    let mut octets = 0;
    while let Some(event) = controller.event_receiver_mut().recv().await {
        if let ClientH3Event::Core(H3Event::IncomingHeaders(mut answer)) = event {
            while let Some(InboundFrame::Body(part, is_last)) = answer.recv.recv().await {
                assert!(part.iter().all(|octet| *octet == b'q'), "the answer is not what was sent");
                octets += part.len();
                if is_last {
                    break;
                }
            }
            println!("octets {octets}");
            return Ok(());
        }
    }
    Err("the connection ended".into())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> QuicResult<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let all: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    match all[..] {
        ["server", cert, key, octets, address] => server(address, cert, key, octets.parse()?).await,
        ["client", address] => client(address).await,
        _ => Err("server CERT KEY OCTETS ADDRESS:PORT | client ADDRESS:PORT".into()),
    }
}
