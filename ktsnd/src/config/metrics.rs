// SPDX-License-Identifier: Apache-2.0
//! `metrics_listen` of `[daemon]`: where metrics are served.

use std::net::{Ipv4Addr, SocketAddr};

use super::ConfigError;
use super::values::Checked;

/// An address with a port, or a port alone: then it is one of 127.0.0.1. Another address than loopback has to be written down.
pub(super) fn listen(field: &str, text: Option<&str>) -> Checked<Option<SocketAddr>> {
    let Some(text) = text else { return Ok(None) };
    let port = text.strip_prefix(':').unwrap_or(text).parse().ok();
    let address =
        port.map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).or_else(|| text.parse().ok());
    let expected = "a port such as 9190, which is one of 127.0.0.1, or an address and a port such as 192.0.2.1:9190 or [::1]:9190";
    let address = address.filter(|address| address.port() > 0);
    address.map(Some).ok_or_else(|| ConfigError::value(field, text, expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_on_loopback() {
        for (text, address) in [
            ("9190", "127.0.0.1:9190"),
            (":9190", "127.0.0.1:9190"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("[::1]:65535", "[::1]:65535"),
            ("192.0.2.1:80", "192.0.2.1:80"),
        ] {
            assert_eq!(listen("f", Some(text)), Ok(Some(address.parse().unwrap())), "{text}");
        }
        assert_eq!(listen("f", None), Ok(None));
    }

    #[test]
    fn what_is_no_address_is_refused_with_its_field() {
        for text in
            ["", "0", "65536", "localhost:9190", "127.0.0.1", "127.0.0.1:0", "::1:9190x", "*:9190", " 9190"]
        {
            let fault = listen("daemon.metrics_listen", Some(text)).unwrap_err().to_string();
            let begin = format!("daemon.metrics_listen: {text:?}: expected a port");
            assert!(fault.starts_with(&begin), "{fault}");
        }
    }
}
