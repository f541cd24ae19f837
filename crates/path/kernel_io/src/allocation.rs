//! How a range is discarded or zeroed: the ways that the host may have for it, the best one first.
//!
//! Where it stands in the life of a request: [`crate::Kernel`] asks for the first way when an operation begins
//! and for the next one when a way turned out not to work. When none is left, the operation fails with
//! EOPNOTSUPP and its asker writes zeroes, or forgets the hint.
//!
//! Invariants: a way that the host does not have is noted with the file and never tried again
//! ([`MissingMethods`]). One that only does not suit a range (EINVAL) is. Whatever was done before the next
//! way is tried, the range holds zeroes or what it held before.
//! Threads: the notes are shared by all iothreads; each is a lone flag.

use std::sync::atomic::{AtomicU8, Ordering};

use block::{IoFailure, Unmap, ZeroCost, ZeroTerms};
use rustix::io::Errno;

use crate::in_flight::{InFlightOp, IoKind};
use crate::{FileKind, OpenFile};

/// What a range of a file is to become: discarded, a hole, or zeroes that stay allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscardOrZeroGoal {
    /// Its content does not matter any more: give the space back.
    Discard,
    /// It reads as zeroes, on these terms.
    Zeroes(ZeroTerms),
}

/// One system call, or two, that discards or zeroes a range (fallocate modes, BLKDISCARD).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiscardOrZeroMethod {
    /// fallocate with PUNCH_HOLE. Of a block device: zeroes, if the device can make them itself.
    PunchHole,
    /// fallocate with ZERO_RANGE. Of a block device this is BLKZEROOUT without unmapping, in the same
    /// function of the kernel: what the device cannot do, the kernel writes.
    ZeroRange,
    /// A hole first, then [`DiscardOrZeroMethod::Fill`]: what tmpfs can.
    PunchToFill,
    /// fallocate of what is a hole.
    Fill,
    /// BLKDISCARD of a block device.
    Discard,
}

impl DiscardOrZeroMethod {
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

/// A range that is being discarded or zeroed: the goal, and the method that is tried now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiscardOrZeroAttempt {
    pub(crate) goal: DiscardOrZeroGoal,
    pub(crate) method: DiscardOrZeroMethod,
    /// Its bytes.
    pub(crate) count: u64,
    /// Of what file: says which ways there are.
    pub(crate) kind: FileKind,
}

/// What follows from the result of a method: try the next one, done, or failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiscardOrZeroStep {
    /// Go on with this.
    Next(DiscardOrZeroAttempt),
    /// The range is what it was to become.
    Done,
    /// Nothing that the host has does it.
    Unsupported,
    /// It failed, and no other way would do better.
    Failed(Errno),
}

impl DiscardOrZeroAttempt {
    /// The first way that is not known to be missing.
    pub(crate) fn begin(
        goal: DiscardOrZeroGoal,
        kind: FileKind,
        count: u64,
        missing: &MissingMethods,
    ) -> Option<Self> {
        let method = methods(goal, kind).iter().copied().find(|method| missing.has(*method))?;
        Some(Self { goal, method, count, kind })
    }

    /// What follows from the result of the way that was tried; notes what the host does not have.
    pub(crate) fn proceed(
        self,
        result: Result<(), Errno>,
        missing: &MissingMethods,
    ) -> DiscardOrZeroStep {
        let errno = match (result, self.method) {
            (Ok(()), DiscardOrZeroMethod::PunchToFill) => {
                return DiscardOrZeroStep::Next(Self { method: DiscardOrZeroMethod::Fill, ..self });
            }
            (Ok(()), _) => return DiscardOrZeroStep::Done,
            (Err(errno), _) => errno,
        };
        match classify(self.kind, errno) {
            MethodFailure::Missing => missing.note(self.method),
            MethodFailure::Unsuitable => {}
            MethodFailure::Failed => return DiscardOrZeroStep::Failed(errno),
        }
        let all = methods(self.goal, self.kind);
        let place = all.iter().position(|method| *method == self.method);
        // Filling follows a punch, which is the last way.
        let later = place.map_or(&[][..], |place| &all[place + 1..]);
        match later.iter().copied().find(|method| missing.has(*method)) {
            Some(method) => DiscardOrZeroStep::Next(Self { method, ..self }),
            None => DiscardOrZeroStep::Unsupported,
        }
    }
}

