// SPDX-License-Identifier: Apache-2.0
//! What a definition cannot say by itself: the host's and the guest's own settings, as lines of a comment.

use super::text::{cpu_list, printable, shell};
use super::{Accelerator, Backend, Clock, Datapath, Format, Request};

/// What the definition is, its classes and queues.
pub(super) fn head(request: &Request) -> Vec<String> {
    let classes = &request.classes;
    let (name, schedule) = (&request.name, printable(&classes.schedule));
    let mut lines = vec![
        format!("{name}: a guest for the gate schedule \"{schedule}\", datapath {}.", request.datapath),
        "Written by `ktsn vm config`; docs/guide/virtual-machines.md explains it.".to_owned(),
        format!("Traffic classes: {}.", printable(&classes.labels.join(", "))),
    ];
    lines.push(match (request.backend(), classes.labels.len()) {
        (Backend::Device, count) => {
            format!("The device needs {} transmit queues: its own driver decides.", count.max(2))
        }
        (_, 1) => {
            "Queue pairs: 2. One class needs one; taprio and mqprio refuse a device with one.".to_owned()
        }
        (_, count) => format!("Queue pairs: {count}, one for each class."),
    });
    if request.accelerator == Accelerator::Tcg {
        lines.push(
            "The guest runs by QEMU's interpreter (TCG): its times say nothing about a real one.".to_owned(),
        );
    }
    lines
}

/// What the host needs before the guest starts.
pub(super) fn host(request: &Request) -> Vec<String> {
    let mut lines = vec!["On the host, before the guest starts:".to_owned()];
    match &request.placement {
        _ if request.format == Format::Kubevirt => {
            lines.push("- The node: label kubevirt.io/realtime, kubelet with cpuManagerPolicy static.".to_owned());
            lines.push("- Kernel command line: isolcpus=managed_irq,domain,LIST nohz_full=LIST rcu_nocbs=LIST, where".to_owned());
            lines.push("  LIST holds the CPUs that the kubelet gives away (not reservedSystemCPUs).".to_owned());
        }
        Some(placement) => {
            let vcpus = cpu_list(&placement.vcpus);
            lines.push(format!(
                "- Kernel command line: isolcpus=managed_irq,domain,{vcpus} nohz_full={vcpus} rcu_nocbs={vcpus}"
            ));
            lines.push(format!(
                "- IRQs: `irqaffinity=` of the kernel names CPUs other than {vcpus}; the uplink's IRQs belong on {}:",
                cpu_list(&placement.emulator)
            ));
            lines.push(format!(
                "  for i in $(ls /sys/class/net/UPLINK/device/msi_irqs); do echo {} >/proc/irq/$i/smp_affinity_list; done",
                cpu_list(&placement.emulator)
            ));
        }
        None => lines.push(
            "- No CPU is reserved (no list of CPUs was given): on a busy host the guest waits for milliseconds."
                .to_owned(),
        ),
    }
    if let Some(mib) = request.pages.mib() {
        let count = request.memory_mib / mib;
        let size = if mib == 2 { "2M" } else { "1G" };
        lines.push(format!("- Huge pages: hugepagesz={size} hugepages={count}, more for other users."));
    }
    lines.extend(datapath(request));
    if let Clock::Page(file) = &request.clock {
        let (page, exchange) = (shell(&printable(file)), shell(&printable(&exchange(file))));
        lines.push(format!("- The guest's clock, for as long as the guest runs: ktsn clock publish --page {page} --exchange {exchange}"));
    }
    if request.accelerator == Accelerator::Kvm && request.clock == Clock::PtpKvm {
        lines.push("- Clock source tsc (ptp_kvm needs it): /sys/devices/system/clocksource/clocksource0/current_clocksource".to_owned());
        lines.push(
            "- chrony, or ptp4l and phc2sys, hold the host's clock: the guest's can be no better.".to_owned(),
        );
    }
    lines.push("- `ktsn doctor --vm`, on the host and in the guest, finds what is missing.".to_owned());
    lines
}

