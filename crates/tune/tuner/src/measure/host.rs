//! fio on this host, straight on the files.

use anyhow::{Context, Result};
use load::fio::Engine;
use load::probe::CacheMode;
use plan::variant::Aio;
use records::results::Run;

use super::fio::{self, HostPlace, Means, Serving, Station, Work};
use super::{Bench, Planned};

/// Measures all disks of the variant at once, with one fio.
pub(super) fn run(bench: &Bench<'_>, planned: &Planned<'_>) -> Result<Run> {
    let means = Means::new(bench, planned, engine(planned))?;
    let work = Work::new(bench.settings, planned, means, 1)?;
    let mut files = Vec::new();
    for disk in planned.disks {
        let path = disk.host_path().context("the host reads no such image")?;
        files.push(path.to_str().context("the name of the disk is not UTF-8")?.to_owned());
    }
    work.job(files.clone())?.check_files()?;
    let mut place = HostPlace::new(bench.fio()?.program.clone())?;
    let station = Station { place: &mut place, files, job_name: planned.slug() };
    let serving = Serving { groups: &[], check: &mut || Ok(()) };
    fio::run(bench.surroundings(), planned, &work, &mut [station], serving)
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
