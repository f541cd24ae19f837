//! The lines that wait for the thread that writes the log.
//!
//! Invariants: lines are written in the order in which they came; what has no room is counted, and never waited for.
//! Threads: any number push, one serves.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::LogEvent;

/// Whether a line goes to the log only, or is also said on stderr by other means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StderrEcho {
    /// Where the log goes.
    Usual,
    /// There as well, unless that is stderr, where it is said by other means.
    BesideStderr,
}

/// A line of the log.
#[derive(Debug)]
pub(super) struct LogLine {
    pub(super) event: LogEvent,
    pub(super) kind: StderrEcho,
}

impl LogLine {
    /// How much room it takes.
    fn bytes(&self) -> usize {
        self.event.text.len()
    }
}

/// The log lines that wait for the writer thread.
#[derive(Debug)]
pub(super) struct LogQueue {
    state: Mutex<State>,
    changed: Condvar,
    bytes_max: usize,
}

/// What the mutex protects: the lines, and whether a thread writes them.
#[derive(Debug, Default)]
struct State {
    lines: VecDeque<LogLine>,
    bytes: usize,
    /// Lines that had no room.
    lost: u64,
    is_open: bool,
    /// Whether lines that were taken out are being written.
    is_busy: bool,
}

impl LogQueue {
    /// With room for so many bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), bytes_max }
    }

    /// Somebody serves it.
    pub(super) fn open(&self) {
        self.state().is_open = true;
    }

    /// Takes a line, or gives it back if nobody serves.
    pub(super) fn push(&self, line: LogLine) -> Option<LogLine> {
        let mut state = self.state();
        if !state.is_open {
            return Some(line);
        }
        if state.bytes + line.bytes() > self.bytes_max {
            state.lost += 1;
        } else {
            state.bytes += line.bytes();
            state.lines.push_back(line);
            self.changed.notify_all();
        }
        None
    }

    /// Hands lines on, with how many after them were lost, for as long as the process lives.
    pub(super) fn serve(&self, mut write: impl FnMut(&VecDeque<LogLine>, u64)) -> ! {
        loop {
            let (lines, lost) = {
                let mut state = self.state();
                state.is_busy = false;
                self.changed.notify_all();
                while state.lines.is_empty() {
                    state = self.changed.wait(state).expect("no holder of this lock panics");
                }
                state.is_busy = true;
                state.bytes = 0;
                (std::mem::take(&mut state.lines), std::mem::take(&mut state.lost))
            };
            write(&lines, lost);
        }
    }

    /// Waits until all lines are written, but no longer than this. Whether they are.
    pub(super) fn wait_until_empty(&self, limit: Duration) -> bool {
        let waits = |state: &mut State| state.is_busy || !state.lines.is_empty();
        let waited = self.changed.wait_timeout_while(self.state(), limit, waits);
        !waited.expect("no holder of this lock panics").1.timed_out()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;
    use std::sync::{Arc, mpsc};

    fn line(text: &str) -> LogLine {
        let (time, text) = (String::new(), text.to_owned());
        let severity = Severity::Info;
        let event = LogEvent { severity, level: "info", part: "daemon", time, text };
        LogLine { event, kind: StderrEcho::Usual }
    }

    #[test]
    fn nobody_waits_for_a_writer_that_is_stuck_and_what_has_no_room_is_counted() {
        let queue = Arc::new(LogQueue::new(8));
        assert!(queue.push(line("direct")).is_some(), "nobody serves yet");
        assert!(queue.wait_until_empty(Duration::ZERO));
        let (goes_on, stuck) = mpsc::channel::<()>();
        let (writes, written) = mpsc::channel();
        let serving = Arc::clone(&queue);
        std::thread::spawn(move || {
            serving.serve(|lines, lost| {
                let texts: Vec<String> = lines.iter().map(|line| line.event.text.clone()).collect();
                writes.send((texts.concat(), lost)).expect("the test listens");
                let _goes_on = stuck.recv();
            });
        });
        queue.open();
        let next = || written.recv_timeout(Duration::from_secs(60)).expect("the queue is served");
        assert!(queue.push(line("one")).is_none());
        assert_eq!(next(), ("one".to_owned(), 0));
        for text in ["two", "three", "four", "five"] {
            assert!(queue.push(line(text)).is_none());
        }
        assert!(!queue.wait_until_empty(Duration::from_millis(1)), "a line is stuck");
        goes_on.send(()).expect("the queue is served");
        assert_eq!(next(), ("twothree".to_owned(), 2));
        drop(goes_on);
        assert!(queue.wait_until_empty(Duration::from_secs(60)));
    }
}
