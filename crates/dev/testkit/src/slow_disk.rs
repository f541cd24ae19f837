//! A block device whose reads and writes take a random time, and which goes on with them after the process that asked
//! for them was killed.
//!
//! Where it stands: a file system in this process (FUSE) has one file, its root; a loop device with direct I/O stands
//! on it. A server opens the loop device; what it has in flight when it dies reaches the image up to `Delays::long`
//! later, as on a disk with a slow queue.
//!
//! Found out on Linux 6.18, with 64 writes of up to 300 ms in flight through io_uring (12 runs, registered file or not,
//! loop device or the FUSE file itself): a killed process was gone after 0.2 to 0.5 ms with its writes still in flight;
//! an OFD lock on its open file description was free for another process after 67 to 355 ms, each time when the last
//! write was over and never before. With `aio=native` and `aio=threads` the process itself is gone only then.
//!
//! Invariants: a write copies its data when it arrives and stores it when its delay is over; a read looks at the image
//! when its delay is over. Whoever drops the disk has ended its users before.
//! Threads: the file system's own thread takes requests, one more thread answers them when they are due.
//! Limits: `IN_FLIGHT_MAX` requests at once; the rest waits in the kernel. Needs root: FUSE is mounted without a helper.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyOpen, ReplyWrite, Request, Session, WriteFlags,
};

use crate::deadline::{now, poll_until};
use crate::fuse::attributes;
use crate::image::SECTOR_BYTES;
use crate::report::note;
use crate::rng::Rng;

/// Requests that the kernel hands over before their answers.
const IN_FLIGHT_MAX: u16 = 1024;
/// How long the device may be in use after the disk's end.
const DETACH_LIMIT: Duration = Duration::from_secs(10);
/// How long the kernel may believe the attributes; they never change.
const ATTRIBUTES_LIFE: Duration = Duration::from_secs(3600);

/// How long requests take.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    /// Most take at most so long.
    pub short: Duration,
    /// One in `long_one_in` takes up to so long.
    pub long: Duration,
    /// How rare the long ones are; at least 1.
    pub long_one_in: u64,
    /// The same seed gives the same delays to the same requests.
    pub seed: u64,
}

impl Default for Delays {
    fn default() -> Self {
        let (short, long) = (Duration::from_millis(2), Duration::from_millis(300));
        Self { short, long, long_one_in: 20, seed: 0 }
    }
}

/// The device, which is taken away on drop.
#[derive(Debug)]
pub struct SlowDisk {
    device: String,
    place: PathBuf,
    session: Option<BackgroundSession>,
    queue: Arc<Queue>,
    answers: Option<JoinHandle<()>>,
}

impl SlowDisk {
    /// Puts a slow device over an image, whose length is a multiple of the sector size. `place` is a path at which the
    /// file system can be mounted; a file is made there.
    pub fn new(image: &Path, place: &Path, delays: Delays) -> Result<Self> {
        let file = File::options().read(true).write(true).open(image).context("open the image")?;
        let size = file.metadata().context("the image's size")?.len();
        File::create(place).with_context(|| format!("create {}", place.display()))?;
        let queue = Arc::new(Queue::default());
        let random = Mutex::new(Rng::new(delays.seed));
        let system = SlowFile { size, queue: Arc::clone(&queue), delays, random };
        let session = Session::new(system, place, &Config::default())
            .with_context(|| format!("mount on {}", place.display()))?;
        let session = session.spawn().context("start the file system")?;
        let answers = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.answer_all(&file)
        });
        let mut disk = Self {
            device: String::new(),
            place: place.to_path_buf(),
            session: Some(session),
            queue,
            answers: Some(answers),
        };
        let place = place.to_str().context("a path in text")?;
        disk.device = losetup(&["--find", "--show", "--direct-io=on", place])?;
        // What the kernel cannot do directly it would silently do through the page cache.
        let direct = losetup(&["--noheadings", "--output", "DIO", &disk.device])?;
        ensure!(direct == "1", "{} does no direct I/O: {direct:?}", disk.device);
        Ok(disk)
    }

    /// The device that a server opens.
    pub fn device(&self) -> PathBuf {
        PathBuf::from(&self.device)
    }

    /// The number of requests that have arrived and have not been answered.
    pub fn in_flight(&self) -> usize {
        self.queue.lock().due.len()
    }

    /// Answers nothing any more, until `recover`.
    pub fn hang(&self) {
        self.queue.lock().hangs = true;
    }

    /// Answers what waits and what comes.
    pub fn recover(&self) {
        self.queue.lock().hangs = false;
        self.queue.changed.notify_all();
    }

    /// The number of requests that were answered.
    pub fn answered(&self) -> u64 {
        self.queue.lock().answered
    }
}

impl SlowDisk {
    /// The kernel lets the device go when nobody uses it any more, and what a killed process had in flight does.
    fn detach(&self) -> Result<()> {
        losetup(&["--detach", &self.device])?;
        let name = self.device.rsplit('/').next().context("a device has a name")?;
        let backing = PathBuf::from(format!("/sys/block/{name}/loop/backing_file"));
        let what = format!("{} to be let go", self.device);
        poll_until(&what, DETACH_LIMIT, || Ok((!backing.try_exists()?).then_some(())))
    }

