//! The snapshots of an image: which there are, and how they come and go.
//!
//! Limits: [`SNAPSHOTS_MAX`].

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use block::SnapshotInfo;
use libc::timespec;
use rustix::io::Errno;

use super::{Image, copied};
use crate::cluster::{CallError, checked, text};
use crate::library::Snapshot;

/// The most snapshots of an image that are listed; of an image with more none is known.
const SNAPSHOTS_MAX: usize = 65536;

impl Image {
    /// Its snapshots, the oldest first. Blocks.
    pub(crate) fn snapshots(&self) -> Result<Vec<SnapshotInfo>, CallError> {
        let (functions, mut room) = (self.functions(), 16);
        loop {
            let mut list = vec![Snapshot { id: 0, size: 0, name: ptr::null() }; room];
            let mut count = c_int::try_from(room).expect("a small number");
            let start = list.as_mut_ptr();
            // SAFETY: the image is open, and no more is written than the count says.
            let told = unsafe { (functions.rbd_snap_list)(self.handle, start, &raw mut count) };
            match checked("rbd_snap_list", told) {
                // The count says how many there are, with the end.
                Err(CallError { errno: Errno::RANGE, .. }) if room < SNAPSHOTS_MAX => {
                    room = usize::try_from(count).unwrap_or(0).clamp(room * 2, SNAPSHOTS_MAX);
                }
                Err(error) => return Err(error),
                Ok(found) => {
                    let found = usize::try_from(found).unwrap_or(0).min(room);
                    let known = list[..found].iter().map(|it| self.snapshot_info(it)).collect();
                    if found > 0 {
                        // SAFETY: these were written by the call, with an entry behind them that has no name.
                        unsafe { (functions.rbd_snap_list_end)(start) };
                    }
                    return Ok(known);
                }
            }
        }
    }

    /// What is known of one of the list.
    fn snapshot_info(&self, snapshot: &Snapshot) -> SnapshotInfo {
        let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
        let functions = self.functions();
        // SAFETY: the image is open, and the time is written before the call returns.
        let told =
            unsafe { (functions.rbd_snap_get_timestamp)(self.handle, snapshot.id, &raw mut time) };
        let seconds = u64::try_from(time.tv_sec).ok().filter(|_| told >= 0).unwrap_or(0);
        let name = copied(snapshot.name);
        SnapshotInfo {
            // As in QEMU: a name is given once.
            id: name.clone(),
            name,
            state_bytes: 0,
            date: Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0)),
            clock: Duration::ZERO,
            instructions: None,
        }
    }

    /// Makes a snapshot. This client has the lock. Blocks.
    pub(crate) fn create_snapshot(&self, name: &str) -> Result<(), CallError> {
        let name = text("rbd_snap_create", name)?;
        // SAFETY: the image is open, and the name is a C string.
        let made = unsafe { (self.functions().rbd_snap_create)(self.handle, name.as_ptr()) };
        checked("rbd_snap_create", made).map(drop)
    }

    /// Removes a snapshot. This client has the lock. Blocks.
    pub(crate) fn remove_snapshot(&self, name: &str) -> Result<(), CallError> {
        let name = text("rbd_snap_remove", name)?;
        // SAFETY: the image is open, and the name is a C string.
        let removed = unsafe { (self.functions().rbd_snap_remove)(self.handle, name.as_ptr()) };
        checked("rbd_snap_remove", removed).map(drop)
    }
}
