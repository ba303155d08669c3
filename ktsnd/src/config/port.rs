// SPDX-License-Identifier: Apache-2.0
//! `[[port]]`: one uplink, its worker, its classes and its gates.

use ktsn_model::{PriorityMap, TrafficClass, UnsynchronisedPolicy};
use ktsn_schedule::Schedule;
use ktsn_time::Nanos;
use serde::Deserialize;

use super::ConfigError;
use super::values::{Checked, choice, device_name, duration, word};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPort {
    pub device: Option<String>,
    pub netns: Option<String>,
    pub adapter: Option<String>,
    pub devargs: Option<String>,
    pub mode: Option<String>,
    pub link_speed: Option<u64>,
    pub priority_map: Option<Vec<u8>>,
    pub schedule: Option<String>,
    pub strategy: Option<String>,
    #[serde(default)]
    class: Vec<RawClass>,
    pub spin_margin: Option<String>,
    pub spin_duty_max: Option<f64>,
    pub cpu: Option<u32>,
    pub priority: Option<u32>,
    pub unsynchronised: Option<String>,
}

/// `[[port.class]]`; the leaves of 802.1Q's YANG modules keep their names.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawClass {
    pub traffic_class: Option<u64>,
    pub order: Option<String>,
    pub queue_max_sdu: Option<u64>,
    pub idle_slope: Option<u64>,
}

/// Which adapter a port is asked to use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AdapterChoice {
    /// AF_XDP in copy mode, else AF_PACKET.
    #[default]
    Auto,
    /// AF_XDP or nothing.
    AfXdp,
    /// AF_PACKET with qdisc bypass.
    AfPacket,
    /// A driver of DPDK.
    #[cfg(feature = "dpdk")]
    Dpdk {
        /// Which, and its arguments.
        devargs: String,
    },
}

impl AdapterChoice {
    const WORDS: &str = if cfg!(feature = "dpdk") {
        "auto, af_xdp, af_packet or dpdk"
    } else {
        "auto, af_xdp or af_packet (this ktsnd was built without the feature dpdk)"
    };

    fn check(field: &str, raw: &RawPort) -> Checked<Self> {
        let adapter = match raw.adapter.as_deref() {
            None | Some("auto") => Self::Auto,
            Some("af_xdp") => Self::AfXdp,
            Some("af_packet") => Self::AfPacket,
            #[cfg(feature = "dpdk")]
            Some("dpdk") => return Self::check_dpdk(field, raw),
            Some(other) => {
                return Err(ConfigError::value(&format!("{field}.adapter"), other, Self::WORDS));
            }
        };
        if let Some(devargs) = &raw.devargs {
            let expected = "no devargs but beside adapter = \"dpdk\"";
            return Err(ConfigError::value(&format!("{field}.devargs"), devargs, expected));
        }
        Ok(adapter)
    }

    #[cfg(feature = "dpdk")]
    fn check_dpdk(field: &str, raw: &RawPort) -> Checked<Self> {
        let (name, expected) = (format!("{field}.devargs"), "a device of DPDK, as net_af_packet0,iface=eth1");
        let Some(devargs) = &raw.devargs else {
            return Err(ConfigError::missing(&name, expected));
        };
        if devargs.is_empty() || devargs.starts_with(',') || devargs.contains(char::is_whitespace) {
            return Err(ConfigError::value(&name, devargs, expected));
        }
        Ok(Self::Dpdk { devargs: devargs.clone() })
    }
}

/// How long before a transmit time the worker stops sleeping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpinMargin {
    /// Follows the measured wake-up lateness.
    #[default]
    Adaptive,
    /// Fixed.
    Fixed(Nanos),
}

ktsn_model::words! {
    /// Whether other senders than KTSN use the device.
    #[derive(Default)]
    pub enum Mode {
        /// The kernel's own traffic leaves by it too.
        #[default]
        Shared = "shared",
        /// No queue holds them back: frames that other programs send are counted and warned about.
        Dedicated = "dedicated",
    }
}

ktsn_model::words! {
    /// Transmission selection of a port.
    #[derive(Default)]
    pub enum SelectionChoice {
        /// Gates, guard bands, TxTime or arrival order, shapers (802.1Q-2022 8.6.8.4).
        #[default]
        TimeAware = "time-aware",
        /// The earliest TxTime of the highest class, nothing else.
        EarliestTxTime = "earliest-tx-time",
        /// The highest class first, in order of arrival (8.6.8.1).
        StrictPriority = "strict-priority",
        /// Credit-based shapers where an idle slope is given (8.6.8.2); no gates.
        CreditBased = "credit-based",
    }
}

