//! fio in the user's own guest, over ssh.
//!
//! Limits: what serves the disk is not known, so there are no figures of its CPU time; those of the whole host are of the host
//! on which ringloom runs, wherever the guest is.

use anyhow::Result;

use super::fio::{Around, GivenPlace, Place, Reports, Task, Work, keep_job, measure, rate_of_each};
use super::{Bench, Planned, verify, vm};
use crate::given::Given;
use crate::results::Measured;

/// Measures the disk of the guest with one fio.
pub(super) fn run(bench: &Bench<'_>, given: &mut Given, planned: &Planned<'_>) -> Result<Measured> {
    let (version, emulated) = (given.fio, given.is_emulated());
    let disk = given.guest.disk.clone();
    let work = Work {
        workload: planned.workload,
        engine: vm::engine(bench),
        cache: given.cache(),
        timing: bench.timing(),
        rate: planned.rate.map(|rate| rate_of_each(rate, 1)).transpose()?,
    };
    let files = vec![disk.path.clone()];
    let job = work.job(files.clone())?.file(version);
    let job_files = vec![keep_job(&bench.out, &planned.slug(), &job)?];
    let connection = given.connection(&mut || Ok(bench.interrupt.check()?))?;
    let mut place = GivenPlace::new(connection, bench.interrupt);
    let mut around = Around {
        interrupt: bench.interrupt,
        progress: bench.progress,
        name: planned.name,
        check: &mut || Ok(()),
    };
    let mut verified_bytes = None;
    if bench.verifies(planned) {
        let mut places: [&mut dyn Place; 1] = [&mut place];
        verified_bytes = Some(verify::run(&mut places, &[files], &work, version, &mut around)?);
    }
    let mut tasks = [Task { place: &mut place, job, reports: Reports::EachSecond }];
    let outcome = measure(&mut tasks, &[], work.timing, &mut around)?;
    let measured = outcome.measured(&work, version, job_files, verified_bytes);
    Ok(Measured { queues: disk.queues.unwrap_or(0), emulated, ..measured })
}
