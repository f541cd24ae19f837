//! A child that notes what it is asked for and answers as a test wants it.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use block::{
    Access, AfterPiecesAction, Answer, BatchPieces, BlockLimits, ByteCount, ByteOffset, Child,
    Claim, ClaimError, ClaimGuard, DiskSize, Extent, FailKind, FileId, Lane,
    LaneCompletionDecision, LaneContext, LaneError, Mapping, Node, Operation, Outcome, Piece,
    PieceRange, RetryHint, Rights, Target, Token, WakeTime,
};

/// What a child does with what it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conduct {
    /// Answers with its bytes, in runs of so many, the last one first if it is odd.
    Answer { run: u64 },
    /// Holds it for so many milliseconds and answers then.
    Hold { ms: u64 },
    /// The same, and refuses then.
    HoldAndRefuse { ms: u64 },
    /// Refuses.
    Refuse(FailKind),
    /// Makes another operation of it.
    Rewrite(Operation),
    /// Answers and wants to be told; says then that it failed, if it is told so.
    Tell,
    /// The same, but keeps it for so many milliseconds, and answers with its first 512 bytes.
    TellAndKeep { ms: u64 },
    /// The same as the first, but says that it failed in this way.
    TellAndFail(FailKind),
}

pub(crate) const ANSWER: Conduct = Conduct::Answer { run: u64::MAX };

/// One thing that a child was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) operation: Operation,
    pub(crate) conduct: Conduct,
}

#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// What was asked in each call of `map`.
    pub(crate) calls: Vec<Vec<Asked>>,
    /// What is done next; the last one is repeated.
    pub(crate) conducts: Vec<Conduct>,
    pub(crate) released: usize,
    /// What it was told.
    pub(crate) told: Vec<Outcome>,
    pub(crate) flushes: usize,
    pub(crate) fails_flush: bool,
    pub(crate) claims: usize,
    pub(crate) refuses_claim: bool,
}

/// A child on file `file`, its own place among the children.
#[derive(Debug)]
pub(crate) struct Fake {
    name: String,
    file: FileId,
    size: DiskSize,
    access: Access,
    limits: BlockLimits,
    notes: Arc<Mutex<Notes>>,
}

impl Fake {
    pub(crate) fn new(place: usize, bytes: u64) -> Self {
        let file = FileId(u32::try_from(place).unwrap());
        Self {
            name: format!("c{place}"),
            file,
            size: DiskSize(ByteCount(bytes)),
            access: Access::ReadWrite,
            limits: limits(512, 512),
            notes: Arc::default(),
        }
    }

    pub(crate) fn with_limits(self, limits: BlockLimits) -> Self {
        Self { limits, ..self }
    }

    /// What the test sees and says.
    pub(crate) fn notes(&self) -> Arc<Mutex<Notes>> {
        Arc::clone(&self.notes)
    }

    pub(crate) fn into_child(self) -> Arc<Child> {
        Child::new(Arc::new(self))
    }
}

pub(crate) fn limits(request_alignment: u32, physical_block: u32) -> BlockLimits {
    let block = |bytes| NonZeroU32::new(bytes).unwrap();
    BlockLimits {
        request_alignment: block(request_alignment),
        physical_block: block(physical_block),
        discard: true,
        discard_granularity: block(request_alignment),
        allocation_unit: block(request_alignment),
    }
}

impl Node for Fake {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        self.size
    }

    fn limits(&self) -> BlockLimits {
        self.limits
    }

    fn access(&self) -> Access {
        self.access
    }

    fn flush(&self) -> std::io::Result<()> {
        let mut notes = self.notes.lock().unwrap();
        notes.flushes += 1;
        if notes.fails_flush { Err(std::io::Error::other(self.name.clone())) } else { Ok(()) }
    }

    fn claim(&self, _: Rights) -> Result<Claim, ClaimError> {
        let mut notes = self.notes.lock().unwrap();
        if notes.refuses_claim {
            let (node, outlook) = (self.name.clone(), RetryHint::Transient);
            return Err(ClaimError { node, outlook, source: "somebody has it".into() });
        }
        notes.claims += 1;
        Ok(Claim::of(Claimed(Arc::clone(&self.notes))))
    }

    fn open_lane(&self, _: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let notes = Arc::clone(&self.notes);
        Ok(Box::new(FakeLane {
            file: self.file,
            telling: Vec::new(),
            notes,
            held: Vec::new(),
            start: Instant::start(),
        }))
    }
}

/// Counted while it is held.
#[derive(Debug)]
struct Claimed(Arc<Mutex<Notes>>);

impl ClaimGuard for Claimed {
    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn refresh(&self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.0.lock().unwrap().claims -= 1;
    }
}

/// The time at which tests begin: no clock is read.
pub(crate) trait Start {
    fn start() -> Self;
    fn at(ms: u64) -> Self;
}

