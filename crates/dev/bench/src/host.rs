//! The bare host: the same requests without a server, by the method that is best here.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use load::host::{Method, run_lightly};

use crate::disks::{DISK_BYTES, DiskFile};
use crate::measure::{Values, timing, values_of};
use crate::results::{HostChoice, Metric};
use crate::rows::Load;
use crate::server::Patient;

/// One sample.
pub(crate) fn measure(
    file: DiskFile<'_>,
    method: Method,
    load: &Load,
    runtime: Duration,
) -> Result<Values> {
    let workload = load.host_workload(DISK_BYTES);
    let timing = timing(runtime);
    let sample = run_lightly(file.path, file.cache, method, &workload, timing, &mut Patient)
        .with_context(|| format!("bare host with {}", method.name()))?;
    Ok(values_of(&sample))
}

/// Tries every method once. One that this host refuses is left out.
pub(crate) fn best(
    file: DiskFile<'_>,
    load: &Load,
    runtime: Duration,
) -> Result<(Method, HostChoice)> {
    let mut tried = BTreeMap::new();
    let mut best = None;
    let mut refusal = None;
    for method in Method::ALL {
        let values = match measure(file, method, load, runtime) {
            Ok(values) => values,
            Err(error) => {
                refusal = Some(error);
                continue;
            }
        };
        let rate = values.get(&Metric::RequestsPerS).copied().unwrap_or_default();
        tried.insert(method.name().to_owned(), rate);
        if best.is_none_or(|(_, most)| rate > most) {
            best = Some((method, rate));
        }
    }
    match (best, refusal) {
        (Some((method, _)), _) => {
            Ok((method, HostChoice { best: method.name().to_owned(), tried }))
        }
        (None, Some(error)) => Err(error),
        (None, None) => unreachable!("there are methods"),
    }
}
