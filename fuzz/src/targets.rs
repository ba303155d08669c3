// SPDX-License-Identifier: Apache-2.0
//! The list of targets. A new target is one line here, one module beside this one and a folder `corpus/NAME`.

/// A fuzz target: any octets in, a panic only on a broken promise.
pub type Target = fn(&[u8]);

/// Every target by name. The name is that of its corpus folder.
pub const TARGETS: &[(&str, Target)] = &[
    ("wire", crate::wire),
    ("control", crate::control),
    ("ring", crate::ring),
    ("link", crate::link),
    ("expect", crate::expect),
    ("guest", crate::guest),
    ("far", crate::far),
    ("qemu", crate::qemu),
    ("qmp", crate::qmp),
    ("vptp", crate::vptp),
    ("resolve", crate::resolve),
    #[cfg(feature = "api")]
    ("api", crate::api),
    #[cfg(feature = "api")]
    ("state", crate::state),
    #[cfg(feature = "api")]
    ("netlink", crate::netlink),
    #[cfg(feature = "api")]
    ("rules", crate::rules),
    #[cfg(feature = "api")]
    ("clock", crate::clock),
    #[cfg(feature = "api")]
    ("config", crate::config),
    #[cfg(feature = "api")]
    ("registrar", crate::registrar),
    ("messages", crate::messages),
    ("schedule", crate::schedule),
    ("taprio", crate::taprio),
];

/// The target called `name`.
#[must_use]
pub fn find(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, target)| *target)
}