impl Start for Instant {
    fn start() -> Self {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *START.get_or_init(|| block::Clock::now(&block::SystemClock))
    }

    fn at(ms: u64) -> Self {
        Self::start() + Duration::from_millis(ms)
    }
}

#[derive(Debug)]
struct FakeLane {
    file: FileId,
    /// What it wants to be told of.
    telling: Vec<(Mapping, Conduct)>,
    notes: Arc<Mutex<Notes>>,
    held: Vec<(Instant, Mapping, Conduct)>,
    start: Instant,
}

impl FakeLane {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap()
    }

    fn pieces(&self, operation: Operation, run: u64, pieces: &mut BatchPieces) -> PieceRange {
        let Some(extent) = operation.extent() else {
            let target = Target::File { file: self.file, offset: ByteOffset(0) };
            return pieces.one(Piece { skip: 0, count: ByteCount(0), target });
        };
        let mark = pieces.end();
        let runs = extent.count().0.div_ceil(run);
        for place in 0..runs {
            // Whatever order a child answers in is right.
            let place = if run % 1024 == 512 { runs - 1 - place } else { place };
            let skip = place * run;
            let count = ByteCount(run.min(extent.count().0 - skip));
            let offset = ByteOffset(extent.start().0 + skip);
            pieces.push(Piece { skip, count, target: Target::File { file: self.file, offset } });
        }
        pieces.since(mark)
    }
}

impl Lane for FakeLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        let mut call = Vec::new();
        for mapping in batch.iter_mut() {
            let mut notes = self.notes();
            let conduct = match notes.conducts.len() {
                0 => ANSWER,
                1 => notes.conducts[0],
                _ => notes.conducts.remove(0),
            };
            drop(notes);
            call.push(Asked { operation: mapping.operation, conduct });
            mapping.answer = match conduct {
                Conduct::Answer { run } => Answer::Now(self.pieces(mapping.operation, run, pieces)),
                Conduct::Tell | Conduct::TellAndKeep { .. } | Conduct::TellAndFail(_) => {
                    mapping.after = AfterPiecesAction::NotifyLane;
                    self.telling.push((*mapping, conduct));
                    Answer::Now(self.pieces(mapping.operation, u64::MAX, pieces))
                }
                Conduct::Refuse(kind) => Answer::Refused(kind),
                Conduct::Rewrite(operation) => {
                    mapping.operation = operation;
                    Answer::Now(self.pieces(operation, u64::MAX, pieces))
                }
                Conduct::Hold { ms } | Conduct::HoldAndRefuse { ms } => {
                    assert!(self.held.iter().all(|(_, held, _)| held.token != mapping.token));
                    self.held.push((self.start + Duration::from_millis(ms), *mapping, conduct));
                    Answer::Held
                }
            };
        }
        self.notes().calls.push(call);
    }

    fn due(&self) -> Option<WakeTime> {
        let at = self.held.iter().map(|(at, _, _)| *at).min()?;
        Some(WakeTime { at, slack: Duration::from_millis(1) })
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        let held = std::mem::take(&mut self.held);
        for (at, mut mapping, conduct) in held {
            if at > now {
                self.held.push((at, mapping, conduct));
                continue;
            }
            mapping.answer = if let Conduct::HoldAndRefuse { .. } = conduct {
                Answer::Refused(FailKind::NoSpace)
            } else if let Conduct::TellAndKeep { .. } = conduct {
                mapping.after = AfterPiecesAction::Finish;
                Answer::Now(self.pieces(Operation::Read(extent(0..512)), 512, pieces))
            } else {
                Answer::Now(self.pieces(mapping.operation, 4096, pieces))
            };
            late.push(mapping);
        }
    }

    fn release(&mut self) {
        self.notes().released += 1;
        for (at, _, _) in &mut self.held {
            *at = self.start;
        }
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        self.notes().told.push(outcome);
        let place = self.telling.iter().position(|(mapping, _)| mapping.token == token);
        let (mapping, conduct) = self.telling.remove(place.expect("it asked to be told"));
        if let Conduct::TellAndKeep { ms } = conduct {
            self.held.push((self.start + Duration::from_millis(ms), mapping, conduct));
            return LaneCompletionDecision::HoldAgain;
        }
        LaneCompletionDecision::Finish(if let Conduct::TellAndFail(kind) = conduct {
            Outcome::Failed(kind)
        } else {
            outcome
        })
    }
}

/// The bytes as an extent of a disk without bounds.
pub(crate) fn extent(bytes: Range<u64>) -> Extent {
    let (start, count) = (ByteOffset(bytes.start), ByteCount(bytes.end - bytes.start));
    DiskSize(ByteCount(u64::MAX)).check(start, count).unwrap()
}