    /// The loop device closes its file a little later than it says that it has none.
    fn unmount(&self) -> Result<()> {
        let what = format!("{} to be unmounted", self.place.display());
        poll_until(&what, DETACH_LIMIT, || {
            let output = Command::new("umount").arg(&self.place).output().context("umount")?;
            let busy = String::from_utf8_lossy(&output.stderr).contains("busy");
            ensure!(output.status.success() || busy, "umount: {output:?}");
            Ok(output.status.success().then_some(()))
        })
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        self.recover();
        if !self.device.is_empty() {
            report("detach the loop device", self.detach());
        }
        if let Some(session) = self.session.take() {
            report("unmount", self.unmount());
            report("end the file system", session.join().context("its thread"));
        }
        self.queue.lock().ended = true;
        self.queue.changed.notify_all();
        if let Some(answers) = self.answers.take() {
            let joined = answers.join();
            if joined.is_err() {
                note("the thread of the slow disk panicked");
            }
        }
    }
}

/// Says what could not be taken down; a second panic would hide the first.
fn report(what: &str, result: Result<()>) {
    if let Err(error) = result {
        note(&format!("slow disk: cannot {what}: {error:#}"));
    }
}

fn losetup(arguments: &[&str]) -> Result<String> {
    let output = Command::new("losetup").args(arguments).output().context("start losetup")?;
    ensure!(output.status.success(), "losetup {arguments:?}: {output:?}");
    Ok(String::from_utf8(output.stdout).context("what losetup says")?.trim().to_owned())
}

/// What waits for its time.
#[derive(Debug)]
enum Waiting {
    Read { offset: u64, length: usize, reply: ReplyData },
    Write { offset: u64, data: Vec<u8>, reply: ReplyWrite },
}

impl Waiting {
    fn finish(self, image: &File) {
        match self {
            Self::Read { offset, length, reply } => {
                let mut data = vec![0; length];
                match image.read_exact_at(&mut data, offset) {
                    Ok(()) => reply.data(&data),
                    Err(error) => reply.error(error.into()),
                }
            }
            Self::Write { offset, data, reply } => match image.write_all_at(&data, offset) {
                Ok(()) => reply.written(u32::try_from(data.len()).expect("a request's length")),
                Err(error) => reply.error(error.into()),
            },
        }
    }
}

/// What is in flight, by the time at which it is due.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    /// The number makes two that are due at the same time differ.
    due: BTreeMap<(Instant, u64), Waiting>,
    arrived: u64,
    answered: u64,
    hangs: bool,
    ended: bool,
}

impl Queue {
    fn lock(&self) -> std::sync::MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, delay: Duration, waiting: Waiting) {
        let mut state = self.lock();
        state.arrived += 1;
        let key = (now() + delay, state.arrived);
        state.due.insert(key, waiting);
        self.changed.notify_all();
    }

    fn answer_all(&self, image: &File) {
        let mut state = self.lock();
        loop {
            let next = state.due.first_key_value().map(|((due, _), _)| *due);
            state = match next {
                None if state.ended => return,
                _ if state.hangs => {
                    self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let left = due.saturating_duration_since(now());
                    if left.is_zero() {
                        let (_, waiting) = state.due.pop_first().expect("there is a first");
                        state.answered += 1;
                        drop(state);
                        waiting.finish(image);
                        self.lock()
                    } else {
                        let waited = self.changed.wait_timeout(state, left);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                }
            };
        }
    }
}

/// The file system: its root is the file.
#[derive(Debug)]
struct SlowFile {
    size: u64,
    queue: Arc<Queue>,
    delays: Delays,
    random: Mutex<Rng>,
}

impl SlowFile {
    fn attributes(&self) -> FileAttr {
        let blksize = u32::try_from(SECTOR_BYTES).expect("512");
        FileAttr { blksize, ..attributes(INodeNo::ROOT, FileType::RegularFile, 0o600, self.size) }
    }

    fn delay(&self) -> Duration {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let is_long = random.one_in(self.delays.long_one_in);
        let most = if is_long { self.delays.long } else { self.delays.short };
        let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX).max(1);
        Duration::from_micros(random.below(micros))
    }
}

impl Filesystem for SlowFile {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Without this a direct write waits for its answer, one at a time.
        config
            .add_capabilities(InitFlags::FUSE_ASYNC_DIO)
            .map_err(|_lacking| std::io::Error::other("the kernel has no asynchronous I/O here"))?;
        let refused = |_nearest| std::io::Error::other("the limit of requests is refused");
        config.set_max_background(IN_FLIGHT_MAX).map_err(refused)?;
        Ok(())
    }

    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ATTRIBUTES_LIFE, &self.attributes());
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _request: &Request,
        _file: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = u64::from(size).min(self.size.saturating_sub(offset));
        let length = usize::try_from(length).expect("at most what was asked for");
        self.queue.add(self.delay(), Waiting::Read { offset, length, reply });
    }

    fn write(
        &self,
        _request: &Request,
        _file: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let end = offset.checked_add(u64::try_from(data.len()).expect("a length"));
        if end.is_none_or(|end| end > self.size) {
            reply.error(Errno::ENOSPC);
            return;
        }
        self.queue.add(self.delay(), Waiting::Write { offset, data: data.to_vec(), reply });
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }
}
