//! What a result of the kernel means for its operation: over, to be started again, or how far it got.
//!
//! Where it stands: [`crate::Kernel`] asks for every completion, of whatever engine. Pure but for the
//! count of retries in the operation.
//! Limits: [`RETRIES_MAX`] retries.

use rustix::io::Errno;

use crate::IoFailure;
use crate::parked::{Parked, Stage, Work};

/// How often an operation is submitted again after EINTR, EAGAIN or, where a range is changed, EBUSY before that is its
/// result.
pub(crate) const RETRIES_MAX: u8 = 100;

/// What a completion means for its operation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Judgement {
    Again,
    Transferred(usize),
    Over(Result<(), IoFailure>),
}

/// The error of a negative result.
pub(crate) fn errno_of(result: i64) -> Errno {
    i32::try_from(-result).map_or(Errno::IO, Errno::from_raw_os_error)
}

/// Judges the result of a call or a completion: a count of bytes or a negative errno.
pub(crate) fn judge(parked: &mut Parked, result: i64) -> Judgement {
    let offset = parked.offset;
    let Ok(count) = usize::try_from(result) else {
        let errno = errno_of(result);
        let passing = match errno {
            Errno::INTR => true,
            Errno::AGAIN => {
                parked.stage = Stage::Waits;
                true
            }
            // Of a device, the kernel takes what is changed out of its page cache, which others may be writing to just now.
            Errno::BUSY => matches!(parked.work, Work::Space(_)),
            _ => false,
        };
        if passing && parked.retries < RETRIES_MAX {
            parked.retries += 1;
            return Judgement::Again;
        }
        return Judgement::Over(Err(IoFailure::Errno { offset, errno }));
    };
    match parked.work {
        Work::Sync | Work::Space(_) | Work::Extent(_) => Judgement::Over(Ok(())),
        Work::Read | Work::Write(_) if count > 0 => Judgement::Transferred(count),
        Work::Read => Judgement::Over(Err(IoFailure::EndOfFile { offset })),
        Work::Write(_) => Judgement::Over(Err(IoFailure::Errno { offset, errno: Errno::IO })),
    }
}
