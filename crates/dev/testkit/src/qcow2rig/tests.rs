//! The rig against images that it has made, images that are broken on purpose, and a node that stands on a full image.

use std::num::NonZeroU32;

use block::{
    Access, Answer, BatchPieces, BlockLimits, ByteCount, ByteOffset, Claim, ClaimError, DiskSize,
    HostMemory, Lane, LaneContext, LaneError, LeafLane, Mapping, Operation, Piece, Rights, Target,
    Token,
};

use super::disk::Snapshot;
use super::make::{Compression, Recipe};
use super::*;
use crate::conformance::{index, number};
use crate::errands::carry_out;
use crate::report;
use crate::rng::Rng;

fn recipes() -> Vec<Recipe> {
    let plain = |bits, size| Recipe { filled: 60, ..Recipe::plain(bits, size) };
    vec![
        plain(16, 3 << 20),
        plain(21, 9 << 20),
        plain(9, 300 << 10),
        Recipe { version: 2, ..plain(12, 1 << 20) },
        Recipe { refcount_order: 0, ..plain(12, 1 << 20) },
        Recipe { refcount_order: 6, ..plain(9, 1 << 20) },
        Recipe { refcount_order: 1, snapshot: true, ..plain(12, 1 << 20) },
        Recipe { extended_l2: true, snapshot: true, ..plain(16, (2 << 20) + 512) },
        Recipe { data_file: true, ..plain(16, 2 << 20) },
        Recipe { backing: Some(700 << 10), ..plain(16, (1 << 20) + 4096) },
        Recipe { backing: Some(2 << 20), version: 2, snapshot: true, ..plain(16, 1 << 20) },
        Recipe { lazy_refcounts: true, filled: 0, ..plain(16, 1 << 20) },
        Recipe::crowded(&mut Rng::new(5)),
        Recipe { cut: true, ..plain(16, 1 << 20) },
    ]
}

#[test]
fn images_that_it_makes_are_sound_and_hold_what_they_should() {
    let missing = peer::missing();
    let rng = &mut Rng::new(1);
    let random = (0..40).map(|_| Recipe::any(rng, 9..18));
    for (seed, recipe) in (1..).zip(recipes().into_iter().chain(random)) {
        let made = recipe.make(&mut Rng::new(seed)).unwrap();
        let image = Snapshot::of(&made.image);
        let data = made.data.as_deref().map(Snapshot::of);
        let verdict = check::check(&image).unwrap();
        assert!(verdict.errors.is_empty() && verdict.leaks == 0, "{recipe:?}: {verdict:?}");
        let found = image::read_all(&image, data.as_ref(), made.backing.as_deref()).unwrap();
        assert!(found == made.content, "{recipe:?}");
        if missing.is_none() {
            peer::judge(&image, data.as_ref(), made.backing.as_deref(), &made.content).unwrap();
        }
    }
    if let Some(reason) = missing {
        report::skipped(&reason);
    }
}

#[test]
fn images_that_it_makes_have_compressed_clusters() {
    for compression in [Compression::Deflate, Compression::Zstd] {
        for (bits, refcount_order) in [(9, 4), (12, 4), (12, 0), (16, 1), (16, 6)] {
            let plain = Recipe::plain(bits, 40 << bits);
            let compression = Some(compression);
            let recipe = Recipe { filled: 100, refcount_order, compression, ..plain };
            let made = recipe.make(&mut Rng::new(3)).unwrap();
            let image = Snapshot::of(&made.image);
            let header = image::Header::read(&image).unwrap();
            let entry = |place| header.entry(&image, header.l1_offset, place).word;
            let compressed = (0..40).filter(|place| entry(*place) & image::COMPRESSED != 0);
            let count = compressed.count();
            assert!(count > 5, "{count} of 40 in {recipe:?}");
            let verdict = check::check(&image).unwrap();
            assert!(verdict.errors.is_empty() && verdict.leaks == 0, "{recipe:?}: {verdict:?}");
            assert_eq!(image::read_all(&image, None, None).unwrap(), made.content);
            if peer::missing().is_none() {
                peer::judge(&image, None, None, &made.content).unwrap();
            }
        }
    }
}

