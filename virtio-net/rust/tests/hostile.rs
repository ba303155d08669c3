// SPDX-License-Identifier: BSD-2-Clause
//! A backend that lies, goes silent or closes at each message: a typed error each time, after a bounded wait, and nothing held.

mod backend;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use backend::{Backend, LIES, Lie, PROTOCOL_FEATURES, VERSION_1};
use ktsn_virtio_net::{Link, OpenError, Options};

/// What the front end gets from a backend that `make` has prepared, and how many messages that backend had read.
fn opened(
    options: &Options,
    make: impl FnOnce(&mut Backend) + Send + 'static,
) -> (Result<Link, OpenError>, usize) {
    let (near, far) = UnixStream::pair().expect("sockets");
    let thread = thread::spawn(move || {
        let mut backend = Backend::new(far);
        make(&mut backend);
        backend.negotiate();
        backend.messages
    });
    let link = Link::open(near, options);
    // Negotiated, or closed by now: either ends the backend.
    (link, thread.join().expect("backend"))
}

fn options(queues: u16, limit_ms: u64) -> Options {
    Options { queues, limit: Duration::from_millis(limit_ms), ..Options::default() }
}

/// One test at a time: the first counts the files that this process has open.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Files that this process has open.
fn files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

#[test]
fn each_lie_at_each_message_is_a_typed_error_and_leaves_nothing_open() {
    let _turn = turn();
    let (link, messages) = opened(&options(2, 20_000), |_| ());
    link.expect("an honest backend");
    assert!(messages > 25, "{messages}");
    let before = files();
    for at in 0..messages {
        for lie in LIES {
            // These two end with the limit only; everything else is to end by itself.
            let is_silent = matches!(lie, Lie::Silence | Lie::NoSize);
            let limit = if is_silent { 50 } else { 20_000 };
            let (link, _) = opened(&options(2, limit), move |backend| backend.lie = Some((at, lie)));
            // A refusal is the value 1, which is an answer where a number is asked for.
            if lie == Lie::Refusal && link.is_ok() {
                continue;
            }
            let error = link.err().unwrap_or_else(|| panic!("{lie:?} at message {at} was not seen"));
            let is_right = match lie {
                Lie::Silence => matches!(error, OpenError::Timeout { .. }),
                Lie::Close => matches!(error, OpenError::Closed { .. } | OpenError::Os { .. }),
                _ => is_silent || !matches!(error, OpenError::Timeout { .. }),
            };
            assert!(is_right, "{lie:?} at message {at}: {error:?}");
        }
    }
    assert_eq!(files(), before);
}

#[test]
fn features_and_queues_that_do_not_fit_are_named() {
    let _turn = turn();
    let (link, _) = opened(&options(1, 20_000), |backend| backend.features = PROTOCOL_FEATURES);
    assert_eq!(link.err(), Some(OpenError::Features { offered: PROTOCOL_FEATURES }));
    // Everything at once: what is not known is not accepted.
    let (near, far) = UnixStream::pair().expect("sockets");
    let thread = thread::spawn(move || {
        let mut backend = Backend::new(far);
        backend.features = u64::MAX;
        assert!(backend.negotiate());
        backend.accepted
    });
    Link::open(near, &options(1, 20_000)).expect("a link");
    assert_eq!(thread.join().expect("backend"), VERSION_1 | PROTOCOL_FEATURES);
    // A backend without protocol features has its rings on at once, and one pair.
    let (link, _) = opened(&options(1, 20_000), |backend| backend.features = VERSION_1);
    link.expect("a link");
    let (link, _) = opened(&options(2, 20_000), |backend| backend.features = VERSION_1);
    assert_eq!(link.err(), Some(OpenError::Queues { asked: 2, offered: 1 }));
    // The answer to GET_QUEUE_NUM counts pairs, as QEMU takes it.
    for (pairs_count, fits) in
        [(0, false), (1, false), (2, true), (4, true), (0x8000, true), (u64::MAX, false)]
    {
        let (link, _) = opened(&options(2, 20_000), move |backend| backend.pairs_count = pairs_count);
        assert_eq!(link.is_ok(), fits, "{pairs_count}: {link:?}");
    }
    // A backend that counts rings: its rings are too few, and it says so.
    let (link, _) =
        opened(&options(2, 20_000), |backend| (backend.pairs_count, backend.rings_count) = (2, 2));
    assert_eq!(link.err(), Some(OpenError::Refused { step: "SET_VRING_NUM" }));
}

/// Bytes without any sense, at once or drop by drop.
#[test]
fn random_answers_end_with_an_error_within_the_limit() {
    let _turn = turn();
    let mut state = 0x9e37_79b9_u32;
    for round in 0..200_usize {
        let (near, mut far) = UnixStream::pair().expect("sockets");
        let octets: Vec<u8> = (0..round * 3)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        let thread = thread::spawn(move || {
            let _gone = far.write_all(&octets);
            // It reads on, and says no more.
            let mut sink = Vec::new();
            let _gone = far.read_to_end(&mut sink);
        });
        assert!(Link::open(near, &options(1, 30)).is_err(), "round {round}");
        thread.join().expect("backend");
    }
}
