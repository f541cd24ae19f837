//! What the user hears before anything takes time: how long, what is left out, what is emulated.

use std::time::Duration;

use super::Prepared;
use crate::progress::say;
use crate::run::{expected, planned};
use crate::units::{Bytes, counted, human_time};

/// A slow disk; only for the estimate.
const FILL_BYTES_PER_SECOND: u64 = 200 << 20;
/// Booting one guest; only for the estimate.
const BOOT: Duration = Duration::from_secs(8);

impl Prepared {
    /// Says what will be done, what will not, and how long it takes.
    pub(in crate::run) fn announce(&self) {
        let Self { settings, matrix, .. } = self;
        let runs = planned(settings, matrix).len();
        let time = expected(settings).saturating_mul(u32::try_from(runs).unwrap_or(u32::MAX));
        let fill = self.fill_bytes();
        let fill_time = Duration::from_secs(fill.div_ceil(FILL_BYTES_PER_SECOND));
        let guests = settings.variants.iter().map(|variant| variant.vms).max().unwrap_or(0);
        let boots = if self.fleet.is_some() { BOOT * u32::from(guests) } else { Duration::ZERO };
        let size = Bytes(fill);
        let filling = match (&self.target, self.storage_plan().is_plain()) {
            (Some(_), _) => String::new(),
            (None, _) if !self.has_storage() => String::new(),
            (None, true) => format!(", after filling {size} of scratch file"),
            (None, false) => format!(", after filling {size} of scratch files"),
        };
        say(&format!(
            "About {}: {} ({}, {}){filling}. Seed {}.",
            human_time(time + fill_time + boots),
            counted(runs, "run"),
            counted(matrix.entries.len(), "cell"),
            counted(usize::from(settings.repeats), "repeat"),
            settings.seed
        ));
        if let Some(reason) = &self.programs.emulated_because {
            say(&format!("Guests are {}: {reason}.", crate::report::EMULATED));
        }
        for pruned in &matrix.pruned {
            say(&format!("Left out: {pruned}."));
        }
        for cell in &matrix.skipped {
            say(&format!("Skipped: {cell}, it writes (--destructive allows it)."));
        }
    }
}
