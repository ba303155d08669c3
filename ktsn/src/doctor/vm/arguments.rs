// SPDX-License-Identifier: Apache-2.0
//! QEMU's command line, read by QEMU's grammar.
//!
//! In: the words of a process, which any user may have chosen, and the files that they name by -readconfig. Out: name,
//! accelerators, network back ends and cards. What cannot be read is listed in `unread`, never guessed. A device that was plugged in later is
//! in no argument.

use std::borrow::Cow;

use serde_json::Value;

/// Options without a value. Any other option of QEMU takes the next word.
const WITHOUT_VALUE: &[&str] = &[
    "h",
    "help",
    "version",
    "S",
    "s",
    "snapshot",
    "daemonize",
    "nographic",
    "no-reboot",
    "no-shutdown",
    "no-acpi",
    "no-hpet",
    "enable-kvm",
    "enable-hax",
    "nodefaults",
    "no-user-config",
    "nodefconfig",
    "full-screen",
    "alt-grab",
    "ctrl-grab",
    "no-frame",
    "no-quit",
    "sdl",
    "curses",
    "portrait",
    "win2k-hack",
    "no-fd-bootchk",
    "singlestep",
    "no-kvm",
    "no-kvm-irqchip",
    "no-kvm-pit",
    "no-kvm-pit-reinjection",
    "semihosting",
    "old-param",
    "only-migratable",
    "mem-prealloc",
    "usb",
    "usbdevice-help",
    "localtime",
    "preconfig",
    "enable-fips",
    "enable-sync-profile",
    "xen-attach",
    "xen-create",
    "audio-help",
    "tdf",
];
/// What a reader looks at of one process; QEMU itself has no such limit.
const WORDS_MAX: usize = 4_096;

/// `key=value` pairs of an option; of one that stands twice the last counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pairs(Vec<(String, String)>);

impl Pairs {
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            "on" | "yes" | "true" | "y" => Some(true),
            "off" | "no" | "false" | "n" => Some(false),
            _ => None,
        }
    }

    /// In QEMU's own form: `FIRST,key=value,flag`, a doubled comma is one of the value. `first` is the key of the first part, if it
    /// has none. Or as JSON.
    fn read(text: &str, first: &str) -> Option<Self> {
        let mut pairs = Vec::new();
        if text.starts_with('{') {
            flatten("", &serde_json::from_str(text).ok()?, &mut pairs);
            return Some(Self(pairs));
        }
        for (index, part) in parts(text).into_iter().enumerate() {
            pairs.push(match part.split_once('=') {
                Some((key, value)) => (key.to_owned(), value.to_owned()),
                None if index == 0 && !first.is_empty() => (first.to_owned(), part),
                None => (part, "on".to_owned()),
            });
        }
        Some(Self(pairs))
    }
}

fn parts(text: &str) -> Vec<String> {
    let (mut parts, mut part, mut signs) = (Vec::new(), String::new(), text.chars().peekable());
    while let Some(sign) = signs.next() {
        match sign {
            ',' if signs.next_if_eq(&',').is_none() => parts.push(std::mem::take(&mut part)),
            other => part.push(other),
        }
    }
    parts.push(part);
    parts.retain(|part| !part.is_empty());
    parts
}

fn flatten(path: &str, value: &Value, pairs: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, pairs);
            }
        }
        Value::Bool(is) => pairs.push((path.to_owned(), if *is { "on" } else { "off" }.to_owned())),
        Value::String(text) => pairs.push((path.to_owned(), text.clone())),
        other => pairs.push((path.to_owned(), other.to_string())),
    }
}

/// Where a card's frames go: `-netdev`, or its part of `-nic` and `-net`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BackEnd {
    pub(super) kind: String,
    id: Option<String>,
    pub(super) has_vhost: bool,
    pub(super) queues: usize,
}

impl BackEnd {
    fn of(pairs: &Pairs) -> Self {
        // As QEMU: descriptors of vhost turn it on, and each descriptor of a tap is a queue.
        let descriptors = |key: &str| pairs.get(key).map(|list| list.split(':').count());
        let with_descriptors = ["vhostfd", "vhostfds"].iter().any(|key| pairs.get(key).is_some());
        let forced = pairs.flag("vhostforce") == Some(true);
        let named = pairs.get("queues").and_then(|count| count.parse().ok());
        Self {
            kind: pairs.get("type").unwrap_or_default().to_owned(),
            id: pairs.get("id").map(str::to_owned),
            has_vhost: pairs.flag("vhost").unwrap_or(with_descriptors || forced),
            queues: named.or_else(|| descriptors("fds")).unwrap_or(1),
        }
    }
}

