//! When an engine may go while the process goes on.
//!
//! Where it stands: beside the request path; the event loop of an iothread that shall end asks.

use kernel_io::EngineKernel;

use super::Engine;

impl<K: EngineKernel> Engine<K> {
    /// Whether nobody uses this iothread any more: no source is served here or on its way, and everything is over that
    /// those which have left have begun here. What is held of theirs is let go for that. Operations that were abandoned
    /// have to be over, too: nobody else hears of it.
    pub fn is_unused(&mut self) -> bool {
        if self.lanes.is_any_used() || self.lanes.channels.have_abandoned() {
            return false;
        }
        self.release_all();
        self.is_over() && !self.lanes.is_any_open()
    }
}
