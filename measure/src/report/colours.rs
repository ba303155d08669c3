// SPDX-License-Identifier: Apache-2.0
//! Colours and line styles of the paths: in: path names. Out: the same look for a path everywhere, in every
//! report. The hues are the Okabe-Ito set, which people with a colour vision deficiency can distinguish; so does a dash
//!  (solid: sleeps, dashed: spins, dotted: an ordinary process).

use plotly::common::DashType;

/// How a path is drawn.
#[derive(Clone, Debug)]
pub(super) struct Look {
    /// `#rrggbb`.
    pub(super) colour: &'static str,
    /// The line's dash.
    pub(super) dash: DashType,
}

const KNOWN: [(&str, &str); 13] = [
    ("ktsn", "#0072b2"),
    ("ktsn-short", "#56b4e9"),
    ("ktsn-ovs-dpdk", "#9467bd"),
    ("dpdk-virtio-user", "#a0522d"),
    ("tsn-cni", "#0072b2"),
    ("flannel", "#d55e00"),
    ("flannel-spin", "#e69f00"),
    ("flannel-other", "#cc79a7"),
    ("bare", "#009e73"),
    ("host-network", "#009e73"),
    ("bare-spin", "#8a8a8a"),
    ("packet-spin", "#000000"),
    ("packet-spin-free", "#5c4a8a"),
];
const OTHERS: [&str; 4] = ["#b59f00", "#17a2a2", "#6b7a8f", "#c2185b"];

/// The paths of all documents of a report, each with its look.
#[derive(Debug, Default)]
pub(super) struct Colours {
    unknown: Vec<String>,
}

impl Colours {
    /// Looks for `paths`; those that are not known by name take further colours in the order of appearance.
    pub(super) fn of<'a>(paths: impl Iterator<Item = &'a str>) -> Self {
        let mut unknown: Vec<String> = Vec::new();
        for path in paths {
            if !KNOWN.iter().any(|(name, _)| *name == path) && !unknown.iter().any(|name| name == path) {
                unknown.push(path.to_owned());
            }
        }
        Self { unknown }
    }

    /// The look of `path`.
    pub(super) fn look(&self, path: &str) -> Look {
        let known = KNOWN.iter().find(|(name, _)| *name == path).map(|(_, colour)| *colour);
        let colour = known.unwrap_or_else(|| {
            let index = self.unknown.iter().position(|name| name == path).unwrap_or(0);
            OTHERS[index % OTHERS.len()]
        });
        let dash = match path {
            path if path.ends_with("-spin") || path.ends_with("-spin-free") => DashType::Dash,
            path if path.ends_with("-other") => DashType::Dot,
            "tsn-cni" | "host-network" => DashType::DashDot,
            _ => DashType::Solid,
        };
        Look { colour, dash }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_keeps_its_colour_whatever_stands_beside_it() {
        let one = Colours::of(["ktsn", "mine", "flannel"].into_iter());
        let two = Colours::of(["flannel", "ktsn", "mine"].into_iter());
        for path in ["ktsn", "flannel", "mine"] {
            assert_eq!(one.look(path).colour, two.look(path).colour);
        }
        assert_ne!(one.look("mine").colour, one.look("ktsn").colour);
        let many = Colours::of(["a", "b", "a"].into_iter());
        assert_ne!(many.look("a").colour, many.look("b").colour);
    }
}
