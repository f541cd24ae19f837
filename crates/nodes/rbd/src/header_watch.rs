//! The thread that looks what the header of an image says when the image says that something has changed.
//!
//! Where it stands: the library gives the signal on a thread of its own, which must not wait for the cluster; the thread
//! here asks for size and snapshots then. It closes the image at the end.
//!
//! Threads: `rbd watch`, one for each image; whoever gives the image up waits for it no longer than [`CLOSE_MAX`].

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::bounded_call::ThreadFences;
use crate::header::Header;
use crate::image::Image;

/// How long is waited until an image is closed.
pub(crate) const CLOSE_MAX: Duration = Duration::from_secs(5);

/// That an image has changed, or that nobody uses it any more.
#[derive(Debug, Default)]
pub(crate) struct UpdateSignal {
    state: Mutex<SignalState>,
    given: Condvar,
}

#[derive(Debug, Default)]
struct SignalState {
    has_changed: bool,
    is_over: bool,
}

impl UpdateSignal {
    /// The image has changed.
    pub(crate) fn changed(&self) {
        self.state().has_changed = true;
        self.given.notify_all();
    }

    fn end(&self) {
        self.state().is_over = true;
        self.given.notify_all();
    }

    /// Waits for a change; whether there was one, and not the end.
    fn wait(&self) -> bool {
        let waits = |state: &mut SignalState| !state.has_changed && !state.is_over;
        let state = self.given.wait_while(self.state(), waits);
        let mut state = state.expect("no holder of this lock panics");
        state.has_changed = false;
        !state.is_over
    }

    fn state(&self) -> MutexGuard<'_, SignalState> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

/// The thread that watches an image.
#[derive(Debug)]
pub(crate) struct HeaderWatch {
    signal: Arc<UpdateSignal>,
    closed: Mutex<Receiver<()>>,
}

impl HeaderWatch {
    /// Watches an image, which has given the signal to the library.
    pub(crate) fn start(
        name: &str,
        image: Arc<Image>,
        header: Arc<Header>,
        signal: Arc<UpdateSignal>,
        fences: &ThreadFences,
    ) -> std::io::Result<Self> {
        let (sender, closed) = channel();
        let (name, theirs) = (name.to_owned(), Arc::clone(&signal));
        fences.start("rbd watch", move || {
            while theirs.wait() {
                header.look(&name, &image);
            }
            // With the last one the image is closed.
            drop(image);
            // Nobody may wait for it any more.
            let _gone = sender.send(());
        })?;
        Ok(Self { signal, closed: Mutex::new(closed) })
    }

    /// Nobody uses the image any more: its thread closes it.
    pub(crate) fn end(&self) {
        self.signal.end();
    }

    /// Waits until it is closed after its end; whether it is. Blocks.
    pub(crate) fn wait_for_close(&self) -> bool {
        let closed = self.closed.lock().expect("no holder of this lock panics");
        closed.recv_timeout(CLOSE_MAX).is_ok()
    }
}
