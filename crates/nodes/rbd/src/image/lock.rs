//! The exclusive lock of an image: who has it, whether that one is there, and how it is taken from one that is not.
//!
//! Invariants: of the owners only those are broken that have no watch on the image, and they are blocklisted before: the
//! OSDs refuse what such a client has sent and they have not carried out yet.

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use rustix::io::Errno;

use super::{Image, copied};
use crate::cluster::{CallError, checked, text};
use crate::library::{LOCK_MODE_EXCLUSIVE, Watcher};

/// What Ceph's `osd_client_watch_timeout` is, if nothing else is known of it.
const WATCH_TIMEOUT_SECONDS: u64 = 30;

/// The most owners and watchers of one image that are asked for.
const CLIENTS_MAX: usize = 256;

impl Image {
    /// Whether this client has the lock. Blocks.
    pub(crate) fn has_lock(&self) -> Result<bool, CallError> {
        let mut is_owner = 0;
        // SAFETY: the image is open, and the answer is written before the call returns.
        let told = unsafe {
            (self.functions().rbd_is_exclusive_lock_owner)(self.handle, &raw mut is_owner)
        };
        checked("rbd_is_exclusive_lock_owner", told)?;
        Ok(is_owner != 0)
    }

    /// The addresses of the clients that have the lock. Blocks.
    pub(crate) fn lock_owners(&self) -> Result<Vec<String>, CallError> {
        let mut owners = [ptr::null_mut(); CLIENTS_MAX];
        let (mut mode, mut count): (c_int, usize) = (0, CLIENTS_MAX);
        let (functions, start) = (self.functions(), owners.as_mut_ptr());
        // SAFETY: the image is open, and no more is written than the count says.
        let told = unsafe {
            (functions.rbd_lock_get_owners)(self.handle, &raw mut mode, start, &raw mut count)
        };
        match checked("rbd_lock_get_owners", told) {
            Err(CallError { errno: Errno::NOENT, .. }) => return Ok(Vec::new()),
            result => result.map(drop)?,
        }
        let texts = owners.iter().take(count).map(|owner| copied(*owner)).collect();
        // SAFETY: these were written by the call, and are copied.
        unsafe { (functions.rbd_lock_get_owners_cleanup)(start, count) };
        Ok(texts)
    }

    /// The addresses of the clients that have the image open for writing. Blocks.
    pub(crate) fn watchers(&self) -> Result<Vec<String>, CallError> {
        let nobody = Watcher { address: ptr::null_mut(), id: 0, cookie: 0 };
        let (mut watchers, mut count) = ([nobody; CLIENTS_MAX], CLIENTS_MAX);
        let (functions, start) = (self.functions(), watchers.as_mut_ptr());
        // SAFETY: the image is open, and no more is written than the count says.
        let told = unsafe { (functions.rbd_watchers_list)(self.handle, start, &raw mut count) };
        checked("rbd_watchers_list", told)?;
        let texts = watchers.iter().take(count).map(|watcher| copied(watcher.address)).collect();
        // SAFETY: these were written by the call, and are copied.
        unsafe { (functions.rbd_watchers_list_cleanup)(start, count) };
        Ok(texts)
    }

    /// After what time a cluster that is well forgets a client that is gone, as far as this client is told.
    pub(crate) fn watch_timeout(&self) -> Duration {
        let seconds = self.pool.cluster.get("osd_client_watch_timeout");
        let seconds = seconds.ok().and_then(|text| text.parse().ok());
        Duration::from_secs(seconds.unwrap_or(WATCH_TIMEOUT_SECONDS))
    }

    /// Blocklists the owner of the lock and takes it away, whether it is there or not. Fails with EBUSY or EAGAIN if
    /// another client has the lock by now. Blocks.
    pub(crate) fn break_lock(&self, owner: &str) -> Result<(), CallError> {
        const CALL: &str = "rbd_lock_break";
        let (functions, owner) = (self.functions(), text(CALL, owner)?);
        // SAFETY: the image is open, and the owner is a C string.
        let broken =
            unsafe { (functions.rbd_lock_break)(self.handle, LOCK_MODE_EXCLUSIVE, owner.as_ptr()) };
        match checked(CALL, broken) {
            // Somebody else has broken it, or it was given back.
            Err(CallError { errno: Errno::NOENT, .. }) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Takes the lock, so that nobody is given it who asks. Blocks.
    pub(crate) fn acquire_lock(&self) -> Result<(), CallError> {
        // SAFETY: the image is open.
        let taken =
            unsafe { (self.functions().rbd_lock_acquire)(self.handle, LOCK_MODE_EXCLUSIVE) };
        checked("rbd_lock_acquire", taken).map(drop)
    }

    /// Gives the lock back. Blocks.
    pub(crate) fn release_lock(&self) -> Result<(), CallError> {
        // SAFETY: the image is open.
        let given = unsafe { (self.functions().rbd_lock_release)(self.handle) };
        checked("rbd_lock_release", given).map(drop)
    }
}
