//! A place in a file that tells when a change goes beyond it (QEMU's `block-set-write-threshold`): whoever gives a thin
//! volume more space hears in time.
//!
//! Where it stands in the life of a request: when a lane maps a change. Told once, when the change is begun; then it is off
//! until it is set again.
//!
//! Threads: set by control threads, looked at by iothreads, which pay one load for each change.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Nothing is waited for.
const OFF: u64 = u64::MAX;

/// Is told how far a change goes beyond the threshold, and the threshold. Called on an iothread, once: must not block.
pub type ExceededThreshold = Box<dyn FnOnce(u64, u64) + Send>;

/// The write threshold of a file.
pub struct WriteThreshold {
    offset: AtomicU64,
    exceeded: Mutex<Option<ExceededThreshold>>,
}

impl fmt::Debug for WriteThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteThreshold").field("offset", &self.get()).finish_non_exhaustive()
    }
}

impl Default for WriteThreshold {
    fn default() -> Self {
        Self { offset: AtomicU64::new(OFF), exceeded: Mutex::new(None) }
    }
}

impl WriteThreshold {
    /// Has that called when a change goes beyond this offset in bytes; 0 switches it off.
    pub fn set(&self, offset: u64, exceeded: ExceededThreshold) {
        let mut told = self.exceeded.lock().expect("no holder of this lock panics");
        *told = (offset > 0).then_some(exceeded);
        // After what is to be called: an iothread that sees the offset finds it.
        self.offset.store(if offset > 0 { offset } else { OFF }, Ordering::Release);
    }

    /// The offset; 0 if it is off.
    pub fn get(&self) -> u64 {
        match self.offset.load(Ordering::Relaxed) {
            OFF => 0,
            offset => offset,
        }
    }

    /// A change reaches up to there.
    #[inline]
    pub(super) fn reached(&self, end: u64) {
        if end > self.offset.load(Ordering::Relaxed) {
            self.exceed(end);
        }
    }

    #[cold]
    fn exceed(&self, end: u64) {
        let mut told = self.exceeded.lock().expect("no holder of this lock panics");
        // Another iothread may have been first, or it was set to another place meanwhile.
        let offset = self.offset.load(Ordering::Acquire);
        if end > offset
            && let Some(exceeded) = told.take()
        {
            self.offset.store(OFF, Ordering::Relaxed);
            exceeded(end - offset, offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn it_tells_once_of_the_first_change_beyond_it() {
        let threshold = Arc::new(WriteThreshold::default());
        let (sender, told) = channel();
        let set = |offset| {
            let sender = sender.clone();
            let exceeded = move |amount, offset| sender.send((amount, offset)).unwrap();
            threshold.set(offset, Box::new(exceeded));
        };
        threshold.reached(u64::MAX - 1);
        set(4096);
        assert_eq!(threshold.get(), 4096);
        threshold.reached(4096);
        assert!(told.try_recv().is_err());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| threshold.reached(5000));
            }
        });
        assert_eq!((told.recv().unwrap(), threshold.get()), ((904, 4096), 0));
        threshold.reached(9000);
        set(4096);
        set(0);
        threshold.reached(9000);
        assert!(told.try_recv().is_err());
    }
}
