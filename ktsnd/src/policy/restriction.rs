// SPDX-License-Identifier: Apache-2.0
//! The part of an attachment's direct paths that network policies allow.
//!  
//! In: the control API's SetPolicies for an attachment. Out: the attachment's tables without what policies forbid. Frames that
//! leave by the pod's own interface pass the policies' engine and are not changed.

use ktsn_model::IpPrefix;
use ktsn_resolve::{AttachmentTables, TableError};

use super::Prefixes;

/// What network policies allow of an attachment's direct paths; by default everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restriction {
    /// Destinations of frames that leave by the uplink; every other one is dropped as `network_policy`. `None`: all.
    pub egress: Option<Vec<IpPrefix>>,
    /// Whether the ingress fast path is closed.
    pub is_ingress_blocked: bool,
    /// The policies, for the log and the status.
    pub reason: String,
}

impl Restriction {
    /// True if the restriction forbids anything.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.egress.is_some() || self.is_ingress_blocked
    }

    /// What both this restriction and a later one allow. The reason is that of the later one, if it forbids anything.
    pub(crate) fn and(&self, later: &Self) -> Self {
        let egress = match (&self.egress, &later.egress) {
            (Some(these), Some(those)) => {
                let these: Prefixes = these.iter().copied().collect();
                let both = those.iter().flat_map(|prefix| these.within(*prefix));
                Some(both.collect::<Prefixes>().iter().collect())
            }
            (one, other) => one.as_ref().or(other.as_ref()).cloned(),
        };
        let is_ingress_blocked = self.is_ingress_blocked || later.is_ingress_blocked;
        let reason = if later.is_any() { &later.reason } else { &self.reason };
        Self { egress, is_ingress_blocked, reason: reason.clone() }
    }

    /// The tables without what the policies forbid.
    pub(crate) fn apply(&self, tables: AttachmentTables) -> Result<AttachmentTables, TableError> {
        let tables = tables.permitting(self.egress.as_deref())?;
        let delivery = tables.delivery().cloned().filter(|_| !self.is_ingress_blocked);
        Ok(tables.delivered(delivery))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restriction(egress: Option<&[&str]>, is_ingress_blocked: bool, reason: &str) -> Restriction {
        let egress = egress.map(|all| all.iter().map(|prefix| prefix.parse().unwrap()).collect());
        Restriction { egress, is_ingress_blocked, reason: reason.to_owned() }
    }

    #[test]
    fn of_two_restrictions_each_takes_away() {
        let none = Restriction::default();
        let some = restriction(Some(&["10.1.0.0/16", "10.2.3.0/24", "fd10::/64"]), false, "some");
        let other = restriction(Some(&["10.1.4.0/24", "10.2.0.0/16", "10.3.0.0/16"]), true, "other");
        assert_eq!(none.and(&none), none);
        assert_eq!((none.and(&some), some.and(&none)), (some.clone(), some.clone()));
        assert_eq!(some.and(&other), restriction(Some(&["10.1.4.0/24", "10.2.3.0/24"]), true, "other"));
        assert_eq!(other.and(&some), restriction(Some(&["10.1.4.0/24", "10.2.3.0/24"]), true, "some"));
        let all = restriction(Some(&[]), false, "all");
        assert_eq!(some.and(&all), all);
    }
}
