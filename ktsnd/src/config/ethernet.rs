// SPDX-License-Identifier: Apache-2.0
//! `ethernet` of an attachment: where frames of packet sockets go that are neither IP nor ARP.

ktsn_model::words! {
    /// Where frames go that are neither IP nor ARP. IP and ARP go by prefixes.
    #[derive(Default)]
    pub enum Ethernet {
        /// Frames go to every MAC address except reserved groups; to a reserved group if `destinations` names it.
        #[default]
        Any = "any",
        /// Frames go only to MAC addresses that `destinations` names.
        Listed = "listed",
    }
}
