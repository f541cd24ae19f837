//! The steps of a backup at which a crash is tried out.
//!
//! With the feature `fault-points` the process ends itself at the step that `RINGLOOM_CTL_FAULT` names. In normal builds nothing
//! is left of it.

/// A point of a backup at which a test can crash the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackupStep {
    /// The targets are made and open.
    Made,
    /// All disks are being copied.
    Begun,
    /// All of it is copied.
    Copied,
    /// A target is closed, and has no name yet.
    Closed,
    /// It has its name.
    Named,
    /// The bitmaps of the backups before are gone.
    Forgotten,
    /// The oldest backup is marked as being merged.
    Marked,
    /// Its images are open, and a job merges them.
    Merging,
    /// It is merged, and has its old name.
    Merged,
    /// It has the name of the next one.
    Renamed,
}

/// Notes that a step was reached.
#[inline]
pub(crate) fn reached(step: BackupStep) {
    #[cfg(feature = "fault-points")]
    if std::env::var("RINGLOOM_CTL_FAULT").is_ok_and(|name| name == format!("{step:?}")) {
        std::process::abort();
    }
    #[cfg(not(feature = "fault-points"))]
    let _nobody_listens = step;
}
