//! Policies: those that place rings while the guests run, and maps that stay.

mod auto;
mod fixed;
mod oracle;
mod spdk_dynamic;
mod threshold;

use std::fmt;
use std::str::FromStr;

use placement::{Fault, PoolSettings, Preference};

use crate::world::World;

pub use auto::Auto;
pub use fixed::Fixed;
pub use oracle::Oracle;
pub use spdk_dynamic::SpdkDynamic;
pub use threshold::Threshold;

/// Numbers of iothreads among which the best fixed one is looked for.
pub const COUNTS: [u16; 8] = [1, 2, 3, 4, 6, 8, 12, 16];

/// Something that places rings.
pub trait Policy {
    /// Looks at the world and moves rings in it; when it wants to look again, in seconds. The first time before anything
    /// has happened.
    fn look(&mut self, world: &mut World) -> f64;

    /// Changes of a number of iothreads that were kept: when, in seconds, and for which disk.
    fn changes(&self) -> &[(f64, usize)] {
        &[]
    }

    /// Whether rings go to and fro now.
    fn is_trying(&self) -> bool {
        false
    }

    /// Whether it needs no timer now.
    fn is_parked(&self) -> bool {
        false
    }
}

/// A policy by its name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Name {
    /// What ringloom does; with how much one more iothread must bring.
    Auto(Preference),
    /// Queue i of each disk on iothread i modulo so many.
    Modulo(u16),
    /// All queues of disk d on iothread d modulo all.
    DiskModulo,
    /// Queue i of disk d on iothread (queues of a disk × d + i) modulo all.
    QueueModulo,
    /// A static map with so many iothreads for each disk: queue i of disk d on (n × d + i mod n) modulo all.
    Spread(u16),
    /// SPDK's dynamic scheduler: disks move between cores, by how busy these are.
    SpdkDynamic,
    /// One iothread more or less by utilisation, one cool-down after the other.
    Threshold,
    /// The best of `modulo` with 1 to 16 iothreads, in hindsight.
    BestFixed,
    /// The best number of iothreads and the best places in each window, for each disk as if it were alone.
    Oracle,
}

impl Name {
    /// The policy, for a pool of so many iothreads at most; `None` if it is known only in hindsight.
    pub fn policy(self, threads: u16, fault: Fault) -> Option<Box<dyn Policy>> {
        Some(match self {
            Self::Auto(prefer) => {
                let settings = PoolSettings::new(1, threads, None, prefer);
                let settings = settings.expect("the number of iothreads was checked");
                Box::new(Auto::new(settings.with_fault(fault)))
            }
            Self::Modulo(count) => Box::new(Fixed::new(move |_, queue| queue % count.min(threads))),
            Self::DiskModulo => Box::new(Fixed::new(move |disk, _| disk % threads)),
            Self::QueueModulo => Box::new(Fixed::new(move |disk, queue| {
                disk.wrapping_mul(16).wrapping_add(queue) % threads
            })),
            Self::Spread(count) => {
                Box::new(Fixed::new(move |disk, queue| (disk * count + queue % count) % threads))
            }
            Self::SpdkDynamic => Box::new(SpdkDynamic::new(threads)),
            Self::Threshold => Box::new(Threshold::new(threads)),
            Self::Oracle => Box::new(Oracle::new(threads)),
            Self::BestFixed => return None,
        })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto(Preference::Throughput) => write!(f, "auto"),
            Self::Auto(Preference::Balanced) => write!(f, "auto:balanced"),
            Self::Auto(Preference::Cpu) => write!(f, "auto:cpu"),
            Self::Modulo(count) => write!(f, "modulo-{count}"),
            Self::DiskModulo => write!(f, "disk-modulo"),
            Self::QueueModulo => write!(f, "queue-modulo"),
            Self::Spread(count) => write!(f, "spread-{count}"),
            Self::SpdkDynamic => write!(f, "spdk-dynamic"),
            Self::Threshold => write!(f, "threshold"),
            Self::BestFixed => write!(f, "best-fixed"),
            Self::Oracle => write!(f, "oracle"),
        }
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = |prefix: &str| -> Option<u16> {
            text.strip_prefix(prefix)?.parse().ok().filter(|it| (1..=64).contains(it))
        };
        Ok(match text {
            "auto" => Self::Auto(Preference::Throughput),
            "auto:balanced" => Self::Auto(Preference::Balanced),
            "auto:cpu" => Self::Auto(Preference::Cpu),
            "disk-modulo" => Self::DiskModulo,
            "queue-modulo" => Self::QueueModulo,
            "spdk-dynamic" => Self::SpdkDynamic,
            "threshold" => Self::Threshold,
            "best-fixed" => Self::BestFixed,
            "oracle" => Self::Oracle,
            _ => match (count("modulo-"), count("spread-")) {
                (Some(count), _) => Self::Modulo(count),
                (_, Some(count)) => Self::Spread(count),
                _ => return Err(format!("no policy is called `{text}`: {NAMES}")),
            },
        })
    }
}

/// All names, for the help.
pub const NAMES: &str = "auto, auto:balanced, auto:cpu, modulo-N, disk-modulo, queue-modulo, spread-N, \
                         spdk-dynamic, threshold, best-fixed, oracle";
