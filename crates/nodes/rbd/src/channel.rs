//! An iothread's channel to an image.
//!
//! Where it stands in the life of a request: the engine begins operations here and collects what is over. The library
//! carries them out on its threads and leaves them in the queue of the channel; block status is asked for on a thread of its
//! own, because the library waits for it.
//!
//! Invariants: the library cannot take operations back, so they get memory of the engine and end when the cluster answers.
//! Limits: [`ROOM`] operations.

#![expect(clippy::vec_box, reason = "a request keeps its address while the library has it")]

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::Waker;

use block::{
    BeginResult, CancellationSupport, Channel, ChannelWakeCondition, IoFailure, Medium, Operation,
    Segment, Tag,
};
use rustix::io::Errno;

use crate::block_status;
use crate::disk::Disk;
use crate::request::{AfterCall, CompletionQueue, Request};

/// The most operations that are not over.
const ROOM: usize = 256;

/// A channel to an image.
#[derive(Debug)]
pub(crate) struct RbdChannel {
    disk: Arc<Disk>,
    queue: Arc<CompletionQueue>,
    /// Requests that are not in use.
    free: Vec<Box<Request>>,
    in_use: usize,
    /// What could not be begun.
    failed: Vec<Box<Request>>,
    /// An empty list, kept for its room.
    over: Vec<Box<Request>>,
    /// The thread that asks for block status, once there was a question.
    status: Option<Sender<Box<Request>>>,
}

impl RbdChannel {
    /// A channel of an iothread that is called after the waker was used.
    pub(crate) fn new(disk: &Arc<Disk>, waker: &Waker) -> Self {
        Self {
            disk: Arc::clone(disk),
            queue: CompletionQueue::new(waker, &disk.in_flight),
            free: Vec::with_capacity(ROOM),
            in_use: 0,
            failed: Vec::new(),
            over: Vec::with_capacity(ROOM),
            status: None,
        }
    }

    /// Hands a request over.
    fn hand_over(&mut self, mut request: Box<Request>) {
        request.join(&self.queue);
        let refused = if request.is_unsupported() {
            Err((request, Errno::OPNOTSUPP))
        } else if request.is_status() {
            self.ask_for_status(request)
        } else {
            self.disk.image().begin(request)
        };
        if let Err((mut request, errno)) = refused {
            request.leave(errno);
            self.failed.push(request);
        }
    }

    fn ask_for_status(&mut self, request: Box<Request>) -> Result<(), (Box<Request>, Errno)> {
        if self.status.is_none() {
            let (sender, questions) = channel::<Box<Request>>();
            let disk = Arc::downgrade(&self.disk);
            let thread = std::thread::Builder::new().name("rbd status".to_owned());
            // With the fences of this thread. It ends with the channel.
            let started = thread.spawn(move || {
                for request in questions {
                    block_status::answer(&disk, request);
                }
            });
            if let Err(error) = started {
                return Err((request, Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)));
            }
            self.status = Some(sender);
        }
        let sender = self.status.as_ref().expect("it was made just now");
        sender.send(request).map_err(|refused| (refused.0, Errno::IO))
    }

    /// What comes after the end of a request.
    fn go_on(&mut self, request: Box<Request>, done: &mut Vec<(Tag, Result<(), IoFailure>)>) {
        match request.after() {
            AfterCall::Rest(request) => self.hand_over(request),
            AfterCall::Over(request, result) => {
                if let Err(IoFailure::Errno { errno, .. }) = result {
                    self.disk.say_refused(errno);
                }
                done.push((request.tag(), result));
                self.free.push(request);
                self.in_use -= 1;
            }
        }
    }
}

impl Channel for RbdChannel {
    fn medium(&self) -> &Arc<Medium> {
        &self.disk.medium
    }

    fn cancel(&self) -> CancellationSupport {
        CancellationSupport::Impossible
    }

    fn begin(&mut self, operation: Operation, memory: &[Segment], tag: Tag) -> BeginResult {
        if self.in_use >= ROOM {
            return BeginResult::Full;
        }
        self.in_use += 1;
        let mut request = self.free.pop().unwrap_or_else(Request::empty);
        request.set(tag, operation, memory);
        self.hand_over(request);
        BeginResult::Started
    }

    fn collect(&mut self, done: &mut Vec<(Tag, Result<(), IoFailure>)>) {
        let mut over = std::mem::take(&mut self.over);
        self.queue.take(&mut over);
        over.append(&mut self.failed);
        for request in over.drain(..) {
            self.go_on(request, done);
        }
        self.over = over;
    }

    fn wants(&self) -> ChannelWakeCondition<'_> {
        ChannelWakeCondition { descriptor: None, again: !self.failed.is_empty(), due: None }
    }

    /// Nothing can be taken back.
    fn abandon(&mut self) {}
}
