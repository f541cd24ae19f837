//! Our own load tells of every second and every fifth, and each of them are all of the run.

use std::time::Duration;

use load::probe::cache_mode;
use load::{BlockBytes, Continuation, Fifth, Interval, Shape, Timing, Watch, Workload, host};

#[derive(Default)]
struct Told {
    all: Vec<Interval>,
    fifths: Vec<Fifth>,
    /// How many before the window closed.
    early: usize,
}

impl Watch for Told {
    fn window_opens(&mut self) {}

    fn window_closes(&mut self) {
        self.early = self.all.len();
    }

    fn tick(&mut self) -> Continuation {
        Continuation::GoOn
    }

    fn second(&mut self, interval: &Interval) {
        self.all.push(interval.clone());
    }

    fn fifth(&mut self, fifth: &Fifth) {
        self.fifths.push(*fifth);
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn the_seconds_of_a_run_add_up_to_it() {
    if let Err(error) = host::available() {
        eprintln!("skipped: no io_uring: {error}");
        return;
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("disk");
    std::fs::write(&path, vec![0x5a; 4 << 20]).unwrap();
    let block = BlockBytes::try_from(4096).unwrap();
    let shape = Shape::new("70/30".parse().unwrap(), block, 2, 4).unwrap();
    let workload = Workload::new(shape, 4 << 20, 1).unwrap();
    let timing = Timing { ramp: Duration::ZERO, runtime: Duration::from_millis(1600) };
    let mut told = Told::default();
    let cache = cache_mode(&path).unwrap();
    let sample = host::run(&path, cache, &workload, timing, &mut told).unwrap();
    let Told { all, fifths, early } = told;
    let seconds: Vec<_> = all.iter().map(|it| it.second).collect();
    assert_eq!((seconds, early), (vec![1, 2], 1), "the first is told while the second runs");
    assert!(all[0].elapsed >= Duration::from_secs(1) && all[0].elapsed < timing.runtime);
    let sum = |of: fn(&Interval) -> u64| all.iter().map(of).sum::<u64>();
    assert_eq!(sum(|it| it.operations), sample.operations);
    assert_eq!(sum(|it| it.bytes), sample.bytes);
    assert_eq!(sum(|it| it.latency.count()), sample.operations);
    assert_eq!(all.iter().map(|it| it.elapsed).sum::<Duration>(), sample.elapsed);
    assert_eq!(fifths.len(), 5);
    assert_eq!(fifths.iter().map(|it| it.operations).sum::<u64>(), sample.operations);
    assert_eq!(fifths.iter().map(|it| it.elapsed).sum::<Duration>(), sample.elapsed);
    let reads = sum(|it| it.reads) as f64 / sample.operations as f64;
    assert!((0.6..0.8).contains(&reads), "{reads} of the requests read");
}
