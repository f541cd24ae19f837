//! What happened, for the report of a failure.
//!
//! Limits: the last [`EVENTS_MAX`] events are remembered, and [`SHOWN_MAX`] of those that concern a sector are shown.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::ops::Range;

use block::FileId;

use crate::conformance::number;
use crate::conformance::stamp::SECTOR_BYTES;

const EVENTS_MAX: usize = 400_000;
const SHOWN_MAX: usize = 120;

/// Who does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Actor {
    /// The iothread.
    pub(crate) thread: usize,
    /// Counts jobs of all threads.
    pub(crate) job: u64,
}

#[derive(Debug)]
struct Event {
    step: u64,
    actor: Option<Actor>,
    what: &'static str,
    /// What kind of operation, if that says more.
    kind: &'static str,
    /// Bytes of the disk.
    guest: Range<u64>,
    /// Bytes of a file.
    host: Option<(FileId, Range<u64>)>,
}

/// The events of a run.
#[derive(Debug, Default)]
pub(crate) struct Log {
    events: VecDeque<Event>,
    /// Counts the decisions of the run.
    pub(crate) step: u64,
}

impl Log {
    /// Something about a request.
    pub(crate) fn guest(&mut self, actor: Actor, what: &'static str, guest: Range<u64>) {
        self.add(Some(actor), (what, ""), guest, None);
    }

    /// Something about an operation of the kernel.
    pub(crate) fn host(
        &mut self,
        actor: Actor,
        what: &'static str,
        kind: &'static str,
        file: FileId,
        bytes: Range<u64>,
    ) {
        self.add(Some(actor), (what, kind), 0..0, Some((file, bytes)));
    }

    /// An operation of the kernel begins, on those bytes of the disk.
    pub(crate) fn both(
        &mut self,
        actor: Actor,
        what: &'static str,
        guest: Range<u64>,
        file: FileId,
        bytes: Range<u64>,
    ) {
        self.add(Some(actor), (what, ""), guest, Some((file, bytes)));
    }

    /// Something about all.
    pub(crate) fn all(&mut self, what: &'static str) {
        self.add(None, (what, ""), 0..0, None);
    }

    fn add(
        &mut self,
        actor: Option<Actor>,
        (what, kind): (&'static str, &'static str),
        guest: Range<u64>,
        host: Option<(FileId, Range<u64>)>,
    ) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Event { step: self.step, actor, what, kind, guest, host });
    }

    /// What happened to a sector of the disk, and to the places of files where it may have lived.
    pub(crate) fn of_sector(&self, sector: usize, cluster: u64) -> String {
        let byte = number(sector * SECTOR_BYTES);
        let is_about = |event: &&Event| event.guest.contains(&byte);
        let lives_in = self.events.iter().filter(is_about).filter_map(|event| {
            let (FileId(file), bytes) = event.host.as_ref()?;
            Some((*file, (bytes.start + byte - event.guest.start) / cluster))
        });
        let places: BTreeSet<(u32, u64)> = lives_in.collect();
        self.show(|event| {
            event.actor.is_none()
                || is_about(&event)
                || event.host.as_ref().is_some_and(|(FileId(file), bytes)| {
                    let last = bytes.end.saturating_sub(1).max(bytes.start) / cluster;
                    (bytes.start / cluster..=last).any(|it| places.contains(&(*file, it)))
                })
        })
    }

    /// What happened to some bytes of a file.
    pub(crate) fn of_bytes(&self, file: FileId, bytes: &Range<u64>) -> String {
        self.show(|event| {
            event.actor.is_none()
                || event.host.as_ref().is_some_and(|(its, run)| {
                    *its == file
                        && run.start < bytes.end
                        && bytes.start < run.end.max(run.start + 1)
                })
        })
    }

    /// What happened last.
    pub(crate) fn last(&self) -> String {
        self.show(|_| true)
    }

    fn show(&self, concerns: impl Fn(&Event) -> bool) -> String {
        let concerned: Vec<&Event> = self.events.iter().filter(|event| concerns(event)).collect();
        let shown = &concerned[concerned.len().saturating_sub(SHOWN_MAX)..];
        let mut text = format!("{} of {} events:", shown.len(), concerned.len());
        for Event { step, actor, what, kind, guest, host } in shown {
            write!(text, "\n  step {step:6}").expect("a string takes all");
            if let Some(Actor { thread, job }) = actor {
                write!(text, " thread {thread} job {job:5}").expect("a string takes all");
            }
            write!(text, " {what} {kind}").expect("a string takes all");
            if !guest.is_empty() {
                let sectors = guest.start / 512..guest.end.div_ceil(512);
                write!(text, " sectors {sectors:?}").expect("a string takes all");
            }
            if let Some((FileId(file), bytes)) = host {
                let Range { start, end } = bytes;
                write!(text, " file {file} bytes {start:#x}..{end:#x}")
                    .expect("a string takes all");
            }
        }
        text
    }
}
