//! An image as all users of a node share it: the medium, the lock, the requests under way, its end.
//!
//! Invariants: the lock is held as long as somebody has the right to write, and not given back while requests are under way
//! that nobody waits for any more: they may still be carried out. For the same reason an image with such requests is not
//! closed. Threads: shared by all iothreads and control threads. Limits: [`LOCK_MAX`], [`SNAPSHOT_MAX`], [`FLUSH_MAX`], [`RELEASE_MAX`].

mod snapshots;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use block::{Alignments, ByteCount, DiskSize, DurableWriteMethod, Medium};
use rustix::io::Errno;

use crate::bounded_call::ThreadFences;
use crate::cluster::CallError;
use crate::header::Header;
use crate::header_watch::{HeaderWatch, UpdateSignal};
use crate::image::Image;

/// The most bytes of a read or a write.
const TRANSFER_BYTES_MAX: u64 = 1 << 20;

/// How long taking the lock may take, once it can be had.
const LOCK_MAX: Duration = Duration::from_secs(20);

/// How long making a snapshot, or removing one, may take: guests wait meanwhile.
const SNAPSHOT_MAX: Duration = Duration::from_secs(20);

/// How long giving the lock back may take.
const RELEASE_MAX: Duration = Duration::from_secs(5);

/// How long a flush without a ring waits for the cluster; and if that was given up before.
const FLUSH_MAX: Duration = Duration::from_secs(30);
const FLUSH_AGAIN_MAX: Duration = Duration::from_secs(1);

/// The lock of an image is not to be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    /// A client has it that is there.
    #[error(
        "another client has the lock of image {image}: {owner}, which has the image open; one that is gone loses it \
         when the cluster forgets it, after osd_client_watch_timeout ({} s)", forgotten_after.as_secs()
    )]
    Held {
        image: String,
        owner: String,
        /// When a cluster that is well has forgotten one that is gone, as far as this client is told.
        forgotten_after: Duration,
    },
    /// Another client was faster.
    #[error("another client has taken the lock of image {image}")]
    Taken { image: String },
    /// The cluster says no.
    #[error("image {image}: the lock cannot be had")]
    Call {
        image: String,
        #[source]
        source: CallError,
    },
    /// The cluster says nothing.
    #[error("image {image}: the lock cannot be had")]
    Late {
        image: String,
        #[source]
        source: io::Error,
    },
}

/// An image that is open.
#[derive(Debug)]
pub(crate) struct Disk {
    /// `None` only at its end.
    image: Option<Arc<Image>>,
    pub(crate) medium: Arc<Medium>,
    pub(crate) object_bytes: u64,
    header: Arc<Header>,
    /// How many requests are not over.
    pub(crate) in_flight: Arc<AtomicUsize>,
    /// How many users may write.
    writers: Mutex<usize>,
    watch: Arc<HeaderWatch>,
    fences: ThreadFences,
    is_blocklisting_told: AtomicBool,
    is_exclusion_told: AtomicBool,
}

impl Disk {
    /// An image that was opened, and watched with that signal.
    pub(crate) fn new(
        name: String,
        (image, object_bytes): (Image, u64),
        header: Arc<Header>,
        signal: Arc<UpdateSignal>,
        fences: ThreadFences,
    ) -> io::Result<Arc<Self>> {
        let (image, theirs) = (Arc::new(image), Arc::clone(&header));
        let watch = HeaderWatch::start(&name, Arc::clone(&image), theirs, signal, &fences)?;
        // Without a cache what is answered is on the disks of the cluster.
        let medium = Medium::new(name, Alignments::NONE, DurableWriteMethod::ByThemselves);
        Ok(Arc::new(Self {
            image: Some(image),
            medium: Arc::new(medium.with_transfer_max(TRANSFER_BYTES_MAX)),
            object_bytes,
            header,
            in_flight: Arc::default(),
            writers: Mutex::new(0),
            watch: Arc::new(watch),
            fences,
            is_blocklisting_told: AtomicBool::new(false),
            is_exclusion_told: AtomicBool::new(false),
        }))
    }

    /// The image.
    pub(crate) fn image(&self) -> &Arc<Image> {
        self.image.as_ref().expect("it is there until the end")
    }

    /// What messages call it.
    pub(crate) fn name(&self) -> &str {
        self.medium.name()
    }

    /// Its size, as far as it is known.
    pub(crate) fn size(&self) -> DiskSize {
        DiskSize(ByteCount(self.header.size()))
    }

