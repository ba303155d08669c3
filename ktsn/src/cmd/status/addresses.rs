// SPDX-License-Identifier: Apache-2.0
//! Addresses in `ktsn status`: what an attachment's interface has and may not use.

use ktsn_proto::v1;

/// Addresses of one attachment that are shown one by one.
const SHOWN_MAX: usize = 8;

/// A line for each attachment with withheld addresses; empty when there are none.
pub(super) fn text(states: &[v1::AttachmentState]) -> String {
    let mut text = String::new();
    for state in states.iter().filter(|state| !state.withheld.is_empty()) {
        let name = state.name.as_str();
        let shown = state.withheld.iter().take(SHOWN_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = match state.withheld.len().saturating_sub(SHOWN_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        text.push_str(&format!("{name}: {shown}{more}: on its interface, not given: sends nothing\n"));
    }
    if text.is_empty() { text } else { format!("\nWithheld addresses\n{text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn withheld_addresses_are_named_and_counted() {
        let mut state = v1::AttachmentState { name: "pod-a".to_owned(), ..Default::default() };
        assert_eq!(text(std::slice::from_ref(&state)), "");
        state.withheld = vec!["10.0.0.9".to_owned()];
        assert_eq!(
            text(std::slice::from_ref(&state)),
            "\nWithheld addresses\npod-a: 10.0.0.9: on its interface, not given: sends nothing\n"
        );
        state.withheld = (0..10).map(|last| format!("10.0.0.{last}")).collect();
        assert!(text(std::slice::from_ref(&state)).contains("10.0.0.7 and 2 more: on its interface"));
    }
}
