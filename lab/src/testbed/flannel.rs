// SPDX-License-Identifier: Apache-2.0
//! Flannel's VXLAN backend on one host, with the bridge CNI that it delegates to.
//!
//! In: this host and its peer. Out: the devices, routes, neighbours and rules that flanneld (backend `vxlan`,
//! `ip-masq`) and the CNI plugin `bridge` (default gateway) leave. Bridged frames do not pass iptables once
//! more on the bridge (`bridge-nf-call-iptables` is 0, although Kubernetes asks for 1): the path that KTSN is set against is to
//! be as fast as it can be.

use super::{Host, OVERLAY_MTU, POD_INTERFACE, UPLINK, VXLAN_DEVICE, VXLAN_PORT, VXLAN_VNI};
use crate::command::run;
use crate::error::LabError;

/// The cluster's pods.
const CLUSTER: &str = "10.244.0.0/16";

/// Sets `host` up; its uplink exists.
pub(super) fn host(host: &Host, peer: &Host) -> Result<(), LabError> {
    bridge_and_pod(host)?;
    vxlan(host, peer)?;
    rules(host)?;
    run(Some(&host.namespace), "sysctl -qw net.ipv4.ip_forward=1")?;
    // -e: a kernel without br_netfilter has none of them.
    for family in ["iptables", "ip6tables", "arptables"] {
        run(Some(&host.namespace), &format!("sysctl -eqw net.bridge.bridge-nf-call-{family}=0"))?;
    }
    Ok(())
}

fn bridge_and_pod(host: &Host) -> Result<(), LabError> {
    let (ns, pod) = (&host.namespace, &host.pod_namespace);
    let gateway = host.bridge_address;
    for line in [
        format!("ip -n {ns} link add cni0 type bridge"),
        format!("ip -n {ns} link set cni0 mtu {OVERLAY_MTU} up"),
        format!("ip -n {ns} addr add {gateway}/24 brd + dev cni0"),
        format!(
            "ip -n {ns} link add vethpod mtu {OVERLAY_MTU} type veth peer name {POD_INTERFACE} netns {pod}"
        ),
        format!("ip -n {ns} link set vethpod master cni0 up"),
        format!("ip -n {pod} link set {POD_INTERFACE} mtu {OVERLAY_MTU} up"),
        format!("ip -n {pod} addr add {}/24 brd + dev {POD_INTERFACE}", host.pod_address),
        format!("ip -n {pod} route add {CLUSTER} via {gateway} dev {POD_INTERFACE}"),
        format!("ip -n {pod} route add default via {gateway} dev {POD_INTERFACE}"),
    ] {
        run(None, &line)?;
    }
    Ok(())
}

fn vxlan(host: &Host, peer: &Host) -> Result<(), LabError> {
    let ns = &host.namespace;
    for line in [
        format!(
            "ip -n {ns} link add {VXLAN_DEVICE} address {} mtu {OVERLAY_MTU} type vxlan id {VXLAN_VNI} local {} \
             dev {UPLINK} dstport {VXLAN_PORT} nolearning",
            host.vxlan_mac, host.address
        ),
        format!("ip -n {ns} addr add {}/32 dev {VXLAN_DEVICE}", host.vxlan_address),
        format!("ip -n {ns} link set {VXLAN_DEVICE} up"),
        format!(
            "ip -n {ns} neigh replace {} lladdr {} dev {VXLAN_DEVICE} nud permanent",
            peer.vxlan_address, peer.vxlan_mac
        ),
        format!(
            "bridge -n {ns} fdb replace {} dev {VXLAN_DEVICE} dst {} self permanent",
            peer.vxlan_mac, peer.address
        ),
        format!(
            "ip -n {ns} route add {} via {} dev {VXLAN_DEVICE} onlink",
            peer.pod_prefix, peer.vxlan_address
        ),
    ] {
        run(None, &line)?;
    }
    Ok(())
}

