//! Makes files durable: one sync serves all requests that wait for it.
//!
//! Where it stands in the life of a request: after its bytes are there, if it is a flush or has to be
//! durable. Its files are synced each for itself.
//!
//! Invariants: a request is served only by syncs that began after its bytes were there
//! (`block::SyncTurns`), on whichever iothread. Who comes while one runs waits for the next one.
//! A sync that fails fails all whom it was to serve, here and elsewhere.
//! Limits: as many requests as the iothread has in flight. A file's list keeps its room.

use std::collections::VecDeque;

use block::{FileId, SyncGuard, SyncTicket, SyncTurn, Target};
use kernel_io::IoFailure;

use super::Engine;
use crate::job::{Addressee, JobIndex, PieceIndex};
use crate::report::Trouble;

/// The syncs of one iothread.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    /// By the number of the file.
    files: Vec<FileSyncs>,
    /// Files that others sync while requests wait here. None is named twice.
    elsewhere: Vec<FileId>,
    /// An empty list, kept for its room.
    spare: Vec<FileId>,
    /// The files of one request, each with a piece in it; kept for its room.
    wanted: Vec<(FileId, PieceIndex)>,
}

/// The requests that wait for syncs of one file.
#[derive(Debug, Default)]
struct FileSyncs {
    /// In the order in which they came, which is that of their tickets.
    waiting: VecDeque<Waiting>,
    /// Whom the sync that runs here serves.
    served: Vec<Waiting>,
    /// The turn of that sync.
    turn: Option<SyncGuard>,
    /// Whether the file is named in `elsewhere`.
    is_elsewhere: bool,
}

/// A request, and the piece for which the file is synced.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    ticket: SyncTicket,
    job: JobIndex,
    piece: PieceIndex,
}

impl Syncs {
    fn of(&mut self, file: FileId) -> &mut FileSyncs {
        let place = file.0 as usize;
        if place >= self.files.len() {
            self.files.resize_with(place + 1, FileSyncs::default);
        }
        &mut self.files[place]
    }
}

impl Engine {
    /// Makes a job's bytes durable, which are all there.
    pub(super) fn sync(&mut self, index: JobIndex) {
        let mut wanted = std::mem::take(&mut self.syncs.wanted);
        let job = self.jobs.get(index);
        wanted.extend(job.pieces.iter().enumerate().filter_map(|(place, piece)| {
            let Target::File { file, .. } = piece.target else { return None };
            Some((file, PieceIndex::new(place)))
        }));
        wanted.sort_unstable_by_key(|(file, piece)| (file.0, piece.place()));
        wanted.dedup_by_key(|(file, _)| *file);
        job.outstanding = u32::try_from(wanted.len()).expect("a job has few files");
        if wanted.is_empty() {
            self.settle(index);
        }
        // The job is over with the last of them at the earliest.
        for (file, piece) in wanted.drain(..) {
            let ticket = self.kernel.medium(file).sync_turns().ticket();
            self.syncs.of(file).waiting.push_back(Waiting { ticket, job: index, piece });
            self.try_sync(file);
        }
        self.syncs.wanted = wanted;
    }

    /// Goes on with the files that others were syncing: one of them may have finished.
    pub(super) fn retry_syncs(&mut self) {
        let spare = std::mem::take(&mut self.syncs.spare);
        let mut files = std::mem::replace(&mut self.syncs.elsewhere, spare);
        for file in files.drain(..) {
            self.syncs.of(file).is_elsewhere = false;
            self.try_sync(file);
        }
        self.syncs.spare = files;
    }

    /// Answers those whom a sync has served meanwhile, and begins one for the others if nobody syncs the
    /// file.
    fn try_sync(&mut self, file: FileId) {
        let Self { syncs, kernel, waker, .. } = self;
        let FileSyncs { waiting, served, turn, is_elsewhere } = syncs.of(file);
        if turn.is_some() {
            return;
        }
        let medium = kernel.medium(file);
        while let Some(first) = waiting.front() {
            match medium.sync_turns().try_begin(first.ticket, waker) {
                SyncTurn::Over => served.extend(waiting.pop_front()),
                // No later sync can undo that. The turn is given back.
                SyncTurn::Mine(_) if medium.has_failed_sync() => served.extend(waiting.drain(..)),
                SyncTurn::Mine(mine) => {
                    // Those for whom it is over are answered first.
                    *turn = Some(mine);
                    break;
                }
                SyncTurn::Wait => {
                    if !std::mem::replace(is_elsewhere, true) {
                        syncs.elsewhere.push(file);
                    }
                    break;
                }
            }
        }
        self.sync_served(file, Ok(()));
        let FileSyncs { waiting, served, turn, .. } = self.syncs.of(file);
        if turn.is_some() {
            served.extend(waiting.drain(..));
            self.kernel.sync(file, Addressee::Sync(file).to_tag());
        }
    }

    /// A sync is over: answers those whom it was to serve, and begins the next one.
    pub(super) fn sync_over(&mut self, file: FileId, result: Result<(), IoFailure>) {
        if result.is_err() {
            self.kernel.medium(file).remember_failed_sync();
        }
        let turn = self.syncs.of(file).turn.take();
        turn.expect("a sync is begun with the turn").done();
        self.sync_served(file, result);
        self.try_sync(file);
    }

    /// Tells those who were served how their sync ended. It is worth nothing if another one failed: the
    /// kernel tells each loss only once.
    fn sync_served(&mut self, file: FileId, result: Result<(), IoFailure>) {
        let mut served = std::mem::take(&mut self.syncs.of(file).served);
        for Waiting { job, piece, .. } in served.drain(..) {
            self.jobs.get(job).outstanding -= 1;
            match result {
                Err(failure) => self.piece_failed(job, piece, failure),
                Ok(()) if self.kernel.medium(file).has_failed_sync() => {
                    self.fail(job, file, Trouble::EarlierSync);
                }
                Ok(()) => {}
            }
            self.settle(job);
        }
        self.syncs.of(file).served = served;
    }
}
