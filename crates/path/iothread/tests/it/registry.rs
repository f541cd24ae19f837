//! Several threads have the same sources: they move and stop them, drain their disk, and iothreads come and go.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use block::{Durability, Node};
use iothread::{Iothread, MoveError, PlacedFrontEnd, PlacedSource, SourceRegistry};
use kernel_io::{FileTable, ReactorChoice};
use request_path::{Counters, RequestKind};
use virtio::{GuestMemory, Ring, RingBase, RingSetup};
use virtio_blk::BlkRing;

use crate::drains::{Top, drain};
use crate::guest::{Ask, BLOCK, Guest};
use crate::holding::LIMIT;
use crate::moves::{BLOCKS, Load, Progress, RINGS, Seeded};
use crate::open_requests::pipe_node;
use crate::setup::{
    NoFault, another_iothread, blk_ring_with, file_node, iothreads, name, on_both, place, served,
    source,
};

/// The fewest stops, drains and iothreads, and requests of each ring under them.
const STOPS: u64 = 300;
const DRAINS: u64 = 200;
const IOTHREADS: u64 = 40;
const REQUESTS_MIN: u64 = 400;

#[test]
fn the_registry_has_what_is_served_and_where() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads = iothreads::<2>(&files, reactors);
        let (node, _image) = file_node(&files, 1 << 20);
        let guests = [(); 3].map(|()| Guest::new());
        let place = |(queue, guest)| {
            let source = source(guest, &node);
            PlacedFrontEnd::on(&threads[0], name(queue), source, Arc::new(NoFault)).unwrap()
        };
        let placed: Vec<_> = (0..).zip(&guests).map(place).collect();
        let queues = |of: Vec<Arc<PlacedSource>>| -> Vec<u16> {
            of.iter().map(|it| it.name().queue).collect()
        };
        let registry = threads[0].sources();
        assert_eq!(queues(registry.all()), [0, 1, 2]);
        assert_eq!(registry.all()[2].name().to_string(), "export test: queue 2");
        registry.all()[1].move_to(&threads[1]).unwrap();
        assert_eq!(queues(registry.served_by(&threads[0])), [0, 2]);
        assert_eq!(queues(registry.served_by(&threads[1])), [1]);
        registry.all()[0].stop().unwrap();
        assert_eq!(queues(registry.all()), [1, 2]);
        placed.into_iter().for_each(|placed| assert_eq!(placed.stop().in_flight(), 0));
        assert!(registry.all().is_empty());
    });
}

#[test]
fn what_an_export_has_done_counts_on_when_its_sources_go_and_begins_anew_when_it_does() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [iothread] = iothreads::<1>(&files, reactors);
        let (node, _image) = file_node(&files, 1 << 20);
        let registry = iothread.sources();
        let reads = || registry.sums().get("test").map(|it| it.queues.get(&0).cloned());
        let timed = || -> u64 {
            let sums = registry.sums();
            sums["test"].latency.of(RequestKind::Read).map(|(_, _, count)| count).sum()
        };
        let serve = |requests: u64| {
            let mut guest = Guest::new();
            let placed = place(&guest, &node, &iothread);
            for block in 0..requests {
                guest.submit(0, Ask::Read, block);
                guest.completions();
            }
            placed
        };
        // Of an export of which that is not wanted nothing is kept.
        drop(serve(3).stop());
        assert!(registry.sums().is_empty());
        registry.keep_sums("test");
        assert_eq!(reads(), Some(None));
        drop(serve(5).stop());
        let sums = reads().unwrap().unwrap();
        assert_eq!((sums.totals.counters.reads, sums.in_flight, sums.iothread), (5, 0, None));
        let placed = serve(4);
        assert_eq!(reads().unwrap().unwrap().iothread.as_deref(), Some("t0"));
        let source = Arc::clone(&placed);
        drop(placed.stop());
        assert_eq!((reads().unwrap().unwrap().totals.counters.reads, timed()), (9, 9));
        // Whoever has a source that is over keeps its sums from nobody, and not beyond its export.
        registry.forget_sums("test");
        registry.keep_sums("test");
        drop(source);
        assert_eq!(reads(), Some(None));
        drop(serve(2).stop());
        assert_eq!((reads().unwrap().unwrap().totals.counters.reads, timed()), (2, 2));
    });
}

/// A quiet source beside a busy one shows its last turns only when it is asked to, or its iothread sleeps.
#[test]
fn a_quiet_source_is_brought_up_to_date_when_it_is_asked() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [iothread] = iothreads::<1>(&files, reactors);
        let (node, _image) = file_node(&files, 1 << 20);
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &iothread);
        guest.submit(0, Ask::Read, 0);
        guest.completions();
        placed.bring_up_to_date();
        // What is asked after it is answered after it.
        placed.visit(|_, _| ()).unwrap();
        let gauges = placed.gauges();
        assert_eq!((gauges.reads.get(), gauges.in_flight.get()), (1, 0));
        drop(placed.stop());
    });
}

