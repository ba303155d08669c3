// SPDX-License-Identifier: Apache-2.0
//! `addresses = …`: the addresses that are given to an attachment.
//!
//! In: untrusted text. Out: [`Given`]. What a pod's interface has is the pod's own word; what stands here is the
//! node's. A frame leaves with an address that both name (`docs/design/addresses.md`).

use std::net::IpAddr;

use ktsn_model::IpPrefix;
use ktsn_proto::attachment::AddressesConfig;

use crate::config::ConfigError;
use crate::config::values::Checked;

/// Entries of one list.
const GIVEN_MAX: usize = 256;
/// The word that stands for believing the interface.
const INTERFACE: &str = "interface";
const EXPECTED: &str = "IP addresses, prefixes without host bits, or \"interface\" alone";

/// Which addresses are given to an attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Given {
    /// Nothing was said: those that the interface has when it is attached.
    #[default]
    AtAttachment,
    /// Those that the interface has at any moment: its namespace is trusted.
    Interface,
    /// The listed addresses, as far as the interface has them.
    These(Vec<IpPrefix>),
}

impl Given {
    /// Checks what was written; `field` is the path that errors begin with.
    ///
    /// # Errors
    /// [`ConfigError`]: another word, an entry that is no address, too many.
    pub(super) fn check(field: &str, raw: Option<&AddressesConfig>) -> Checked<Self> {
        let list = match raw {
            None => return Ok(Self::AtAttachment),
            Some(AddressesConfig::Word(word)) if word == INTERFACE => return Ok(Self::Interface),
            Some(AddressesConfig::Word(word)) => return Err(ConfigError::value(field, word, EXPECTED)),
            Some(AddressesConfig::List(list)) if list.as_slice() == [INTERFACE] => {
                return Ok(Self::Interface);
            }
            Some(AddressesConfig::List(list)) => list,
        };
        if list.len() > GIVEN_MAX {
            return Err(ConfigError::value(field, list.len(), format!("at most {GIVEN_MAX} entries")));
        }
        let entry = |(at, text): (usize, &String)| {
            let field = format!("{field}[{at}]");
            let prefix: IpPrefix = text
                .parse()
                .map_err(|error| ConfigError::value(&field, text, format!("{EXPECTED} ({error})")))?;
            match prefix.address() {
                IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => {
                    Err(ConfigError::value(&field, text, "an IPv4 address as such, not mapped to IPv6"))
                }
                _ => Ok(prefix),
            }
        };
        list.iter().enumerate().map(entry).collect::<Checked<Vec<IpPrefix>>>().map(Self::These)
    }

    /// The given addresses of an attachment without `addresses`: those that its interface has.
    #[must_use]
    pub fn found(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let is_plain = |address: &IpAddr| *address == address.to_canonical();
        Self::These(addresses.into_iter().filter(is_plain).take(GIVEN_MAX).map(IpPrefix::host).collect())
    }

    /// The configuration that gives these addresses; `None`: nothing was said.
    #[must_use]
    pub fn config(&self) -> Option<AddressesConfig> {
        let text = |prefix: &IpPrefix| {
            if *prefix == IpPrefix::host(prefix.address()) {
                prefix.address().to_string()
            } else {
                prefix.to_string()
            }
        };
        match self {
            Self::AtAttachment => None,
            Self::Interface => Some(AddressesConfig::Word(INTERFACE.to_owned())),
            Self::These(prefixes) => Some(AddressesConfig::List(prefixes.iter().map(text).collect())),
        }
    }
}

/// The entries, separated by commas.
impl std::fmt::Display for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.config() {
            None => Ok(()),
            Some(AddressesConfig::Word(word)) => f.write_str(&word),
            Some(AddressesConfig::List(list)) => f.write_str(&list.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[&str]) -> AddressesConfig {
        AddressesConfig::List(entries.iter().map(|entry| (*entry).to_owned()).collect())
    }

    fn check(raw: &AddressesConfig) -> Result<Given, String> {
        Given::check("attachment[0].addresses", Some(raw)).map_err(|error| error.to_string())
    }

    #[test]
    fn addresses_prefixes_or_the_interface() {
        assert_eq!(Given::check("a", None).unwrap(), Given::AtAttachment);
        assert_eq!(check(&AddressesConfig::Word("interface".into())), Ok(Given::Interface));
        assert_eq!(check(&list(&["interface"])), Ok(Given::Interface));
        assert_eq!(check(&list(&[])), Ok(Given::These(Vec::new())));
        let these = list(&["10.244.0.5", "fd00::5", "fd00:1::/64"]);
        let given = check(&these).unwrap();
        assert_eq!(given.config(), Some(these));
        let Given::These(prefixes) = given else { panic!("a list") };
        assert!(prefixes[2].contains("fd00:1::77".parse().unwrap()));
    }

    #[test]
    fn what_is_no_address_is_named() {
        for (raw, part) in [
            (AddressesConfig::Word("any".into()), "attachment[0].addresses: \"any\""),
            (list(&["10.0.0.1", "10.244.0.5/24"]), "attachment[0].addresses[1]"),
            (list(&["interface", "10.0.0.1"]), "attachment[0].addresses[0]"),
            (list(&["::ffff:10.0.0.1"]), "not mapped to IPv6"),
            (list(&["fd00::/129"]), "attachment[0].addresses[0]"),
            (AddressesConfig::List(vec!["10.0.0.1".into(); GIVEN_MAX + 1]), "at most 256 entries"),
        ] {
            let error = check(&raw).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
