//! `ringloom convert`: a disk is copied into another one.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use block::{ByteCount, DiskSize, Node, SECTOR_BYTES};
use copy::{CopiedSource, CopyAction, CopyJob, CopyProgress, CopySettings, TargetContent};
use graph::BaseOptions;
use indicatif::BinaryBytes;
use serde_json::json;

use crate::arguments::ConvertArgs;
use crate::disks::{Disk, Disks, MadeFile};
use crate::progress::Progress;
use crate::run::{carry_out, interrupts, threads};

/// Copies as the arguments say. What was made for a copy that fails is removed.
pub fn convert(arguments: &ConvertArgs) -> Result<()> {
    let interrupted = interrupts()?;
    let mut disks = Disks::new(arguments.named_files);
    let base = BaseOptions { cache_direct: arguments.direct, ..BaseOptions::DEFAULT };
    let force_share = arguments.force_share;
    let read_only = BaseOptions { read_only: true, force_share, ..base };
    let format = arguments.source_format.as_deref();
    let source = disks.open("source", &arguments.source, format, read_only)?;
    let (copied, took) = copy_disk(&mut disks, &source, arguments, &interrupted)?;
    say(arguments, copied, took)
}

/// Copies an open source as the arguments say; what was done, and how long it took.
pub(crate) fn copy_disk(
    disks: &mut Disks,
    source: &Disk,
    arguments: &ConvertArgs,
    interrupted: &AtomicBool,
) -> Result<(CopyProgress, Duration)> {
    let base = BaseOptions { cache_direct: arguments.direct, ..BaseOptions::DEFAULT };
    let bytes = source.node.size().0.0;
    let (target, made) = open_target(disks, arguments, source, base)?;
    let mut nodes = [source, &target].map(|disk| Arc::clone(&disk.node));
    let mut target_unit = 1;
    if arguments.compress {
        let compressing = disks.compressing(&target).with_context(|| arguments.target.clone())?;
        target_unit = compressing.limits().allocation_unit.get().into();
        nodes[1] = Arc::new(compressing);
    }
    let mut settings = CopySettings {
        action: CopyAction::Copy,
        bytes,
        target_bytes: target.node.size().0.0,
        target: if arguments.into_existing && !arguments.target_is_zero {
            TargetContent::Unknown
        } else {
            TargetContent::Zeroes
        },
        zero_unit: arguments.sparse,
        target_unit,
        copied: CopiedSource::Kept,
        bytes_per_second: arguments.rate,
    };
    let threads = threads(arguments.threads);
    let clock = Arc::clone(&disks.clock);
    let began = clock.now();
    let work = |settings, what: &str| -> Result<CopyProgress> {
        let job = CopyJob::new(settings, Arc::clone(&clock));
        let progress = Progress::new(what, bytes, arguments.quiet);
        carry_out(disks, &job, &nodes, threads, interrupted, |job| progress.look(job))?;
        Ok(job.progress())
    };
    let copied = work(settings, "copying")?;
    if !arguments.no_flush {
        target.claim.flush().with_context(|| format!("{}: flush", arguments.target))?;
    }
    let took = clock.now().duration_since(began);
    if arguments.verify {
        settings.action = CopyAction::Compare;
        work(settings, "verifying")?;
    }
    made.keep();
    Ok((copied, took))
}

fn open_target(
    disks: &mut Disks,
    arguments: &ConvertArgs,
    source: &Disk,
    base: BaseOptions,
) -> Result<(Disk, MadeFile)> {
    let ConvertArgs { target, target_format, into_existing, .. } = arguments;
    // Zeroes are holes, where the target has a way to make them.
    let base = BaseOptions { discard: block::DiscardPolicy::Unmap, ..base };
    if !into_existing {
        // A disk that is made has whole sectors, as with qemu-img.
        let bytes = source.node.size().0.0.next_multiple_of(SECTOR_BYTES);
        return disks.make(target, target_format, DiskSize(ByteCount(bytes)), base);
    }
    let disk = disks.open("target", target, Some(target_format), base)?;
    let (has, needs) = (disk.node.size().0.0, source.node.size().0.0);
    ensure!(has >= needs, "{target} has {has} bytes, and the source has {needs}");
    Ok((disk, MadeFile::default()))
}

fn say(arguments: &ConvertArgs, copied: CopyProgress, took: Duration) -> Result<()> {
    let CopyProgress { done, data, written } = copied;
    let mut stdout = std::io::stdout().lock();
    if arguments.json {
        let seconds = took.as_secs_f64();
        let result = json!({
            "bytes": done, "data-bytes": data, "written-bytes": written, "seconds": seconds,
            "verified": arguments.verify,
        });
        writeln!(stdout, "{result}")?;
    } else if !arguments.quiet {
        let nanos = took.as_nanos().max(1);
        let rate = u64::try_from(u128::from(done) * 1_000_000_000 / nanos).unwrap_or(u64::MAX);
        let verified = if arguments.verify { ", verified" } else { "" };
        writeln!(
            stdout,
            "{}: {} of data and {} of zeroes in {:.1} s, {}/s{verified}",
            BinaryBytes(done),
            BinaryBytes(written),
            BinaryBytes(done - written.min(done)),
            took.as_secs_f64(),
            BinaryBytes(rate),
        )?;
    }
    Ok(())
}