#[test]
fn broken_images_are_found_as_qemu_img_finds_them() {
    let recipe = Recipe { version: 2, filled: 100, ..Recipe::plain(12, 64 << 10) };
    let made = recipe.make(&mut Rng::new(1)).unwrap();
    let image = Snapshot::of(&made.image);
    let header = image::Header::read(&image).unwrap();
    let entry = header.entry(&image, header.l1_offset, 0);
    let second = header.entry(&image, header.l1_offset, 1);
    let block = image::be64(&image, header.refcount_offset);
    let refcount = |offset: u64| block + (offset >> header.cluster_bits) * 2;
    let data = entry.word & image::OFFSET;
    let l2 = entry.at & !0xfff;
    let missing = peer::missing();
    let check = |text: &str, at: u64, value: &[u8], expected: bool| {
        let mut bytes = made.image.clone();
        bytes[index(at)..index(at) + value.len()].copy_from_slice(value);
        let image = Snapshot::of(&bytes);
        let verdict = check::check(&image).unwrap();
        assert_eq!(!verdict.errors.is_empty(), expected, "{text}: {verdict:?}");
        if missing.is_none() {
            assert_eq!(peer::finds_errors(&image).unwrap(), expected, "{text}: {verdict:?}");
        }
    };
    check("nothing", 0, &[], false);
    check("a leak", refcount(number(made.image.len()) + 4096), &[0, 1], false);
    check("a refcount too low", refcount(data), &[0, 0], true);
    check("a refcount too high, and COPIED", refcount(data), &[0, 2], true);
    check("a table's refcount too low", refcount(l2), &[0, 0], true);
    check("COPIED is missing", entry.at, &data.to_be_bytes(), true);
    check("two entries name one cluster", entry.at, &second.word.to_be_bytes(), true);
    check("a table as data", entry.at, &(l2 | image::COPIED).to_be_bytes(), true);
    check("outside the file", entry.at, &((1_u64 << 40) | image::COPIED).to_be_bytes(), true);
    check("a reserved bit", entry.at, &(data | image::COPIED | 1 << 56).to_be_bytes(), true);
    check("the middle of a cluster", entry.at, &((data + 512) | image::COPIED).to_be_bytes(), true);
    if let Some(reason) = missing {
        report::skipped(&reason);
    }
}

/// A node on an image of version 2 all of whose clusters are there: its metadata never changes.
#[derive(Debug)]
struct Full;

/// The same, whose answers leave out what comes after the first cluster.
#[derive(Debug)]
struct Short;

impl Subject for Short {
    fn open(&self, setup: &Setup) -> Result<Arc<dyn Node>> {
        let FullNode { file, size, cluster, hosts, .. } = open_full(setup)?;
        Ok(Arc::new(FullNode { file, size, cluster, hosts, is_short: true }))
    }
}

#[derive(Debug)]
struct FullNode {
    file: Arc<dyn Node>,
    size: DiskSize,
    cluster: u64,
    hosts: Arc<[u64]>,
    is_short: bool,
}

impl Subject for Full {
    fn open(&self, setup: &Setup) -> Result<Arc<dyn Node>> {
        Ok(Arc::new(open_full(setup)?))
    }
}

fn open_full(setup: &Setup) -> Result<FullNode> {
    let bytes = setup.file.size();
    let read = |at: u64, count: usize| -> Result<HostMemory> {
        let extent = bytes.check(ByteOffset(at), ByteCount(number(count)))?;
        let io = LaneContext::idle();
        let mut lane = setup.file.open_lane(&io)?;
        let mut batch = [Mapping::new(Token(0), Operation::Read(extent))];
        let mut pieces = BatchPieces::default();
        lane.map(&mut batch, &mut pieces);
        let Answer::Now(range) = batch[0].answer else { anyhow::bail!("no answer") };
        let memory = HostMemory::zeroed(count);
        let pieces = pieces.get(range);
        carry_out(&*setup.engines, batch[0].operation, pieces, memory)
            .map_err(|kind| anyhow::anyhow!("byte {at} cannot be read: {kind:?}"))
    };
    let long = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
    let header = read(0, 72)?;
    let (bits, size) = (u32::from(header[23]), long(&header[24..32]));
    let l1 = long(&header[40..48]);
    let cluster = 1_u64 << bits;
    let mut hosts = Vec::new();
    for place in 0..size.div_ceil(cluster) {
        let l2 = long(&read(l1 + place / (cluster / 8) * 8, 8)?) & image::OFFSET;
        hosts.push(long(&read(l2 + place % (cluster / 8) * 8, 8)?) & image::OFFSET);
    }
    let (file, hosts) = (Arc::clone(&setup.file), hosts.into());
    Ok(FullNode { file, size: DiskSize(ByteCount(size)), cluster, hosts, is_short: false })
}

