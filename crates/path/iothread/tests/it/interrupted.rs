//! Iothreads whose calls are ended by signals all the time, as the watchdog of interrupts may do now and then
//! (`kernel_io::guest_notifier`): no request fails, none is lost, and every byte is right.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use iothread::{Iothread, PollSettings, ProcessResources};
use kernel_io::{Caching, FileTable};
use testkit::signal_storm::SignalStorm;

use crate::guest::BLOCK;
use crate::moves::{BLOCKS, Load, Progress, RINGS};
use crate::setup::{cached_file_node, on_both, place, process_resources};

/// The fewest requests of each ring in the storm.
const REQUESTS_MIN: u64 = 400;

/// Beside direct I/O those that workers do.
const CACHINGS: [Caching; 2] = [Caching::Direct, Caching::Buffered];

#[test]
fn calls_that_signals_end_are_made_again() {
    let storm = SignalStorm::in_this_process("IO storm", Duration::from_micros(100)).unwrap();
    for caching in CACHINGS {
        on_both(|reactors| {
            let files = Arc::new(FileTable::default());
            let resources =
                ProcessResources { files: Arc::clone(&files), reactors, ..process_resources() };
            let threads = ["storm0", "storm1"].map(|name| {
                let spawned = Iothread::spawn(name, resources.clone(), PollSettings::default());
                Arc::new(spawned.unwrap())
            });
            let (node, image) = cached_file_node(&files, RINGS * BLOCKS * BLOCK as u64, caching);
            let mut loads: Vec<Load> = (0..RINGS).map(Load::new).collect();
            let placed: Vec<_> =
                loads.iter().map(|load| place(&load.guest, &node, &threads[0])).collect();
            let (over, progress) = (AtomicBool::new(false), Progress::default());
            let before = storm.sent();
            std::thread::scope(|scope| {
                for load in &mut loads {
                    scope.spawn(|| load.run(&over, &progress));
                }
                let mut moves = 0;
                while progress.least() < REQUESTS_MIN || storm.sent() < before + 1000 {
                    moves += 1;
                    placed[moves % placed.len()].move_to(&threads[moves / 4 % 2]).unwrap();
                }
                over.store(true, Ordering::Relaxed);
            });
            for (load, placed) in loads.iter().zip(placed) {
                let counters = placed.stop().counters();
                let counted = counters.reads + counters.writes + counters.flushes;
                assert_eq!((counted, counters.errors), (load.completed, 0));
            }
            let bytes = std::fs::read(&image).unwrap();
            loads.iter().for_each(|load| load.check_image(&bytes));
        });
    }
    storm.finish();
}
