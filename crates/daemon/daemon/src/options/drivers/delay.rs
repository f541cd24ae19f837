//! The driver `delay`: ours, named as QEMU would.
//!
//! Limits: no delay is longer than an hour ([`Latency::MAX`]); histograms are as large as
//! [`layers::Histogram::BYTES_MAX`] says.

use block::Order;
use layers::{Bounds, DelaySettings, Distribution, Latency};

use super::Entry;
use crate::options::blockdev::{BASE, BASE_LATER, Reader};
use crate::options::fault::Fault;
use crate::options::fields::{Fields, Keys};
use crate::options::files;
use crate::options::plan::Driver;

/// `driver=delay`.
pub(super) const ENTRY: Entry = Entry {
    name: "delay",
    keys: Keys {
        of: "--blockdev driver=delay",
        supported: &[BASE, &["file", "latency-ns", "read", "write", "flush", "ordered", "seed"]],
        later: &[BASE_LATER],
    },
    read,
};

/// The distributions, each with its keys.
pub(in crate::options) const DISTRIBUTIONS: &[(&str, Keys)] = &[
    ("fixed", keys("distribution=fixed", &[&["distribution", "latency-ns"]])),
    ("uniform", keys("distribution=uniform", &[&["distribution", "min-ns", "max-ns"]])),
    ("normal", keys("distribution=normal", &[&["distribution", "mean-ns", "stddev-ns"]])),
    ("exponential", keys("distribution=exponential", &[&["distribution", "mean-ns"]])),
    ("histogram", keys("distribution=histogram", &[&["distribution", "filename"]])),
];

const fn keys(of: &'static str, supported: &'static [&'static [&'static str]]) -> Keys {
    Keys { of, supported, later: &[] }
}

fn read(reader: &mut Reader) -> Result<Driver, Fault> {
    reader.child("file")?;
    let fields = &mut reader.fields;
    let all = number(fields, "latency-ns")?;
    let mut own = |key| fields.object(key)?.map(distribution).transpose();
    let (read, write, flush) = (own("read")?, own("write")?, own("flush")?);
    if all.is_some() && read.is_some() && write.is_some() && flush.is_some() {
        return Err(Fault::LatencyOfNothing);
    }
    let otherwise = all.map_or(Distribution::NONE, Distribution::Fixed);
    let given = |own: Option<Distribution>| own.unwrap_or_else(|| otherwise.clone());
    let order = if fields.flag("ordered")? == Some(true) { Order::AsBegun } else { Order::Any };
    let seed = fields.number("seed")?.unwrap_or(0);
    let (read, write, flush) = (given(read), given(write), given(flush));
    Ok(Driver::Delay { settings: DelaySettings { read, write, flush, order }, seed })
}

/// How long the requests of one kind take.
fn distribution(mut fields: Fields) -> Result<Distribution, Fault> {
    let names: Vec<&'static str> = DISTRIBUTIONS.iter().map(|(name, _)| *name).collect();
    let name = fields.choice("distribution", &names)?.unwrap_or("fixed");
    let entry = DISTRIBUTIONS.iter().find(|(known, _)| *known == name);
    let (_, keys) = entry.expect("the choice is among these names");
    fields.check_keys(keys)?;
    let fields = &mut fields;
    Ok(match name {
        "uniform" => {
            let (min, max) = (required(fields, "min-ns")?, required(fields, "max-ns")?);
            let bounds = Bounds::new(min, max).ok_or_else(|| Fault::Bounds {
                least: (fields.path("min-ns"), min.ns()),
                most: (fields.path("max-ns"), max.ns()),
            })?;
            Distribution::Uniform(bounds)
        }
        "normal" => Distribution::Normal {
            mean: required(fields, "mean-ns")?,
            deviation: required(fields, "stddev-ns")?,
        },
        "exponential" => Distribution::Exponential { mean: required(fields, "mean-ns")? },
        "histogram" => {
            let filename = fields.required_text("filename")?;
            Distribution::Histogram(files::read_histogram(filename.as_ref())?)
        }
        _ => Distribution::Fixed(required(fields, "latency-ns")?),
    })
}

fn required(fields: &mut Fields, key: &str) -> Result<Latency, Fault> {
    number(fields, key)?.ok_or_else(|| Fault::Missing { key: fields.path(key) })
}

fn number(fields: &mut Fields, key: &str) -> Result<Option<Latency>, Fault> {
    let Some(ns) = fields.number(key)? else { return Ok(None) };
    let latency = Latency::from_ns(ns);
    latency.map(Some).map_err(|source| Fault::Latency { key: fields.path(key), source })
}
