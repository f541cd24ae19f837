//! What may be done with named bitmaps, and what becomes of what they have.

use block::ByteCount;

use super::*;

const DISK: u64 = 8 << 20;

fn size(bytes: u64) -> DiskSize {
    DiskSize(ByteCount(bytes))
}

fn new(name: &str) -> NewBitmap {
    let (recording, persistence) = (Recording::On, Persistence::Volatile);
    NewBitmap { name: name.to_owned(), granularity: Granularity::DEFAULT, recording, persistence }
}

/// Records a change as a lane does.
fn record(bitmaps: &NodeBitmaps, granule: u64) {
    let changed = granule << 16..(granule << 16) + 1;
    bitmaps.recording().set(std::slice::from_ref(&changed));
}

fn count(bitmaps: &NodeBitmaps, name: &str) -> u64 {
    bitmaps.bits(name).expect("it is there").count_granules()
}

fn set_of(names: &[&str]) -> Arc<NodeBitmaps> {
    let bitmaps = NodeBitmaps::new(size(DISK));
    for name in names {
        let _undo = bitmaps.add(&new(name)).expect("it can be added");
    }
    bitmaps
}

#[track_caller]
fn check<T>(result: Result<T, BitmapRefusal>, expected: &str) {
    assert_eq!(result.err().expect("it is refused").to_string(), expected);
}

#[test]
fn bitmaps_record_while_they_are_enabled() {
    let bitmaps = set_of(&["a", "b"]);
    let before = bitmaps.recording();
    assert!(!before.is_alone() && bitmaps.is_current(&before));
    record(&bitmaps, 1);
    let _undo = bitmaps.set_recording("b", Recording::Off).unwrap();
    assert!(!bitmaps.is_current(&before));
    record(&bitmaps, 2);
    let _undo = bitmaps.set_recording("b", Recording::On).unwrap();
    record(&bitmaps, 3);
    assert_eq!((count(&bitmaps, "a"), count(&bitmaps, "b")), (3, 2));
    let _undo = bitmaps.clear("a").unwrap();
    assert_eq!((count(&bitmaps, "a"), count(&bitmaps, "b")), (0, 2));
    let _undo = bitmaps.remove("b").unwrap();
    let names: Vec<_> = bitmaps.describe().into_iter().map(|it| it.name).collect();
    assert_eq!(names, ["a"]);
}

#[test]
fn the_newest_bitmap_is_listed_first_with_whole_granules() {
    let bitmaps = NodeBitmaps::new(size(100));
    let kept = NewBitmap { persistence: Persistence::Kept, recording: Recording::Off, ..new("k") };
    let _undo = (bitmaps.add(&new("a")).unwrap(), bitmaps.add(&kept).unwrap());
    bitmaps.bits("k").unwrap().set_all();
    let [newest, oldest] = &bitmaps.describe()[..] else { panic!("there are two") };
    assert_eq!((&newest.name[..], newest.count, newest.recording), ("k", 65536, Recording::Off));
    assert_eq!((&oldest.name[..], oldest.count, oldest.recording), ("a", 0, Recording::On));
    assert_eq!(
        (newest.persistence, oldest.persistence),
        (Persistence::Kept, Persistence::Volatile)
    );
    assert_eq!((bitmaps.volatile(), bitmaps.persistent().len()), (vec!["a".to_owned()], 1));
}

#[test]
fn what_is_taken_back_is_as_it_was() {
    let bitmaps = set_of(&["a", "b"]);
    record(&bitmaps, 1);
    let state = || (bitmaps.describe(), count(&bitmaps, "a"));
    let before = state();
    let undo = bitmaps.clear("a").unwrap();
    bitmaps.undo(undo);
    assert_eq!(state(), before);
    let other = bitmaps.begin_merge("a").unwrap();
    other.set(5 << 16..7 << 16);
    let undo = bitmaps.merge_into("a", &other).unwrap();
    assert_eq!(count(&bitmaps, "a"), 3);
    bitmaps.undo(undo);
    for undo in [
        bitmaps.add(&new("c")).unwrap(),
        bitmaps.remove("b").unwrap(),
        bitmaps.remove("a").unwrap(),
    ]
    .into_iter()
    .rev()
    {
        bitmaps.undo(undo);
    }
    let undo = bitmaps.set_recording("b", Recording::Off).unwrap();
    bitmaps.undo(undo);
    assert_eq!(state(), before);
}

#[test]
fn others_are_merged_whatever_their_granularity() {
    let bitmaps = set_of(&["a", "b"]);
    let granularity = Granularity::new(512).unwrap();
    let _undo = bitmaps.add(&NewBitmap { granularity, ..new("fine") }).unwrap();
    bitmaps.bits("fine").unwrap().set(512..1024);
    bitmaps.bits("b").unwrap().set(9 << 16..10 << 16);
    let sum = bitmaps.begin_merge("a").unwrap();
    bitmaps.merge_from("fine", &sum).unwrap();
    bitmaps.merge_from("b", &sum).unwrap();
    let _undo = bitmaps.merge_into("a", &sum).unwrap();
    assert_eq!(count(&bitmaps, "a"), 2);
    let other = NodeBitmaps::new(size(DISK / 2));
    let _undo = other.add(&new("half")).unwrap();
    check(
        other.merge_from("half", &sum),
        "Bitmaps are of different sizes (destination size is 8388608, source size is 4194304) and can't be merged",
    );
}

