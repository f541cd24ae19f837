//! What a lane and its tasks share: the image, the ways to the children, and what was said about
//! requests.
//!
//! Where it stands in the life of a request: the lane opens an entry for each request it has to be told
//! of, and tasks answer under it.
//!
//! Threads: belongs to one lane. Borrows of the state never last over an `await`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use block::{
    AfterPiecesAction, Answer, BatchPieces, BufferCopyPolicy, ComputeThreads, EofPolicy, FailKind,
    LaneCompletionDecision, Mapping, Operation, Outcome, Piece, Token,
};
use tasks::{AsyncChild, RequestParts, YieldQueue};

use crate::cluster_allocator::SyncMark;
use crate::epoch::{LaneEpochs, MappingEpoch};
use crate::geometry::GuestCluster;
use crate::image::Image;
use crate::serve::ClusterDecoder;
use crate::task_limits::TaskSemaphores;

/// What a lane and its tasks share: image, children, and the state of requests.
#[derive(Debug)]
pub(crate) struct LaneCore {
    pub(crate) image: Arc<Image>,
    /// The image file.
    pub(crate) file: AsyncChild,
    /// Where data are: the same, or a file of its own.
    pub(crate) data: DataStore,
    pub(crate) backing: Option<BackingFile>,
    pub(crate) decoder: ClusterDecoder,
    pub(crate) limits: TaskSemaphores,
    /// Where clusters are compressed that are written, if they are.
    pub(crate) compression: Option<Arc<dyn ComputeThreads>>,
    pauses: Rc<YieldQueue>,
    state: RefCell<State>,
}

/// The child that an image's data are in, and whether it is the image file or a data file.
#[derive(Debug, Clone)]
pub(crate) struct DataStore {
    pub(crate) storage: AsyncChild,
    pub(crate) kind: DataLocation,
}

/// Where the data of an image are: in the image file, in an external data file, or in a raw one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataLocation {
    /// They are, and refcounts say where.
    Inside,
    /// They are in a file of their own, each cluster at its place on the disk.
    External,
    /// The same, and that file alone is the disk.
    Raw,
}

/// The backing file of an image, and its size.
#[derive(Debug, Clone)]
pub(crate) struct BackingFile {
    pub(crate) storage: AsyncChild,
    /// Its size in bytes; behind it are zeroes.
    pub(crate) size: u64,
}

/// The state of requests, and answers of tasks that the lane has not taken.
#[derive(Debug)]
struct State {
    epochs: LaneEpochs,
    /// By token.
    open: Vec<RequestState>,
    /// What tasks have answered since the lane was called.
    answers: Vec<TaskAnswer>,
}

/// What a request is doing whose completion the lane is notified of: mapped in an epoch, or served by a task.
#[derive(Debug)]
enum RequestState {
    Nothing,
    /// It uses what the tables said in that epoch; a flush covers what was out of them before the mark.
    Mapped(MappingEpoch, Option<SyncMark>),
    /// A task serves it.
    Served {
        epoch: Option<MappingEpoch>,
        told: Option<Outcome>,
        waker: Option<Waker>,
    },
}

/// A request that a task serves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServedRequest {
    pub(crate) token: Token,
    pub(crate) operation: Operation,
    /// What a flush covers.
    pub(crate) mark: Option<SyncMark>,
}

/// A task's answer to its request.
#[derive(Debug)]
struct TaskAnswer {
    request: ServedRequest,
    result: Result<Vec<Piece>, FailKind>,
    memory: BufferCopyPolicy,
    after: AfterPiecesAction,
}

impl LaneCore {
    pub(crate) fn new(
        image: Arc<Image>,
        file: AsyncChild,
        data: DataStore,
        backing: Option<BackingFile>,
        compression: Option<&Arc<dyn ComputeThreads>>,
        pauses: &Rc<YieldQueue>,
    ) -> Self {
        let epochs = image.epochs.join();
        let state = RefCell::new(State { epochs, open: Vec::new(), answers: Vec::new() });
        let (decoder, limits, pauses) =
            (ClusterDecoder::new(), TaskSemaphores::default(), Rc::clone(pauses));
        // Data that are in a file of their own are what they are there.
        let compression = compression.filter(|_| data.kind == DataLocation::Inside).cloned();
        Self { image, file, data, backing, decoder, limits, compression, pauses, state }
    }

