// SPDX-License-Identifier: Apache-2.0
//! `egress`, `vhost_socket` and `vhost_queues` of an attachment.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::config::ConfigError;
use crate::config::values::{Checked, bounded};
use ktsn_proto::attachment::AttachmentConfig;

/// Longest path of a Unix socket, in octets.
const SOCKET_OCTETS_MAX: usize = 107;
/// Most queues of a vhost-user port.
const QUEUES_MAX: u16 = 8;

/// Which port sends what leaves by the pod's own interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EgressMode {
    /// The interface itself: the kernel's path follows.
    #[default]
    Interface,
    /// A virtual switch behind a socket that ktsnd listens at.
    VhostUser {
        /// As configured: a path, or a directory with a slash at its end.
        place: PathBuf,
        /// The socket's path.
        socket: PathBuf,
        /// Transmit queues.
        queues: u16,
    },
}

impl EgressMode {
    /// The word of the configuration.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Interface => "interface",
            Self::VhostUser { .. } => "vhost-user",
        }
    }

    /// Whether the frames go to a virtual switch, past the kernel.
    #[must_use]
    pub const fn is_vhost_user(&self) -> bool {
        matches!(self, Self::VhostUser { .. })
    }

    /// `vhost_socket` and `vhost_queues` of the configuration.
    #[must_use]
    pub fn keys(&self) -> (Option<String>, Option<u16>) {
        match self {
            Self::Interface => (None, None),
            Self::VhostUser { place, queues, .. } => (Some(place.display().to_string()), Some(*queues)),
        }
    }

    /// `field`: path of the attachment; `name`: its name.
    pub(super) fn check(field: &str, name: &str, raw: &AttachmentConfig) -> Checked<Self> {
        let path = |key: &str| format!("{field}.{key}");
        match raw.egress.as_deref() {
            None | Some("interface") => {
                let expected = "no value without egress = \"vhost-user\"";
                if let Some(socket) = &raw.vhost_socket {
                    return Err(ConfigError::value(&path("vhost_socket"), socket, expected));
                }
                if let Some(queues) = raw.vhost_queues {
                    return Err(ConfigError::value(&path("vhost_queues"), queues, expected));
                }
                Ok(Self::Interface)
            }
            Some("vhost-user") => {
                if raw.allow_policy_bypass != Some(true) {
                    let expected = "allow_policy_bypass = true beside it: its frames pass neither the node's packet filter nor its \
                                    encryption, and network policies are the switch's";
                    return Err(ConfigError::value(&path("egress"), "vhost-user", expected));
                }
                let (place, socket) = socket(&path("vhost_socket"), name, raw.vhost_socket.as_deref())?;
                let queues = bounded(&path("vhost_queues"), raw.vhost_queues, 1, &(1..=QUEUES_MAX))?;
                Ok(Self::VhostUser { place, socket, queues })
            }
            Some(other) => Err(ConfigError::value(&path("egress"), other, "interface or vhost-user")),
        }
    }
}

/// The configured place, and the socket there.
fn socket(field: &str, name: &str, value: Option<&str>) -> Checked<(PathBuf, PathBuf)> {
    let expected = "the absolute path of a socket, or a directory with a slash at its end";
    let Some(value) = value else {
        return Err(ConfigError::missing(field, expected));
    };
    let place = Path::new(value);
    if !place.is_absolute() || value.contains('\0') {
        return Err(ConfigError::value(field, value, expected));
    }
    let socket = match value.ends_with('/') {
        true => place.join(format!("{}.sock", name.replace('/', "-"))),
        false => place.to_owned(),
    };
    let octets = socket.as_os_str().as_bytes().len();
    if octets > SOCKET_OCTETS_MAX {
        let expected = format!("a socket path of at most {SOCKET_OCTETS_MAX} octets; this one has {octets}");
        return Err(ConfigError::value(field, socket.display(), expected));
    }
    Ok((place.to_owned(), socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(egress: Option<&str>, socket: Option<&str>, queues: Option<u16>) -> Checked<EgressMode> {
        let raw = AttachmentConfig {
            egress: egress.map(str::to_owned),
            vhost_socket: socket.map(str::to_owned),
            vhost_queues: queues,
            allow_policy_bypass: Some(true),
            ..AttachmentConfig::default()
        };
        EgressMode::check("a", "c-1/net1", &raw)
    }

    fn fault(egress: Option<&str>, socket: Option<&str>, queues: Option<u16>) -> String {
        check(egress, socket, queues).expect_err("refused").to_string()
    }

    #[test]
    fn a_socket_is_a_path_or_named_after_the_attachment() {
        let of = |place: &str| match check(Some("vhost-user"), Some(place), Some(2)).expect("accepted") {
            EgressMode::VhostUser { socket, queues: 2, place } => (socket, place),
            other => panic!("{other:?}"),
        };
        assert_eq!(of("/run/a.sock"), ("/run/a.sock".into(), "/run/a.sock".into()));
        assert_eq!(of("/run/vhost/"), ("/run/vhost/c-1-net1.sock".into(), "/run/vhost/".into()));
        assert_eq!(check(None, None, None).expect("the default"), EgressMode::Interface);
    }

    #[test]
    fn each_fault_names_field_value_and_limit() {
        let vhost = Some("vhost-user");
        assert_eq!(fault(Some("ovs"), None, None), "a.egress: \"ovs\": expected interface or vhost-user");
        assert!(fault(vhost, None, None).starts_with("a.vhost_socket: missing; expected the absolute path"));
        assert!(fault(vhost, Some("a.sock"), None).contains("a.vhost_socket: \"a.sock\": expected"));
        assert!(fault(None, Some("/a"), None).contains("a.vhost_socket: \"/a\": expected no value"));
        assert!(fault(None, None, Some(1)).contains("a.vhost_queues: \"1\": expected no value"));
        for queues in [0, 9] {
            let said = fault(vhost, Some("/a"), Some(queues));
            assert_eq!(said, format!("a.vhost_queues: \"{queues}\": expected 1 to 8"));
        }
        let path = format!("/{}", "s".repeat(106));
        assert!(check(vhost, Some(&path), None).is_ok());
        let said = fault(vhost, Some(&format!("{path}s")), None);
        assert!(
            said.contains("s\": expected a socket path of at most 107 octets; this one has 108"),
            "{said}"
        );
        let raw = AttachmentConfig { egress: Some("vhost-user".to_owned()), ..AttachmentConfig::default() };
        let said = EgressMode::check("a", "b", &raw).expect_err("refused").to_string();
        assert!(said.contains("a.egress: \"vhost-user\": expected allow_policy_bypass = true"), "{said}");
    }
}