ktsn_model::words! {
    /// In which order the frames of a class leave.
    pub enum ClassOrder {
        /// The earliest TxTime first.
        TxTime = "tx-time",
        /// As they arrived: a frame waits for those before it.
        Fifo = "fifo",
    }
}

/// `[[port.class]]`: one traffic class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassChoice {
    /// Order; `None` = what the selection says.
    pub order: Option<ClassOrder>,
    /// Longest service data unit in octets; `None` = what the device takes.
    pub queue_max_sdu: Option<u32>,
    /// Idle slope of the credit-based shaper in bit/s; `None` = no shaper.
    pub idle_slope: Option<u64>,
}

/// `[[port]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Network device, in ktsnd's namespace.
    pub device: String,
    /// Adapter asked for.
    pub adapter: AdapterChoice,
    /// Whether other senders than KTSN use the device.
    pub mode: Mode,
    /// bit/s; `None` = what ethtool says.
    pub link_speed: Option<u64>,
    /// Name of its gate schedule; `None` = all gates open.
    pub schedule: Option<String>,
    /// Transmission selection.
    pub selection: SelectionChoice,
    /// The traffic classes, class n at index n.
    pub classes: [ClassChoice; TrafficClass::COUNT],
    /// Priority → traffic class; `None` = the schedule's, else identity.
    pub priority_map: Option<PriorityMap>,
    /// Spin margin.
    pub spin_margin: SpinMargin,
    /// Greatest share of a second spent spinning, in parts per thousand.
    pub spin_duty_max_permille: u32,
    /// CPU the worker is pinned to.
    pub cpu: Option<u32>,
    /// SCHED_FIFO priority of the worker; 0 = an ordinary thread.
    pub priority: u32,
    /// What happens while the clock is unsynchronised.
    pub unsynchronised: UnsynchronisedPolicy,
}

impl Port {
    /// Longest service data unit of each class in octets: the schedule's word, else the port's.
    #[must_use]
    pub fn queue_max_sdu(&self, schedule: Option<&Schedule>) -> [Option<u32>; TrafficClass::COUNT] {
        let mut limits = self.classes.map(|class| class.queue_max_sdu);
        if let Some(schedule) = schedule {
            for (limit, octets) in limits.iter_mut().zip(schedule.queue_max_sdu) {
                *limit = octets.or(*limit);
            }
        }
        limits
    }

    /// A port with all defaults.
    #[must_use]
    pub fn on(device: &str) -> Self {
        Self {
            device: device.to_owned(),
            adapter: AdapterChoice::Auto,
            mode: Mode::Shared,
            link_speed: None,
            schedule: None,
            selection: SelectionChoice::TimeAware,
            classes: [ClassChoice::default(); TrafficClass::COUNT],
            priority_map: None,
            spin_margin: SpinMargin::Adaptive,
            spin_duty_max_permille: 800,
            cpu: None,
            priority: 50,
            unsynchronised: UnsynchronisedPolicy::Send,
        }
    }

    /// Whether its selection has to know how long a frame occupies the link, whatever its gates.
    #[must_use]
    pub fn is_shaped(&self) -> bool {
        self.classes.iter().any(|class| class.idle_slope.is_some())
    }

    pub(super) fn check(field: &str, raw: &RawPort) -> Checked<Self> {
        let device = device_name(&format!("{field}.device"), raw.device.as_deref())?;
        let mut port = Self::on(&device);
        if let Some(netns) = &raw.netns {
            let expected = "no value: an uplink lies in ktsnd's own namespace; run ktsnd there";
            return Err(ConfigError::value(&format!("{field}.netns"), netns, expected));
        }
        port.check_device(field, raw)?;
        port.check_selection(field, raw)?;
        port.check_worker(field, raw)?;
        Ok(port)
    }

    fn check_device(&mut self, field: &str, raw: &RawPort) -> Checked<()> {
        let path = |name: &str| format!("{field}.{name}");
        self.adapter = AdapterChoice::check(field, raw)?;
        self.mode = word(&path("mode"), raw.mode.as_deref())?;
        if raw.link_speed == Some(0) {
            return Err(ConfigError::value(&path("link_speed"), 0, "bit/s, at least 1"));
        }
        self.link_speed = raw.link_speed;
        self.unsynchronised = word(&path("unsynchronised"), raw.unsynchronised.as_deref())?;
        Ok(())
    }