    /// Has the table that names these clusters be ours.
    pub(crate) async fn ensure_table(&self, cluster: GuestCluster) -> Result<(), FailKind> {
        if self.image.has_table(cluster) {
            Ok(())
        } else {
            Box::pin(self.make_table(cluster)).await
        }
    }

    async fn make_table(&self, cluster: GuestCluster) -> Result<(), FailKind> {
        let bytes = usize::try_from(self.image.geometry.cluster_bytes()).expect("it fits");
        let _copied = self.limits.copied.take(bytes).await;
        self.image.ensure_table(&self.file, cluster).await
    }

    /// For a task that has worked for a while: lets everybody else on the iothread come first.
    pub(crate) async fn pause(&self) {
        self.pauses.pause().await;
    }

    /// A request is about to look at the tables; `None` if clusters are never freed.
    pub(crate) fn enter(&self) -> Option<MappingEpoch> {
        self.image.is_written().then(|| self.state.borrow_mut().epochs.enter())
    }

    /// So many more requests that were found in that epoch use what the tables said.
    pub(crate) fn join(&self, epoch: MappingEpoch, requests: usize) {
        self.state.borrow_mut().epochs.join(epoch, requests);
    }

    /// It did, and does not need them.
    #[inline]
    pub(crate) fn leave(&self, epoch: Option<MappingEpoch>) {
        if let Some(epoch) = epoch {
            self.state.borrow_mut().epochs.leave(epoch);
        }
    }

    /// What a flush covers that is asked for now. A damaged image frees nothing.
    pub(crate) fn mark(&self) -> Option<SyncMark> {
        self.image.space().ok().map(|space| space.mark())
    }

    /// The request is carried out on what the tables said in that epoch. A flush covers what is in front of the mark.
    pub(crate) fn begin_mapped(
        &self,
        token: Token,
        epoch: Option<MappingEpoch>,
        mark: Option<SyncMark>,
    ) -> AfterPiecesAction {
        let Some(epoch) = epoch else { return AfterPiecesAction::Finish };
        self.note(token, RequestState::Mapped(epoch, mark));
        AfterPiecesAction::NotifyLane
    }

    /// A task serves the request.
    pub(crate) fn begin_served(&self, token: Token, epoch: Option<MappingEpoch>) {
        self.note(token, RequestState::Served { epoch, told: None, waker: None });
    }

    fn note(&self, token: Token, open: RequestState) {
        let state = &mut *self.state.borrow_mut();
        let place = token.0 as usize;
        if place >= state.open.len() {
            state.open.resize_with(place + 1, || RequestState::Nothing);
        }
        state.open[place] = open;
    }

    /// The lane is told of a request.
    pub(crate) fn completed(&self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        let state = &mut *self.state.borrow_mut();
        let open = &mut state.open[token.0 as usize];
        match open {
            RequestState::Nothing => panic!("the lane did not ask to be told of {token:?}"),
            RequestState::Served { told, waker, .. } => {
                *told = Some(outcome);
                if let Some(waker) = waker.take() {
                    waker.wake();
                }
                return LaneCompletionDecision::HoldAgain;
            }
            RequestState::Mapped(epoch, mark) => {
                state.epochs.leave(*epoch);
                if outcome == Outcome::Done {
                    self.flushed(*mark);
                }
            }
        }
        *open = RequestState::Nothing;
        LaneCompletionDecision::Finish(outcome)
    }

    /// What is in front of the mark of a flush is durable.
    fn flushed(&self, mark: Option<SyncMark>) {
        if let Some(mark) = mark
            && let Ok(space) = self.image.space()
        {
            space.is_durable(mark);
        }
    }

    /// A task has an answer: its request is carried out on these parts, and then over.
    pub(crate) async fn answer(&self, request: ServedRequest, mut parts: RequestParts) {
        parts.settle().await;
        if parts.has_notices() || parts.result().is_err() {
            let result = self.carry_out(request, &mut parts).await;
            if result.is_ok() {
                self.flushed(request.mark);
            }
            return self.end(request, result);
        }
        let epoch = self.end_serving(request.token);
        let after = self.begin_mapped(request.token, epoch, request.mark);
        let (pieces, memory) = parts.take_pieces();
        self.reply(TaskAnswer { request, result: Ok(pieces), memory, after });
    }

