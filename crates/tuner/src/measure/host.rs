//! fio on this host, straight on the files.

use anyhow::{Context, Result};
use load::fio::Engine;
use load::probe::CacheMode;

use super::fio::{Around, HostPlace, Place, Reports, Task, Work, keep_job, measure};
use super::{Bench, Planned, verify};
use crate::results::Measured;
use crate::variant::Aio;

/// Measures all disks of the variant at once, with one fio.
pub(super) fn run(bench: &Bench<'_>, planned: &Planned<'_>) -> Result<Measured> {
    let fio = bench.fio()?;
    let engine = engine(planned);
    let work = Work::new(bench, planned, engine, 1)?;
    let mut files = Vec::new();
    for disk in planned.disks {
        let path = disk.host_path().context("the host reads no such image")?;
        files.push(path.to_str().context("the name of the disk is not UTF-8")?.to_owned());
    }
    let job = work.job(files.clone())?;
    job.check_files()?;
    let job = job.file(fio.version);
    let job_files = vec![keep_job(&bench.out, &planned.slug(), &job)?];
    let mut place = HostPlace::new(fio.program.clone())?;
    let mut check = || Ok(());
    let mut around = Around {
        interrupt: bench.interrupt,
        progress: bench.progress,
        name: planned.name,
        check: &mut check,
    };
    let mut verified_bytes = None;
    if bench.verifies(planned) {
        let mut places: [&mut dyn Place; 1] = [&mut place];
        verified_bytes = Some(verify::run(&mut places, &[files], &work, fio.version, &mut around)?);
    }
    let mut tasks = [Task { place: &mut place, job, reports: Reports::EachSecond }];
    let outcome = measure(&mut tasks, &[], work.timing, &mut around)?;
    Ok(outcome.measured(&work, fio.version, job_files, verified_bytes))
}

/// How the host's fio hands requests to the kernel.
fn engine(planned: &Planned<'_>) -> Engine {
    let direct = planned.disks.iter().all(|disk| disk.cache == CacheMode::Direct);
    match planned.run.key.variant.aio {
        Aio::Native => Engine::Libaio,
        Aio::Threads => Engine::Psync,
        Aio::IoUring => Engine::IoUring,
        Aio::Auto if load::host::available().is_ok() => Engine::IoUring,
        Aio::Auto if direct => Engine::Libaio,
        Aio::Auto => Engine::Psync,
    }
}
