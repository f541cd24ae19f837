//! Files of nodes that are gone are closed, also on the iothreads that have used them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use block::{Clock, SystemClock};
use kernel_io::FileTable;

use crate::guest::{Ask, Guest};
use crate::holding::LIMIT;
use crate::setup::{file_node, iothreads, on_both, place};

/// Whether a descriptor of this process leads there.
fn is_open(image: &Path) -> bool {
    let image = image.metadata().unwrap();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    // Those of other tests come and go.
    let mut found = descriptors.filter_map(|entry| entry.ok()?.path().metadata().ok());
    found.any(|file| (file.dev(), file.ino()) == (image.dev(), image.ino()))
}

#[test]
fn a_file_is_closed_when_its_node_is_gone() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads = iothreads::<2>(&files, reactors);
        // More than an io_uring has registered at once.
        for round in 0..300 {
            let (node, image) = file_node(&files, 1 << 20);
            let mut guest = Guest::new();
            let placed = place(&guest, &node, &threads[round % 2]);
            guest.submit(0, Ask::Read, 0);
            assert_eq!(guest.completions(), [0]);
            placed.move_to(&threads[(round + 1) % 2]).unwrap();
            guest.submit(0, Ask::Write, 0);
            assert_eq!(guest.completions(), [0]);
            placed.stop();
            assert!(is_open(&image));
            drop(node);
            // The iothreads hear of it by their notifiers.
            let start = SystemClock.now();
            while is_open(&image) {
                let waited = SystemClock.now() - start;
                assert!(waited < LIMIT, "it is open in round {round}");
                thread::yield_now();
            }
        }
    });
}