fn datapath(request: &Request) -> Vec<String> {
    let (bridge, tap) = (&request.bridge, &request.tap);
    let device = request.device.clone().unwrap_or_else(|| "DEVICE".to_owned());
    if request.format == Format::Kubevirt {
        return kubevirt_datapath(request);
    }
    match request.datapath {
        Datapath::TapBridge => vec![
            format!(
                "- A bridge with the uplink: ip link add {bridge} type bridge; ip link set UPLINK master {bridge}"
            ),
            "- vhost-net: modprobe vhost_net".to_owned(),
        ],
        Datapath::TapOvs => vec![
            format!(
                "- A bridge of Open vSwitch with the uplink: ovs-vsctl add-br {bridge}; ovs-vsctl add-port {bridge} UPLINK"
            ),
            "- vhost-net: modprobe vhost_net".to_owned(),
        ],
        Datapath::TapXdp => vec![
            format!(
                "- XDP programs on {tap} and on the uplink that redirect frames; frames that they pass go to {bridge}."
            ),
            "- vhost-net: modprobe vhost_net".to_owned(),
        ],
        Datapath::Macvtap => vec![
            format!(
                "- {device} is up. The host itself cannot reach the guest through {device} (macvtap, mode bridge)."
            ),
            "- vhost-net: modprobe vhost_net".to_owned(),
        ],
        Datapath::OvsAfxdp | Datapath::OvsDpdk => {
            let kind = if request.datapath == Datapath::OvsDpdk { "dpdk" } else { "afxdp" };
            vec![
                "- Open vSwitch with DPDK: ovs-vsctl set Open_vSwitch . other_config:dpdk-init=true, and its own huge pages.".to_owned(),
                format!("- {bridge}: datapath_type=netdev; the uplink is a port with type={kind}."),
                "- `ktsn bench datapaths` measures a vhost-user port with such an uplink of AF_XDP as ovs-dpdk.".to_owned(),
                format!("- The guest's port: ovs-vsctl add-port {bridge} guest, then ovs-vsctl set Interface guest"),
                format!("  type=dpdkvhostuserclient options:vhost-server-path={}", printable(&request.socket())),
                "- PMD threads on CPUs of their own: ovs-vsctl set Open_vSwitch . other_config:pmd-cpu-mask=MASK".to_owned(),
            ]
        }
        Datapath::Vfio => vec![
            "- Kernel command line: intel_iommu=on iommu=pt (amd_iommu is on by itself).".to_owned(),
            format!("- {device} alone in its IOMMU group, bound to vfio-pci (libvirt binds it by itself)."),
        ],
    }
}

fn kubevirt_datapath(request: &Request) -> Vec<String> {
    let network = &request.network;
    match request.backend() {
        Backend::Device => vec![format!(
            "- Network {network}: an SR-IOV NetworkAttachmentDefinition; feature gate for SR-IOV per KubeVirt's version."
        )],
        Backend::Macvtap => vec![
            format!("- Network {network}: a NetworkAttachmentDefinition of macvtap-cni."),
            "- The network binding plugin `macvtap` is registered in KubeVirt's configuration.".to_owned(),
        ],
        _ => {
            let plugin = if request.datapath == Datapath::TapOvs { "ovs" } else { "bridge" };
            vec![format!("- Network {network}: a NetworkAttachmentDefinition of the CNI plugin {plugin}.")]
        }
    }
}

/// What the guest needs.
pub(super) fn guest(request: &Request) -> Vec<String> {
    let queues = request.queues();
    let last = request.cpus() - 1;
    let mut lines = vec!["In the guest:".to_owned()];
    if request.backend() != Backend::Device {
        lines.push(format!("- All queues: ethtool -L eth0 combined {queues}"));
        lines.push("- IRQ affinity: queue n on one CPU, the program on another. `grep virtio /proc/interrupts` shows the".to_owned());
        lines.push(format!(
            "  numbers; then echo CPU >/proc/irq/NUMBER/smp_affinity_list (CPUs 0 to {last})."
        ));
    }
    if last > 0 {
        lines.push(format!(
            "- Kernel command line, for a program on CPU {last}: isolcpus=managed_irq,domain,{last} nohz_full={last}"
        ));
    }
    lines
        .push("- The schedule: ktsn guest setup --mode taprio --schedule FILE (or --mode ktsnd).".to_owned());
    match &request.clock {
        Clock::None => {
            lines.push("- The clock: chrony over the network; no device carries the host's time.".to_owned());
        }
        Clock::PtpKvm => {
            lines.push("- The clock: modprobe ptp_kvm; chrony.conf: refclock PHC /dev/ptp_kvm poll 2 dpoll -2 offset 0 stratum 2".to_owned());
        }
        Clock::Page(_) => lines.push(
            "- The clock: `ktsn clock follow` reads the host's page (PCI device 1af4:1110).".to_owned(),
        ),
    }
    lines
}

/// The file of the exchange area that belongs to a page's: `x.exchange` for `x.page`.
pub(super) fn exchange(page: &str) -> String {
    format!("{}.exchange", page.strip_suffix(".page").unwrap_or(page))
}
