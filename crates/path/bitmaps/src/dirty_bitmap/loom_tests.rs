//! Those who change, mark and clear, in all interleavings:
//! `RUSTFLAGS="--cfg loom" cargo test -p bitmaps --release --lib loom_`.

use std::sync::Arc;

use block::ByteCount;

use super::*;

/// A disk of one byte that is changed without any ordering of its own, and its bitmap.
struct Rig {
    bitmap: DirtyBitmap,
    disk: AtomicU64,
}

impl Rig {
    fn new() -> Arc<Self> {
        let size = DiskSize(ByteCount(1024));
        let granularity = Granularity::new(512).expect("it is one");
        let bitmap = DirtyBitmap::new(size, granularity).expect("it is small");
        Arc::new(Self { bitmap, disk: AtomicU64::new(0) })
    }

    /// A change, recorded after it ended.
    fn change(&self, value: u64) {
        self.disk.store(value, Ordering::Relaxed);
        self.bitmap.set(0..512);
    }

    /// A job's round: clears, then reads what was marked.
    fn copy(&self, copy: &mut u64) {
        if self.bitmap.clear(0..512) {
            *copy = self.disk.load(Ordering::Relaxed);
        }
    }
}

/// A change whose bit is set already, or is not: what the copy lacks is still marked.
#[test]
fn loom_a_change_is_copied_or_still_marked() {
    for marked_before in [false, true] {
        loom::model(move || {
            let rig = Rig::new();
            if marked_before {
                rig.change(1);
            }
            let guest = Arc::clone(&rig);
            let guest = loom::thread::spawn(move || guest.change(2));
            let mut copy = 0;
            rig.copy(&mut copy);
            guest.join().expect("it does not panic");
            rig.copy(&mut copy);
            assert_eq!((copy, rig.bitmap.count_granules()), (2, 0));
        });
    }
}

/// Two who mark and one who clears in the same word.
#[test]
fn loom_no_mark_of_a_neighbour_is_lost() {
    loom::model(|| {
        let rig = Rig::new();
        rig.bitmap.set(0..512);
        let neighbour = Arc::clone(&rig);
        let neighbour = loom::thread::spawn(move || neighbour.bitmap.set(512..1024));
        assert!(rig.bitmap.clear(0..512));
        neighbour.join().expect("it does not panic");
        assert_eq!(rig.bitmap.next_dirty(0..1024), Some(512..1024));
    });
}
