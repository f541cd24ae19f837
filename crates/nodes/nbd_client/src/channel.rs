//! An iothread's channel to an export.
//!
//! Where it stands in the life of a request: the engine begins operations here and collects what is over. Where the server
//! allows several connections the channel has its own, otherwise it shares one.
//!
//! Invariants: memory of a request is used between [`Channel::begin`] and its end, and not after [`Channel::abandon`].
//! Limits: [`ROOM`] operations.

use std::sync::Arc;
use std::task::Waker;

use block::{
    BeginResult, Buffers, CancellationSupport, Channel, ChannelWakeCondition, IoFailure, Medium,
    Operation, Segment, Tag,
};
use rustix::io::Errno;

use crate::line::{EndedRequest, Line, Origin, RequestMemory, failure};
use crate::remote::Remote;
use crate::shared_line::LentMemory;

/// The most operations that are not over.
const ROOM: usize = 64;

/// A channel to an export.
#[derive(Debug)]
pub(crate) struct NbdChannel {
    remote: Arc<Remote>,
    /// Which one of those it is that share a line.
    user: u64,
    /// The line, unless another iothread has it.
    line: Option<Line>,
    /// How many operations are not over.
    in_flight: usize,
    /// What another iothread carries out.
    lent: Vec<LentMemory>,
    over: Vec<(Tag, Result<(), IoFailure>)>,
    ended: Vec<EndedRequest>,
}

impl NbdChannel {
    /// A channel of an iothread that is called after the waker was used.
    pub(crate) fn new(remote: &Arc<Remote>, waker: &Waker) -> Self {
        let make = || Line::new(remote, waker);
        let (user, line) = match &remote.shared {
            None => (0, Some(make())),
            Some(shared) => shared.join(waker, make),
        };
        let remote = Arc::clone(remote);
        let (lent, over, ended) = (Vec::new(), Vec::new(), Vec::new());
        Self { remote, user, line, in_flight: 0, lent, over, ended }
    }

    /// Takes what is over of what another iothread has carried out.
    fn take_foreign(&mut self, ended: EndedRequest) {
        let EndedRequest { origin, operation, result, memory } = ended;
        // It may have been given up.
        let Some(place) = self.lent.iter().position(|lent| lent.tag == origin.tag) else { return };
        let mut lent = self.lent.swap_remove(place);
        let brings = matches!(operation, Operation::Read(_) | Operation::Status(_));
        if let (true, Ok(()), RequestMemory::Own(bytes)) = (brings, result, memory) {
            lent.memory.copy_from(0, &bytes);
        }
        self.over.push((origin.tag, result.map_err(|errno| failure(operation, errno))));
    }
}

impl Channel for NbdChannel {
    fn medium(&self) -> &Arc<Medium> {
        &self.remote.medium
    }

    fn cancel(&self) -> CancellationSupport {
        CancellationSupport::Possible
    }

    fn begin(&mut self, operation: Operation, memory: &[Segment], tag: Tag) -> BeginResult {
        if self.in_flight >= ROOM {
            return BeginResult::Full;
        }
        self.in_flight += 1;
        let mut buffers = Buffers::with_capacity(memory.len());
        memory.iter().for_each(|segment| buffers.push(*segment));
        let origin = Origin { user: self.user, tag };
        if let Some(line) = &mut self.line {
            line.begin(operation, RequestMemory::Lent(buffers), origin);
            return BeginResult::Started;
        }
        let mut bytes = vec![0; buffers.count()];
        if let Operation::Write(..) = operation {
            buffers.copy_to(0, &mut bytes);
        }
        self.lent.push(LentMemory { tag, operation, memory: buffers });
        let shared = self.remote.shared.as_ref().expect("somebody else has the line");
        shared.begin(operation, bytes, origin);
        BeginResult::Started
    }

    fn collect(&mut self, done: &mut Vec<(Tag, Result<(), IoFailure>)>) {
        let remote = Arc::clone(&self.remote);
        if let Some(shared) = &remote.shared {
            let (foreign, line) = shared.fetch(self.user);
            foreign.into_iter().for_each(|ended| self.take_foreign(ended));
            self.line = self.line.take().or(line);
        }
        if let Some(line) = &mut self.line {
            if let Some(shared) = &remote.shared {
                shared.deliver_to(line);
            }
            line.pump();
            line.take_ended(&mut self.ended);
        }
        let mut foreign = Vec::new();
        for ended in std::mem::take(&mut self.ended) {
            match ended.memory {
                RequestMemory::Lent(_) => {
                    let EndedRequest { origin, operation, result, .. } = ended;
                    self.over.push((origin.tag, result.map_err(|it| failure(operation, it))));
                }
                // Asked of another iothread, when that had the line.
                RequestMemory::Own(_) if ended.origin.user == self.user => self.take_foreign(ended),
                RequestMemory::Own(_) => foreign.push(ended),
            }
        }
        if let Some(shared) = &remote.shared {
            shared.leave_ended(foreign);
        }
        self.in_flight -= self.over.len();
        done.append(&mut self.over);
    }

    fn wants(&self) -> ChannelWakeCondition<'_> {
        let nothing = ChannelWakeCondition { descriptor: None, again: false, due: None };
        let wants = self.line.as_ref().map_or(nothing, Line::wants);
        ChannelWakeCondition { again: wants.again || !self.over.is_empty(), ..wants }
    }

    fn abandon(&mut self) {
        let shared = self.remote.shared.as_ref();
        match (&mut self.line, shared) {
            (Some(line), shared) => {
                // What was left for the line while another iothread had it.
                shared.into_iter().for_each(|shared| shared.deliver_to(line));
                line.abandon(self.user);
            }
            // It comes before all that is begun here later.
            (None, Some(shared)) if !self.lent.is_empty() => shared.abandon(self.user),
            (None, _) => {}
        }
        let given_up = |lent: LentMemory| (lent.tag, Err(failure(lent.operation, Errno::CANCELED)));
        self.over.extend(self.lent.drain(..).map(given_up));
    }
}

impl Drop for NbdChannel {
    fn drop(&mut self) {
        let mut line = self.line.take();
        let mut ended = Vec::new();
        if let Some(line) = &mut line {
            // Nobody hears of them any more.
            line.abandon(self.user);
            line.take_ended(&mut ended);
        }
        if let Some(shared) = &self.remote.shared {
            ended.retain(|ended| ended.origin.user != self.user);
            shared.leave_ended(ended);
            shared.part(self.user, line);
        }
    }
}
