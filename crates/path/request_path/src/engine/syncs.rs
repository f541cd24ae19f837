//! Makes storage durable: one sync serves all requests that wait for it.
//!
//! Where it stands in the life of a request: after its bytes are there, if it is a flush or has to be
//! durable. Files and channels are synced each for itself.
//!
//! Invariants: a request is served only by syncs that began after its bytes were there
//! (`block::SyncCoalescer`), on whichever iothread. Who comes while one runs waits for the next one.
//! A sync that fails fails all whom it was to serve, here and elsewhere.
//! Limits: as many requests as the iothread has in flight. A file's list keeps its room.

use std::collections::VecDeque;

use block::{ChannelId, StorageId, SyncAction, SyncGuard, SyncTicket};
use kernel_io::{EngineKernel, IoFailure};

use super::Engine;
use crate::failure_reporter::StorageFailureCause;
use crate::io_request::{KernelEventTarget, PieceIndex, RequestIndex};
use crate::storage_backends::FileAndChannelBackends;

/// Requests on this iothread that wait for syncs, by file.
#[derive(Debug, Default)]
pub(super) struct PendingSyncs {
    /// By the number of the file.
    files: Vec<MediumSyncs>,
    /// In the order of their numbers.
    channels: Vec<(ChannelId, MediumSyncs)>,
    /// What others sync while requests wait here. Nothing is named twice.
    elsewhere: Vec<StorageId>,
    /// An empty list, kept for its room.
    spare: Vec<StorageId>,
    /// The storage of one request, each with a piece in it; kept for its room.
    wanted: Vec<(StorageId, PieceIndex)>,
}

/// The requests that wait for syncs of one file or channel.
#[derive(Debug, Default)]
struct MediumSyncs {
    /// In the order in which they came, which is that of their tickets.
    waiting: VecDeque<SyncWaiter>,
    /// Whom the sync that runs here serves.
    served: Vec<SyncWaiter>,
    /// The turn of that sync.
    turn: Option<SyncGuard>,
    /// Whether it is named in `elsewhere`.
    is_elsewhere: bool,
}

/// A request that waits for the sync of a file.
#[derive(Debug, Clone, Copy)]
struct SyncWaiter {
    ticket: SyncTicket,
    job: RequestIndex,
    piece: PieceIndex,
}

impl PendingSyncs {
    fn of(&mut self, storage: StorageId) -> &mut MediumSyncs {
        let file = match storage {
            StorageId::File(file) => file,
            StorageId::Channel(channel) => return self.of_channel(channel),
        };
        let place = file.0 as usize;
        if place >= self.files.len() {
            self.files.resize_with(place + 1, MediumSyncs::default);
        }
        &mut self.files[place]
    }

    fn of_channel(&mut self, channel: ChannelId) -> &mut MediumSyncs {
        let place = self.channels.binary_search_by_key(&channel, |(id, _)| *id);
        let place = place.unwrap_or_else(|_| {
            // Of those that are gone nothing waits.
            self.channels.retain(|(_, syncs)| syncs.turn.is_some() || !syncs.waiting.is_empty());
            let place = self.channels.partition_point(|(id, _)| *id < channel);
            self.channels.insert(place, (channel, MediumSyncs::default()));
            place
        });
        &mut self.channels[place].1
    }
}

impl<K: EngineKernel> Engine<K> {
    /// Makes a job's bytes durable, which are all there.
    pub(super) fn sync(&mut self, index: RequestIndex) {
        let mut wanted = std::mem::take(&mut self.syncs.wanted);
        let job = self.jobs.get(index);
        wanted.extend(job.pieces.iter().enumerate().filter_map(|(place, piece)| {
            let (storage, _) = piece.target.storage()?;
            Some((storage, PieceIndex::new(place)))
        }));
        wanted.sort_unstable_by_key(|(storage, piece)| (*storage, piece.place()));
        wanted.dedup_by_key(|(storage, _)| *storage);
        job.outstanding = u32::try_from(wanted.len()).expect("a job has few of them");
        if wanted.is_empty() {
            self.advance(index);
        }
        // The job is over with the last of them at the earliest.
        for (storage, piece) in wanted.drain(..) {
            let ticket = self.storages().medium(storage).sync_turns().ticket();
            self.syncs.of(storage).waiting.push_back(SyncWaiter { ticket, job: index, piece });
            self.try_sync(storage);
        }
        self.syncs.wanted = wanted;
    }