#[test]
fn a_source_is_stopped_once_and_all_others_are_told() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b] = iothreads::<2>(&files, reactors);
        let (node, mut pipe, begun) = pipe_node(&files);
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &a);
        let handle = Arc::clone(&placed);
        guest.submit(0, Ask::Read, 0);
        begun.recv_timeout(LIMIT).unwrap();
        let effective = AtomicUsize::new(0);
        thread::scope(|scope| {
            let stops = [(); 3].map(|()| {
                scope.spawn(|| {
                    effective.fetch_add(handle.stop().map_or(0, |()| 1), Ordering::Relaxed)
                })
            });
            // The stop has to wait; a move that meets it is refused at once.
            let mut to = [&a, &b].into_iter().cycle();
            let refused = to.find_map(|to| handle.move_to(to).err()).unwrap();
            assert!(matches!(refused, MoveError::Stopped(_)), "{refused}");
            assert!(stops.iter().all(|stop| !stop.is_finished()), "a request is open");
            assert!(handle.iothread().is_some() && placed.visit(|_, _| ()).is_ok());
            pipe.write_all(&[1; BLOCK]).unwrap();
        });
        assert_eq!(effective.load(Ordering::Relaxed), 1);
        assert_eq!(guest.completions(), [0]);
        assert!(handle.iothread().is_none() && handle.stop().is_err());
        assert!(placed.visit(|_, _| ()).is_err());
        placed.post(|_, _| panic!("nobody serves it"));
        // Its owner gets it all the same, and no iothread is kept by it.
        assert_eq!((placed.stop().in_flight(), handle.gauges().reads.get()), (0, 1));
        assert_eq!((Arc::strong_count(&a), Arc::strong_count(&b)), (1, 1));
    });
}

/// What of a guest's ring is needed to serve it again while the guest works.
struct RingParts {
    memory: Arc<GuestMemory>,
    setup: RingSetup,
    kick: OwnedFd,
    call: OwnedFd,
}

impl RingParts {
    fn of(guest: &Guest) -> Self {
        let (kick, call) = (guest.kick_fd(), guest.call_fd());
        Self { memory: guest.memory(), setup: guest.setup(), kick, call }
    }

    /// Has an iothread serve it from there on.
    fn place(
        &self,
        base: RingBase,
        node: &Arc<dyn Node>,
        on: &Arc<Iothread>,
    ) -> PlacedFrontEnd<BlkRing> {
        let setup = RingSetup { base, ..self.setup };
        let ring = Ring::new(Arc::clone(&self.memory), setup).unwrap();
        let [kick, call] = [&self.kick, &self.call].map(|fd| fd.try_clone().unwrap());
        let front = blk_ring_with(ring, kick, call, node, Durability::Cached);
        PlacedFrontEnd::on(on, name(0), served(front, node), Arc::new(NoFault)).unwrap()
    }
}

/// What all threads of the test share.
struct Stage {
    threads: [Arc<Iothread>; 3],
    /// One that will be gone soon.
    passing: Mutex<Option<Arc<Iothread>>>,
    top: Arc<Top>,
    node: Arc<dyn Node>,
    files: Arc<FileTable>,
    reactors: ReactorChoice,
    /// Whether they shall end.
    is_over: AtomicBool,
    stops: AtomicU64,
    drains: AtomicU64,
    iothreads: AtomicU64,
}

impl Stage {
    fn registry(&self) -> &Arc<SourceRegistry> {
        self.threads[0].sources()
    }

