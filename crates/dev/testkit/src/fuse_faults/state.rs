//! What the files hold, which faults wait, and what has happened.

use std::ffi::OsString;
use std::ops::Range;

use fuser::{FileHandle, FopenFlags};

use super::{Call, Effect, Errno, Fault, Operation};
use crate::rng::Rng;

/// What a power cut leaves as it was or as it was to be, but never half of.
const SECTOR: usize = 512;

/// A call as the file system gives it.
#[derive(Debug)]
pub(super) enum Work {
    Read,
    Write(Vec<u8>),
    Sync,
    /// Zeroes, or room: beyond the end of the file, too.
    Zero,
    Fill,
    /// Zeroes and room up to the end of the file at most.
    ZeroInside,
    FillInside,
}

/// What becomes of a call.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It returns these bytes, or this many.
    Data(Vec<u8>),
    Count(u32),
    Failed(Errno),
    /// It is answered later.
    Held,
}

/// A call that is not answered yet.
pub(super) struct Held {
    pub(super) file: usize,
    pub(super) call: Call,
    pub(super) reply: HeldReply,
}

/// What answers it.
pub(super) enum HeldReply {
    Open(fuser::ReplyOpen),
    Read(fuser::ReplyData),
    Write(Vec<u8>, fuser::ReplyWrite),
    /// What has no data in either direction.
    Plain(Work, fuser::ReplyEmpty),
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("call", &self.call).finish_non_exhaustive()
    }
}

/// A file, and what a power cut would leave of it.
#[derive(Debug)]
pub(super) struct StoredFile {
    pub(super) name: OsString,
    pub(super) content: Vec<u8>,
    pub(super) durable: Vec<u8>,
    /// What the next sync has to store.
    unsynced: Vec<Range<usize>>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) files: Vec<StoredFile>,
    pub(super) faults: Vec<Fault>,
    pub(super) calls: Vec<Call>,
    held: Vec<Held>,
    /// How often the power was cut: what was opened before is of a machine that is no more.
    pub(super) cuts: u64,
}

impl StoredFile {
    fn new(name: OsString, content: Vec<u8>) -> Self {
        Self { name, durable: content.clone(), content, unsynced: Vec::new() }
    }

    /// It has this end at least.
    fn reach(&mut self, end: usize) {
        if self.content.len() < end {
            self.content.resize(end, 0);
        }
    }

    fn changed(&mut self, range: Range<usize>, stable: bool) {
        if stable {
            self.store(range);
        } else {
            self.unsynced.push(range);
        }
    }

    fn store(&mut self, range: Range<usize>) {
        // A file that was made shorter since.
        let range = range.start..range.end.min(self.content.len());
        if range.is_empty() {
            return;
        }
        if self.durable.len() < range.end {
            self.durable.resize(range.end, 0);
        }
        self.durable[range.clone()].copy_from_slice(&self.content[range]);
    }

    fn sync(&mut self) {
        self.durable.resize(self.content.len(), 0);
        for range in std::mem::take(&mut self.unsynced) {
            self.store(range);
        }
    }

    /// Of what was not stored some sectors are there and others are not, and so is its length.
    fn cut_power(&mut self, rng: &mut Rng) {
        let length = [self.durable.len(), self.content.len()][rng.index(2)];
        let mut left = std::mem::take(&mut self.durable);
        left.resize(length, 0);
        for range in std::mem::take(&mut self.unsynced) {
            let mut start = range.start;
            while start < range.end {
                let end = range.end.min((start / SECTOR + 1) * SECTOR);
                let kept = start..end.min(length).min(self.content.len());
                if !kept.is_empty() && rng.one_in(2) {
                    left[kept.clone()].copy_from_slice(&self.content[kept]);
                }
                start = end;
            }
        }
        (self.content, self.durable) = (left.clone(), left);
    }
}

impl State {
    pub(super) fn new() -> Self {
        let (files, faults, calls, held) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { files, faults, calls, held, cuts: 0 }
    }

