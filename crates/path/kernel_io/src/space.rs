//! How a range is discarded or zeroed: the ways that the host may have for it, the best one first.
//!
//! Where it stands in the life of a request: [`crate::Kernel`] asks for the first way when an operation begins
//! and for the next one when a way turned out not to work. When none is left, the operation fails with
//! EOPNOTSUPP and its asker writes zeroes, or forgets the hint.
//!
//! Invariants: a way that the host does not have is noted with the file and never tried again
//! ([`MissingWays`]). One that only does not suit a range (EINVAL) is. Whatever was done before the next
//! way is tried, the range holds zeroes or what it held before.
//! Threads: the notes are shared by all iothreads; each is a lone flag.

use std::sync::atomic::{AtomicU8, Ordering};

use rustix::io::Errno;

use crate::FileKind;

/// What is to become of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// Its content does not matter any more: give the space back.
    Discard,
    /// It reads as zeroes; give the space back if that can be.
    PunchHole,
    /// It reads as zeroes; keep the space.
    Zero,
}

/// One way to change a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// fallocate with PUNCH_HOLE. Of a block device: zeroes, if the device can make them itself.
    PunchHole,
    /// fallocate with ZERO_RANGE. Of a block device this is BLKZEROOUT without unmapping, in the same
    /// function of the kernel: what the device cannot do, the kernel writes.
    ZeroRange,
    /// A hole first, then [`Method::Fill`]: what tmpfs can.
    PunchToFill,
    /// fallocate of what is a hole.
    Fill,
    /// BLKDISCARD of a block device.
    Discard,
}

impl Method {
    /// The mode of fallocate; `None` if it is another call.
    pub(crate) fn mode(self, kind: FileKind) -> Option<i32> {
        match (self, kind) {
            (Self::PunchHole | Self::PunchToFill, _) => {
                Some(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
            }
            (Self::ZeroRange, FileKind::Regular) => {
                Some(libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE)
            }
            // With KEEP_SIZE a range that goes beyond the end of a device, which may have shrunk, is cut
            // and answered as if it were done.
            (Self::ZeroRange, FileKind::BlockDevice) => Some(libc::FALLOC_FL_ZERO_RANGE),
            (Self::Fill, _) => Some(libc::FALLOC_FL_KEEP_SIZE),
            (Self::Discard, _) => None,
        }
    }

    fn bit(self) -> u8 {
        match self {
            Self::PunchHole | Self::PunchToFill => 1,
            Self::ZeroRange => 2,
            Self::Fill => 4,
            Self::Discard => 8,
        }
    }
}

/// A range that is being changed: what it is to become, and how that is tried now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) goal: Allocation,
    pub(crate) method: Method,
    /// Its bytes.
    pub(crate) count: u64,
    /// Of what file: says which ways there are.
    pub(crate) kind: FileKind,
}

/// What is to be done after a way was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Go on with this.
    Next(Space),
    /// The range is what it was to become.
    Done,
    /// Nothing that the host has does it.
    Unsupported,
    /// It failed, and no other way would do better.
    Failed(Errno),
}

impl Space {
    /// The first way that is not known to be missing.
    pub(crate) fn begin(
        goal: Allocation,
        kind: FileKind,
        count: u64,
        missing: &MissingWays,
    ) -> Option<Self> {
        let method = ways(goal, kind).iter().copied().find(|method| missing.has(*method))?;
        Some(Self { goal, method, count, kind })
    }

    /// What follows from the result of the way that was tried; notes what the host does not have.
    pub(crate) fn proceed(self, result: Result<(), Errno>, missing: &MissingWays) -> Step {
        let errno = match (result, self.method) {
            (Ok(()), Method::PunchToFill) => {
                return Step::Next(Self { method: Method::Fill, ..self });
            }
            (Ok(()), _) => return Step::Done,
            (Err(errno), _) => errno,
        };
        match judge(self.kind, errno) {
            Verdict::Missing => missing.note(self.method),
            Verdict::Unsuitable => {}
            Verdict::Failed => return Step::Failed(errno),
        }
        let all = ways(self.goal, self.kind);
        let place = all.iter().position(|method| *method == self.method);
        // Filling follows a punch, which is the last way.
        let later = place.map_or(&[][..], |place| &all[place + 1..]);
        match later.iter().copied().find(|method| missing.has(*method)) {
            Some(method) => Step::Next(Self { method, ..self }),
            None => Step::Unsupported,
        }
    }
}

/// The ways there are, the best one first.
fn ways(goal: Allocation, kind: FileKind) -> &'static [Method] {
    use Method::{Discard, PunchHole, PunchToFill, ZeroRange};
    match (goal, kind) {
        (Allocation::Discard, FileKind::Regular) => &[PunchHole],
        (Allocation::Discard, FileKind::BlockDevice) => &[Discard],
        (Allocation::PunchHole, _) => &[PunchHole, ZeroRange],
        (Allocation::Zero, FileKind::Regular) => &[ZeroRange, PunchToFill],
        (Allocation::Zero, FileKind::BlockDevice) => &[ZeroRange],
    }
}

/// What an error says about a way.
enum Verdict {
    /// The host does not have it.
    Missing,
    /// It does not suit this range.
    Unsuitable,
    /// It would have done.
    Failed,
}

fn judge(kind: FileKind, errno: Errno) -> Verdict {
    match errno {
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV | Errno::NOTTY => Verdict::Missing,
        // Some file systems say so of ranges that are not whole blocks of theirs.
        Errno::INVAL if kind == FileKind::Regular => Verdict::Unsuitable,
        _ => Verdict::Failed,
    }
}

/// The ways that a file turned out not to have.
#[derive(Debug, Default)]
pub(crate) struct MissingWays(AtomicU8);

