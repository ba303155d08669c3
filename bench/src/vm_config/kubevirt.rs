// SPDX-License-Identifier: Apache-2.0
//! A VirtualMachine of KubeVirt in YAML.

use super::text::{printable, yaml};
use super::{Backend, Clock, Pages, Request, notes};

/// The definition.
pub(super) fn virtual_machine(request: &Request) -> String {
    let mut text = String::new();
    for lines in [notes::head(request), notes::host(request), notes::guest(request)] {
        for line in lines {
            text.push_str(&format!("# {}\n", printable(&line)));
        }
        text.push_str("#\n");
    }
    let name = yaml(&request.name);
    text.push_str(&format!(
        "apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: {name}
spec:
  runStrategy: Always
  template:
    metadata:
      labels:
        kubevirt.io/vm: {name}
    spec:
      domain:
        machine:
          type: q35
"
    ));
    processor(&mut text, request);
    clock(&mut text, request);
    devices(&mut text, request);
    volumes(&mut text, request);
    text
}

fn processor(text: &mut String, request: &Request) {
    let size = match request.pages {
        Pages::Huge1G => "1Gi",
        Pages::Huge2M | Pages::None => "2Mi",
    };
    text.push_str(&format!(
        "        cpu:
          sockets: 1
          cores: {}
          threads: 1
          model: host-passthrough
          features:
          # The node's own counter, which never stops.
          - name: invtsc
            policy: require
          # Each vCPU has a CPU of the node for itself; one more CPU is for QEMU's other threads and vhost's.
          dedicatedCpuPlacement: true
          isolateEmulatorThread: true
          # vCPUs are FIFO threads (KubeVirt chooses the priority), memory is locked. KubeVirt wants NUMA and huge pages with it.
          realtime: {{}}
          numa:
            guestMappingPassthrough: {{}}
        memory:
          guest: {}Mi
          hugepages:
            pageSize: {size}
",
        request.cpus(),
        request.memory_mib,
    ));
}

fn clock(text: &mut String, request: &Request) {
    let kvm = if request.clock == Clock::PtpKvm {
        "            # ptp_kvm in the guest needs nothing else.\n            kvm:\n              present: true\n"
    } else {
        ""
    };
    text.push_str(&format!(
        "        clock:
          utc: {{}}
          timer:
            hpet:
              present: false
{kvm}"
    ));
}

fn devices(text: &mut String, request: &Request) {
    let binding = match request.backend() {
        Backend::Macvtap => "binding:\n              name: macvtap",
        Backend::Device => "sriov: {}",
        Backend::Tap | Backend::VhostUser => "bridge: {}",
    };
    text.push_str("        devices:\n          autoattachMemBalloon: false\n          autoattachGraphicsDevice: false\n");
    if request.backend() != Backend::Device {
        text.push_str(&format!(
            "          # One queue pair for each vCPU; the schedule needs {}.\n          networkInterfaceMultiqueue: true\n",
            request.queues()
        ));
    }
    if request.disk.is_some() {
        text.push_str(
            "          disks:\n          - name: root\n            disk:\n              bus: virtio\n",
        );
    }
    let model = if request.backend() == Backend::Device { "" } else { "            model: virtio\n" };
    text.push_str(&format!(
        "          interfaces:
          # Kubernetes' own network, for everything without a schedule.
          - name: default
            masquerade: {{}}
          - name: tsn
{model}            macAddress: {}
            {binding}
          rng: {{}}
",
        yaml(&request.mac())
    ));
}

fn volumes(text: &mut String, request: &Request) {
    text.push_str(&format!(
        "      networks:
      - name: default
        pod: {{}}
      - name: tsn
        multus:
          networkName: {}
",
        yaml(&request.network)
    ));
    if let Some(claim) = &request.disk {
        text.push_str(&format!(
            "      volumes:
      - name: root
        persistentVolumeClaim:
          claimName: {}
",
            yaml(claim)
        ));
    }
}
