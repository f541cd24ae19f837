//! The object type `iothread-pool`, which qemu-storage-daemon does not have.

use placement::{IOTHREADS_MAX, PoolSettings, Preference};
use syntax::{ArgumentError, Keys, OptionFields, ValueType, optional, required};

use super::iothread::polling;
use super::{ObjectKind, ObjectType, PollOptions};

/// `qom-type=iothread-pool`.
pub(super) const ENTRY: ObjectType = ObjectType {
    name: "iothread-pool",
    keys: Keys {
        of: "--object iothread-pool",
        supported: &[&[
            required("qom-type", ValueType::Text),
            required("id", ValueType::Text),
            optional("min", ValueType::Number),
            optional("max", ValueType::Number),
            optional("prefer", ValueType::Word(&["throughput", "balanced", "cpu"])),
            optional("poll-max-ns", ValueType::Number),
            optional("poll-grow", ValueType::Number),
            optional("poll-shrink", ValueType::Number),
        ]],
        later: &[],
    },
    read,
};

/// Iothreads that start and end as they are needed, and how much one more must bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolOptions {
    /// So many stay.
    pub min: u16,
    /// So many there are at most.
    pub max: u16,
    /// How much one more must bring.
    pub prefer: Preference,
    /// How each looks for work before it sleeps.
    pub polling: PollOptions,
}

impl Default for PoolOptions {
    fn default() -> Self {
        let (prefer, polling) = (Preference::default(), PollOptions::default());
        Self { min: 1, max: Self::cpus(), prefer, polling }
    }
}

impl PoolOptions {
    /// As many iothreads as CPUs that the process may use, up to what a pool may have.
    fn cpus() -> u16 {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        u16::try_from(cpus).unwrap_or(u16::MAX).min(IOTHREADS_MAX)
    }

    /// The same for the policy.
    ///
    /// # Panics
    /// If the numbers were not checked.
    pub fn settings(&self) -> PoolSettings {
        PoolSettings::new(self.min, self.max, None, self.prefer).expect("it was read")
    }
}

fn read(fields: &mut OptionFields) -> Result<ObjectKind, ArgumentError> {
    let default = PoolOptions::default();
    let number = |number: Option<u64>| number.map(|it| u16::try_from(it).unwrap_or(u16::MAX));
    let max = number(fields.number("max")?).unwrap_or(default.max);
    let min = number(fields.number("min")?).unwrap_or(default.min);
    let prefer = match fields.word("prefer")? {
        Some("balanced") => Preference::Balanced,
        Some("cpu") => Preference::Cpu,
        Some(_) | None => Preference::Throughput,
    };
    PoolSettings::new(min, max, None, prefer).map_err(ArgumentError::own)?;
    Ok(ObjectKind::IothreadPool(PoolOptions { min, max, prefer, polling: polling(fields)? }))
}
