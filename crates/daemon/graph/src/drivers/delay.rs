//! The driver `delay`: another node, answering later. It is ours, named as QEMU would.
//!
//! Limits: no delay is longer than an hour ([`Latency::MAX`]); histograms are as large as
//! [`layers::Histogram::BYTES_MAX`] says, and read with the options, so that nobody needs their files afterwards.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernel_io::FileKind;
use layers::{
    DelayNode, DelayOrder, DelaySettings, Distribution, Histogram, HistogramError, Latency,
    LatencyTooLong, UniformLatency,
};
use syntax::{ArgumentError, Key, Keys, OptionFields, Union, ValueType, optional, required};

use super::base::{BASE, BASE_LATER, BaseOptions, on_off, pair};
use super::driver::{
    Driver, DriverOptions, HostFileSpec, MadeNode, NodeContext, NodeError, NodeRequirements,
    Options, ThrottleGroups,
};
use super::{file_check, raw};
use crate::model::ChildRole;
use crate::storage_watchdog::waiting_for;

/// `driver=delay`.
pub(super) static DELAY: Driver = Driver {
    name: "delay",
    keys: Keys {
        of: "--blockdev driver=delay",
        supported: &[
            BASE,
            &[required("file", ValueType::Node), optional("seed", ValueType::Number)],
            SETTINGS,
        ],
        later: &[BASE_LATER],
    },
    changeable: &["read-only", "discard", "cache", "read", "write", "flush", "ordered"],
    roles: &[("file", ChildRole::Filtered)],
    help: "  --blockdev [driver=]delay,node-name=N,file=NODE[,latency-ns=NS][,ordered=on|off][,seed=NUMBER]
                   [,read.distribution=fixed|uniform|normal|exponential|histogram,read.…]
                   [,write.…][,flush.…]
                         another node, answering later: all requests by latency-ns, or those of
                         one kind by a distribution: latency-ns; min-ns, max-ns; mean-ns,
                         stddev-ns; mean-ns; filename (lines of a latency in ns and a count).
                         ordered: requests of one iothread do not overtake each other
",
    as_format: None,
    read,
};

/// What can be changed while requests are delayed.
const SETTINGS: &[Key] = &[
    optional("latency-ns", ValueType::Number),
    optional("read", ValueType::Union(&DISTRIBUTION)),
    optional("write", ValueType::Union(&DISTRIBUTION)),
    optional("flush", ValueType::Union(&DISTRIBUTION)),
    optional("ordered", ValueType::Flag),
];

/// The keys of `ringloom-delay-set`: the settings of a delay, all anew.
pub static DELAY_SET: Keys = Keys {
    of: "ringloom-delay-set",
    supported: &[&[required("node-name", ValueType::Text)], SETTINGS],
    later: &[],
};

/// The distributions, each with its keys.
static DISTRIBUTION: Union = Union {
    tag: TAG.name,
    default: Some("fixed"),
    branches: &[
        ("fixed", keys("distribution=fixed", &[&[TAG, LATENCY]])),
        ("uniform", keys("distribution=uniform", &[&[TAG, MIN, MAX]])),
        ("normal", keys("distribution=normal", &[&[TAG, MEAN, DEVIATION]])),
        ("exponential", keys("distribution=exponential", &[&[TAG, MEAN]])),
        ("histogram", keys("distribution=histogram", &[&[TAG, FILENAME]])),
    ],
    later: &[],
};

const TAG: Key = optional("distribution", ValueType::Text);
const LATENCY: Key = required("latency-ns", ValueType::Number);
const MIN: Key = required("min-ns", ValueType::Number);
const MAX: Key = required("max-ns", ValueType::Number);
const MEAN: Key = required("mean-ns", ValueType::Number);
const DEVIATION: Key = required("stddev-ns", ValueType::Number);
const FILENAME: Key = required("filename", ValueType::Text);