impl Node for FullNode {
    fn name(&self) -> &str {
        "full"
    }

    fn size(&self) -> DiskSize {
        self.size
    }

    fn limits(&self) -> BlockLimits {
        let least = NonZeroU32::new(512).expect("512 is not zero");
        BlockLimits {
            request_alignment: least,
            physical_block: least,
            discard: true,
            discard_granularity: least,
            allocation_unit: least,
        }
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn flush(&self) -> std::io::Result<()> {
        self.file.flush()
    }

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.file.claim(rights)
    }

    fn open_lane(&self, _: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        Ok(Box::new(FullLane {
            cluster: self.cluster,
            hosts: Arc::clone(&self.hosts),
            is_short: self.is_short,
        }))
    }
}

#[derive(Debug)]
struct FullLane {
    cluster: u64,
    hosts: Arc<[u64]>,
    is_short: bool,
}

impl LeafLane for FullLane {
    fn answer(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        let mark = pieces.end();
        let target = |offset| Target::File { file: block::FileId(0), offset: ByteOffset(offset) };
        match mapping.operation.extent() {
            None => pieces.push(Piece { skip: 0, count: ByteCount(0), target: target(0) }),
            Some(extent) => {
                let bytes = extent.bytes();
                let mut at = bytes.start;
                while at < bytes.end && !(self.is_short && at > bytes.start) {
                    let end = (at - at % self.cluster + self.cluster).min(bytes.end);
                    let host = self.hosts[index(at / self.cluster)] + at % self.cluster;
                    let (skip, count) = (at - bytes.start, ByteCount(end - at));
                    pieces.push(Piece { skip, count, target: target(host) });
                    at = end;
                }
            }
        }
        mapping.answer = Answer::Now(pieces.since(mark));
    }
}

fn full(mischief: Mischief, lives: u64) -> Options {
    let recipe = Recipe { version: 2, filled: 100, ..Recipe::plain(12, 256 << 10) };
    Options {
        recipe,
        lives,
        chain: false,
        mischief,
        fail_one_in: 0,
        fail_syncs_one_in: 0,
        channels_one_in: 0,
        peer_one_in: 0,
    }
}

#[test]
fn a_node_without_mistakes_lives_through_deaths_and_losses_of_power() {
    let played = play(1, &Full, &full(Mischief::None, 40)).unwrap();
    let Played { tally, closed, killed, powerless, .. } = played;
    assert!(closed > 0 && killed > 0 && powerless > 0);
    assert!(tally.reads > 0 && tally.writes > 0 && tally.zeroings > 0 && tally.flushes > 0);
}

#[test]
fn operations_may_fail_and_what_they_changed_is_left_open() {
    let options = Options { fail_one_in: 50, ..full(Mischief::None, 20) };
    let played = play(7, &Full, &options).unwrap();
    assert!(played.tally.failed > 0, "{played:?}");
}

#[test]
fn the_same_seed_plays_the_same_game() {
    let text = |seed| format!("{:?}", play(seed, &Full, &full(Mischief::None, 5)).unwrap());
    assert_eq!(text(3), text(3));
    assert_ne!(text(3), text(4));
}

#[test]
fn syncs_that_do_nothing_are_found_and_the_failure_names_seed_and_history() {
    let found = (1..40).find_map(|seed| {
        let error = play(seed, &Full, &full(Mischief::LyingSyncs, 12)).err()?;
        Some((seed, format!("{error:#}")))
    });
    let (seed, text) = found.expect("a lying sync is found");
    for wanted in [&format!("seed {seed:#x}"), "step", "the power goes", "holds", "guest cluster"] {
        assert!(text.contains(wanted), "{wanted} in {text}");
    }
}

#[test]
fn an_answer_that_does_not_cover_its_request_is_found() {
    let error = play(1, &Short, &full(Mischief::None, 40)).unwrap_err();
    assert!(format!("{error:#}").contains("is answered with"), "{error:#}");
}

#[test]
fn zeroings_that_come_late_are_found() {
    let found = (1..40).any(|seed| play(seed, &Full, &full(Mischief::LateZeroing, 12)).is_err());
    assert!(found);
}
