//! Bitmaps beside a plain list of marks.

use block::ByteCount;
use proptest::prelude::*;

use super::*;

fn size(bytes: u64) -> DiskSize {
    DiskSize(ByteCount(bytes))
}

fn bitmap(bytes: u64, granularity: u64) -> DirtyBitmap {
    let granularity = Granularity::new(granularity).expect("it is one");
    DirtyBitmap::new(size(bytes), granularity).expect("it is small")
}

/// What is dirty, as runs.
fn runs(bitmap: &DirtyBitmap) -> Vec<Range<u64>> {
    let mut at = 0;
    let next = || {
        let run = bitmap.next_dirty(at..u64::MAX)?;
        at = run.end;
        Some(run)
    };
    std::iter::from_fn(next).collect()
}

/// A mark for each granule of a disk.
#[derive(Debug)]
struct Marks {
    disk: u64,
    granularity: u64,
    marks: Vec<bool>,
}

impl Marks {
    fn new(disk: u64, granularity: u64) -> Self {
        let count = usize::try_from(disk.div_ceil(granularity)).expect("it is small");
        Self { disk, granularity, marks: vec![false; count] }
    }

    /// Gives this mark to what has a part of the bytes; whether one of them was marked.
    fn change(&mut self, bytes: &Range<u64>, mark: bool) -> bool {
        let mut was_set = false;
        for (start, each) in (0..).step_by(self.step()).zip(&mut self.marks) {
            let end = (start + self.granularity).min(self.disk);
            if start < bytes.end && bytes.start < end && !bytes.is_empty() {
                was_set |= std::mem::replace(each, mark);
            }
        }
        was_set
    }

    fn step(&self) -> usize {
        usize::try_from(self.granularity).expect("it is small")
    }

    fn runs(&self) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (start, _) in (0..).step_by(self.step()).zip(&self.marks).filter(|(_, mark)| **mark) {
            let end = (start + self.granularity).min(self.disk);
            match runs.last_mut() {
                Some(last) if last.end == start => last.end = end,
                Some(_) | None => runs.push(start..end),
            }
        }
        runs
    }
}

const DISK: u64 = 300 * 512 + 100;

fn some_bytes() -> impl Strategy<Value = Range<u64>> {
    let length = prop_oneof![Just(0), 1..2000_u64, 1..DISK];
    (0..DISK + 2000, length).prop_map(|(start, length)| start..start + length)
}