const fn keys(of: &'static str, supported: &'static [&'static [Key]]) -> Keys {
    Keys { of, supported, later: &[] }
}

/// The options of `driver=delay`.
#[derive(Debug)]
struct DelayOptions {
    settings: DelaySettings,
    /// What random delays depend on.
    seed: u64,
}

/// What is wrong with the options of a delay.
#[derive(Debug, thiserror::Error)]
enum DelayOptionsError {
    /// One is out of range.
    #[error("parameter '{key}'")]
    TooLong {
        /// The key.
        key: String,
        /// What is wrong with it.
        #[source]
        source: LatencyTooLong,
    },
    /// One is for what has no delay of its own, where everything has.
    #[error("parameter 'latency-ns' has no effect: read, write and flush have their own delays")]
    OfNothing,
    /// Bounds are in the wrong order, with what they are.
    #[error("parameter '{}' ({}) is above '{}' ({})", least.0, least.1, most.0, most.1)]
    Bounds {
        /// What should be below.
        least: (String, u64),
        /// What should be above.
        most: (String, u64),
    },
    /// A file is no histogram.
    #[error("histogram '{}'", path.display())]
    Histogram {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: HistogramError,
    },
}

fn read(fields: &mut OptionFields, _: &BaseOptions) -> Result<Options, ArgumentError> {
    let settings = read_settings(fields)?;
    let seed = fields.number("seed")?.unwrap_or(0);
    Ok(Arc::new(DelayOptions { settings, seed }))
}

/// How long requests of each kind take.
pub(crate) fn read_settings(fields: &mut OptionFields) -> Result<DelaySettings, ArgumentError> {
    let all = latency(fields, &LATENCY)?;
    let mut own = |key| fields.union(key)?.map(distribution).transpose();
    let (read, write, flush) = (own("read")?, own("write")?, own("flush")?);
    if all.is_some() && read.is_some() && write.is_some() && flush.is_some() {
        return Err(ArgumentError::own(DelayOptionsError::OfNothing));
    }
    let otherwise = all.map_or(Distribution::NONE, Distribution::Fixed);
    let given = |own: Option<Distribution>| own.unwrap_or_else(|| otherwise.clone());
    let order =
        if fields.flag("ordered")? == Some(true) { DelayOrder::AsBegun } else { DelayOrder::Any };
    let (read, write, flush) = (given(read), given(write), given(flush));
    Ok(DelaySettings { read, write, flush, order })
}

/// The settings in canonical form.
pub(crate) fn describe_settings(settings: &DelaySettings) -> Vec<(String, String)> {
    let DelaySettings { read, write, flush, order } = settings;
    // A histogram can be long.
    let brief = |distribution| {
        let text = format!("{distribution:?}");
        if text.len() <= 100 { text } else { format!("{:016x}", fnv1a(text.as_bytes())) }
    };
    vec![
        pair("read", &brief(read)),
        pair("write", &brief(write)),
        pair("flush", &brief(flush)),
        pair("ordered", on_off(*order == DelayOrder::AsBegun)),
    ]
}

/// How long the requests of one kind take.
fn distribution(
    (name, mut fields): (&'static str, OptionFields),
) -> Result<Distribution, ArgumentError> {
    let fields = &mut fields;
    let mut latency = |key: &Key| {
        latency(fields, key)?.ok_or_else(|| ArgumentError::Missing(fields.path(key.name)))
    };
    Ok(match name {
        "uniform" => {
            let (min, max) = (latency(&MIN)?, latency(&MAX)?);
            let bounds = UniformLatency::new(min, max).ok_or_else(|| DelayOptionsError::Bounds {
                least: (fields.path(MIN.name), min.ns()),
                most: (fields.path(MAX.name), max.ns()),
            });
            Distribution::Uniform(bounds.map_err(ArgumentError::own)?)
        }
        "normal" => Distribution::Normal { mean: latency(&MEAN)?, deviation: latency(&DEVIATION)? },
        "exponential" => Distribution::Exponential { mean: latency(&MEAN)? },
        "histogram" => {
            let path = PathBuf::from(fields.required_text(FILENAME.name)?);
            Distribution::Histogram(waiting_for(&path, || histogram(&path))?)
        }
        _ => Distribution::Fixed(latency(&LATENCY)?),
    })
}

fn latency(fields: &mut OptionFields, key: &Key) -> Result<Option<Latency>, ArgumentError> {
    let Some(ns) = fields.number(key.name)? else { return Ok(None) };
    let too_long = |source| {
        ArgumentError::own(DelayOptionsError::TooLong { key: fields.path(key.name), source })
    };
    Latency::from_ns(ns).map(Some).map_err(too_long)
}

/// Reads a file with a histogram of latencies.
fn histogram(path: &Path) -> Result<Arc<Histogram>, ArgumentError> {
    // The type comes first: opening a FIFO would wait for its other end.
    let file = HostFileSpec { path, kind: FileKind::Regular };
    file_check::check_kind(DELAY.name, &file).map_err(ArgumentError::own)?;
    let mut content = Vec::new();
    let limit = u64::try_from(Histogram::BYTES_MAX).expect("64-bit host") + 1;
    let read = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut content));
    read.map_err(|cause| ArgumentError::own(file_check::open_fault(path, cause)))?;
    let wrong = |source| DelayOptionsError::Histogram { path: path.to_owned(), source };
    Histogram::parse(&content).map(Arc::new).map_err(|source| ArgumentError::own(wrong(source)))
}

impl DriverOptions for DelayOptions {
    fn needs(&self) -> NodeRequirements<'_> {
        NodeRequirements::default()
    }

    fn describe(&self, _: &ThrottleGroups) -> Vec<(String, String)> {
        [describe_settings(&self.settings), vec![pair("seed", &self.seed)]].concat()
    }

    fn make(&self, context: &NodeContext<'_>) -> Result<MadeNode, NodeError> {
        let child = raw::discarding(context, context.file());
        let (settings, clock) = (self.settings.clone(), Arc::clone(context.clock));
        let access = context.base.access();
        let node = DelayNode::new(context.name, child, access, settings, self.seed, clock);
        let node = Arc::new(node);
        Ok(MadeNode { delay: Some(Arc::clone(&node)), ..MadeNode::of(node) })
    }
}

/// The hash FNV-1a, which is the same in every build.
fn fnv1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
