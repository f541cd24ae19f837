//! Making scratch storage anew, so that what one place on the disk does to the figures is drawn again.
//!
//! `measure` does so before each round but the first.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use plan::units::{Bytes, human_time};

use super::{Mapper, StoragePlan, Storages, Tools, Workshop};
use crate::interrupt::Interrupt;

/// What takes longer to fill stays the same in all rounds: else more time went into filling than into measuring.
const FILLED_WITHIN: Duration = Duration::from_secs(10);

/// How to make the storages of a command once more.
#[derive(Clone, Copy, Debug)]
pub struct Renewal<'a> {
    /// What is made anew.
    pub plan: &'a StoragePlan,
    /// Where scratch files lie.
    pub directory: &'a Path,
    /// Of each disk.
    pub size: Bytes,
    /// What files are filled with comes from this.
    pub seed: u64,
    /// What makes stripes and delays.
    pub mapper: &'a Mapper,
}

impl Renewal<'_> {
    /// Takes the storages away and makes them again for a round. Call it when nobody has the disks open.
    ///
    /// # Errors
    /// The step that failed, or `Interrupted`; there are no storages then.
    pub fn renew(
        &self,
        storages: &mut Storages,
        round: u16,
        tools: &Tools,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let Self { plan, directory, size, mapper, .. } = *self;
        *storages = Storages::default();
        let seed = self.seed.wrapping_add(u64::from(round) << 32);
        let report = &|_| {};
        let workshop = Workshop { directory, size, seed, tools, mapper, interrupt, report };
        *storages = Storages::prepare(plan, &workshop).context("fill the disk anew")?;
        Ok(())
    }
}

/// Why storage that took so long to make, and may be preconditioned, stays as it is, if it does: a sentence without its full
/// stop.
pub fn stays(took: Duration, preconditioned: bool) -> Option<String> {
    let why = if preconditioned {
        "is written before it is measured".to_owned()
    } else if took > FILLED_WITHIN {
        format!("took {} to fill", human_time(took))
    } else {
        return None;
    };
    Some(format!(
        "the disk {why}, so all repeats use the same: another place on the disk may give other figures"
    ))
}
