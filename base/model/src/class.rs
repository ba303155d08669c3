// SPDX-License-Identifier: Apache-2.0
//! Priorities and traffic classes (802.1Q-2022 clause 8.6.6).

/// A number outside of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value} is out of range, expected 0 to {largest}")]
pub struct OutOfRange {
    /// The name of the value that was out of range.
    pub what: &'static str,
    /// The value found.
    pub value: u64,
    /// The largest value allowed.
    pub largest: u64,
}

/// A socket priority that takes part in the map, 0 to 15 (`SO_PRIORITY`; larger ones count as 15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// A priority from `SO_PRIORITY`, capped at 15.
    #[must_use]
    pub const fn capped(value: u32) -> Self {
        Self(if value > 15 { 15 } else { value as u8 })
    }
    /// The number, 0 to 15.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A traffic class, 0 to 7; 7 is served first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrafficClass(u8);

impl TrafficClass {
    /// How many classes a port has.
    pub const COUNT: usize = 8;

    /// The class with this number.
    ///
    /// # Errors
    /// [`OutOfRange`] above 7.
    pub const fn new(value: u8) -> Result<Self, OutOfRange> {
        if value < 8 {
            Ok(Self(value))
        } else {
            Err(OutOfRange { what: "traffic class", value: value as u64, largest: 7 })
        }
    }
    /// The number, 0 to 7.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Priority → traffic class, for priorities 0 to 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityMap([TrafficClass; 16]);

impl Default for PriorityMap {
    /// Identity, capped at class 7.
    fn default() -> Self {
        let mut map = [TrafficClass(7); 16];
        let mut i = 0;
        while i < 8 {
            map[i] = TrafficClass(i as u8);
            i += 1;
        }
        Self(map)
    }
}

impl PriorityMap {
    /// A map from sixteen class numbers.
    ///
    /// # Errors
    /// [`OutOfRange`] when a class is above 7.
    pub fn new(classes: [u8; 16]) -> Result<Self, OutOfRange> {
        let mut map = [TrafficClass(0); 16];
        for (entry, class) in map.iter_mut().zip(classes) {
            *entry = TrafficClass::new(class)?;
        }
        Ok(Self(map))
    }
    /// The class that serves `priority`.
    #[must_use]
    pub fn class(&self, priority: Priority) -> TrafficClass {
        self.0[usize::from(priority.get())]
    }
}
