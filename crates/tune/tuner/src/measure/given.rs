//! fio in the user's own guest, over ssh.
//!
//! Limits: what serves the disk is not known, so there are no figures of its CPU time; those of the whole host are of the host
//! on which ringloom runs, wherever the guest is.

use anyhow::Result;
use records::results::Run;

use super::fio::{self, GivenPlace, Means, Serving, Station, Work};
use super::{Bench, Planned, vm};
use crate::given::Given;

/// Measures the disk of the guest with one fio.
pub(super) fn run(bench: &Bench<'_>, given: &mut Given, planned: &Planned<'_>) -> Result<Run> {
    let emulated = given.is_emulated();
    let disk = given.guest.disk.clone();
    let means =
        Means { version: given.fio, engine: vm::engine(bench.settings), cache: given.cache() };
    let work = Work::new(bench.settings, planned, means, 1)?;
    let connection = given.connection(&mut || Ok(bench.interrupt.check()?))?;
    let mut place = GivenPlace::new(connection, bench.interrupt);
    let station =
        Station { place: &mut place, files: vec![disk.path.clone()], job_name: planned.slug() };
    let serving = Serving { groups: &[], check: &mut || Ok(()) };
    let measured = fio::run(bench.surroundings(), planned, &work, &mut [station], serving)?;
    Ok(Run { queues: disk.queues.unwrap_or(0), emulated, ..measured })
}
