// SPDX-License-Identifier: Apache-2.0
//! Rust's own library, an ordinary listener: periodic PORT [MILLISECONDS]. Datagrams are numbered from 0 on (32 bits, network order); an
//! empty one ends it. With a number of milliseconds its receive calls have that time limit.

use std::net::UdpSocket;
use std::time::Duration;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let port: u16 = arguments.next().and_then(|text| text.parse().ok()).expect("a port");
    let limit: Option<u64> = arguments.next().and_then(|text| text.parse().ok());
    let socket = UdpSocket::bind(("0.0.0.0", port))?;
    socket.set_read_timeout(limit.map(Duration::from_millis))?;
    let mut data = [0; 100];
    for count in 0_u32.. {
        let (octets, _) = socket.recv_from(&mut data)?;
        if octets == 0 {
            println!("received {count}");
            break;
        }
        let number = u32::from_be_bytes([data[0], data[1], data[2], data[3]]);
        if number != count {
            println!("out of order: {number} instead of {count}");
        }
    }
    Ok(())
}
