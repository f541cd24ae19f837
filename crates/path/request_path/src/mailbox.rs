//! Where outcomes wait that arose on a thread which no longer serves the source.
//!
//! Where it stands in the life of a request: an operation stays on the iothread that started it.
//! If the source has moved on meanwhile, its outcome is posted here and whoever owns the source now
//! is woken to drain it.
//!
//! Invariants: capacity is the number of slots and a slot has at most one request in flight, so there
//! is a place for every outcome and posting never waits for room; so it is with transfers, of each direction. Each is drained exactly
//! once. A new owner drains after it has become the owner; a poster posts before it asks who the
//! owner is; so either the new owner finds the outcome or the poster wakes it (model-checked
//! below with loom).
//! Threads: anyone posts; the owner drains. The mutex guards one pointer and is only taken when a
//! source moves or an outcome arrives after a move.

use std::ops::DerefMut;
use std::sync::Arc;

use block::{FailKind, Outcome, SourceRequestSlot};

use crate::StreamTransfer;
use crate::sync::{AtomicU8, AtomicU64, Mutex, Ordering};

/// Something by which another thread wakes an iothread.
pub trait Wake: std::fmt::Debug + Send + Sync {
    /// Makes the iothread look at its mailboxes soon.
    fn wake(&self);
}

impl Wake for kernel_io::Notifier {
    fn wake(&self) {
        kernel_io::Notifier::wake(self);
    }
}

/// What a source has left on another iothread and has ended there, until its owner takes it: outcomes of requests, and
/// transfers on its socket.
#[derive(Debug)]
pub struct OutcomeMailbox {
    /// One bit for each slot whose outcome waits.
    waiting: Box<[AtomicU64]>,
    /// The outcomes by slot; valid where the bit is set.
    outcomes: Box<[AtomicU8]>,
    /// Transfers that ended there, by direction.
    transfers: Mutex<[Option<StreamTransfer>; 2]>,
    /// A bit for each of those, changed with them.
    transfers_waiting: AtomicU8,
    owner: Mutex<Arc<dyn Wake>>,
}

const SLOTS_PER_WORD: usize = 64;

impl OutcomeMailbox {
    /// An empty mailbox for a source of so many slots, owned by `owner`.
    pub fn new(slots: u16, owner: Arc<dyn Wake>) -> Self {
        let slots = usize::from(slots);
        Self {
            waiting: (0..slots.div_ceil(SLOTS_PER_WORD)).map(|_| AtomicU64::new(0)).collect(),
            outcomes: (0..slots).map(|_| AtomicU8::new(0)).collect(),
            transfers: Mutex::new([None, None]),
            transfers_waiting: AtomicU8::new(0),
            owner: Mutex::new(owner),
        }
    }

    /// Makes `owner` the one to wake. The new owner must drain afterwards.
    pub fn set_owner(&self, owner: Arc<dyn Wake>) {
        *self.owner.lock().expect("no holder of this lock panics") = owner;
    }

    /// Leaves an outcome for the source's owner and wakes it. From any thread.
    pub fn post(&self, slot: SourceRequestSlot, outcome: Outcome) {
        let slot = usize::from(slot.0);
        self.outcomes[slot].store(encode(outcome), Ordering::Relaxed);
        let bit = 1 << (slot % SLOTS_PER_WORD);
        let before = self.waiting[slot / SLOTS_PER_WORD].fetch_or(bit, Ordering::AcqRel);
        assert_eq!(before & bit, 0, "request {slot} was completed twice");
        self.owner.lock().expect("no holder of this lock panics").wake();
    }

    /// Leaves a transfer that is over for the source's owner and wakes it. From any thread.
    pub fn post_transfer(&self, transfer: StreamTransfer) {
        let direction = transfer.direction();
        let place = direction as usize;
        let mut transfers = self.transfers();
        let before = transfers[place].replace(transfer);
        assert!(before.is_none(), "a {direction:?} was over twice");
        self.transfers_waiting.fetch_or(1 << place, Ordering::AcqRel);
        drop(transfers);
        self.owner.lock().expect("no holder of this lock panics").wake();
    }

    /// Takes out all transfers that wait. Only the owner may call it.
    pub fn drain_transfers(&self, take: impl FnMut(StreamTransfer)) {
        if self.transfers_waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut transfers = self.transfers();
        self.transfers_waiting.store(0, Ordering::Release);
        let [receive, send] = std::mem::take(&mut *transfers);
        drop(transfers);
        receive.into_iter().chain(send).for_each(take);
    }

