// SPDX-License-Identifier: Apache-2.0
//! The thread that answers scrapes.
//!
//! In: connections to `metrics_listen`. Out: one answer for each, then the connection ends. Whatever clients do is bounded: so
//! many connections at once, so long each, requests of so many octets, and one request to the node a second. hyper reads the
//! requests. Beyond a limit the connection is closed.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Semaphore, mpsc, oneshot};
use tracing::{debug, warn};

use super::snapshot::Snapshot;
use super::text::render;
use crate::node::NodeRequest;

/// The name of the thread.
const THREAD: &str = "ktsn-metrics";
/// Connections at once; one more is closed.
const CONNECTIONS_MAX: usize = 16;
/// A request must be whole after this span.
const REQUEST_WITHIN: Duration = Duration::from_secs(2);
/// A connection is closed after this span.
const CONNECTION_WITHIN: Duration = Duration::from_secs(10);
/// The longest head of a request, octets.
const HEAD_MAX: usize = 8192;
/// The most lines of that head.
const HEADERS_MAX: usize = 64;
/// The node answers within this span, or counts as not answering.
const NODE_WITHIN: Duration = Duration::from_secs(2);
/// The node is asked once in this span.
const KEPT_FOR: Duration = Duration::from_secs(1);
/// After an accept that failed (no descriptors left) the next one waits.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// A port in use is tried again after this span.
const BIND_AGAIN: Duration = Duration::from_millis(5);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// The running server. It ends with this value.
#[derive(Debug)]
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// What all connections share.
struct Answers {
    node: mpsc::Sender<NodeRequest>,
    kept: Mutex<Option<(Instant, Bytes)>>,
}

impl Server {
    /// Opens the port. It is the kernel's work alone to take connections from here on.
    ///
    /// # Errors
    /// The kernel's, with the field, the address and what to do.
    pub fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
        let listener = TcpListener::bind(address).map_err(|error| BindError { address, error })?;
        listener.set_nonblocking(true).map_err(|error| BindError { address, error })?;
        Ok(listener)
    }

    /// As [`Self::bind`], but a port that is in use is tried again for `patience`: the kernel may close it a moment after the lock of
    /// a ktsnd that was killed.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub(crate) async fn bind_within(
        address: SocketAddr,
        patience: Duration,
    ) -> Result<TcpListener, BindError> {
        let until = Instant::now() + patience;
        loop {
            match Self::bind(address) {
                Err(fault) if fault.error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                    tokio::time::sleep(BIND_AGAIN).await;
                }
                answer => return answer,
            }
        }
    }

    /// Answers at `listener` from now on, on a thread of its own.
    ///
    /// # Errors
    /// No thread.
    pub fn start(listener: TcpListener, node: mpsc::Sender<NodeRequest>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread =
            std::thread::Builder::new().name(THREAD.into()).stack_size(512 << 10).spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = serve(listener, node) => {}
                        _ = stopped => {}
                    }
                });
                // What is still open is closed with the runtime, without waiting.
                runtime.shutdown_background();
            })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The port of `metrics_listen` cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("daemon.metrics_listen: {address}: {error}; {}", self.remedy())]
pub struct BindError {
    address: SocketAddr,
    error: io::Error,
}

impl BindError {
    fn remedy(&self) -> String {
        match self.error.kind() {
            io::ErrorKind::AddrInUse => format!(
                "another program has this port (ss -ltnp 'sport = :{}' names it); choose another port or end that program",
                self.address.port()
            ),
            io::ErrorKind::AddrNotAvailable => {
                "this machine has no such address; choose one of `ip address`, or a port alone for loopback"
                    .to_owned()
            }
            _ => "choose another address".to_owned(),
        }
    }
}

async fn serve(listener: TcpListener, node: mpsc::Sender<NodeRequest>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return warn!(%error, "metrics are not served"),
    };
    let answers = Arc::new(Answers { node, kept: Mutex::new(None) });
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                debug!(%error, "metrics: accept");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let answers = answers.clone();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(CONNECTION_WITHIN, connection(stream, answers)).await;
            drop(place);
        });
    }
}

async fn connection(stream: TcpStream, answers: Arc<Answers>) {
    let service = service_fn(move |request| {
        let answers = answers.clone();
        async move { Ok::<_, Infallible>(answers.answer(&request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_WITHIN)
        .max_buf_size(HEAD_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        debug!(%error, "metrics: a connection");
    }
}

impl Answers {
    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        match (request.uri().path(), is_read) {
            ("/metrics", true) => response(StatusCode::OK, OPEN_METRICS, self.text().await),
            ("/metrics", false) => {
                let mut refused = response(
                    StatusCode::METHOD_NOT_ALLOWED,
                    PLAIN,
                    Bytes::from_static(b"only GET and HEAD\n"),
                );
                refused.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
                refused
            }
            _ => response(StatusCode::NOT_FOUND, PLAIN, Bytes::from_static(b"ktsnd serves /metrics here\n")),
        }
    }

    /// The text of this moment, or of less than [`KEPT_FOR`] ago. Scrapes that come meanwhile wait for the same text.
    async fn text(&self) -> Bytes {
        let mut kept = self.kept.lock().await;
        if let Some((at, text)) = &*kept
            && at.elapsed() < KEPT_FOR
        {
            return text.clone();
        }
        let asked = Instant::now();
        let text = Bytes::from(render(self.ask().await));
        *kept = Some((asked, text.clone()));
        text
    }

    async fn ask(&self) -> Option<Snapshot> {
        let (reply, answer) = oneshot::channel();
        let ask = async {
            self.node.send(NodeRequest::Metrics(reply)).await.ok()?;
            answer.await.ok().map(|snapshot| *snapshot)
        };
        tokio::time::timeout(NODE_WITHIN, ask).await.ok().flatten()
    }
}

fn response(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