    /// Goes on with what others were syncing: one of them may have finished.
    pub(super) fn retry_syncs(&mut self) {
        let spare = std::mem::take(&mut self.syncs.spare);
        let mut elsewhere = std::mem::replace(&mut self.syncs.elsewhere, spare);
        for storage in elsewhere.drain(..) {
            self.syncs.of(storage).is_elsewhere = false;
            self.try_sync(storage);
        }
        self.syncs.spare = elsewhere;
    }

    /// Answers those whom a sync has served meanwhile, and begins one for the others if nobody syncs that
    /// medium.
    fn try_sync(&mut self, storage: StorageId) {
        let Self { syncs, kernel, lanes, waker, .. } = self;
        let MediumSyncs { waiting, served, turn, is_elsewhere } = syncs.of(storage);
        if turn.is_some() {
            return;
        }
        let mut storages = FileAndChannelBackends { kernel, channels: &mut lanes.channels };
        let medium = storages.medium(storage);
        while let Some(first) = waiting.front() {
            match medium.sync_turns().try_begin(first.ticket, waker) {
                SyncAction::Covered => served.extend(waiting.pop_front()),
                // No later sync can undo that. The turn is given back.
                SyncAction::Sync(_) if medium.has_failed_sync() => served.extend(waiting.drain(..)),
                SyncAction::Sync(mine) => {
                    // Those for whom it is over are answered first.
                    *turn = Some(mine);
                    break;
                }
                SyncAction::Wait => {
                    if !std::mem::replace(is_elsewhere, true) {
                        syncs.elsewhere.push(storage);
                    }
                    break;
                }
            }
        }
        self.sync_served(storage, Ok(()));
        let MediumSyncs { waiting, served, turn, .. } = self.syncs.of(storage);
        if turn.is_some() {
            served.extend(waiting.drain(..));
            self.storages().sync(storage, KernelEventTarget::Sync(storage).to_tag());
        }
    }

    /// A sync is over: answers those whom it was to serve, and begins the next one.
    pub(super) fn sync_over(&mut self, storage: StorageId, result: Result<(), IoFailure>) {
        if result.is_err() {
            self.storages().medium(storage).remember_failed_sync();
        }
        let turn = self.syncs.of(storage).turn.take();
        turn.expect("a sync is begun with the turn").done();
        self.sync_served(storage, result);
        self.try_sync(storage);
    }

    /// A request waits for no sync any more.
    pub(super) fn forget_syncs(&mut self, index: RequestIndex) {
        let Self { jobs, syncs, .. } = self;
        let job = jobs.get(index);
        for piece in &job.pieces {
            let Some((storage, _)) = piece.target.storage() else { continue };
            let MediumSyncs { waiting, served, .. } = syncs.of(storage);
            let before = waiting.len() + served.len();
            waiting.retain(|waiter| waiter.job != index);
            served.retain(|waiter| waiter.job != index);
            let forgotten = before - waiting.len() - served.len();
            job.outstanding -= u32::try_from(forgotten).expect("a job has few of them");
        }
    }

    /// Tells those who were served how their sync ended. It is worth nothing if another one failed: the
    /// kernel tells each loss only once.
    fn sync_served(&mut self, storage: StorageId, result: Result<(), IoFailure>) {
        let mut served = std::mem::take(&mut self.syncs.of(storage).served);
        for SyncWaiter { job, piece, .. } in served.drain(..) {
            self.jobs.get(job).outstanding -= 1;
            match result {
                Err(failure) => self.piece_failed(job, piece, failure),
                Ok(()) if self.storages().medium(storage).has_failed_sync() => {
                    self.fail(job, storage, StorageFailureCause::EarlierSync);
                }
                Ok(()) => {}
            }
            self.advance(job);
        }
        self.syncs.of(storage).served = served;
    }
}
