//! What the disk holds, which faults wait, and what has happened.

use std::ops::Range;

use fuser::{FileHandle, FopenFlags};

use super::{Call, Effect, Errno, Fault, Operation};

/// A call as the file system gives it.
#[derive(Debug)]
pub(super) enum Work {
    Read,
    Write(Vec<u8>),
    Sync,
    Zero,
    Fill,
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

#[derive(Debug)]
pub(super) struct State {
    pub(super) content: Vec<u8>,
    pub(super) durable: Vec<u8>,
    pub(super) faults: Vec<Fault>,
    pub(super) calls: Vec<Call>,
    /// What the next sync has to store.
    unsynced: Vec<Range<usize>>,
    held: Vec<Held>,
}

impl State {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            content: vec![0; bytes],
            durable: vec![0; bytes],
            faults: Vec::new(),
            calls: Vec::new(),
            unsynced: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Carries a call out, or what its fault makes of it.
    pub(super) fn arrive(&mut self, call: Call, work: &Work) -> Verdict {
        self.calls.push(call);
        match self.fault(&call) {
            Some(Effect::Fails(errno)) => {
                if call.operation == Operation::Sync {
                    self.unsynced.clear();
                }
                Verdict::Failed(errno)
            }
            Some(Effect::Short(bytes)) => self.carry_out(call, work, bytes),
            Some(Effect::Held) => Verdict::Held,
            None => self.carry_out(call, work, usize::MAX),
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
        for Held { call, reply } in std::mem::take(&mut self.held) {
            let work = match &reply {
                HeldReply::Open(_) | HeldReply::Read(_) => &Work::Read,
                HeldReply::Write(data, _) => &Work::Write(data.clone()),
                HeldReply::Plain(work, _) => work,
            };
            match (self.carry_out(call, work, usize::MAX), reply) {
                (_, HeldReply::Open(reply)) => opened(reply),
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

    fn carry_out(&mut self, call: Call, work: &Work, most: usize) -> Verdict {
        let start = index(call.offset).min(self.content.len());
        let length = index(call.length).min(self.content.len() - start).min(most);
        let range = start..start + length;
        match work {
            Work::Read => Verdict::Data(self.content[range].to_vec()),
            Work::Write(data) => {
                self.content[range.clone()].copy_from_slice(&data[..length]);
                self.changed(range, call.stable);
                Verdict::Count(u32::try_from(length).expect("a call is less than 4 GiB"))
            }
            Work::Zero => {
                self.content[range.clone()].fill(0);
                self.changed(range, call.stable);
                Verdict::Count(0)
            }
            // The disk has room for all of itself.
            Work::Fill => Verdict::Count(0),
            Work::Sync => {
                for range in std::mem::take(&mut self.unsynced) {
                    self.durable[range.clone()].copy_from_slice(&self.content[range]);
                }
                Verdict::Count(0)
            }
        }
    }

    fn changed(&mut self, range: Range<usize>, stable: bool) {
        if stable {
            self.durable[range.clone()].copy_from_slice(&self.content[range]);
        } else {
            self.unsynced.push(range);
        }
    }
}

/// Every read and write is to arrive here, as many at once as there are.
pub(super) fn opened(reply: fuser::ReplyOpen) {
    let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
    reply.opened(FileHandle(0), flags);
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

    fn write(state: &mut State, offset: u64, byte: u8, stable: bool) -> Verdict {
        state.arrive(call(Operation::Write, offset, 2, stable), &Work::Write(vec![byte; 2]))
    }

    fn sync(state: &mut State) -> Verdict {
        state.arrive(call(Operation::Sync, 0, 0, false), &Work::Sync)
    }

    #[test]
    fn a_power_cut_leaves_what_was_synced_or_stable() {
        let mut state = State::new(8);
        write(&mut state, 0, 1, false);
        write(&mut state, 2, 2, true);
        assert_eq!(state.durable, [0, 0, 2, 2, 0, 0, 0, 0]);
        sync(&mut state);
        assert_eq!(state.durable, [1, 1, 2, 2, 0, 0, 0, 0]);
    }

    #[test]
    fn a_failed_sync_forgets_and_a_later_one_does_not_bring_it_back() {
        let mut state = State::new(4);
        write(&mut state, 0, 1, false);
        let effect = Effect::Fails(Errno::IO);
        state.faults.push(Fault::new(Operation::Sync, effect, 1));
        assert!(matches!(sync(&mut state), Verdict::Failed(Errno::IO)));
        assert!(matches!(sync(&mut state), Verdict::Count(0)));
        assert_eq!((state.content[0], state.durable[0]), (1, 0));
    }

    #[test]
    fn a_fault_meets_only_its_operation_its_bytes_and_its_number_of_calls() {
        let mut state = State::new(8);
        let fault = Fault::new(Operation::Write, Effect::Short(1), 1);
        state.faults.push(Fault { bytes: 4..6, ..fault });
        assert!(matches!(write(&mut state, 2, 1, false), Verdict::Count(2)));
        assert!(matches!(write(&mut state, 5, 1, false), Verdict::Count(1)));
        assert!(matches!(write(&mut state, 5, 1, false), Verdict::Count(2)));
        assert_eq!(state.calls.len(), 3);
    }
}