    fn repeat(&self, count: &AtomicU64, mut action: impl FnMut()) {
        let _all_end = EndOfPanic(self);
        while !self.is_over.load(Ordering::Relaxed) {
            action();
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One of the iothreads that there are.
    fn any_iothread(&self, random: &mut Seeded) -> Arc<Iothread> {
        let passing = self.passing.lock().unwrap().clone();
        let number = usize::try_from(random.below(4)).unwrap();
        passing.filter(|_| number == 3).unwrap_or_else(|| Arc::clone(&self.threads[number % 3]))
    }

    fn move_sources(&self, seed: u64) {
        let mut random = Seeded(seed);
        self.repeat(&AtomicU64::new(0), || {
            for source in self.registry().all() {
                match source.move_to(&self.any_iothread(&mut random)) {
                    Ok(()) | Err(MoveError::Stopped(_)) => {}
                    // It has ended meanwhile.
                    Err(MoveError::Lanes { iothread, .. }) => assert_eq!(iothread, "passing"),
                    Err(error @ MoveError::Stays { .. }) => panic!("{error}"),
                }
            }
        });
    }

    fn drain(&self) {
        self.repeat(&self.drains, || {
            let drained = drain(&self.threads, &self.node);
            assert_eq!(self.top.lanes(), 0);
            thread::yield_now();
            assert_eq!(self.top.lanes(), 0, "a lane was opened meanwhile");
            drained.end().unwrap();
        });
    }

    fn start_and_retire_iothreads(&self) {
        self.repeat(&self.iothreads, || {
            let passing = another_iothread("passing", &self.threads[0], &self.files, self.reactors);
            *self.passing.lock().unwrap() = Some(Arc::clone(&passing));
            for source in self.registry().all() {
                let _stopped = source.move_to(&passing);
            }
            passing.retire();
            *self.passing.lock().unwrap() = None;
            while !passing.has_ended() {
                for source in self.registry().served_by(&passing) {
                    let _stopped = source.move_to(&self.threads[0]);
                }
            }
        });
    }

    /// Stops sources, sometimes several threads at once, and has them served again. Returns what each has done.
    fn stop_sources(&self, parts: &[RingParts]) -> Vec<Counters> {
        let mut random = Seeded(0xabc);
        let mut sums = vec![Counters::default(); parts.len()];
        let begin = |parts: &RingParts| parts.place(RingBase(0), &self.node, &self.threads[0]);
        let mut placed: Vec<_> = parts.iter().map(begin).collect();
        let stop = |placed: PlacedFrontEnd<BlkRing>, sum: &mut Counters, others: u64| {
            let effective = AtomicU64::new(0);
            let handle = Arc::clone(&placed);
            let stop = || effective.fetch_add(handle.stop().map_or(0, |()| 1), Ordering::Relaxed);
            thread::scope(|scope| (0..others).for_each(|_| drop(scope.spawn(stop))));
            assert_eq!(effective.into_inner(), others.min(1));
            let source = placed.stop();
            assert_eq!(source.in_flight(), 0);
            let counters = source.counters();
            sum.reads += counters.reads;
            sum.writes += counters.writes;
            sum.flushes += counters.flushes;
            sum.errors += counters.errors;
            source.front().base()
        };
        self.repeat(&self.stops, || {
            let ring = usize::try_from(random.below(RINGS)).unwrap();
            let base = stop(placed.remove(ring), &mut sums[ring], random.below(3));
            let on = self.any_iothread(&mut random);
            // If that one has ended, another one does as well.
            let on = if on.name() == "passing" { &self.threads[1] } else { &on };
            placed.insert(ring, parts[ring].place(base, &self.node, on));
        });
        for (placed, sum) in placed.into_iter().zip(&mut sums) {
            stop(placed, sum, 0);
        }
        sums
    }
}

/// If one of the threads panics, all end.
struct EndOfPanic<'a>(&'a Stage);

impl Drop for EndOfPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.is_over.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn movers_stoppers_drains_and_iothreads_that_go_lose_nothing_and_repeat_nothing() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads = iothreads::<3>(&files, reactors);
        let (file, image) = file_node(&files, RINGS * BLOCKS * BLOCK as u64);
        let top = Top::over(file);
        let node: Arc<dyn Node> = Arc::clone(&top) as _;
        let mut loads: Vec<Load> = (0..RINGS).map(Load::new).collect();
        let parts: Vec<_> = loads.iter().map(|load| RingParts::of(&load.guest)).collect();
        let stage = Stage {
            threads,
            passing: Mutex::new(None),
            top,
            node,
            files,
            reactors,
            is_over: AtomicBool::new(false),
            stops: AtomicU64::new(0),
            drains: AtomicU64::new(0),
            iothreads: AtomicU64::new(0),
        };
        let (over, progress) = (AtomicBool::new(false), Progress::default());
        let sums = thread::scope(|scope| {
            let stopper = scope.spawn(|| {
                let sums = stage.stop_sources(&parts);
                assert!(stage.registry().all().is_empty());
                sums
            });
            while stage.stops.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            let running: Vec<_> =
                loads.iter_mut().map(|load| scope.spawn(|| load.run(&over, &progress))).collect();
            scope.spawn(|| stage.move_sources(0x5eed));
            scope.spawn(|| stage.move_sources(0xfeed));
            scope.spawn(|| stage.drain());
            scope.spawn(|| stage.start_and_retire_iothreads());
            let at_least = |count: &AtomicU64, least| count.load(Ordering::Relaxed) >= least;
            let is_enough = || {
                at_least(&stage.stops, STOPS)
                    && at_least(&stage.drains, DRAINS)
                    && at_least(&stage.iothreads, IOTHREADS)
                    && progress.least() >= REQUESTS_MIN
            };
            while !is_enough() && !stage.is_over.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            // The guests have their answers before the rings stop for good.
            over.store(true, Ordering::Relaxed);
            running.into_iter().for_each(|load| load.join().unwrap());
            stage.is_over.store(true, Ordering::Relaxed);
            stopper.join().unwrap()
        });
        for (load, sum) in loads.iter().zip(sums) {
            let counted = sum.reads + sum.writes + sum.flushes;
            assert_eq!((counted, sum.errors), (load.completed, 0));
        }
        // A drain after which nobody uses the lanes any more ends while nobody waits.
        drain(&stage.threads, &stage.node).end().unwrap();
        drop(stage.threads);
        assert_eq!(stage.top.lanes(), 0, "a lane was left open");
        let bytes = std::fs::read(&image).unwrap();
        loads.iter().for_each(|load| load.check_image(&bytes));
    });
}
