//! Ctrl-C and its relatives: a flag that long work looks at.
//!
//! Limits: every wait of the tuner is bounded and asks the flag every few milliseconds, so that one
//! signal is enough; the child is stopped and the scratch file removed on the way out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The error of a run that a signal ended. `exit_code` maps it to 130.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Listens to SIGINT, SIGTERM and SIGHUP while it lives.
#[derive(Debug)]
pub(crate) struct Interrupt {
    flag: Arc<AtomicBool>,
    registrations: Vec<SigId>,
}

impl Interrupt {
    pub(crate) fn listen() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let register = |signal| signal_hook::flag::register(signal, Arc::clone(&flag));
        let registrations =
            [SIGINT, SIGTERM, SIGHUP].into_iter().map(register).collect::<io::Result<_>>()?;
        Ok(Self { flag, registrations })
    }

    /// Fails once a signal has come.
    pub(crate) fn check(&self) -> Result<(), Interrupted> {
        if self.flag.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for registration in self.registrations.drain(..) {
            signal_hook::low_level::unregister(registration);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An interrupt that no signal reaches.
    pub(crate) fn deaf(raised: bool) -> Interrupt {
        Interrupt { flag: Arc::new(AtomicBool::new(raised)), registrations: Vec::new() }
    }

    impl Interrupt {
        /// What a signal does, for tests that interrupt in the middle.
        pub(crate) fn raise(&self) {
            self.flag.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_flag_decides() {
        assert!(deaf(false).check().is_ok());
        assert!(deaf(true).check().is_err());
    }
}