    /// A task is done with its request.
    pub(crate) fn end(&self, request: ServedRequest, result: Result<(), FailKind>) {
        self.end_with(request, result.map(|()| Vec::new()));
    }

    /// The same, with what is still to be done for it: nothing that the tables say.
    pub(crate) fn end_with(&self, request: ServedRequest, result: Result<Vec<Piece>, FailKind>) {
        let epoch = self.end_serving(request.token);
        self.leave(epoch);
        let (memory, after) = (BufferCopyPolicy::Live, AfterPiecesAction::Finish);
        self.reply(TaskAnswer { request, result, memory, after });
    }

    /// A task has its request carried out on these parts, and waits for that, in as many rounds as the
    /// lanes below make of it.
    pub(crate) async fn carry_out(
        &self,
        request: ServedRequest,
        parts: &mut RequestParts,
    ) -> Result<(), FailKind> {
        while !parts.is_over() {
            parts.settle().await;
            let (pieces, memory) = parts.take_pieces();
            let outcome = match parts.result() {
                Err(kind) => Outcome::Failed(kind),
                Ok(()) if pieces.is_empty() => Outcome::Done,
                Ok(()) => self.carry_out_round(request, pieces, memory).await,
            };
            parts.tell(outcome);
        }
        parts.result()
    }

    async fn carry_out_round(
        &self,
        request: ServedRequest,
        pieces: Vec<Piece>,
        memory: BufferCopyPolicy,
    ) -> Outcome {
        let (result, after) = (Ok(pieces), AfterPiecesAction::NotifyLane);
        self.reply(TaskAnswer { request, result, memory, after });
        std::future::poll_fn(|context| {
            let state = &mut *self.state.borrow_mut();
            let open = &mut state.open[request.token.0 as usize];
            let RequestState::Served { told, waker, .. } = open else {
                panic!("a task serves {request:?}")
            };
            match told.take() {
                Some(outcome) => Poll::Ready(outcome),
                None => {
                    *waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn end_serving(&self, token: Token) -> Option<MappingEpoch> {
        let open = &mut self.state.borrow_mut().open[token.0 as usize];
        match std::mem::replace(open, RequestState::Nothing) {
            RequestState::Served { epoch, .. } => epoch,
            other @ (RequestState::Nothing | RequestState::Mapped(..)) => {
                panic!("a task serves {token:?}, which is {other:?}")
            }
        }
    }

    fn reply(&self, reply: TaskAnswer) {
        self.state.borrow_mut().answers.push(reply);
    }

    /// Takes the answers that tasks have given.
    pub(crate) fn take_answers(&self, pieces: &mut BatchPieces, mut each: impl FnMut(Mapping)) {
        let mut answers = std::mem::take(&mut self.state.borrow_mut().answers);
        for TaskAnswer { request, result, memory, after } in answers.drain(..) {
            let answer = match result {
                Err(kind) => Answer::Refused(kind),
                Ok(answer) => {
                    let mark = pieces.end();
                    answer.into_iter().for_each(|piece| pieces.push(piece));
                    Answer::Now(pieces.since(mark))
                }
            };
            let (asked, eof_policy) =
                (Mapping::new(request.token, request.operation), EofPolicy::Zeroes);
            each(Mapping { answer, after, eof_policy, memory, ..asked });
        }
        // Nobody answers meanwhile.
        self.state.borrow_mut().answers = answers;
    }

    /// All children, each once.
    pub(crate) fn storages(&self) -> impl Iterator<Item = &AsyncChild> {
        let data = self.has_data_file().then_some(&self.data.storage);
        let backing = self.backing.as_ref().map(|backing| &backing.storage);
        std::iter::once(&self.file).chain(data).chain(backing)
    }

    /// Whether data are in a file of their own.
    pub(crate) fn has_data_file(&self) -> bool {
        self.data.kind != DataLocation::Inside
    }

    /// Makes durable what was written so far.
    pub(crate) async fn sync(&self) -> Result<(), FailKind> {
        if self.has_data_file() {
            self.data.storage.sync().await?;
        }
        self.image.sync(&self.file).await
    }
}
