// SPDX-License-Identifier: Apache-2.0
//! The talker of a traced listener: numbered datagrams on a grid of one millisecond, then perhaps one more.

use std::net::UdpSocket;
use std::sync::mpsc::{Receiver, Sender as Orders, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// In the number of the last datagram before the call.
const IS_LAST: u64 = 1 << 63;
/// The number of the datagram that is the call's.
pub(crate) const LAST: u64 = 4711;
const PERIOD: Duration = Duration::from_millis(1);
/// A call that was not stopped is freed by a datagram after so many periods.
const FREED_AFTER: u32 = 3;

/// What follows the numbers of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follows {
    /// Nothing, unless the call is not stopped.
    Nothing,
    /// A datagram, one period later.
    Datagram,
}

/// What becomes of the datagram that frees a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freeing {
    Pending,
    Sent,
    Cancelled,
}

struct Order {
    port: u16,
    numbers: u64,
    follows: Follows,
    done: Orders<()>,
}

/// The talker's thread.
pub(crate) struct Sender {
    orders: Option<Orders<Order>>,
    freeing: Arc<Mutex<Freeing>>,
    done: Option<Receiver<()>>,
    socket: UdpSocket,
    port: u16,
    thread: Option<JoinHandle<()>>,
}

fn send(socket: &UdpSocket, port: u16, number: u64) {
    socket.send_to(&number.to_ne_bytes(), ("127.0.0.1", port)).expect("a datagram");
}

impl Sender {
    pub(crate) fn start() -> Self {
        let (orders, received) = channel::<Order>();
        let freeing = Arc::new(Mutex::new(Freeing::Cancelled));
        let shared = Arc::clone(&freeing);
        let thread = std::thread::spawn(move || {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            let begin = Instant::now();
            for order in received {
                serve(&socket, begin, &order, &shared);
            }
        });
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        Self { orders: Some(orders), freeing, done: None, socket, port: 0, thread: Some(thread) }
    }

    /// Begins a round with so many datagrams before the call.
    pub(crate) fn begin(&mut self, port: u16, numbers: u64, follows: Follows) {
        let (done, is_done) = channel();
        *self.freeing.lock().unwrap_or_else(PoisonError::into_inner) = Freeing::Pending;
        (self.done, self.port) = (Some(is_done), port);
        let order = Order { port, numbers, follows, done };
        self.orders.as_ref().expect("it runs").send(order).expect("it runs");
    }

    /// The call was stopped: no datagram frees it. Whether none has.
    pub(crate) fn cancel(&self) -> bool {
        let mut freeing = self.freeing.lock().unwrap_or_else(PoisonError::into_inner);
        if *freeing == Freeing::Pending {
            *freeing = Freeing::Cancelled;
        }
        *freeing == Freeing::Cancelled
    }

    /// Sends the call's datagram now.
    pub(crate) fn free(&self) {
        send(&self.socket, self.port, LAST);
    }

    /// Waits for the end of a round: everything is sent.
    pub(crate) fn finish(&mut self) {
        if let Some(done) = self.done.take() {
            done.recv().expect("it runs");
        }
    }
}

/// One round, on the grid that all rounds share.
fn serve(socket: &UdpSocket, begin: Instant, order: &Order, freeing: &Mutex<Freeing>) {
    let next = |begin: Instant| {
        let passed = u32::try_from(begin.elapsed().as_millis()).expect("a short test") + 1;
        std::thread::sleep((begin + PERIOD * passed).saturating_duration_since(Instant::now()));
    };
    for number in 0..order.numbers {
        next(begin);
        let is_last = number + 1 == order.numbers;
        send(socket, order.port, if is_last { number | IS_LAST } else { number });
    }
    let periods = if order.follows == Follows::Datagram { 1 } else { FREED_AFTER };
    for _ in 0..periods {
        next(begin);
        if *freeing.lock().unwrap_or_else(PoisonError::into_inner) == Freeing::Cancelled
            && order.follows == Follows::Nothing
        {
            break;
        }
    }
    let mut state = freeing.lock().unwrap_or_else(PoisonError::into_inner);
    if order.follows == Follows::Datagram || *state == Freeing::Pending {
        send(socket, order.port, LAST);
        *state = Freeing::Sent;
    }
    drop(state);
    let _ = order.done.send(());
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
