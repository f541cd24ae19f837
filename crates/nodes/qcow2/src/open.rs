//! Reading an image's header on a thread that owns no ring.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use block::{Clock, Due, ErrandRunner, FailKind, LaneError, LaneIo, Node, SystemClock, known_as};

use crate::bitmaps::mark_in_use;
use crate::handover::ForeignState;
use crate::header::{Header, HeaderError};
use crate::repair::{Repaired, repair};
use crate::storage::Storage;
use crate::tables::{Damage, Tables};
use crate::task::block_on;

/// The longest pause before a child that holds a request is asked again.
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its header.
    #[error("{image}")]
    Header {
        /// What the image is known as: its file.
        image: String,
        /// What is wrong with it.
        source: HeaderError,
    },
    /// It cannot be read; the operator was told why.
    #[error("{image}: the image cannot be read ({kind:?})")]
    Io {
        /// What the image is known as: its file.
        image: String,
        /// What a guest would be told.
        kind: FailKind,
    },
    /// It is known to be damaged, so it is not written.
    #[error(
        "{image}: the image is marked corrupt; it can be opened read-only, or repaired with qemu-img check -r all"
    )]
    Corrupt {
        /// What the image is known as: its file.
        image: String,
    },
    /// It has its data in a file of their own and none was given, or the other way round.
    #[error("{image}: {}", if *has_data_file {
        "the image has its data in an external data file; give it as data-file"
    } else {
        "data-file is given, but the image has its data inside"
    })]
    DataFile {
        /// What the image is known as: its file.
        image: String,
        /// Whether the image has one.
        has_data_file: bool,
    },
    /// Its metadata is damaged, so it is not written.
    #[error("{image}: the image cannot be written")]
    Damaged {
        /// What the image is known as: its file.
        image: String,
        /// What is wrong with it.
        source: Damage,
    },
    /// It is another image than when the node was made.
    #[error("{image}: the image was replaced or resized since it was opened")]
    Changed {
        /// What the image is known as: its file.
        image: String,
    },
    /// The process whose place is taken says of it what cannot be.
    #[error("{image}")]
    Foreign {
        /// What the image is known as: its file.
        image: String,
        /// What.
        source: ForeignState,
    },
    /// A child cannot be used.
    #[error(transparent)]
    Lane(#[from] LaneError),
}

/// Reads the header of the image on a node, and proves that it is one that can be served. Blocks. The
/// node need not be claimed.
pub fn read_header(
    file: &Arc<dyn Node>,
    runner: &Arc<dyn ErrandRunner>,
) -> Result<Header, OpenError> {
    let control = Control::before_claim(runner);
    let storage = control.open(file)?;
    let bytes = file.size().0.0;
    let image = || known_as(&**file);
    let read = |end: u64| {
        let read = control.run(&[&storage], storage.read(0..end.min(bytes)));
        read.map_err(|kind| OpenError::Io { image: image(), kind })
    };
    let wrong = |source| OpenError::Header { image: image(), source };
    let start = read(512)?;
    let cluster = read(Header::bytes_needed(&start).map_err(wrong)?)?;
    Header::parse(&cluster).map_err(wrong)
}

/// Makes an image fit for being written, and reads its header: refcounts that its last writer has left
/// wrong are made anew, and no bitmap passes for valid that will miss what is written. Blocks. The node is
/// claimed, and nobody else uses it; what is damaged in another way is refused and left as it is.
pub fn make_writable(
    file: &Arc<dyn Node>,
    runner: &Arc<dyn ErrandRunner>,
) -> Result<Header, OpenError> {
    let mut header = read_header(file, runner)?;
    let image = || known_as(&**file);
    if header.features.corrupt {
        return Err(OpenError::Corrupt { image: image() });
    }
    let control = Control::new(runner);
    let storage = control.open(file)?;
    let damaged = |source| OpenError::Damaged { image: image(), source };
    if header.features.dirty {
        let repaired = control.run(&[&storage], repair(&header, &storage, file.size().0.0));
        let Repaired { blocks, tables } = repaired.map_err(damaged)?;
        tracing::info!(
            "{}: the image was not closed; its refcounts are right again ({blocks} blocks \
             and {tables} tables changed)",
            image()
        );
        header = read_header(file, runner)?;
    }
    let tables = Tables::new(&header, &storage, file.size().0.0);
    control.run(&[&storage], mark_in_use(&tables)).map_err(damaged)?;
    Ok(header)
}

/// How a thread that owns no ring uses lanes: it carries their errands out itself.
#[derive(Debug)]
pub(crate) struct Control {
    io: LaneIo,
    /// Whether lanes have something to do besides.
    called: Arc<Called>,
    runner: Arc<dyn ErrandRunner>,
}

#[derive(Debug, Default)]
struct Called(AtomicBool);

impl Wake for Called {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Control {
    pub(crate) fn new(runner: &Arc<dyn ErrandRunner>) -> Self {
        Self::with(runner, LaneIo::new)
    }

    /// For nodes that may not be claimed yet.
    pub(crate) fn before_claim(runner: &Arc<dyn ErrandRunner>) -> Self {
        Self::with(runner, LaneIo::before_claim)
    }

    fn with(runner: &Arc<dyn ErrandRunner>, io: impl FnOnce(Waker) -> LaneIo) -> Self {
        let called = Arc::new(Called::default());
        let io = io(Waker::from(Arc::clone(&called)));
        Self { io, called, runner: Arc::clone(runner) }
    }

    /// Opens a lane on a node, for this thread.
    pub(crate) fn open(&self, node: &Arc<dyn Node>) -> Result<Storage, LaneError> {
        let alignment = node.limits().request_alignment.get();
        Ok(Storage::new(node.open_lane(&self.io)?, &self.io, alignment.into()))
    }

    /// Runs a future to its end, and what the lanes have begun meanwhile for themselves. Those are the
    /// lanes that it uses.
    pub(crate) fn run<T>(&self, storages: &[&Storage], future: impl Future<Output = T>) -> T {
        let idle = Cell::new(false);
        let result = block_on(future, || {
            if self.work(storages) {
                idle.set(false);
            } else if idle.replace(true) {
                std::thread::park_timeout(PAUSE_MAX);
            }
        });
        while self.work(storages) {}
        result
    }

    /// Carries errands out and calls the lanes, which may hold what they were asked; whether there was
    /// anything to do.
    fn work(&self, storages: &[&Storage]) -> bool {
        let was_called = self.called.0.swap(false, Ordering::Acquire);
        let mut errands = Vec::new();
        self.io.take_submitted(&mut errands);
        let has_begun = !errands.is_empty();
        for errand in errands {
            self.runner.run(errand);
        }
        let now = SystemClock.now();
        storages.iter().for_each(|storage| storage.resume(now));
        let is_due = |due: Due| due.at <= now;
        was_called || has_begun || storages.iter().any(|it| it.due().is_some_and(is_due))
    }
}
