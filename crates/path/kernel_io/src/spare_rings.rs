//! io_urings that are made in advance, for iothreads that start when none can be made any more.
//!
//! Where it stands: a daemon fills it before system calls are filtered; an iothread that starts later takes one. A ring is
//! made disabled, with its table of files and restricted like all others; the thread that enables it owns it
//! (SINGLE_ISSUER) and nobody else can have used it before.
//!
//! Threads: shared by all. Limits: a ring ends with its iothread and does not come back: so many iothreads in the life of
//! a process as there were spare rings; later ones wait with epoll. Each takes a descriptor and 280 KiB of the
//! kernel's memory.

use std::fmt;
use std::sync::{Mutex, MutexGuard};

use crate::KernelError;
use crate::uring::Uring;

/// io_urings made in advance; empty at first.
#[derive(Default)]
pub struct SpareRings {
    rings: Mutex<Vec<Uring>>,
}

impl fmt::Debug for SpareRings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpareRings").field("left", &self.left()).finish()
    }
}

impl SpareRings {
    /// Makes as many as it takes until there are so many, or says why the host gives no more. Call it when those that start
    /// now have theirs: whoever needs one takes a spare one first.
    pub fn fill(&self, count: usize) -> Result<(), KernelError> {
        let mut rings = self.lock();
        while rings.len() < count {
            rings.push(Uring::disabled()?);
        }
        Ok(())
    }

    /// How many there are.
    pub fn left(&self) -> usize {
        self.lock().len()
    }

    /// Takes one, if there is any.
    pub(crate) fn take(&self) -> Option<Uring> {
        self.lock().pop()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Uring>> {
        self.rings.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::thread;

    use super::*;
    use crate::{
        EngineKernel, Event, FileTable, Interest, Kernel, Notifier, ReactorChoice, ReactorKind,
        Tag, WaitMode,
    };

    /// What a thread of its own waits with, which it tries.
    fn waits_with(spares: &SpareRings) -> String {
        let wait = || {
            let table = Arc::new(FileTable::default());
            let mut kernel = Kernel::with_spare_rings(table, ReactorChoice::Any, spares).unwrap();
            let notifier = Notifier::new().unwrap();
            kernel.poll(notifier.as_fd(), Interest::Read, Tag(7));
            notifier.wake();
            let event = loop {
                kernel.wait(WaitMode::Block).unwrap();
                if let Some(event) = kernel.next_event() {
                    break event;
                }
            };
            assert!(matches!(event, Event::Ready { tag: Tag(7) }), "{event:?}");
            kernel.waits_with().to_string()
        };
        thread::scope(|scope| scope.spawn(wait).join().unwrap())
    }

    #[test]
    fn a_spare_ring_is_that_of_the_thread_that_takes_it() {
        let spares = SpareRings::default();
        if let Err(error) = spares.fill(2) {
            assert!(matches!(error, KernelError::Uring(_)), "{error}");
            return;
        }
        for left in [1, 0] {
            assert_eq!(waits_with(&spares), ReactorKind::IoUring.to_string());
            assert_eq!(spares.left(), left);
        }
        // With none left it is as without.
        assert_eq!(waits_with(&spares), ReactorKind::IoUring.to_string());
    }
}
