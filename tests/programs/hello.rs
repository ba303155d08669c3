// SPDX-License-Identifier: Apache-2.0
//! Rust's own library: a TCP echo and a UDP echo on 127.0.0.1. Prints what came back.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};

fn main() -> std::io::Result<()> {
    let server = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(server.local_addr()?)?;
    client.write_all(b"hello by stream")?;
    client.shutdown(Shutdown::Write)?;
    let mut text = String::new();
    server.accept()?.0.read_to_string(&mut text)?;
    println!("{text}");
    let (echo, asker) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    asker.send_to(b"hello by datagram", echo.local_addr()?)?;
    let mut data = [0; 100];
    let (octets, from) = echo.recv_from(&mut data)?;
    echo.send_to(&data[..octets].to_ascii_uppercase(), from)?;
    let octets = asker.recv(&mut data)?;
    println!("{}", String::from_utf8_lossy(&data[..octets]));
    Ok(())
}
