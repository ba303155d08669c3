// SPDX-License-Identifier: Apache-2.0
//! Rules of the node's packet filter and network policies in `ktsn status`: what of an attachment is the kernel's for them, or
//! dropped.

use ktsn_proto::v1;
use serde_json::{Value, json};

/// A line for each rule about an attachment; empty when there is none, and never was one.
pub(super) fn text(states: &[v1::AttachmentState]) -> String {
    let mut text = String::new();
    for state in states {
        let name = state.name.as_str();
        for rule in &state.rules {
            let arrival = if rule.is_arrival { "; nothing takes the ingress fast path" } else { "" };
            let shown = u32::try_from(rule.destinations.len()).unwrap_or(u32::MAX);
            let more = match rule.destinations_count.saturating_sub(shown) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let destinations = rule.destinations.join(", ");
            text.push_str(&format!(
                "{name}: {destinations}{more} left to the kernel for a rule{arrival}: {}\n",
                rule.rule
            ));
        }
        if let Some(policy) = &state.policy {
            text.push_str(&policy_text(name, policy));
        }
        if state.rules_count > 0 {
            text.push_str(&format!("{name}: {} rules about it so far\n", state.rules_count));
        }
    }
    if text.is_empty() {
        text
    } else {
        format!("\nRules of the node's packet filter, network policies\n{text}")
    }
}

/// What network policies take away.
fn policy_text(name: &str, policy: &v1::AttachmentPolicy) -> String {
    let egress = match (policy.egress_restricted, policy.egress_allowed.as_slice()) {
        (false, _) => None,
        (true, []) => Some("what leaves by the uplink is dropped as network_policy".to_owned()),
        (true, some) => Some(format!(
            "what leaves by the uplink to other than {} is dropped as network_policy",
            some.join(", ")
        )),
    };
    let ingress = policy.ingress_blocked.then(|| "nothing takes the ingress fast path".to_owned());
    let taken: Vec<String> = egress.into_iter().chain(ingress).collect();
    format!("{name}: {}: {}\n", taken.join("; "), policy.reason)
}

/// Rules and policy as JSON.
pub(super) fn json_of(state: &v1::AttachmentState) -> Value {
    json!({ "now": state.rules, "count": state.rules_count, "network_policy": state.policy })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_is_named_with_what_it_takes_away() {
        let mut state = v1::AttachmentState { name: "pod-a".to_owned(), ..Default::default() };
        assert_eq!(text(std::slice::from_ref(&state)), "");
        state.rules = vec![v1::RuleState {
            rule: "-A FORWARD -d 10.244.1.7/32 -j DROP".to_owned(),
            destinations: vec!["10.244.1.7/32".to_owned()],
            destinations_count: 3,
            is_arrival: true,
        }];
        state.rules_count = 2;
        assert_eq!(
            text(std::slice::from_ref(&state)),
            "\nRules of the node's packet filter, network policies\npod-a: 10.244.1.7/32 and 2 more left to the kernel for a rule; nothing takes \
             the ingress fast path: -A FORWARD -d 10.244.1.7/32 -j DROP\npod-a: 2 rules about it so far\n"
        );
        assert_eq!(json_of(&state)["now"][0]["destinations_count"], 3);
        assert_eq!(json_of(&state)["count"], 2);
        (state.rules, state.rules_count) = (Vec::new(), 0);
        state.policy = Some(v1::AttachmentPolicy {
            egress_restricted: true,
            ingress_blocked: true,
            reason: "NetworkPolicy deny-all".to_owned(),
            ..Default::default()
        });
        assert_eq!(
            text(std::slice::from_ref(&state)),
            "\nRules of the node's packet filter, network policies\npod-a: what leaves by the uplink is dropped as \
             network_policy; nothing takes the ingress fast path: NetworkPolicy deny-all\n"
        );
        assert_eq!(json_of(&state)["network_policy"]["ingress_blocked"], true);
    }
}
