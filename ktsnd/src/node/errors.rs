// SPDX-License-Identifier: Apache-2.0
//! Errors of the node that begin with the path of a field.

use ktsn_port::OpenError;

use super::request::NodeError;

/// A port that cannot be opened, with the rights that it takes where one is missing.
pub(super) fn not_opened(field: &str, error: &OpenError) -> NodeError {
    const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
    let hint = match error {
        OpenError::NotPermitted { .. } | OpenError::Namespace { errno: EPERM, .. } => {
            "; ktsnd needs CAP_NET_RAW, CAP_NET_ADMIN and, for other network namespaces, CAP_SYS_ADMIN (or root)"
        }
        _ => "",
    };
    NodeError::Precondition(format!("{field}: {error}{hint}"))
}

/// Something outside of ktsnd that is not as `field` needs it.
pub(super) fn precondition(field: &str, error: &dyn std::fmt::Display) -> NodeError {
    NodeError::Precondition(format!("{field}: {error}"))
}