proptest! {
    #[test]
    fn a_bitmap_is_as_a_list_of_marks(
        shift in 9_u32..14,
        disk in 0..DISK,
        changes in proptest::collection::vec((some_bytes(), any::<bool>()), 0..40),
        window in some_bytes(),
        other in 0..DISK,
    ) {
        let (bitmap, mut marks) = (bitmap(disk, 1 << shift), Marks::new(disk, 1 << shift));
        for (bytes, mark) in changes {
            if mark {
                bitmap.set(bytes.clone());
                marks.change(&bytes, true);
            } else {
                let within = bytes.start..bytes.end.min(disk);
                prop_assert_eq!(bitmap.clear(bytes), marks.change(&within, false));
            }
        }
        prop_assert_eq!(runs(&bitmap), marks.runs());
        let dirty = marks.marks.iter().filter(|mark| **mark).count() as u64;
        prop_assert_eq!(bitmap.count_granules(), dirty);
        prop_assert_eq!(bitmap.count_bytes(), dirty << shift);
        for (start, mark) in (0..).step_by(1 << shift).zip(&marks.marks) {
            prop_assert_eq!(bitmap.is_dirty(start), *mark);
        }
        let cut = |run: Range<u64>| run.start.max(window.start)..run.end.min(window.end);
        let first = marks.runs().into_iter().map(cut).find(|run| run.start < run.end);
        prop_assert_eq!(bitmap.is_any_dirty(window.clone()), first.is_some());
        prop_assert_eq!(bitmap.next_dirty(window), first);

        let resized = bitmap.resized(size(other)).expect("it is small");
        let granule = |start: u64| start - start % (1 << shift);
        // A granule that the end of the disk cuts is dirty as a whole, also when the disk grows.
        let whole = |run: Range<u64>| run.start..run.end.next_multiple_of(1 << shift).min(other);
        let kept = marks.runs().into_iter().filter(|run| granule(run.start) < other).map(whole);
        prop_assert_eq!(runs(&resized), kept.collect::<Vec<_>>());
    }

    #[test]
    fn a_merged_bitmap_has_what_both_have(
        shifts in (9_u32..14, 9_u32..14),
        disk in 1..DISK,
        marked in proptest::collection::vec((some_bytes(), any::<bool>()), 0..12),
    ) {
        let (mine, other) = (bitmap(disk, 1 << shifts.0), bitmap(disk, 1 << shifts.1));
        let mut marks = Marks::new(disk, 1 << shifts.0);
        for (bytes, is_mine) in marked {
            if is_mine { mine.set(bytes.clone()) } else { other.set(bytes.clone()) }
            if is_mine {
                marks.change(&bytes, true);
            }
        }
        for run in runs(&other) {
            marks.change(&run, true);
        }
        mine.merge(&other);
        prop_assert_eq!(runs(&mine), marks.runs());
    }

    #[test]
    fn words_carry_all_marks_and_nothing_behind_the_disk(
        disk in 0..DISK * 4,
        marked in proptest::collection::vec(some_bytes(), 0..12),
        first in 0..12_usize,
    ) {
        let (from, to) = (bitmap(disk, 512), bitmap(disk, 512));
        marked.into_iter().for_each(|bytes| from.set(bytes));
        let mut words = [0; 5];
        let mut at = 0;
        while at < from.word_count() {
            from.load_words(at, &mut words);
            to.merge_words(at, &words);
            at += words.len();
        }
        prop_assert_eq!(runs(&to), runs(&from));
        to.merge_words(first, &[u64::MAX; 40]);
        let (start, end) = (first as u64 * 64 * 512, (first as u64 + 40) * 64 * 512);
        from.set(start..end);
        prop_assert_eq!(runs(&to), runs(&from));
        prop_assert_eq!(to.count_granules(), from.count_granules());
    }
}

#[test]
fn a_disk_of_any_size_has_a_bitmap_within_the_bound() {
    let usual = Granularity::DEFAULT;
    assert_eq!(DirtyBitmap::memory_of(size(64 << 40), usual), 128 << 20);
    assert_eq!(DirtyBitmap::memory_of(size(0), usual), 8);
    assert_eq!(DirtyBitmap::memory_of(size(u64::MAX), usual), 32 << 40);
    let bitmap = bitmap(64 << 40, 65536);
    bitmap.set((63 << 40)..(63 << 40) + 1);
    assert_eq!(bitmap.next_dirty(0..u64::MAX), Some((63 << 40)..(63 << 40) + 65536));

    let refused = DirtyBitmap::new(size((512 << 40) + 1), usual).expect_err("it is too large");
    assert_eq!(
        refused.to_string(),
        "a bitmap of 562949953421313 bytes with a granularity of 65536 takes more than 1073741824 bytes of memory"
    );
    let all = self::bitmap(1000, 512);
    all.set_all();
    assert_eq!((all.next_dirty(0..5000), all.count_bytes()), (Some(0..1000), 1024));
    assert_eq!(all.duplicate().expect("it is small").count_granules(), 2);
}

#[test]
fn what_many_threads_mark_and_clear_is_neither_lost_nor_invented() {
    let bitmap = bitmap(64 * 512, 512);
    let taken = Vec::from_iter((0..4).map(|_| AtomicU64::new(0)));
    std::thread::scope(|scope| {
        for (thread, taken) in taken.iter().enumerate() {
            let bitmap = &bitmap;
            scope.spawn(move || {
                // Each has every fourth granule of one word to itself.
                for round in 0..2000 {
                    let granule = (round % 16) * 4 + thread as u64;
                    let bytes = granule * 512..(granule + 1) * 512;
                    assert!(!bitmap.clear(bytes.clone()));
                    bitmap.set(bytes.clone());
                    assert!(bitmap.is_dirty(bytes.start) && bitmap.clear(bytes));
                    taken.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(bitmap.count_granules(), 0);
    assert!(taken.iter().all(|taken| taken.load(Ordering::Relaxed) == 2000));
}