/// A network card of the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Card {
    pub(super) model: String,
    properties: Pairs,
    /// The queues of its back end; none: it is not known which it has.
    pub(super) queues: Option<usize>,
}

impl Card {
    pub(super) fn is_virtio(&self) -> bool {
        self.model.starts_with("virtio")
    }

    /// A property that is on or off; none: it has the default.
    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        self.properties.flag(key)
    }
}

/// What the words say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Qemu {
    pub(super) name: Option<String>,
    /// In the order in which QEMU tries them.
    pub(super) accelerators: Vec<String>,
    pub(super) back_ends: Vec<BackEnd>,
    pub(super) cards: Vec<Card>,
    /// Words and files that could not be read.
    pub(super) unread: Vec<String>,
}

/// An option's name, without its dashes, and its value.
type Word<'a> = (Cow<'a, str>, Cow<'a, str>);

/// Reads them; `file` gives the text of a file that they name.
pub(super) fn read(words: &[String], file: impl Fn(&str) -> Option<String>) -> Qemu {
    let mut qemu = Qemu::default();
    let mut options: Vec<Word<'_>> = Vec::new();
    for (name, value) in split(words) {
        if name != "readconfig" {
            options.push((name, value));
            continue;
        }
        match file(&value) {
            Some(text) => options.extend(sections(&text)),
            None => qemu.unread.push(format!("-readconfig {value}")),
        }
    }
    if words.len() > WORDS_MAX {
        qemu.unread.push(format!("words after the first {WORDS_MAX}"));
    }
    Reader { qemu, sets: Vec::new(), globals: Vec::new(), devices: Vec::new() }.all(&options)
}

/// The files that are named by -readconfig.
pub(super) fn config_files(words: &[String]) -> Vec<String> {
    let files = split(words).into_iter().filter(|(name, _)| name == "readconfig");
    files.map(|(_, value)| value.into_owned()).collect()
}

fn split(words: &[String]) -> Vec<Word<'_>> {
    let mut options = Vec::new();
    // The first word is the program's name; a word without a dash is a disk.
    let mut words = words.iter().skip(1).take(WORDS_MAX);
    while let Some(word) = words.next() {
        let Some(name) = word.strip_prefix('-') else { continue };
        let name = name.strip_prefix('-').unwrap_or(name);
        let value = if WITHOUT_VALUE.contains(&name) { None } else { words.next() };
        options.push((Cow::from(name), Cow::from(value.map_or("", String::as_str))));
    }
    options
}

/// Sections of a file of -readconfig as options: `[device "net0"]` with lines `key = "value"`.
fn sections(text: &str) -> Vec<Word<'static>> {
    let mut options: Vec<(String, String)> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(head) = line.strip_prefix('[').and_then(|head| head.strip_suffix(']')) {
            let (group, id) = head.split_once(' ').unwrap_or((head, ""));
            let id = id.trim().trim_matches('"');
            let id = if id.is_empty() { String::new() } else { format!(",id={}", id.replace(',', ",,")) };
            options.push((group.to_owned(), id));
        } else if let (Some((key, value)), Some((_, pairs))) = (line.split_once('='), options.last_mut())
            && !line.starts_with('#')
        {
            let value = value.trim().trim_matches('"').replace(',', ",,");
            pairs.push_str(&format!(",{}={value}", key.trim()));
        }
    }
    options.into_iter().map(|(name, pairs)| (name.into(), pairs.into())).collect()
}

struct Reader {
    qemu: Qemu,
    /// `-set GROUP.ID.KEY=VALUE`.
    sets: Vec<(String, String)>,
    /// `-global DRIVER.KEY=VALUE`.
    globals: Vec<(String, String, String)>,
    /// Of `-device`, before it is known which are cards.
    devices: Vec<Pairs>,
}

