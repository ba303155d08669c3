// SPDX-License-Identifier: BSD-2-Clause
//! Frames to a backend that sends each back (testpmd in io mode), and the rate.
//!
//! In: the backend's socket, and perhaps counts. Out: one JSON line: frames sent and received, those lost, frames/s. Exit status 1
//! when a frame is lost, changed or out of order.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ktsn_virtio_net::{Options, connect};

/// Frames under way at most.
const WINDOW: u64 = 96;
/// After so long without a frame the rest is lost.
const SILENCE: Duration = Duration::from_secs(5);
/// Where the sequence number lies: behind the Ethernet header.
const SEQUENCE: std::ops::Range<usize> = 14..22;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: echo SOCKET [FRAMES] [OCTETS] [SECONDS]";
    let socket = PathBuf::from(arguments.next().expect(usage));
    let mut number = |default: u64| arguments.next().map_or(default, |text| text.parse().expect(usage));
    let (frames, octets, seconds) = (number(20_000), number(60) as usize, number(30));
    let mut link = connect(&socket, &Options::default()).unwrap_or_else(|error| panic!("{error}"));
    let mut frame = vec![0x5a; octets];
    frame[..12].copy_from_slice(&[0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]); // IEEE 802, local experimental
    let (mut sent, mut received, mut wrong) = (0_u64, 0_u64, 0_u64);
    let began = Instant::now();
    let (until, mut heard, mut turns) = (began + Duration::from_secs(seconds), began, 0_u32);
    let mut limit = frames;
    while received < sent || sent < limit {
        // A clock is read rarely: it costs as much as a frame.
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(1024) {
            let now = Instant::now();
            if now > until {
                limit = sent; // what is under way may still come
            }
            if now.duration_since(heard) > SILENCE {
                break;
            }
        }
        while sent < limit && sent - received < WINDOW {
            frame[SEQUENCE].copy_from_slice(&sent.to_be_bytes());
            if link.send(0, &frame).is_err() {
                break;
            }
            sent += 1;
        }
        let before = received;
        let taken = link.receive(0, &mut |echo| {
            let is_next = echo.len() == octets && echo[SEQUENCE] == received.to_be_bytes();
            wrong += u64::from(!is_next);
            received += 1;
        });
        taken.unwrap_or_else(|error| panic!("{error}"));
        if turns.is_multiple_of(1024) && received > before {
            heard = Instant::now();
        }
    }
    let took = began.elapsed();
    let lost = sent - received;
    let rate = (received as f64 / took.as_secs_f64()) as u64;
    println!(
        "{{\"sent\":{sent},\"received\":{received},\"lost\":{lost},\"wrong\":{wrong},\"octets\":{octets},\"frames_per_s\":{rate}}}"
    );
    std::process::exit(i32::from(lost > 0 || wrong > 0 || received == 0));
}
