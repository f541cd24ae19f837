//! Before a run that writes, if asked: some of each disk is written, read back and compared.

use std::time::Duration;

use anyhow::{Context, Result};
use load::fio::{VERIFY_BYTES_MAX, VerifyJob, VerifyPhase, parse_verify};
use storage::clock;

use super::fio::{Around, Means, Reports, Station, Task, Work, carry_out};

/// A hundred times what a hard disk takes for a block.
const BLOCK_LIMIT: Duration = Duration::from_millis(500);

/// Verifies the first bytes of all disks, the first of every place at the same time, then the second, and so on. Returns the
/// bytes that were compared.
///
/// # Errors
/// What fio says about the block that is wrong.
pub(super) fn run(
    stations: &mut [Station<'_>],
    work: &Work<'_>,
    around: &mut Around<'_>,
) -> Result<u64> {
    let disks = stations.iter().map(|it| it.files.len()).max().unwrap_or(0);
    let mut verified = 0;
    for disk in 0..disks {
        let mut tasks = Vec::new();
        for Station { place, files, .. } in stations.iter_mut() {
            let Some(file) = files.get(disk) else { continue };
            let job = job(file, work)?.file(work.means.version, VerifyPhase::WriteAndRead);
            tasks.push(Task { place: &mut **place, job, reports: Reports::AtTheEnd });
        }
        let ended =
            carry_out(&mut tasks, limit(work), around, &mut |_, _| {}).context("verification")?;
        for ended in ended {
            verified += parse_verify(&ended.output).context("verification: wrong data")?;
        }
    }
    Ok(verified)
}

/// Every block is written and read; a disk that takes longer than this for each is none to measure.
fn limit(work: &Work<'_>) -> Duration {
    let block = u64::from(work.workload.shape().block().get());
    let blocks = work.workload.disk_bytes().min(VERIFY_BYTES_MAX) / block;
    BLOCK_LIMIT.saturating_mul(u32::try_from(2 * blocks).unwrap_or(u32::MAX))
}

fn job(file: &str, work: &Work<'_>) -> Result<VerifyJob> {
    let block = work.workload.shape().block();
    let bytes = work.workload.disk_bytes().min(VERIFY_BYTES_MAX);
    // Other data than any run before has left there.
    let seed = work.workload.seed() ^ u64::from(clock::since_epoch().subsec_nanos());
    let Means { engine, cache, .. } = work.means;
    Ok(VerifyJob::new(file, block, bytes, engine, cache, seed)?)
}
