//! Random batches against a model that knows nothing but where a sector of RAID0 lives.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use block::{
    Access, Answer, BatchPieces, ByteCount, Durability, FailKind, FileId, Lane, LaneContext,
    Mapping, Node, Operation, Piece, SECTOR_BYTES, Target, Token, ZeroTerms,
};
use layers::{ChunkSize, StripeDiscards, StripeNode};
use proptest::prelude::*;

use super::child::{Asked, Conduct, Fake, Notes, Start, extent};

const CHUNKS_EACH: u64 = 23;

/// A stripe, and what the model knows of it.
#[derive(Debug, Clone)]
struct Shape {
    members: usize,
    chunk: u64,
}

impl Shape {
    fn size(&self) -> u64 {
        // md's rounding.
        let (sectors, chunk) = (CHUNKS_EACH * self.chunk / SECTOR_BYTES, self.chunk / SECTOR_BYTES);
        self.members as u64 * (sectors & !(chunk - 1)) * SECTOR_BYTES
    }

    /// Where a byte lives: the member, and the place on it.
    fn home(&self, byte: u64) -> (usize, u64) {
        let (chunk, within) = (byte / self.chunk, byte % self.chunk);
        let members = self.members as u64;
        let member = usize::try_from(chunk % members).unwrap();
        (member, chunk / members * self.chunk + within)
    }

    /// Where each sector of the operation's bytes lives, by how far it is behind the first.
    fn homes(&self, operation: Operation) -> BTreeMap<u64, (usize, u64)> {
        let bytes = operation.extent().map_or(0..0, |extent| extent.bytes());
        sectors(bytes.clone()).map(|byte| (byte - bytes.start, self.home(byte))).collect()
    }

    fn members_of(&self, operation: Operation) -> Vec<usize> {
        let mut members: Vec<usize> = match operation {
            Operation::Flush => (0..self.members).collect(),
            Operation::Read(_)
            | Operation::Status(_)
            | Operation::Write(..)
            | Operation::Discard(..)
            | Operation::WriteZeroes(..) => {
                self.homes(operation).values().map(|(member, _)| *member).collect()
            }
        };
        members.sort_unstable();
        members.dedup();
        members
    }
}

fn conduct() -> impl Strategy<Value = Conduct> {
    prop_oneof![
        6 => (1..40_u64).prop_map(|sectors| Conduct::Answer { run: sectors * SECTOR_BYTES }),
        4 => Just(Conduct::Answer { run: u64::MAX }),
        2 => (0..50_u64).prop_map(|ms| Conduct::Hold { ms }),
        1 => (0..50_u64).prop_map(|ms| Conduct::HoldAndRefuse { ms }),
        1 => Just(Conduct::Refuse(FailKind::Io)),
    ]
}

fn operation(size: u64, chunk: u64) -> impl Strategy<Value = Operation> {
    let sectors = size / SECTOR_BYTES;
    let short = 1..=chunk / SECTOR_BYTES;
    let count = prop_oneof![short, 1..=sectors];
    (0..sectors, count, 0..9_u32).prop_map(move |(start, count, kind)| {
        let end = (start + count).min(sectors);
        let extent = extent(start * SECTOR_BYTES..end * SECTOR_BYTES);
        match kind {
            0..3 => Operation::Read(extent),
            3..5 => Operation::Write(extent, Durability::Stable),
            5 => Operation::Discard(extent, Durability::Cached),
            6 => Operation::WriteZeroes(extent, ZeroTerms::UNMAP, Durability::Cached),
            7 => Operation::Status(extent),
            _ => Operation::Flush,
        }
    })
}

#[derive(Debug, Clone)]
struct Case {
    shape: Shape,
    conducts: Vec<Vec<Conduct>>,
    batches: Vec<Vec<Operation>>,
}