    /// Another file; gives its number.
    pub(super) fn add(&mut self, name: OsString, content: Vec<u8>) -> usize {
        self.files.push(StoredFile::new(name, content));
        self.files.len() - 1
    }

    /// Another length of a file, which is durable after a sync.
    pub(super) fn resize(&mut self, file: usize, bytes: u64) {
        self.files[file].content.resize(index(bytes), 0);
    }

    /// What is in flight is gone, too.
    pub(super) fn cut_power(&mut self, rng: &mut Rng) {
        self.cuts += 1;
        self.held.clear();
        self.files.iter_mut().for_each(|file| file.cut_power(rng));
    }

    /// Carries a call out, or what its fault makes of it.
    pub(super) fn arrive(&mut self, file: usize, call: Call, work: &Work) -> Verdict {
        self.calls.push(call);
        match self.fault(&call) {
            Some(Effect::Fails(errno)) => {
                if call.operation == Operation::Sync {
                    self.files[file].unsynced.clear();
                }
                Verdict::Failed(errno)
            }
            Some(Effect::Short(bytes)) => self.carry_out(file, call, work, bytes),
            Some(Effect::Held) => Verdict::Held,
            None => self.carry_out(file, call, work, usize::MAX),
        }
    }

    pub(super) fn hold(&mut self, held: Held) {
        self.held.push(held);
    }

    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Carries out and answers what is held.
    pub(super) fn release(&mut self) {
        let cuts = self.cuts;
        for Held { file, call, reply } in std::mem::take(&mut self.held) {
            let work = match &reply {
                HeldReply::Open(_) | HeldReply::Read(_) => &Work::Read,
                HeldReply::Write(data, _) => &Work::Write(data.clone()),
                HeldReply::Plain(work, _) => work,
            };
            match (self.carry_out(file, call, work, usize::MAX), reply) {
                (_, HeldReply::Open(reply)) => opened(reply, cuts),
                (Verdict::Count(count), HeldReply::Write(_, reply)) => reply.written(count),
                (Verdict::Count(_), HeldReply::Plain(_, reply)) => reply.ok(),
                (Verdict::Data(data), HeldReply::Read(reply)) => reply.data(&data),
                (other, _) => panic!("a call that was held: {other:?}"),
            }
        }
    }

    /// What befalls a call, if anything.
    pub(super) fn fault(&mut self, call: &Call) -> Option<Effect> {
        let touched = call.offset..call.offset + call.length;
        let meets = |fault: &Fault| {
            let touches = touched.start < fault.bytes.end && fault.bytes.start < touched.end;
            let is_whole = matches!(call.operation, Operation::Open | Operation::Sync);
            fault.operation == call.operation && (touches || is_whole)
        };
        let place = self.faults.iter().position(meets)?;
        let fault = &mut self.faults[place];
        let effect = fault.effect;
        fault.times -= 1;
        if fault.times == 0 {
            self.faults.remove(place);
        }
        Some(effect)
    }

    fn carry_out(&mut self, file: usize, call: Call, work: &Work, most: usize) -> Verdict {
        let file = &mut self.files[file];
        let (start, length) = (index(call.offset), index(call.length).min(most));
        match work {
            Work::Write(_) | Work::Zero | Work::Fill => file.reach(start + length),
            Work::Read | Work::Sync | Work::ZeroInside | Work::FillInside => {}
        }
        let start = start.min(file.content.len());
        let length = length.min(file.content.len() - start);
        let range = start..start + length;
        match work {
            Work::Read => Verdict::Data(file.content[range].to_vec()),
            Work::Write(data) => {
                file.content[range.clone()].copy_from_slice(&data[..length]);
                file.changed(range, call.stable);
                Verdict::Count(u32::try_from(length).expect("a call is less than 4 GiB"))
            }
            Work::Zero | Work::ZeroInside => {
                file.content[range.clone()].fill(0);
                file.changed(range, call.stable);
                Verdict::Count(0)
            }
            // The disk has room for all of itself.
            Work::Fill | Work::FillInside => Verdict::Count(0),
            Work::Sync => {
                file.sync();
                Verdict::Count(0)
            }
        }
    }
}