    fn check_selection(&mut self, field: &str, raw: &RawPort) -> Checked<()> {
        if let Some(map) = &raw.priority_map {
            let name = format!("{field}.priority_map");
            let classes: [u8; 16] = map.as_slice().try_into().map_err(|_| {
                let found = format!("{} entries", map.len());
                ConfigError::value(&name, found, "16 traffic classes, one a priority")
            })?;
            let map = PriorityMap::new(classes)
                .map_err(|e| ConfigError::value(&name, e.value, "traffic classes 0 to 7"))?;
            self.priority_map = Some(map);
        }
        self.selection = word(&format!("{field}.strategy"), raw.strategy.as_deref())?;
        let mut seen = 0u8;
        for (i, class) in raw.class.iter().enumerate() {
            let field = format!("{field}.class[{i}]");
            let (number, choice) = self.check_class(&field, class)?;
            if seen & (1 << number) != 0 {
                return Err(ConfigError::duplicate(&format!("{field}.traffic-class"), number));
            }
            seen |= 1 << number;
            self.classes[usize::from(number)] = choice;
        }
        if self.selection == SelectionChoice::CreditBased && !self.is_shaped() {
            let expected = "a class with idle-slope, since strategy is credit-based";
            return Err(ConfigError::missing(&format!("{field}.class"), expected));
        }
        if let Some(name) = &raw.schedule {
            if self.selection != SelectionChoice::TimeAware {
                let expected = format!(
                    "no schedule beside strategy {:?}: gates are time-aware's",
                    self.selection.word()
                );
                return Err(ConfigError::value(&format!("{field}.schedule"), name, expected));
            }
            self.schedule = Some(name.clone());
        }
        Ok(())
    }

    fn check_class(&self, field: &str, raw: &RawClass) -> Checked<(u8, ClassChoice)> {
        let path = |name: &str| format!("{field}.{name}");
        let (leaf, expected) = (path("traffic-class"), "a traffic class, 0 to 7");
        let number = raw.traffic_class.ok_or_else(|| ConfigError::missing(&leaf, expected))?;
        let class = u8::try_from(number).ok().and_then(|n| TrafficClass::new(n).ok());
        let class = class.ok_or_else(|| ConfigError::value(&leaf, number, expected))?;
        let word = self.selection.word();
        if self.selection == SelectionChoice::EarliestTxTime {
            let expected = format!("no class options beside strategy {word:?}; time-aware has them");
            return Err(ConfigError::value(field, number, expected));
        }
        let order = choice(&path("order"), raw.order.as_deref())?;
        if order == Some(ClassOrder::TxTime) && self.selection != SelectionChoice::TimeAware {
            let expected = format!("fifo, since strategy is {word}; time-aware has both");
            return Err(ConfigError::value(&path("order"), ClassOrder::TxTime, expected));
        }
        let queue_max_sdu = match raw.queue_max_sdu {
            // The leaf's own word for "what the medium takes".
            None | Some(0) => None,
            Some(octets) if self.selection != SelectionChoice::TimeAware => {
                let expected = format!("none, since strategy is {word}; time-aware has limits");
                return Err(ConfigError::value(&path("queue-max-sdu"), octets, expected));
            }
            Some(octets @ 1..=65_535) => Some(octets as u32),
            Some(other) => {
                return Err(ConfigError::value(&path("queue-max-sdu"), other, "1 to 65535 octets, or 0"));
            }
        };
        if let Some(slope) = raw.idle_slope {
            let expected = match (self.selection, self.link_speed) {
                (SelectionChoice::StrictPriority, _) => {
                    Some("none, since strategy is strict-priority".to_owned())
                }
                _ if slope == 0 => Some("bit/s, at least 1".to_owned()),
                (_, Some(speed)) if slope > speed => Some(format!("at most the link's {speed} bit/s")),
                _ => None,
            };
            if let Some(expected) = expected {
                return Err(ConfigError::value(&path("idle-slope"), slope, expected));
            }
        }
        Ok((class.get(), ClassChoice { order, queue_max_sdu, idle_slope: raw.idle_slope }))
    }

    fn check_worker(&mut self, field: &str, raw: &RawPort) -> Checked<()> {
        if let Some(margin) = raw.spin_margin.as_deref().filter(|m| *m != "adaptive") {
            let name = format!("{field}.spin_margin");
            self.spin_margin =
                SpinMargin::Fixed(duration(&name, margin, Nanos::ZERO, Nanos::from_millis(10))?);
        }
        if let Some(duty) = raw.spin_duty_max {
            if !(0.0..=0.95).contains(&duty) {
                let expected = "0 to 0.95 (the kernel throttles SCHED_FIFO above)";
                return Err(ConfigError::value(&format!("{field}.spin_duty_max"), duty, expected));
            }
            self.spin_duty_max_permille = (duty * 1000.0).round() as u32;
        }
        self.cpu = raw.cpu;
        if let Some(priority) = raw.priority {
            if priority > 99 {
                let expected = "a SCHED_FIFO priority of 1 to 99, or 0 for an ordinary thread";
                return Err(ConfigError::value(&format!("{field}.priority"), priority, expected));
            }
            self.priority = priority;
        }
        Ok(())
    }
}