fn case() -> impl Strategy<Value = Case> {
    let members = prop_oneof![6 => 2..6_usize, 1 => Just(64)];
    (members, 1..6_u64).prop_flat_map(|(members, pages)| {
        let shape = Shape { members, chunk: pages * 4096 };
        let operation = operation(shape.size(), shape.chunk);
        let conducts = prop::collection::vec(prop::collection::vec(conduct(), 1..20), members);
        let batches = prop::collection::vec(prop::collection::vec(operation, 1..8), 1..5);
        (Just(shape), conducts, batches).prop_map(|(shape, conducts, batches)| Case {
            shape,
            conducts,
            batches,
        })
    })
}

/// A stripe that is being asked, and what it owes.
struct Run {
    shape: Shape,
    notes: Vec<Arc<Mutex<Notes>>>,
    lane: Box<dyn Lane>,
    pieces: BatchPieces,
    /// What is asked under which name, and what its parts came to.
    open: HashMap<Token, (Operation, Vec<Asked>)>,
}

impl Run {
    fn new(case: &Case) -> Self {
        let shape = case.shape.clone();
        // The last member has bytes that belong to no chunk.
        let rest = |place| if place + 1 == shape.members { 512 } else { 0 };
        let bytes = |place| CHUNKS_EACH * shape.chunk + rest(place);
        let fakes: Vec<Fake> =
            (0..shape.members).map(|place| Fake::new(place, bytes(place))).collect();
        let notes: Vec<_> = fakes.iter().map(Fake::notes).collect();
        for (notes, conducts) in notes.iter().zip(&case.conducts) {
            notes.lock().unwrap().conducts.clone_from(conducts);
        }
        let children = fakes.into_iter().map(Fake::into_child).collect();
        let chunk = ChunkSize::new(ByteCount(shape.chunk)).unwrap();
        let (access, discards) = (Access::ReadWrite, StripeDiscards::Passed);
        let node = StripeNode::new("stripe", children, chunk, access, discards).unwrap();
        assert_eq!(node.size().0.0, shape.size());
        let lane = node.open_lane(&LaneContext::idle()).unwrap();
        Self { shape, notes, lane, pieces: BatchPieces::default(), open: HashMap::new() }
    }

    /// Asks for a batch, and checks what the members were asked for and what is answered at once.
    fn ask(&mut self, operations: &[Operation], first: u32) {
        let mut batch: Vec<Mapping> = operations
            .iter()
            .zip(first..)
            // Names that say nothing of their order.
            .map(|(operation, number)| Mapping::new(Token(number ^ 0xa5a5), *operation))
            .collect();
        self.pieces.clear();
        self.lane.map(&mut batch, &mut self.pieces);
        let mut calls: Vec<_> = self
            .notes
            .iter()
            .map(|notes| {
                let mut calls = std::mem::take(&mut notes.lock().unwrap().calls);
                assert!(calls.len() <= 1, "a member is asked once for a batch");
                calls.pop().unwrap_or_default().into_iter()
            })
            .collect();
        for (mapping, operation) in batch.iter().zip(operations) {
            let parts: Vec<Asked> = self
                .shape
                .members_of(*operation)
                .into_iter()
                .map(|member| calls[member].next().expect("the member has a part"))
                .collect();
            let held = parts.iter().any(|part| {
                matches!(part.conduct, Conduct::Hold { .. } | Conduct::HoldAndRefuse { .. })
            });
            assert_eq!(mapping.answer == Answer::Held, held);
            if held {
                self.open.insert(mapping.token, (*operation, parts));
            } else {
                self.check(*operation, &parts, mapping);
            }
        }
        assert!(calls.iter_mut().all(|call| call.next().is_none()), "one part for each member");
    }