    fn transfers(&self) -> impl DerefMut<Target = [Option<StreamTransfer>; 2]> + '_ {
        self.transfers.lock().expect("no holder of this lock panics")
    }

    /// Whether anything waits. Cheap; only the owner's answer means something.
    pub fn is_empty(&self) -> bool {
        self.waiting.iter().all(|word| word.load(Ordering::Relaxed) == 0)
            && self.transfers_waiting.load(Ordering::Relaxed) == 0
    }

    /// Takes out all outcomes that wait. Only the owner may call it.
    pub fn drain(&self, mut take: impl FnMut(SourceRequestSlot, Outcome)) {
        for (place, word) in self.waiting.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let slot = place * SLOTS_PER_WORD + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let outcome = decode(self.outcomes[slot].load(Ordering::Relaxed));
                take(SourceRequestSlot(u16::try_from(slot).expect("slots are 16 bit")), outcome);
            }
        }
    }
}

fn encode(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Done => 0,
        Outcome::Failed(FailKind::Io) => 1,
        Outcome::Failed(FailKind::NoSpace) => 2,
        Outcome::Failed(FailKind::ReadOnly) => 3,
        Outcome::Failed(FailKind::OutOfRange) => 4,
        Outcome::Failed(FailKind::Malformed) => 5,
        Outcome::Failed(FailKind::Unsupported) => 6,
        Outcome::Failed(FailKind::Cancelled) => 7,
    }
}