/// The ways there are, the best one first.
fn methods(goal: DiscardOrZeroGoal, kind: FileKind) -> &'static [DiscardOrZeroMethod] {
    use DiscardOrZeroMethod::{Discard, PunchHole, PunchToFill, ZeroRange};
    match (goal, kind) {
        (DiscardOrZeroGoal::Discard, FileKind::Regular) => &[PunchHole],
        (DiscardOrZeroGoal::Discard, FileKind::BlockDevice) => &[Discard],
        (DiscardOrZeroGoal::Zeroes(ZeroTerms { unmap, cost }), kind) => match (unmap, kind, cost) {
            (Unmap::Allowed, FileKind::Regular, _) | (Unmap::Allowed, _, ZeroCost::Any) => {
                &[PunchHole, ZeroRange]
            }
            (Unmap::Keep, FileKind::Regular, _) => &[ZeroRange, PunchToFill],
            (Unmap::Keep, FileKind::BlockDevice, ZeroCost::Any) => &[ZeroRange],
            // What the device cannot do, the kernel would write.
            (Unmap::Allowed, FileKind::BlockDevice, ZeroCost::Fast) => &[PunchHole],
            (Unmap::Keep, FileKind::BlockDevice, ZeroCost::Fast) => &[],
        },
    }
}

/// What the result of one way to change a range means: the end, or that the operation now goes another way.
pub(crate) fn follow(
    parked: &mut InFlightOp,
    space: DiscardOrZeroAttempt,
    result: Result<(), IoFailure>,
    file: &OpenFile,
) -> Option<Result<(), IoFailure>> {
    let offset = parked.offset;
    let errno = match result {
        Ok(()) => Ok(()),
        Err(IoFailure::Errno { errno, .. }) => Err(errno),
        Err(end @ IoFailure::EndOfFile { .. }) => return Some(Err(end)),
    };
    match space.proceed(errno, file.missing_methods()) {
        DiscardOrZeroStep::Next(space) => {
            parked.work = IoKind::Space(space);
            None
        }
        DiscardOrZeroStep::Done => Some(Ok(())),
        DiscardOrZeroStep::Unsupported => {
            Some(Err(IoFailure::Errno { offset, errno: Errno::OPNOTSUPP }))
        }
        DiscardOrZeroStep::Failed(errno) => Some(Err(IoFailure::Errno { offset, errno })),
    }
}

/// Why a method failed: the host lacks it, it does not suit the range, or an I/O error.
enum MethodFailure {
    /// The host does not have it.
    Missing,
    /// It does not suit this range.
    Unsuitable,
    /// It would have done.
    Failed,
}

fn classify(kind: FileKind, errno: Errno) -> MethodFailure {
    match errno {
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV | Errno::NOTTY => MethodFailure::Missing,
        // Some file systems say so of ranges that are not whole blocks of theirs.
        Errno::INVAL if kind == FileKind::Regular => MethodFailure::Unsuitable,
        _ => MethodFailure::Failed,
    }
}

/// The methods that a file turned out not to have, a bit each.
#[derive(Debug, Default)]
pub(crate) struct MissingMethods(AtomicU8);

impl MissingMethods {
    fn has(&self, method: DiscardOrZeroMethod) -> bool {
        let needed = match method {
            DiscardOrZeroMethod::PunchToFill => {
                DiscardOrZeroMethod::PunchHole.bit() | DiscardOrZeroMethod::Fill.bit()
            }
            DiscardOrZeroMethod::PunchHole
            | DiscardOrZeroMethod::ZeroRange
            | DiscardOrZeroMethod::Fill
            | DiscardOrZeroMethod::Discard => method.bit(),
        };
        // Nothing else is published by it, and one try too many does no harm.
        self.0.load(Ordering::Relaxed) & needed == 0
    }