    fn writers(&self) -> MutexGuard<'_, usize> {
        self.writers.lock().expect("no holder of this lock panics")
    }

    /// Calls the library on a thread of its own, for a time.
    fn call<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl FnOnce(&Image) -> T + Send + 'static,
    ) -> io::Result<T> {
        let image = Arc::clone(self.image());
        self.fences.call("rbd call", limit, move || call(&image))
    }

    /// One more user that may write: the first one takes the lock. Blocks.
    pub(crate) fn add_writer(&self) -> Result<(), LockError> {
        let mut writers = self.writers();
        if *writers == 0 {
            let name = self.name().to_owned();
            let taken = self.call(LOCK_MAX, move |image| take_lock(image, &name));
            let image = || self.name().to_owned();
            taken.map_err(|source| LockError::Late { image: image(), source })??;
        }
        *writers += 1;
        Ok(())
    }

    /// One user less that may write: with the last one the lock is given back. Blocks.
    pub(crate) fn remove_writer(&self) {
        let mut writers = self.writers();
        *writers -= 1;
        if *writers > 0 {
            return;
        }
        if self.in_flight.load(Ordering::Acquire) > 0 {
            tracing::warn!(
                "disk {}: the lock stays with this process: requests are under way that were given up",
                self.name()
            );
            return;
        }
        let released = self.call(RELEASE_MAX, Image::release_lock);
        let released = released.map_err(|error| error.to_string());
        if let Err(why) = released.and_then(|it| it.map_err(|error| error.to_string())) {
            tracing::warn!("disk {}: the lock was not given back: {why}", self.name());
        }
    }

    /// Looks how large the image is, and which snapshots it has. Blocks.
    pub(crate) fn measure(&self) -> io::Result<()> {
        let (name, header) = (self.name().to_owned(), Arc::clone(&self.header));
        self.call(LOCK_MAX, move |image| header.look(&name, image))
    }

    /// Makes durable what was answered. Blocks.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let medium = &self.medium;
        if medium.has_failed_sync() {
            return Err(Errno::IO.into());
        }
        let limit = if medium.is_unresponsive() { FLUSH_AGAIN_MAX } else { FLUSH_MAX };
        let flushed =
            self.call(limit, Image::flush).inspect_err(|_| medium.remember_unresponsive());
        let flushed = flushed.and_then(|it| it.map_err(|error| error.errno.into()));
        flushed.inspect_err(|_| medium.remember_failed_sync())
    }

    /// An operation has failed: says, once, that the cluster refuses this client, or the image. To the library a lost lock
    /// is a file system that is read-only, and a pool that is gone one on which it has no rights.
    pub(crate) fn say_refused(&self, errno: Errno) {
        let is_first = |is_told: &AtomicBool| !is_told.swap(true, Ordering::Relaxed);
        match errno {
            Errno::SHUTDOWN if is_first(&self.is_blocklisting_told) => tracing::error!(
                "disk {}: the cluster has blocklisted this client: another one has broken its lock, or an operator has \
                 done it (ceph osd blocklist ls). No request succeeds any more; the daemon has to be started again",
                self.name()
            ),
            Errno::PERM | Errno::ROFS if is_first(&self.is_exclusion_told) => tracing::error!(
                "disk {}: the cluster does not let this client use the image any more: the image or its pool was removed, \
                 its rights were changed, or an operator has removed the lock (rbd lock list). The daemon has to be started \
                 again",
                self.name()
            ),
            _ => {}
        }
    }
}

impl Disk {
    /// A user goes, on a thread that may wait: if it is the last one, the image is closed. Blocks.
    pub(crate) fn leave(self: Arc<Self>) {
        let (name, watch) = (self.name().to_owned(), Arc::clone(&self.watch));
        let Some(disk) = Arc::into_inner(self) else { return };
        if disk.in_flight.load(Ordering::Acquire) > 0 {
            return;
        }
        drop(disk);
        if !watch.wait_for_close() {
            tracing::warn!("disk {name}: left open: the cluster does not answer");
        }
    }
}

impl Drop for Disk {
    /// Perhaps on an iothread, so it waits for nothing: another thread closes the image.
    fn drop(&mut self) {
        let under_way = self.in_flight.load(Ordering::Acquire);
        if under_way > 0 {
            // The thread that watches keeps the image, for ever.
            tracing::warn!("disk {}: left open: {under_way} requests are under way", self.name());
            return;
        }
        drop(self.image.take());
        self.watch.end();
    }
}

/// Takes the lock, from a client that is gone if it must. Blocks.
fn take_lock(image: &Image, name: &str) -> Result<(), LockError> {
    let failed = |source| LockError::Call { image: name.to_owned(), source };
    if image.has_lock().map_err(failed)? {
        return Ok(());
    }
    for owner in image.lock_owners().map_err(failed)? {
        if image.watchers().map_err(failed)?.contains(&owner) {
            let forgotten_after = image.watch_timeout();
            return Err(LockError::Held { image: name.to_owned(), owner, forgotten_after });
        }
        tracing::warn!(
            "disk {name}: client {owner} has the lock and is gone; it is blocklisted, and its lock broken"
        );
        image.break_lock(&owner).map_err(|error| lock_error(name, error))?;
    }
    image.acquire_lock().map_err(|error| lock_error(name, error))
}

/// Why the lock could not be broken or taken: a client that was faster is one that can be waited for.
fn lock_error(name: &str, source: CallError) -> LockError {
    let image = name.to_owned();
    match source.errno {
        Errno::ROFS | Errno::BUSY | Errno::AGAIN => LockError::Taken { image },
        _ => LockError::Call { image, source },
    }
}