fn decode(code: u8) -> Outcome {
    Outcome::Failed(match code {
        0 => return Outcome::Done,
        1 => FailKind::Io,
        2 => FailKind::NoSpace,
        3 => FailKind::ReadOnly,
        4 => FailKind::OutOfRange,
        5 => FailKind::Malformed,
        6 => FailKind::Unsupported,
        7 => FailKind::Cancelled,
        _ => panic!("{code} is no code that encode makes"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nobody;

    impl Wake for Nobody {
        fn wake(&self) {}
    }

    fn drained(mailbox: &OutcomeMailbox) -> Vec<(u16, Outcome)> {
        let mut all = Vec::new();
        mailbox.drain(|slot, outcome| all.push((slot.0, outcome)));
        all
    }

    #[test]
    fn every_outcome_comes_out_as_it_went_in_and_only_once() {
        let mailbox = OutcomeMailbox::new(256, Arc::new(Nobody));
        let kinds = [
            Outcome::Done,
            Outcome::Failed(FailKind::Io),
            Outcome::Failed(FailKind::NoSpace),
            Outcome::Failed(FailKind::ReadOnly),
            Outcome::Failed(FailKind::OutOfRange),
            Outcome::Failed(FailKind::Malformed),
            Outcome::Failed(FailKind::Unsupported),
            Outcome::Failed(FailKind::Cancelled),
        ];
        let slots = [0, 1, 63, 64, 127, 200, 254, 255];
        for (slot, outcome) in slots.into_iter().zip(kinds) {
            mailbox.post(SourceRequestSlot(slot), outcome);
        }
        assert!(!mailbox.is_empty());
        assert_eq!(drained(&mailbox), slots.into_iter().zip(kinds).collect::<Vec<_>>());
        assert!(mailbox.is_empty());
        assert!(drained(&mailbox).is_empty());
    }

    #[test]
    fn a_transfer_of_each_direction_comes_out_once() {
        let mailbox = OutcomeMailbox::new(1, Arc::new(Nobody));
        // Both are receives, as new ones are.
        mailbox.post_transfer(StreamTransfer::default());
        assert!(!mailbox.is_empty());
        let mut count = 0;
        (0..2).for_each(|_| mailbox.drain_transfers(|_| count += 1));
        assert!(mailbox.is_empty());
        mailbox.post_transfer(StreamTransfer::default());
        mailbox.drain_transfers(|_| count += 1);
        assert_eq!(count, 2);
    }

    #[test]
    #[should_panic(expected = "a Receive was over twice")]
    fn a_second_transfer_of_a_direction_is_a_mistake() {
        let mailbox = OutcomeMailbox::new(1, Arc::new(Nobody));
        mailbox.post_transfer(StreamTransfer::default());
        mailbox.post_transfer(StreamTransfer::default());
    }

    #[test]
    fn a_full_mailbox_holds_an_outcome_for_every_slot() {
        let mailbox = OutcomeMailbox::new(100, Arc::new(Nobody));
        for slot in 0..100 {
            mailbox.post(SourceRequestSlot(slot), Outcome::Done);
        }
        assert_eq!(drained(&mailbox).len(), 100);
    }
}

/// The hand-over, explored in all interleavings:
/// `RUSTFLAGS="--cfg loom" cargo test -p request_path --release --lib loom_`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::AtomicUsize;

    /// An iothread's notifier: counts how often it was signalled.
    #[derive(Debug, Default)]
    struct Bell {
        rung: AtomicUsize,
    }

    impl Wake for Bell {
        fn wake(&self) {
            self.rung.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn drain(mailbox: &OutcomeMailbox, seen: &mut [u32]) {
        mailbox.drain(|slot, outcome| {
            assert_eq!(outcome, Outcome::Failed(FailKind::Io));
            seen[usize::from(slot.0)] += 1;
        });
    }

    /// What an iothread does after it was woken: clear the notifier first, then look.
    fn serve(mailbox: &OutcomeMailbox, notifier: &Bell, seen: &mut [u32]) {
        if notifier.rung.swap(0, Ordering::SeqCst) > 0 {
            drain(mailbox, seen);
        }
    }

    #[test]
    fn loom_an_outcome_posted_while_the_ring_moves_is_found_once_and_never_forgotten() {
        loom::model(|| {
            let (a, b) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
            let mailbox = Arc::new(OutcomeMailbox::new(2, a.clone() as Arc<dyn Wake>));
            let poster = {
                let mailbox = mailbox.clone();
                loom::thread::spawn(move || {
                    mailbox.post(SourceRequestSlot(1), Outcome::Failed(FailKind::Io))
                })
            };
            // The ring moves from A to B: B becomes the owner, then drains once unconditionally.
            let arrival = {
                let (mailbox, b) = (mailbox.clone(), b.clone());
                loom::thread::spawn(move || {
                    mailbox.set_owner(b.clone() as Arc<dyn Wake>);
                    let mut seen = [0; 2];
                    drain(&mailbox, &mut seen);
                    serve(&mailbox, &b, &mut seen);
                    seen
                })
            };
            poster.join().unwrap();
            let mut seen = arrival.join().unwrap();
            // B sleeps now. If the outcome is still in the box, its notifier must be readable.
            serve(&mailbox, &b, &mut seen);
            assert_eq!(seen, [0, 1]);
        });
    }

    #[test]
    fn loom_a_ring_that_comes_back_finds_what_both_threads_left() {
        loom::model(|| {
            let (a, b) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
            let mailbox = Arc::new(OutcomeMailbox::new(2, a.clone() as Arc<dyn Wake>));
            let late_on_a = {
                let mailbox = mailbox.clone();
                loom::thread::spawn(move || {
                    mailbox.post(SourceRequestSlot(0), Outcome::Failed(FailKind::Io))
                })
            };
            let late_on_b = {
                let mailbox = mailbox.clone();
                loom::thread::spawn(move || {
                    mailbox.post(SourceRequestSlot(1), Outcome::Failed(FailKind::Io))
                })
            };
            // A to B, B drains; B to A, A drains.
            let mut seen = [0; 2];
            mailbox.set_owner(b.clone() as Arc<dyn Wake>);
            drain(&mailbox, &mut seen);
            mailbox.set_owner(a.clone() as Arc<dyn Wake>);
            drain(&mailbox, &mut seen);
            late_on_a.join().unwrap();
            late_on_b.join().unwrap();
            serve(&mailbox, &a, &mut seen);
            assert_eq!(seen, [1, 1]);
        });
    }

    #[test]
    fn loom_a_transfer_that_ends_while_its_source_moves_is_found_once_and_never_forgotten() {
        loom::model(|| {
            let (a, b) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
            let mailbox = Arc::new(OutcomeMailbox::new(1, a.clone() as Arc<dyn Wake>));
            let poster = {
                let mailbox = mailbox.clone();
                loom::thread::spawn(move || mailbox.post_transfer(StreamTransfer::default()))
            };
            let arrival = {
                let (mailbox, b) = (mailbox.clone(), b.clone());
                loom::thread::spawn(move || {
                    mailbox.set_owner(b.clone() as Arc<dyn Wake>);
                    let mut seen = 0;
                    mailbox.drain_transfers(|_| seen += 1);
                    if b.rung.swap(0, Ordering::SeqCst) > 0 && !mailbox.is_empty() {
                        mailbox.drain_transfers(|_| seen += 1);
                    }
                    seen
                })
            };
            poster.join().unwrap();
            let mut seen = arrival.join().unwrap();
            if b.rung.swap(0, Ordering::SeqCst) > 0 && !mailbox.is_empty() {
                mailbox.drain_transfers(|_| seen += 1);
            }
            assert_eq!(seen, 1);
        });
    }
}