/// Every read and write is to arrive here, as many at once as there are. The file is known by how often the power was cut.
pub(super) fn opened(reply: fuser::ReplyOpen, cuts: u64) {
    reply.opened(FileHandle(cuts), open_flags());
}

pub(super) fn open_flags() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("a 64-bit host")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(operation: Operation, offset: u64, length: u64, stable: bool) -> Call {
        Call { operation, offset, length, stable }
    }

    fn disk(bytes: usize) -> State {
        let mut state = State::new();
        state.add("disk".into(), vec![0; bytes]);
        state
    }

    fn write(state: &mut State, offset: u64, byte: u8, stable: bool) -> Verdict {
        state.arrive(0, call(Operation::Write, offset, 2, stable), &Work::Write(vec![byte; 2]))
    }

    fn sync(state: &mut State) -> Verdict {
        state.arrive(0, call(Operation::Sync, 0, 0, false), &Work::Sync)
    }

    #[test]
    fn a_power_cut_leaves_what_was_synced_or_stable() {
        let mut state = disk(8);
        write(&mut state, 0, 1, false);
        write(&mut state, 2, 2, true);
        assert_eq!(state.files[0].durable, [0, 0, 2, 2, 0, 0, 0, 0]);
        sync(&mut state);
        assert_eq!(state.files[0].durable, [1, 1, 2, 2, 0, 0, 0, 0]);
    }

    #[test]
    fn a_failed_sync_forgets_and_a_later_one_does_not_bring_it_back() {
        let mut state = disk(4);
        write(&mut state, 0, 1, false);
        let effect = Effect::Fails(Errno::IO);
        state.faults.push(Fault::new(Operation::Sync, effect, 1));
        assert!(matches!(sync(&mut state), Verdict::Failed(Errno::IO)));
        assert!(matches!(sync(&mut state), Verdict::Count(0)));
        assert_eq!((state.files[0].content[0], state.files[0].durable[0]), (1, 0));
    }

    #[test]
    fn a_fault_meets_only_its_operation_its_bytes_and_its_number_of_calls() {
        let mut state = disk(8);
        let fault = Fault::new(Operation::Write, Effect::Short(1), 1);
        state.faults.push(Fault { bytes: 4..6, ..fault });
        assert!(matches!(write(&mut state, 2, 1, false), Verdict::Count(2)));
        assert!(matches!(write(&mut state, 5, 1, false), Verdict::Count(1)));
        assert!(matches!(write(&mut state, 5, 1, false), Verdict::Count(2)));
        assert_eq!(state.calls.len(), 3);
    }

    #[test]
    fn a_power_cut_takes_any_sectors_that_were_not_stored_and_a_length() {
        let (mut lengths, mut firsts) = (Vec::new(), Vec::new());
        for seed in 0..64 {
            let mut state = disk(512);
            write(&mut state, 0, 1, true);
            write(&mut state, 2, 2, false);
            write(&mut state, 1022, 3, false);
            state.cut_power(&mut Rng::new(seed));
            let file = &state.files[0];
            assert_eq!(file.content, file.durable);
            assert_eq!(file.content[..2], [1, 1]);
            firsts.push(file.content[2]);
            lengths.push(file.content.len());
        }
        firsts.sort_unstable();
        firsts.dedup();
        lengths.sort_unstable();
        lengths.dedup();
        assert_eq!((firsts, lengths), (vec![0, 2], vec![512, 1024]));
    }

    #[test]
    fn a_stable_write_beyond_the_end_is_there_after_a_power_cut() {
        for seed in 0..16 {
            let mut state = disk(4);
            write(&mut state, 8, 1, true);
            state.cut_power(&mut Rng::new(seed));
            assert_eq!(state.files[0].content, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        }
    }
}
