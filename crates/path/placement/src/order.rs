//! What the policy answers: orders to carry out, when to look again, and what is worth saying.

use std::time::Duration;

use crate::{DiskId, IothreadSlot};

/// A ring to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingMove {
    /// Its disk.
    pub disk: DiskId,
    /// Which of its queues.
    pub queue: u16,
    /// The iothread that is to serve it.
    pub to: IothreadSlot,
}

/// What is to be done, in the order of the list, before the next snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// An iothread is needed there: none runs in that slot. If it cannot be started, the moves to it are left out.
    Start(IothreadSlot),
    /// These rings change their iothread, all at once if that can be. One that cannot be moved stays where it is.
    Move(Vec<RingMove>),
    /// The iothread has had no ring for a minute and ends.
    End(IothreadSlot),
}

/// When the next snapshot is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextLook {
    /// After that time, counted from when the orders are carried out.
    After(Duration),
    /// Not before some iothread has worked for 1 ms altogether: no timer until then.
    Parked,
}

/// Something for the log.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// A disk keeps another number of iothreads.
    Kept {
        /// Which disk.
        disk: DiskId,
        /// How many iothreads it had.
        from: usize,
        /// How many it has.
        to: usize,
        /// By how much its progress changed, as a share: 2.08 is +208 %.
        gain: f64,
        /// Requests and 32 KiB of data per second, with the new placement.
        progress_per_s: f64,
    },
    /// A number of iothreads was tried and refused.
    Refused {
        /// Which disk.
        disk: DiskId,
        /// How many iothreads it has.
        from: usize,
        /// How many it was tried on.
        to: usize,
        /// By how much its progress changed, as a share.
        gain: f64,
    },
    /// One queue alone fills an iothread: more queues in the guest would help. Once per situation.
    QueueFillsIothread {
        /// Which disk.
        disk: DiskId,
        /// Which of its queues.
        queue: u16,
    },
    /// More iothreads could help, but no CPU is free. Once per situation.
    NoCpuFree {
        /// Which disk.
        disk: DiskId,
        /// What they would bring at most, as a share.
        gain_max: f64,
    },
}

/// The answer to a snapshot.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "orders have to be carried out"]
pub struct Decision {
    /// What to do.
    pub orders: Vec<Order>,
    /// When to ask again.
    pub next: NextLook,
    /// What to say.
    pub notes: Vec<Note>,
}