/// flanneld's chains. A rule of `nat` switches connection tracking on, as on a node.
fn rules(host: &Host) -> Result<(), LabError> {
    let filter = |rule: &str| format!("iptables -w -t filter {rule}");
    for line in [
        filter("-N FLANNEL-FWD"),
        filter("-A FORWARD -m comment --comment flanneld-forward -j FLANNEL-FWD"),
        filter(&format!("-A FLANNEL-FWD -s {CLUSTER} -m comment --comment flanneld-forward -j ACCEPT")),
        filter(&format!("-A FLANNEL-FWD -d {CLUSTER} -m comment --comment flanneld-forward -j ACCEPT")),
    ] {
        run(Some(&host.namespace), &line)?;
    }
    // Debian's kernel 7.3 has no target MASQUERADE for iptables.
    let by_iptables = masquerade(host, &by_iptables(&host.pod_prefix));
    by_iptables.or_else(|error| masquerade(host, &by_nftables(&host.pod_prefix)).map_err(|_| error))
}

fn masquerade(host: &Host, commands: &[String]) -> Result<(), LabError> {
    commands.iter().try_for_each(|command| run(Some(&host.namespace), command))
}

fn by_iptables(pods: &str) -> Vec<String> {
    let rules = [
        "-N FLANNEL-POSTRTG",
        "-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN",
        &format!("-A FLANNEL-POSTRTG -s {pods} -d {CLUSTER} -j RETURN"),
        &format!("-A FLANNEL-POSTRTG -s {CLUSTER} -d {pods} -j RETURN"),
        &format!("-A FLANNEL-POSTRTG ! -s {CLUSTER} -d {pods} -j RETURN"),
        &format!("-A FLANNEL-POSTRTG -s {CLUSTER} ! -d 224.0.0.0/4 -j MASQUERADE --random-fully"),
        &format!("-A FLANNEL-POSTRTG ! -s {CLUSTER} -d {CLUSTER} -j MASQUERADE --random-fully"),
        // The last one: what fails before it leaves a chain without packets.
        "-A POSTROUTING -m comment --comment flanneld-masq -j FLANNEL-POSTRTG",
    ];
    rules.map(|rule| format!("iptables -w -t nat {rule}")).to_vec()
}

/// As flanneld makes them with `EnableNFTables`.
fn by_nftables(pods: &str) -> Vec<String> {
    const CHAIN: &str = "ip flannel-ipv4 postrtg";
    let rules = [
        "mark & 0x4000 == 0x4000 return",
        &format!("ip saddr {pods} ip daddr {CLUSTER} return"),
        &format!("ip saddr {CLUSTER} ip daddr {pods} return"),
        &format!("ip saddr != {CLUSTER} ip daddr {pods} return"),
        &format!("ip saddr {CLUSTER} ip daddr != 224.0.0.0/4 masquerade fully-random"),
        &format!("ip saddr != {CLUSTER} ip daddr {CLUSTER} masquerade fully-random"),
    ];
    let rules = rules.map(|rule| format!("nft add rule {CHAIN} {rule}"));
    let chain = format!("nft add chain {CHAIN} {{ type nat hook postrouting priority srcnat ; }}");
    ["nft add table ip flannel-ipv4".to_owned(), chain].into_iter().chain(rules).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::output;

    /// One kind at least is there; a kernel may lack the other.
    #[test]
    fn rules_of_nftables_are_those_of_iptables() {
        let testbed = super::super::Testbed::new().expect("a testbed");
        let host = &testbed.a;
        let by_iptables = output(Some(&host.namespace), "iptables -w -t nat -S").expect("iptables");
        if by_iptables.contains("MASQUERADE") {
            assert_eq!(by_iptables.matches("MASQUERADE --random-fully").count(), 2, "{by_iptables}");
            assert_eq!(by_iptables.matches("RETURN").count(), 3 + 1, "{by_iptables}");
            masquerade(host, &by_nftables(&host.pod_prefix)).expect("nft");
        }
        let rules = output(Some(&host.namespace), "nft list table ip flannel-ipv4").expect("nft");
        assert_eq!(rules.matches("masquerade fully-random").count(), 2, "{rules}");
        assert_eq!(rules.matches("return").count(), 4, "{rules}");
    }
}
