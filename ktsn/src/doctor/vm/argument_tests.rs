// SPDX-License-Identifier: Apache-2.0
//! What QEMU's arguments say, and what an empty list says: nothing.

use super::facts::Processes;
use super::tests::{good_host, named};
use super::*;
use crate::doctor::finding::State;

/// One guest with these arguments.
fn with_arguments(arguments: &str) -> Facts {
    let mut facts = good_host();
    let words = format!("qemu-system-x86_64 -name guest=plc {arguments}");
    facts.guests[0].arguments = Some(words.split_whitespace().map(str::to_owned).collect());
    facts
}

#[test]
fn devices_are_read_by_qemus_grammar() {
    const TAP: &str = "-netdev tap,id=n,vhost=on,queues=2";
    let fine = [
        "-global virtio-net-pci.romfile= -netdev tap,id=n,vhost=on,queues=2 -device virtio-net-pci,netdev=n,mq=on",
        "-drive file=/srv/virtio-network.qcow2,if=virtio -netdev tap,id=n,vhost=on,queues=2 -device virtio-net-pci,netdev=n,mq=on",
        "-netdev tap,id=n,vhost=true,queues=2 -device virtio-net-pci,netdev=n,mq=true,vectors=6",
        "--netdev tap,id=n,vhost=yes,queues=2 --device virtio-net,netdev=n,mq=y",
        "-netdev tap,id=n,vhost=on,queues=2 -global virtio-net-pci.mq=on -device virtio-net-pci,netdev=n",
        "-netdev tap,id=n,vhost=on,queues=2 -device virtio-net-pci,netdev=n,id=net0 -set device.net0.mq=on",
        "-netdev tap,id=n,fds=3:4,vhostfds=5:6 -device driver=virtio-net-pci,netdev=n,mq=on",
        "-netdev tap,id=n,ifname=a,,b,vhost=on,queues=2 -device virtio-net-pci,netdev=n,mq=off,mq=on",
        "-enable-kvm -snapshot -netdev tap,id=n,vhost=on,queues=2 -device virtio-net-pci,netdev=n,mq=on disk.qcow2",
    ];
    for arguments in fine {
        let findings = judge(Side::Auto, &with_arguments(arguments));
        for name in ["vm_host_queues", "vm_vhost"] {
            assert_eq!(named(&findings, name).state, State::Ok, "{arguments}: {:?}", named(&findings, name));
        }
    }
    for (arguments, name, state) in [
        ("-netdev type=tap,id=n,ifname=t0 -device virtio-net-pci,netdev=n", "vm_vhost", State::Warn),
        ("-net nic,model=virtio -net tap,ifname=t0", "vm_vhost", State::Warn),
        ("-net nic,model=virtio -net tap,ifname=t0", "vm_host_queues", State::Warn),
        ("-nic tap,ifname=t0,model=virtio-net-pci", "vm_host_queues", State::Warn),
        ("-nic user -nic none", "vm_vhost", State::Warn),
        ("-nic none -nodefaults", "vm_host_queues", State::NotKnown),
        ("-nodefaults", "vm_vhost", State::NotKnown),
        ("-netdev vhost-user,id=n,chardev=c -device virtio-net-pci,netdev=n", "vm_vhost", State::Ok),
        ("-device e1000,netdev=n", "vm_host_queues", State::Warn),
        ("-device vmxnet3,netdev=n", "vm_host_queues", State::NotKnown),
        // The value of another option is no option, and text in it names no device.
        ("-name -netdev -append virtio-net-pci,mq=on", "vm_host_queues", State::NotKnown),
        ("-readconfig gone.cfg", "vm_host_queues", State::NotKnown),
        ("-device {broken", "vm_host_queues", State::NotKnown),
        (
            "-netdev tap,id=n,vhost=on,queues=2 -device virtio-net-pci,netdev=other,mq=on",
            "vm_host_queues",
            State::NotKnown,
        ),
    ] {
        let finding = named(&judge(Side::Auto, &with_arguments(arguments)), name);
        assert_eq!(finding.state, state, "{arguments}: {finding:?}");
    }
    let mut facts = good_host();
    facts.guests[0].vhost.clear();
    assert_eq!(named(&judge(Side::Auto, &facts), "vm_vhost_threads").state, State::NotKnown);
    let kvm = |arguments: &str, program: &str| {
        let mut facts = with_arguments(&format!("{TAP} {arguments}"));
        facts.guests[0].program = program.to_owned();
        facts.guests[0].has_kvm_machine = None;
        facts.guests[0].threads.truncate(1);
        named(&judge(Side::Auto, &facts), "vm_kvm").state
    };
    for (arguments, program, state) in [
        ("-accel tcg", "qemu-system-x86_64", State::Warn),
        ("-M q35,accel=tcg", "qemu-system-x86_64", State::Warn),
        ("", "qemu-system-x86_64", State::Warn),
        ("", "qemu-kvm", State::NotKnown),
        ("-machine accel=kvm:tcg", "qemu-system-x86_64", State::NotKnown),
        ("-enable-kvm", "qemu-system-x86_64", State::Ok),
        ("--accel kvm,thread=single", "qemu-system-x86_64", State::Ok),
    ] {
        assert_eq!(kvm(arguments, program), state, "{program} {arguments}");
    }
}

#[test]
fn an_empty_list_is_never_fine() {
    let mut facts = good_host();
    facts.guests.clear();
    facts.processes = Processes { count: 90, hidden: 2 };
    let findings = judge(Side::Host, &facts);
    let finding = named(&findings, "vm_guests");
    assert_eq!(finding.state, State::NotKnown);
    assert_eq!(finding.value, "no QEMU among the 90 processes seen here; 2 of them hide their program");
    assert_eq!(named(&findings, "vm_kvm").state, State::Ok, "/dev/kvm is there");
    // Nothing at all can be read: nothing is fine but what the user says.
    for side in [Side::Guest, Side::Host] {
        let findings = judge(side, &Facts::default());
        let fine: Vec<&str> = findings
            .iter()
            .filter(|finding| finding.state == State::Ok)
            .map(|finding| finding.name)
            .collect();
        assert_eq!(fine, ["vm_place"], "{findings:?}");
    }
}
