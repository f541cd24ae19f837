//! `ringloom map`: what the bytes of a disk are, without reading them.

use std::io::Write;
use std::sync::Arc;

use anyhow::Result;
use block::BlockStatus;
use copy::{CopiedSource, CopyAction, CopyJob, CopySettings, TargetContent};
use graph::BaseOptions;
use indicatif::BinaryBytes;
use serde_json::{Value, json};

use crate::arguments::MapArgs;
use crate::disks::Disks;
use crate::run::{carry_out, interrupts};

/// Prints the map of a disk.
pub fn map(arguments: &MapArgs) -> Result<()> {
    let interrupted = interrupts()?;
    let mut disks = Disks::new(arguments.named_files);
    let force_share = arguments.force_share;
    let base = BaseOptions { read_only: true, force_share, ..BaseOptions::DEFAULT };
    let format = arguments.source_format.as_deref();
    let source = disks.open("source", &arguments.source, format, base)?;
    let bytes = source.node.size().0.0;
    let settings = CopySettings {
        action: CopyAction::Map,
        bytes,
        target_bytes: bytes,
        target: TargetContent::Unknown,
        zero_unit: 4096,
        target_unit: 1,
        copied: CopiedSource::Kept,
        bytes_per_second: None,
    };
    let job = CopyJob::new(settings, Arc::clone(&disks.clock));
    carry_out(&disks, &job, &[Arc::clone(&source.node)], 1, &interrupted, |_| {})?;
    let mut stdout = std::io::stdout().lock();
    if arguments.json {
        let runs: Vec<Value> = job
            .runs()
            .into_iter()
            .map(|(run, status)| {
                json!({
                    "start": run.start, "length": run.end - run.start, "depth": status.depth,
                    "present": status.is_allocated, "zero": status.is_zero, "data": status.is_data,
                })
            })
            .collect();
        writeln!(stdout, "{}", Value::Array(runs))?;
        return Ok(());
    }
    writeln!(stdout, "{:>16} {:>16} {:>11}  WHAT", "START", "LENGTH", "")?;
    for (run, status) in job.runs() {
        let count = run.end - run.start;
        let human = BinaryBytes(count).to_string();
        let depth =
            if status.depth > 0 { format!(", {} below", status.depth) } else { String::new() };
        writeln!(stdout, "{:>16} {count:>16} {human:>11}  {}{depth}", run.start, word(status))?;
    }
    Ok(())
}

fn word(status: BlockStatus) -> &'static str {
    match (status.is_allocated, status.is_data, status.is_zero) {
        (false, _, _) => "unallocated",
        (true, true, true) => "data, zeroes",
        (true, true, false) => "data",
        (true, false, true) => "zeroes",
        (true, false, false) => "nothing",
    }
}