#[test]
fn a_bitmap_in_use_or_inconsistent_is_left_alone() {
    let bitmaps = set_of(&["a"]);
    let stored = |name: &str| StoredBitmap {
        name: name.to_owned(),
        granularity: Granularity::DEFAULT,
        recording: Recording::On,
        bits: None,
    };
    bitmaps.add_stored(stored("lost")).unwrap();
    let used = bitmaps.occupy("a").unwrap();
    let busy = "Bitmap 'a' is currently in use by another operation and cannot be used";
    check(bitmaps.clear("a"), busy);
    check(bitmaps.remove("a"), busy);
    check(bitmaps.set_recording("a", Recording::Off), busy);
    check(bitmaps.freeze("a"), busy);
    check(bitmaps.occupy("a"), busy);
    // It records all the same.
    record(&bitmaps, 4);
    assert_eq!((used.name(), used.bits().unwrap().count_granules()), ("a", 1));
    drop(used);
    let lost = "Bitmap 'lost' is inconsistent and cannot be used";
    check(bitmaps.clear("lost"), lost);
    check(bitmaps.occupy("lost"), lost);
    check(bitmaps.bits("lost"), lost);
    let info = bitmaps.describe().remove(0);
    assert_eq!((info.is_inconsistent, info.recording, info.count), (true, Recording::Off, 0));
    let _undo = bitmaps.remove("lost").unwrap();
    check(bitmaps.remove("lost"), "Dirty bitmap 'lost' not found");
    check(bitmaps.add(&new("a")), "Bitmap already exists: a");
    check(bitmaps.add(&new("")), "Bitmap name cannot be empty");
    let long = "n".repeat(1024);
    check(bitmaps.add(&new(&long)), &format!("Bitmap name too long: {long}"));
}

#[test]
fn a_frozen_bitmap_is_succeeded_or_joined() {
    for (succeeds, expected) in [(true, 1), (false, 2)] {
        let bitmaps = set_of(&["a"]);
        record(&bitmaps, 1);
        let frozen = bitmaps.freeze("a").unwrap();
        record(&bitmaps, 2);
        assert_eq!((frozen.bits().count_granules(), count(&bitmaps, "a")), (1, 1));
        let info = bitmaps.describe().remove(0);
        assert!(info.recording == Recording::On && info.is_busy);
        if succeeds {
            frozen.succeed();
        } else {
            drop(frozen);
        }
        assert_eq!(count(&bitmaps, "a"), expected);
        record(&bitmaps, 3);
        let info = bitmaps.describe().remove(0);
        assert_eq!((info.count >> 16, info.is_busy), (expected + 1, false));
    }
}

#[test]
fn bitmaps_of_a_node_that_grew_by_itself_have_what_is_new() {
    let bitmaps = set_of(&["a"]);
    record(&bitmaps, 1);
    bitmaps.resize::<BitmapRefusal>(size(DISK * 2), || Ok(())).unwrap();
    assert_eq!(count(&bitmaps, "a"), 1);
    bitmaps.catch_up(size(DISK * 2 + 1)).unwrap();
    assert_eq!(count(&bitmaps, "a"), 2);
    let refused = bitmaps.resize(size(DISK), || Err(BitmapRefusal::TooMany));
    assert!(refused.is_err());
    assert_eq!(bitmaps.bits("a").unwrap().size(), size(DISK * 2 + 1));
}

#[test]
fn what_was_cut_off_and_comes_back_is_dirty() {
    let bitmaps = set_of(&["a"]);
    let granule = Granularity::DEFAULT.bytes();
    let resize = |granules: u64, expected: u64| {
        bitmaps.resize::<BitmapRefusal>(size(granules * granule), || Ok(())).unwrap();
        assert_eq!(count(&bitmaps, "a"), expected, "{granules} granules");
    };
    let all = DISK / granule;
    resize(all + 8, 0);
    resize(all - 2, 0);
    resize(all, 2);
    // Ten are dirty that it once had; what it never had is clean.
    resize(all + 20, 10);
}

#[test]
fn bitmaps_of_a_node_have_a_bound_together() {
    let bitmaps = NodeBitmaps::new(size(512 << 30));
    let fine = NewBitmap { granularity: Granularity::new(512).unwrap(), ..new("a") };
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"];
    for name in names {
        let _undo = bitmaps.add(&NewBitmap { name: name.to_owned(), ..fine.clone() }).unwrap();
    }
    let one_more = NewBitmap { name: "one more".to_owned(), ..fine };
    check(bitmaps.add(&one_more), "the bitmaps of a node take 2147483648 bytes of memory at most");
    check(bitmaps.freeze("a"), "the bitmaps of a node take 2147483648 bytes of memory at most");
}
