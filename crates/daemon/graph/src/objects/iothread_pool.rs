//! The object type `iothread-pool`, which qemu-storage-daemon does not have.

use kernel_io::{CpuList, NumaTopology};
use placement::{IOTHREADS_MAX, PoolSettings, Preference, SettingsError};
use serde_json::{Map, Value};
use syntax::{ArgumentError, Keys, OptionFields, ValueType, optional};

use super::iothread::polling;
use super::{OBJECT_KEYS, ObjectKind, ObjectType, PollOptions};

/// `qom-type=iothread-pool`.
pub(super) const ENTRY: ObjectType = ObjectType {
    name: "iothread-pool",
    keys: Keys {
        of: "--object iothread-pool",
        supported: &[
            OBJECT_KEYS,
            &[
                optional("min", ValueType::Number),
                optional("max", ValueType::Number),
                optional("cpus", ValueType::Texts),
                optional("node", ValueType::Number),
                optional("budget", ValueType::Number),
                optional("mode", ValueType::Word(&["auto", "frozen"])),
                optional("prefer", ValueType::Word(&["throughput", "balanced", "cpu"])),
                optional("poll-max-ns", ValueType::Int),
                optional("poll-grow", ValueType::Int),
                optional("poll-shrink", ValueType::Int),
            ],
        ],
        later: &[],
    },
    read,
};

/// Iothreads that start and end as they are needed, and how much one more must bring.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolOptions {
    /// So many stay; one if it is not said.
    pub min: Option<u16>,
    /// So many there are at most; as many as CPUs if it is not said.
    pub max: Option<u16>,
    /// The CPUs that they run on. If it is not said, those near the storage, if the host has several NUMA nodes.
    pub cpus: Option<CpuList>,
    /// CPUs that they may use together.
    pub budget: Option<u32>,
    /// Whether queues are moved.
    pub mode: PoolMode,
    /// How much one more must bring.
    pub prefer: Preference,
    /// How each looks for work before it sleeps.
    pub polling: PollOptions,
}

/// Whether the queues of a pool are moved as the load asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoolMode {
    /// They are.
    #[default]
    Auto,
    /// They stay where they are put.
    Frozen,
}

impl PoolMode {
    /// The word of `mode=` for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Frozen => "frozen",
        }
    }
}

/// CPUs that a pool cannot have.
#[derive(Debug, thiserror::Error)]
enum CpusError {
    /// The process may not use some of them.
    #[error("cpus={asked}: this process may not use {denied}, only {allowed}")]
    Denied { asked: CpuList, denied: CpuList, allowed: CpuList },
    /// There is no such node.
    #[error("node={0}: this host has no such NUMA node, only {1}")]
    NoNode(u64, String),
    /// None of them is left.
    #[error("node={node}: none of its CPUs is among those that the pool may use ({allowed})")]
    NoneLeft { node: u64, allowed: CpuList },
    /// The kernel does not say which there are.
    #[error("cannot find out which CPUs this process may use")]
    Unknown(#[source] std::io::Error),
}

impl PoolOptions {
    /// Whether it is the same but for the mode, which alone can be changed.
    pub fn is_but_for_mode(&self, other: &Self) -> bool {
        let mode = self.mode;
        *self == Self { mode, ..other.clone() }
    }

    /// All that was said, by key.
    pub(super) fn written(&self) -> Map<String, Value> {
        let Self { min, max, cpus, budget, mode, prefer, polling } = self;
        let mut written = super::given([
            ("min", min.map(u64::from)),
            ("max", max.map(u64::from)),
            ("budget", budget.map(u64::from)),
        ]);
        written.extend(polling.written());
        if let Some(cpus) = cpus {
            written.insert("cpus".to_owned(), cpus.to_string().into());
        }
        let prefer = match prefer {
            Preference::Throughput => "throughput",
            Preference::Balanced => "balanced",
            Preference::Cpu => "cpu",
        };
        written.insert("mode".to_owned(), mode.word().into());
        written.insert("prefer".to_owned(), prefer.into());
        written
    }

    /// The same for the policy of a pool that runs on these CPUs, if that is said.
    pub fn settings(&self, cpus: Option<&CpuList>) -> Result<PoolSettings, SettingsError> {
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        let count = cpus.map_or(usable, |it| it.count().min(usable));
        let max = u16::try_from(count).unwrap_or(u16::MAX).clamp(1, IOTHREADS_MAX);
        let budget = self.budget.map(f64::from);
        PoolSettings::new(self.min.unwrap_or(1), self.max.unwrap_or(max), budget, self.prefer)
    }
}

fn read(fields: &mut OptionFields) -> Result<ObjectKind, ArgumentError> {
    let number = |number: Option<u64>| number.map(|it| u16::try_from(it).unwrap_or(u16::MAX));
    let max = number(fields.number("max")?);
    let min = number(fields.number("min")?);
    let budget = fields.number("budget")?.map(|it| u32::try_from(it).unwrap_or(u32::MAX));
    let prefer = match fields.word("prefer")? {
        Some("balanced") => Preference::Balanced,
        Some("cpu") => Preference::Cpu,
        Some(_) | None => Preference::Throughput,
    };
    let mode = match fields.word("mode")? {
        Some("frozen") => PoolMode::Frozen,
        Some(_) | None => PoolMode::Auto,
    };
    let polling = polling(fields)?;
    let allowed =
        CpuList::of_this_thread().map_err(|it| ArgumentError::own(CpusError::Unknown(it)))?;
    let cpus = cpus(fields, &allowed)?;
    let options = PoolOptions { min, max, cpus, budget, mode, prefer, polling };
    options.settings(options.cpus.as_ref()).map_err(ArgumentError::own)?;
    Ok(ObjectKind::IothreadPool(options))
}

/// What `cpus` and `node` leave of the CPUs that the process may use.
fn cpus(fields: &mut OptionFields, allowed: &CpuList) -> Result<Option<CpuList>, ArgumentError> {
    let mut cpus = None;
    if fields.has("cpus") {
        let expected = "a list of CPUs, as 0-3,8";
        let fault = || ArgumentError::Expects { key: "cpus".to_owned(), expected };
        let asked = CpuList::parse(&fields.texts("cpus")?.join(",")).ok_or_else(fault)?;
        let denied = asked.without(allowed);
        if denied.count() > 0 {
            let allowed = allowed.clone();
            return Err(ArgumentError::own(CpusError::Denied { asked, denied, allowed }));
        }
        cpus = Some(asked);
    }
    if let Some(node) = fields.number("node")? {
        let host = NumaTopology::default();
        let found = u32::try_from(node).ok().and_then(|node| host.cpus_of(node));
        let Some(found) = found else {
            let nodes: Vec<String> = host.nodes().iter().map(u32::to_string).collect();
            return Err(ArgumentError::own(CpusError::NoNode(node, nodes.join(", "))));
        };
        let allowed = cpus.as_ref().unwrap_or(allowed);
        let left = found.and(allowed);
        if left.count() == 0 {
            let allowed = allowed.clone();
            return Err(ArgumentError::own(CpusError::NoneLeft { node, allowed }));
        }
        cpus = Some(left);
    }
    Ok(cpus)
}
