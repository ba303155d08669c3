// SPDX-License-Identifier: Apache-2.0
//! A domain in libvirt's XML.

use super::text::{cpu_list, xml, xml_comment};
use super::{Accelerator, Backend, Format, Pages, Request, notes, parse_pci, qemu};

/// A document in parts.
#[derive(Default)]
struct Document {
    text: String,
    depth: usize,
}

impl Document {
    fn line(&mut self, line: &str) {
        for _ in 0..self.depth {
            self.text.push_str("  ");
        }
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn comment(&mut self, text: &str) {
        self.line(&format!("<!-- {} -->", xml_comment(text)));
    }

    fn comments(&mut self, lines: &[String]) {
        self.line("<!--");
        for line in lines {
            self.line(&format!("  {}", xml_comment(line)));
        }
        self.line("-->");
    }

    /// An element with others inside.
    fn element(&mut self, open: &str, inside: impl FnOnce(&mut Self)) {
        self.line(&format!("<{open}>"));
        self.depth += 1;
        inside(self);
        self.depth -= 1;
        self.line(&format!("</{}>", open.split(' ').next().unwrap_or_default()));
    }
}

/// The domain.
pub(super) fn domain(request: &Request) -> String {
    debug_assert_eq!(request.format, Format::Libvirt);
    let kind = match request.accelerator {
        Accelerator::Kvm => "kvm",
        Accelerator::Tcg => "qemu",
    };
    let mut document = Document::default();
    let mut head = notes::head(request);
    head.push("XML has no two hyphens in a comment: read `- -x` as one word.".to_owned());
    document.comments(&head);
    document.comments(&notes::host(request));
    document.comments(&notes::guest(request));
    let namespace = "xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'";
    document.element(&format!("domain type='{kind}' {namespace}"), |domain| {
        domain.line(&format!("<name>{}</name>", xml(&request.name)));
        domain.line(&format!("<memory unit='MiB'>{}</memory>", request.memory_mib));
        memory(domain, request);
        placement(domain, request);
        domain.element("os", |os| {
            os.line("<type arch='x86_64' machine='q35'>hvm</type>");
            os.line("<boot dev='hd'/>");
        });
        processor(domain, request);
        domain.line("<on_poweroff>destroy</on_poweroff>");
        domain.line("<on_reboot>restart</on_reboot>");
        domain.line("<on_crash>destroy</on_crash>");
        domain.element("devices", |devices| devices_of(devices, request));
        command_line(domain, request);
    });
    document.text
}

fn memory(domain: &mut Document, request: &Request) {
    domain.element("memoryBacking", |backing| {
        let page = match request.pages {
            Pages::Huge1G => Some("<page size='1' unit='G'/>"),
            Pages::Huge2M => Some("<page size='2' unit='M'/>"),
            Pages::None => None,
        };
        if let Some(page) = page {
            backing.element("hugepages", |pages| pages.line(page));
        }
        backing.comment("Not merged with other guests' pages, and never swapped out.");
        backing.line("<nosharepages/>");
        backing.line("<locked/>");
        backing.line("<source type='memfd'/>");
        if request.backend() == Backend::VhostUser {
            backing.comment("Open vSwitch reads and writes frames in this memory.");
            backing.line("<access mode='shared'/>");
        }
        backing.comment("All of it is there from the start: no page fault later.");
        backing.line("<allocation mode='immediate'/>");
    });
}

fn placement(domain: &mut Document, request: &Request) {
    domain.line(&format!("<vcpu placement='static'>{}</vcpu>", request.cpus()));
    if request.disk.is_some() {
        domain.line("<iothreads>1</iothreads>");
    }
    let Some(placement) = &request.placement else {
        return domain
            .comment("No cputune: no CPU was given, so threads stay where the scheduler puts them.");
    };
    let emulator = cpu_list(&placement.emulator);
    domain.element("cputune", |tune| {
        for (vcpu, cpu) in placement.vcpus.iter().enumerate() {
            tune.line(&format!("<vcpupin vcpu='{vcpu}' cpuset='{cpu}'/>"));
        }
        tune.comment("QEMU's other threads, and vhost's.");
        tune.line(&format!("<emulatorpin cpuset='{emulator}'/>"));
        if request.disk.is_some() {
            tune.line(&format!("<iothreadpin iothread='1' cpuset='{emulator}'/>"));
        }
        if let Some(priority) = placement.priority {
            let last = request.cpus() - 1;
            let vcpus = if last == 0 { "0".to_owned() } else { format!("0-{last}") };
            tune.line(&format!("<vcpusched vcpus='{vcpus}' scheduler='fifo' priority='{priority}'/>"));
            if matches!(request.backend(), Backend::Tap | Backend::Macvtap) {
                tune.comment("libvirt cannot make vhost's threads real-time ones. After each start of the guest, as root:");
                // Two hyphens would end the comment: the shell finds them by `?`.
                let name = request.name.replace("--", "-?");
                tune.comment(&format!(
                    "p=$(cat /run/libvirt/qemu/{name}.pid); for t in $(ps -eLo tid=,comm= | awk '$2 == \"vhost-'$p'\" {{print $1}}'); do \
                     chrt -f -p {priority} $t; done"
                ));
            }
        }
    });
}

fn processor(domain: &mut Document, request: &Request) {
    let is_kvm = request.accelerator == Accelerator::Kvm;
    domain.element("features", |features| {
        features.line("<acpi/>");
        features.line("<apic/>");
        features.comment("Interrupts of performance counters cost time.");
        features.line("<pmu state='off'/>");
        features.line("<vmport state='off'/>");
    });
    if is_kvm {
        domain.element("cpu mode='host-passthrough' check='none' migratable='off'", |cpu| {
            topology(cpu, request);
            cpu.comment("The host's own counter, which never stops.");
            cpu.line("<feature policy='require' name='invtsc'/>");
        });
    } else {
        domain.element("cpu mode='maximum'", |cpu| topology(cpu, request));
    }
    domain.element("clock offset='utc'", |clock| {
        clock.line("<timer name='hpet' present='no'/>");
        if is_kvm {
            clock.line("<timer name='kvmclock' present='yes'/>");
            clock.line("<timer name='tsc' present='yes' mode='native'/>");
        }
    });
}

/// What libvirt has no elements for.
fn command_line(domain: &mut Document, request: &Request) {
    let mut arguments: Vec<(&str, Vec<String>)> = Vec::new();
    if request.accelerator == Accelerator::Kvm && request.placement.is_some() {
        let why = "Idle vCPUs stay in the guest (the host shows 100 %), so that they wake at once.";
        arguments.push((why, vec!["-overcommit".to_owned(), "cpu-pm=on".to_owned()]));
    }
    arguments.extend(qemu::clock_arguments(request).into_iter().map(|(why, words)| (why, words.to_vec())));
    if arguments.is_empty() {
        return;
    }
    if arguments.len() > 1 {
        domain.comment("A device shmem would let the guest write the page, so its memory stands here. libvirt's AppArmor or SELinux");
        domain.comment("profile must allow QEMU these files.");
    }
    domain.element("qemu:commandline", |line| {
        for (why, words) in arguments {
            line.comment(why);
            words.iter().for_each(|word| line.line(&format!("<qemu:arg value='{}'/>", xml(word))));
        }
    });
}

fn topology(cpu: &mut Document, request: &Request) {
    cpu.line(&format!("<topology sockets='1' dies='1' cores='{}' threads='1'/>", request.cpus()));
}

fn devices_of(devices: &mut Document, request: &Request) {
    devices.line("<emulator>/usr/bin/qemu-system-x86_64</emulator>");
    if let Some(disk) = &request.disk {
        devices.element("disk type='file' device='disk'", |element| {
            element.comment("The disk has a thread of its own, so that it delays no frame.");
            let format = request.disk_format.name();
            element.line(&format!(
                "<driver name='qemu' type='{format}' cache='none' discard='unmap' iothread='1'/>"
            ));
            element.line(&format!("<source file='{}'/>", xml(disk)));
            element.line("<target dev='vda' bus='virtio'/>");
        });
    }
    interface(devices, request);
    devices.line("<serial type='pty'/>");
    devices.line("<console type='pty'/>");
    devices.line("<memballoon model='none'/>");
    devices.element("rng model='virtio'", |rng| rng.line("<backend model='random'>/dev/urandom</backend>"));
}

fn interface(devices: &mut Document, request: &Request) {
    let backend = request.backend();
    let kind = match backend {
        Backend::Tap => "bridge",
        Backend::Macvtap => "direct",
        Backend::VhostUser => "vhostuser",
        Backend::Device => return passed_through(devices, request),
    };
    devices.element(&format!("interface type='{kind}'"), |interface| {
        interface.line(&format!("<mac address='{}'/>", request.mac()));
        match backend {
            Backend::Tap => {
                interface.line(&format!("<source bridge='{}'/>", xml(&request.bridge)));
                if request.datapath == super::Datapath::TapOvs {
                    interface.line("<virtualport type='openvswitch'/>");
                }
                interface.line(&format!("<target dev='{}'/>", xml(&request.tap)));
            }
            Backend::Macvtap => {
                let device = request.device.as_deref().unwrap_or_default();
                interface.line(&format!("<source dev='{}' mode='bridge'/>", xml(device)));
                interface.line(&format!("<target dev='{}'/>", xml(&request.tap)));
            }
            _ => {
                interface.comment("QEMU makes the socket, Open vSwitch connects to it.");
                interface
                    .line(&format!("<source type='unix' path='{}' mode='server'/>", xml(&request.socket())));
            }
        }
        interface.line("<model type='virtio'/>");
        driver(interface, request);
    });
}

fn driver(interface: &mut Document, request: &Request) {
    let queues = request.queues();
    let name = match (request.backend(), request.accelerator) {
        (Backend::VhostUser, _) => "",
        (_, Accelerator::Kvm) => " name='vhost'",
        (_, Accelerator::Tcg) => " name='qemu'",
    };
    if !request.datapath.loses_offloads() {
        return interface.line(&format!("<driver{name} queues='{queues}'/>"));
    }
    interface.comment("No offloads: XDP would lose the frames that use them.");
    interface.element(&format!("driver{name} queues='{queues}'"), |driver| {
        driver.line("<host csum='off' gso='off' tso4='off' tso6='off' ecn='off' ufo='off'/>");
        driver.line("<guest csum='off' tso4='off' tso6='off' ecn='off' ufo='off'/>");
    });
}

fn passed_through(devices: &mut Document, request: &Request) {
    let [domain, bus, slot, function] = request.device.as_deref().and_then(parse_pci).unwrap_or_default();
    devices.comment("libvirt takes the device from its driver and gives it back.");
    devices.element("hostdev mode='subsystem' type='pci' managed='yes'", |device| {
        device.element("source", |source| {
            source.line(&format!(
                "<address domain='{domain:#06x}' bus='{bus:#04x}' slot='{slot:#04x}' function='{function:#x}'/>"
            ));
        });
    });
}