impl Reader {
    fn all(mut self, options: &[Word<'_>]) -> Qemu {
        for (name, value) in options {
            let first = match name.as_ref() {
                "device" => "driver",
                "netdev" | "nic" | "net" | "machine" | "M" => "type",
                "name" => "guest",
                "accel" => "accel",
                _ => "",
            };
            match name.as_ref() {
                "enable-kvm" => self.qemu.accelerators.push("kvm".to_owned()),
                "set" => {
                    self.sets
                        .extend(value.split_once('=').map(|(path, to)| (path.to_owned(), to.to_owned())));
                }
                "device" | "netdev" | "nic" | "net" | "machine" | "M" | "name" | "accel" | "global" => {
                    match Pairs::read(value, first) {
                        Some(pairs) => self.option(name, pairs),
                        None => self.qemu.unread.push(format!("-{name} {value}")),
                    }
                }
                _ => {}
            }
        }
        self.finish()
    }

    fn option(&mut self, name: &str, pairs: Pairs) {
        let text = |key: &str| pairs.get(key).map(str::to_owned);
        match name {
            "name" => self.qemu.name = text("guest").or(self.qemu.name.take()),
            "accel" => self.accelerate(pairs.get("accel")),
            "machine" | "M" => self.accelerate(pairs.get("accel")),
            "global" => self.global(&pairs),
            "device" => self.devices.push(pairs),
            "netdev" => self.qemu.back_ends.push(BackEnd::of(&pairs)),
            "net" if text("type").as_deref() == Some("nic") => {
                // Behind a hub that has the other -net options: one queue.
                let queues = if pairs.get("netdev").is_some() { None } else { Some(1) };
                let model = model(pairs.get("model"));
                self.qemu.cards.push(Card { model, properties: pairs, queues });
            }
            _ if text("type").as_deref() == Some("none") => {}
            "nic" => {
                let back_end = BackEnd::of(&pairs);
                let (model, queues) = (model(pairs.get("model")), Some(back_end.queues));
                self.qemu.back_ends.push(back_end);
                self.qemu.cards.push(Card { model, properties: pairs, queues });
            }
            _ => self.qemu.back_ends.push(BackEnd::of(&pairs)),
        }
    }

    fn accelerate(&mut self, list: Option<&str>) {
        self.qemu.accelerators.extend(list.into_iter().flat_map(|list| list.split(':')).map(str::to_owned));
    }

    /// `DRIVER.KEY=VALUE`, or `driver=,property=,value=`.
    fn global(&mut self, pairs: &Pairs) {
        if let (Some(driver), Some(key), Some(value)) =
            (pairs.get("driver"), pairs.get("property"), pairs.get("value"))
        {
            self.globals.push((driver.to_owned(), key.to_owned(), value.to_owned()));
        } else if let Some((path, value)) = pairs.0.first()
            && let Some((driver, key)) = path.rsplit_once('.')
        {
            self.globals.push((driver.to_owned(), key.to_owned(), value.clone()));
        }
    }

    /// Properties of later options are put in front or behind: an option of the device itself counts before a global one.
    fn finish(mut self) -> Qemu {
        let set = |group: &str, pairs: &mut Pairs| {
            let Some(id) = pairs.get("id").map(str::to_owned) else { return };
            for (path, value) in &self.sets {
                if let Some(key) = path.strip_prefix(&format!("{group}.{id}.")) {
                    pairs.0.push((key.to_owned(), value.clone()));
                }
            }
        };
        for mut pairs in std::mem::take(&mut self.devices) {
            set("device", &mut pairs);
            let driver = pairs.get("driver").unwrap_or_default().to_owned();
            if !driver.starts_with("virtio-net") && pairs.get("netdev").is_none() {
                continue;
            }
            let id = pairs.get("netdev");
            let back_end = self.qemu.back_ends.iter().find(|end| id.is_some() && end.id.as_deref() == id);
            let queues = back_end.map(|end| end.queues);
            self.qemu.cards.push(Card { model: model(Some(&driver)), properties: pairs, queues });
        }
        for card in &mut self.qemu.cards {
            let is_of = |driver: &str| {
                driver == card.model
                    || card.model.starts_with("virtio-net") && driver.starts_with("virtio-net")
            };
            let globals = self.globals.iter().filter(|(driver, ..)| is_of(driver));
            let globals: Vec<_> = globals.map(|(_, key, value)| (key.clone(), value.clone())).collect();
            card.properties.0.splice(0..0, globals);
        }
        self.qemu
    }
}

/// QEMU's short names.
fn model(name: Option<&str>) -> String {
    match name {
        Some("virtio" | "virtio-net") => "virtio-net-pci".to_owned(),
        Some(name) => name.to_owned(),
        None => "the machine's default".to_owned(),
    }
}