    fn note(&self, method: DiscardOrZeroMethod) {
        self.0.fetch_or(method.bit(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a range through with these results, and says which ways were tried.
    #[track_caller]
    fn check(
        goal: DiscardOrZeroGoal,
        kind: FileKind,
        missing: &MissingMethods,
        results: &[(DiscardOrZeroMethod, Result<(), Errno>)],
        end: DiscardOrZeroStep,
    ) {
        let mut step = match DiscardOrZeroAttempt::begin(goal, kind, 4096, missing) {
            Some(space) => DiscardOrZeroStep::Next(space),
            None => DiscardOrZeroStep::Unsupported,
        };
        for (method, result) in results {
            let DiscardOrZeroStep::Next(space) = step else {
                panic!("{step:?} instead of {method:?}")
            };
            assert_eq!(space.method, *method);
            step = space.proceed(*result, missing);
        }
        assert_eq!(step, end, "after {results:?}");
    }

    #[test]
    fn a_way_that_the_host_lacks_is_tried_once() {
        use DiscardOrZeroMethod::{Fill, PunchHole, PunchToFill, ZeroRange};
        let (zero, file) = (DiscardOrZeroGoal::Zeroes(ZeroTerms::KEEP), FileKind::Regular);
        let lacks = Err(Errno::OPNOTSUPP);
        let missing = MissingMethods::default();
        let tmpfs = [(ZeroRange, lacks), (PunchToFill, Ok(())), (Fill, Ok(()))];
        check(zero, file, &missing, &tmpfs, DiscardOrZeroStep::Done);
        check(zero, file, &missing, &tmpfs[1..], DiscardOrZeroStep::Done);
        check(zero, file, &missing, &[(PunchToFill, lacks)], DiscardOrZeroStep::Unsupported);
        check(zero, file, &missing, &[], DiscardOrZeroStep::Unsupported);
        check(
            DiscardOrZeroGoal::Zeroes(ZeroTerms::UNMAP),
            file,
            &missing,
            &[],
            DiscardOrZeroStep::Unsupported,
        );
        check(DiscardOrZeroGoal::Discard, file, &missing, &[], DiscardOrZeroStep::Unsupported);
        let other = MissingMethods::default();
        let holes = [(PunchHole, lacks), (ZeroRange, Ok(()))];
        check(
            DiscardOrZeroGoal::Zeroes(ZeroTerms::UNMAP),
            file,
            &other,
            &holes,
            DiscardOrZeroStep::Done,
        );
        check(
            DiscardOrZeroGoal::Zeroes(ZeroTerms::UNMAP),
            file,
            &other,
            &holes[1..],
            DiscardOrZeroStep::Done,
        );
    }

    #[test]
    fn a_hole_that_cannot_be_filled_is_written_and_not_made_again() {
        use DiscardOrZeroMethod::{Fill, PunchHole, PunchToFill, ZeroRange};
        let (zero, file) = (DiscardOrZeroGoal::Zeroes(ZeroTerms::KEEP), FileKind::Regular);
        let lacks = Err(Errno::OPNOTSUPP);
        let missing = MissingMethods::default();
        let all = [(ZeroRange, lacks), (PunchToFill, Ok(())), (Fill, lacks)];
        check(zero, file, &missing, &all, DiscardOrZeroStep::Unsupported);
        check(zero, file, &missing, &[], DiscardOrZeroStep::Unsupported);
        check(
            DiscardOrZeroGoal::Discard,
            file,
            &missing,
            &[(PunchHole, Ok(()))],
            DiscardOrZeroStep::Done,
        );
    }

    /// Of what is not fast: ZERO_RANGE of a device, which the kernel may carry out by writing.
    #[test]
    fn what_may_be_slow_is_not_tried_where_it_has_to_be_fast() {
        use DiscardOrZeroMethod::{PunchHole, ZeroRange};
        let fast = |terms: ZeroTerms| DiscardOrZeroGoal::Zeroes(terms.only_if_fast());
        let (keep, unmap) = (fast(ZeroTerms::KEEP), fast(ZeroTerms::UNMAP));
        let (device, file) = (FileKind::BlockDevice, FileKind::Regular);
        let lacks = Err(Errno::OPNOTSUPP);
        let missing = MissingMethods::default();
        check(keep, device, &missing, &[], DiscardOrZeroStep::Unsupported);
        check(unmap, device, &missing, &[(PunchHole, Ok(()))], DiscardOrZeroStep::Done);
        check(unmap, device, &missing, &[(PunchHole, lacks)], DiscardOrZeroStep::Unsupported);
        check(unmap, device, &missing, &[], DiscardOrZeroStep::Unsupported);
        check(keep, file, &missing, &[(ZeroRange, Ok(()))], DiscardOrZeroStep::Done);
    }

    #[test]
    fn what_only_does_not_suit_a_range_is_tried_again() {
        use DiscardOrZeroMethod::{PunchToFill, ZeroRange};
        let (zero, file) = (DiscardOrZeroGoal::Zeroes(ZeroTerms::KEEP), FileKind::Regular);
        let unsuitable = Err(Errno::INVAL);
        let missing = MissingMethods::default();
        let both = [(ZeroRange, unsuitable), (PunchToFill, unsuitable)];
        check(zero, file, &missing, &both, DiscardOrZeroStep::Unsupported);
        check(zero, file, &missing, &both, DiscardOrZeroStep::Unsupported);
        check(zero, file, &missing, &[(ZeroRange, Ok(()))], DiscardOrZeroStep::Done);
    }

    #[test]
    fn a_device_that_cannot_discard_is_asked_once() {
        use DiscardOrZeroMethod::{Discard, ZeroRange};
        let (discard, device) = (DiscardOrZeroGoal::Discard, FileKind::BlockDevice);
        let missing = MissingMethods::default();
        check(discard, device, &missing, &[(Discard, Ok(()))], DiscardOrZeroStep::Done);
        let none = [(Discard, Err(Errno::OPNOTSUPP))];
        check(discard, device, &missing, &none, DiscardOrZeroStep::Unsupported);
        check(discard, device, &missing, &[], DiscardOrZeroStep::Unsupported);
        // Zeroes are another matter.
        check(
            DiscardOrZeroGoal::Zeroes(ZeroTerms::KEEP),
            device,
            &missing,
            &[(ZeroRange, Ok(()))],
            DiscardOrZeroStep::Done,
        );
    }

    #[test]
    fn an_error_of_the_storage_is_the_end() {
        let missing = MissingMethods::default();
        for errno in [Errno::IO, Errno::NOSPC] {
            let (zero, file) = (DiscardOrZeroGoal::Zeroes(ZeroTerms::KEEP), FileKind::Regular);
            let failed = DiscardOrZeroStep::Failed(errno);
            check(zero, file, &missing, &[(DiscardOrZeroMethod::ZeroRange, Err(errno))], failed);
            let filled = [
                (DiscardOrZeroMethod::ZeroRange, Err(Errno::INVAL)),
                (DiscardOrZeroMethod::PunchToFill, Ok(())),
                (DiscardOrZeroMethod::Fill, Err(errno)),
            ];
            check(zero, file, &missing, &filled, failed);
        }
        // Of a device that has shrunk.
        let zero = [(DiscardOrZeroMethod::ZeroRange, Err(Errno::INVAL))];
        let failed = DiscardOrZeroStep::Failed(Errno::INVAL);
        check(
            DiscardOrZeroGoal::Zeroes(ZeroTerms::KEEP),
            FileKind::BlockDevice,
            &missing,
            &zero,
            failed,
        );
    }

    #[test]
    fn a_device_never_cuts_a_zeroing_at_its_end() {
        let mode = DiscardOrZeroMethod::ZeroRange.mode(FileKind::BlockDevice).unwrap();
        assert_eq!(mode & libc::FALLOC_FL_KEEP_SIZE, 0);
        let mode = DiscardOrZeroMethod::ZeroRange.mode(FileKind::Regular).unwrap();
        assert_ne!(mode & libc::FALLOC_FL_KEEP_SIZE, 0);
    }
}