    /// Lets time pass until nothing is held.
    fn finish(&mut self) {
        let mut late = Vec::new();
        while let Some(due) = self.lane.due() {
            assert!(!self.open.is_empty());
            self.pieces.clear();
            self.lane.resume(due.at, &mut late, &mut self.pieces);
            for mapping in late.drain(..) {
                let (operation, parts) = self.open.remove(&mapping.token).expect("once each");
                self.check(operation, &parts, &mapping);
            }
        }
        assert!(self.open.is_empty(), "nothing is forgotten");
        self.pieces.clear();
        self.lane.resume(Instant::at(1000), &mut late, &mut self.pieces);
        assert!(late.is_empty());
    }

    /// Whether an answer is right.
    fn check(&self, operation: Operation, parts: &[Asked], mapping: &Mapping) {
        let refused = parts
            .iter()
            .any(|part| matches!(part.conduct, Conduct::Refuse(_) | Conduct::HoldAndRefuse { .. }));
        let Answer::Now(range) = mapping.answer else {
            assert!(refused && mapping.answer != Answer::Held, "{:?}", mapping.answer);
            return;
        };
        assert!(!refused, "a part was refused");
        assert_eq!(std::mem::discriminant(&operation), std::mem::discriminant(&mapping.operation));
        let pieces = self.pieces.get(range);
        match operation {
            Operation::Read(_) | Operation::Status(_) | Operation::Write(..) => {
                self.check_memory(operation, pieces);
            }
            Operation::Discard(..) | Operation::WriteZeroes(..) => {
                self.check_places(operation, parts, pieces);
            }
            Operation::Flush => {
                let mut files: Vec<usize> = pieces.iter().map(|piece| file(piece).0).collect();
                files.sort_unstable();
                assert!(files.into_iter().eq(0..self.shape.members));
            }
        }
    }

    /// Each sector of memory goes where the model says, once.
    fn check_memory(&self, operation: Operation, pieces: &[Piece]) {
        let mut found = BTreeMap::new();
        for piece in pieces {
            let (file, offset) = file(piece);
            for behind in sectors(0..piece.count.0) {
                let home = (file, offset + behind);
                assert_eq!(found.insert(piece.skip + behind, home), None, "twice");
            }
        }
        assert_eq!(found, self.shape.homes(operation));
    }

    /// The right places of the members are named, as the members have named them.
    fn check_places(&self, operation: Operation, parts: &[Asked], pieces: &[Piece]) {
        let (mut found, mut counted) = (Vec::new(), 0);
        let mut pieces = pieces.to_vec();
        pieces.sort_by_key(|piece| piece.skip);
        for piece in &pieces {
            assert_eq!(piece.skip, counted, "the bytes are counted once");
            counted += piece.count.0;
            let (file, offset) = file(piece);
            found.extend(sectors(0..piece.count.0).map(|behind| (file, offset + behind)));
        }
        found.sort_unstable();
        let mut expected: Vec<_> = self.shape.homes(operation).into_values().collect();
        expected.sort_unstable();
        assert_eq!(found, expected);
        let uncut: u64 = parts
            .iter()
            .map(|part| {
                let count = part.operation.extent().unwrap().count().0;
                let Conduct::Answer { run } = part.conduct else { return count.div_ceil(4096) };
                count.div_ceil(run)
            })
            .sum();
        assert_eq!(pieces.len() as u64, uncut);
    }
}

fn sectors(bytes: Range<u64>) -> impl Iterator<Item = u64> {
    bytes.step_by(usize::try_from(SECTOR_BYTES).unwrap())
}

/// The member and the place on it.
fn file(piece: &Piece) -> (usize, u64) {
    match piece.target {
        Target::File { file: FileId(file), offset } => (usize::try_from(file).unwrap(), offset.0),
        Target::Channel { .. }
        | Target::Zeroes
        | Target::Nothing
        | Target::Memory { .. }
        | Target::Status(_) => {
            panic!("the children have files")
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_byte_of_a_batch_is_found_where_raid0_has_it(case in case()) {
        let mut run = Run::new(&case);
        let mut first = 0;
        for batch in &case.batches {
            run.ask(batch, first);
            first += u32::try_from(batch.len()).unwrap();
        }
        run.finish();
    }
}
