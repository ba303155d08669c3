// SPDX-License-Identifier: Apache-2.0
//! Namespaces with several attachments: which interfaces of them are attached.
//!
//! In: what the tables' state holds. Out: interface numbers. It changes nothing.

use std::collections::BTreeMap;

use super::TablesState;
use crate::tables::{AttachmentSpec, TablesError};

/// The attached interfaces of each namespace, by its cookie.
type Interfaces = BTreeMap<u64, Vec<u32>>;

/// The other attached interfaces of a namespace.
pub(super) fn others(interfaces: &Interfaces, cookie: u64, own: u32) -> Vec<u32> {
    let all = interfaces.get(&cookie).map_or(&[][..], Vec::as_slice);
    all.iter().copied().filter(|interface| *interface != own).collect()
}

impl TablesState {
    /// All of them.
    pub(super) fn interfaces(&self) -> Interfaces {
        let mut interfaces = Interfaces::new();
        for attached in self.attached.values() {
            if let Some(pod) = self.pods.get(&attached.spec.attachment.netns) {
                interfaces.entry(pod.cookie).or_default().push(attached.interface);
            }
        }
        interfaces
    }

    /// Those beside a new one.
    ///
    /// # Errors
    /// `Attached`: the interface has an attachment.
    pub(super) fn others_of(
        &self,
        spec: &AttachmentSpec,
        cookie: u64,
        interface: u32,
    ) -> Result<Vec<u32>, TablesError> {
        let interfaces = self.interfaces();
        if interfaces.get(&cookie).is_some_and(|all| all.contains(&interface)) {
            let (device, place) = (spec.interface.clone(), spec.attachment.netns.display().to_string());
            return Err(TablesError::Attached { device, place });
        }
        Ok(others(&interfaces, cookie, interface))
    }
}