impl MissingWays {
    fn has(&self, method: Method) -> bool {
        let needed = match method {
            Method::PunchToFill => Method::PunchHole.bit() | Method::Fill.bit(),
            Method::PunchHole | Method::ZeroRange | Method::Fill | Method::Discard => method.bit(),
        };
        // Nothing else is published by it, and one try too many does no harm.
        self.0.load(Ordering::Relaxed) & needed == 0
    }

    fn note(&self, method: Method) {
        self.0.fetch_or(method.bit(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a range through with these results, and says which ways were tried.
    #[track_caller]
    fn check(
        goal: Allocation,
        kind: FileKind,
        missing: &MissingWays,
        results: &[(Method, Result<(), Errno>)],
        end: Step,
    ) {
        let mut step = match Space::begin(goal, kind, 4096, missing) {
            Some(space) => Step::Next(space),
            None => Step::Unsupported,
        };
        for (method, result) in results {
            let Step::Next(space) = step else { panic!("{step:?} instead of {method:?}") };
            assert_eq!(space.method, *method);
            step = space.proceed(*result, missing);
        }
        assert_eq!(step, end, "after {results:?}");
    }

    #[test]
    fn a_way_that_the_host_lacks_is_tried_once() {
        use Method::{Fill, PunchHole, PunchToFill, ZeroRange};
        let (zero, file) = (Allocation::Zero, FileKind::Regular);
        let lacks = Err(Errno::OPNOTSUPP);
        let missing = MissingWays::default();
        let tmpfs = [(ZeroRange, lacks), (PunchToFill, Ok(())), (Fill, Ok(()))];
        check(zero, file, &missing, &tmpfs, Step::Done);
        check(zero, file, &missing, &tmpfs[1..], Step::Done);
        check(zero, file, &missing, &[(PunchToFill, lacks)], Step::Unsupported);
        check(zero, file, &missing, &[], Step::Unsupported);
        check(Allocation::PunchHole, file, &missing, &[], Step::Unsupported);
        check(Allocation::Discard, file, &missing, &[], Step::Unsupported);
        let other = MissingWays::default();
        let holes = [(PunchHole, lacks), (ZeroRange, Ok(()))];
        check(Allocation::PunchHole, file, &other, &holes, Step::Done);
        check(Allocation::PunchHole, file, &other, &holes[1..], Step::Done);
    }

    #[test]
    fn a_hole_that_cannot_be_filled_is_written_and_not_made_again() {
        use Method::{Fill, PunchHole, PunchToFill, ZeroRange};
        let (zero, file) = (Allocation::Zero, FileKind::Regular);
        let lacks = Err(Errno::OPNOTSUPP);
        let missing = MissingWays::default();
        let all = [(ZeroRange, lacks), (PunchToFill, Ok(())), (Fill, lacks)];
        check(zero, file, &missing, &all, Step::Unsupported);
        check(zero, file, &missing, &[], Step::Unsupported);
        check(Allocation::Discard, file, &missing, &[(PunchHole, Ok(()))], Step::Done);
    }

    #[test]
    fn what_only_does_not_suit_a_range_is_tried_again() {
        use Method::{PunchToFill, ZeroRange};
        let (zero, file) = (Allocation::Zero, FileKind::Regular);
        let unsuitable = Err(Errno::INVAL);
        let missing = MissingWays::default();
        let both = [(ZeroRange, unsuitable), (PunchToFill, unsuitable)];
        check(zero, file, &missing, &both, Step::Unsupported);
        check(zero, file, &missing, &both, Step::Unsupported);
        check(zero, file, &missing, &[(ZeroRange, Ok(()))], Step::Done);
    }

    #[test]
    fn a_device_that_cannot_discard_is_asked_once() {
        use Method::{Discard, ZeroRange};
        let (discard, device) = (Allocation::Discard, FileKind::BlockDevice);
        let missing = MissingWays::default();
        check(discard, device, &missing, &[(Discard, Ok(()))], Step::Done);
        let none = [(Discard, Err(Errno::OPNOTSUPP))];
        check(discard, device, &missing, &none, Step::Unsupported);
        check(discard, device, &missing, &[], Step::Unsupported);
        // Zeroes are another matter.
        check(Allocation::Zero, device, &missing, &[(ZeroRange, Ok(()))], Step::Done);
    }

    #[test]
    fn an_error_of_the_storage_is_the_end() {
        let missing = MissingWays::default();
        for errno in [Errno::IO, Errno::NOSPC] {
            let (zero, file) = (Allocation::Zero, FileKind::Regular);
            let failed = Step::Failed(errno);
            check(zero, file, &missing, &[(Method::ZeroRange, Err(errno))], failed);
            let filled = [
                (Method::ZeroRange, Err(Errno::INVAL)),
                (Method::PunchToFill, Ok(())),
                (Method::Fill, Err(errno)),
            ];
            check(zero, file, &missing, &filled, failed);
        }
        // Of a device that has shrunk.
        let zero = [(Method::ZeroRange, Err(Errno::INVAL))];
        let failed = Step::Failed(Errno::INVAL);
        check(Allocation::Zero, FileKind::BlockDevice, &missing, &zero, failed);
    }

    #[test]
    fn a_device_never_cuts_a_zeroing_at_its_end() {
        let mode = Method::ZeroRange.mode(FileKind::BlockDevice).unwrap();
        assert_eq!(mode & libc::FALLOC_FL_KEEP_SIZE, 0);
        let mode = Method::ZeroRange.mode(FileKind::Regular).unwrap();
        assert_ne!(mode & libc::FALLOC_FL_KEEP_SIZE, 0);
    }
}
