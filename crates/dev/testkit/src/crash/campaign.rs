//! Lives of a disk: a server is started, loaded, killed and started again, several times; then everything must be
//! completed and the image must be as the model says.
//!
//! Where it stands: `cargo xtask crash` and a short test call `run`.
//!
//! Invariants: a server that ends or hangs up without having been killed is an error; a kill is a SIGKILL to the process
//! at a time that the seed chooses, in the middle of whatever it does. A new server is started when the old process is
//! gone, as a supervisor does it, which on a slow disk is long before its I/O is over.
//! Limits: `ROUNDS_PER_LIFE` kills for one image; every wait has a deadline.

mod plan;

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::format;
pub use super::format::Format;
pub use super::front_end::Tracking;
use super::front_end::{Layout, Session, Shape};
use super::load::Load;
use super::rings::Notification;
use crate::deadline::{Deadline, now, poll_until};
use crate::image;
use crate::process::{Bench, Killer, Program, STOP_LIMIT, Server, is_listening};
use crate::rng::Rng;
use crate::slow_disk::{Delays, SlowDisk};

pub use plan::{Ending, Locking, Medium, Moves, Plan, Rings, Steps, Summary};

/// Kills that one image survives.
const ROUNDS_PER_LIFE: u32 = 5;
const QUEUES: u16 = 4;
/// Requests in flight on each queue.
const SLOTS: u16 = 16;
/// Descriptors of the packed rings: no power of two, and less than all slots can need.
const PACKED_SIZE: u16 = 50;
/// Where files in memory are.
const MEMORY: &str = "/dev/shm";
const SECTORS: u64 = 4096;
/// How long a server may take to serve: the image lock of a dead one holds as long as its I/O.
const START_LIMIT: Duration = Duration::from_secs(40);
/// How long the I/O of the last server may take.
const FINISH_LIMIT: Duration = Duration::from_secs(30);
/// How long a client waits at most before it looks whether there is anything to do.
const WAIT: Duration = Duration::from_millis(20);
/// What tells a server when to kill itself: `STEP:COUNT`.
const FAULT: &str = "RINGLOOM_FAULT";
/// What has a server move rings at random.
const MOVES: &str = "RINGLOOM_MOVES";
/// What it says each time that it has moved a hundred.
const HUNDRED_MOVES: &str = "100 queues were moved at random";
/// What a server says that has taken over.
const HANDED_OVER: &str = "has handed over";
/// The steps of a move.
const MOVE_STEPS: [&str; 2] = ["Departed", "Arrived"];
/// The steps of a request, and of the repair of what a crash has cut.
const STEPS: [&str; 11] = [
    "Popped",
    "Noted",
    "Marked",
    "Staged",
    "BatchLinked",
    "UsedWritten",
    "UsedPublished",
    "MarksCleared",
    "BatchCommitted",
    "Interrupted",
    "BatchRepaired",
];
/// A server that has not come to its step by then is killed.
const STEP_LIMIT: Duration = Duration::from_secs(1);
/// The longest load before a kill, in microseconds.
const LOAD_MICROS_MAX: u64 = 150_000;
/// The time in which most of what a predecessor has left is done again, in microseconds.
const REPLAY_MICROS_MAX: u64 = 4_000;
/// The longest time from the start of a process to a kill that may come before it serves, in microseconds.
const START_MICROS_MAX: u64 = 25_000;

/// Runs a campaign; `tell` gets a line for every life.
pub fn run(program: &Program, plan: &Plan, tell: &mut dyn FnMut(&str)) -> Result<Summary> {
    ensure!(!plan.media.is_empty() && !plan.rings.is_empty(), "a campaign needs a disk and rings");
    let mut summary = Summary::default();
    let mut random = Rng::new(plan.seed);
    let mut index = 0;
    let mut left = plan.rounds;
    while left > 0 {
        let rounds = ROUNDS_PER_LIFE.min(left);
        left -= rounds;
        let form = Form::choose(plan, index, &mut random);
        let life = Life::new(program, plan, form, random.next_u64())?;
        let result = life.live(rounds, &mut summary);
        result.with_context(|| format!("seed {}, life {index}: {form:?}", plan.seed))?;
        summary.lives += 1;
        tell(&format!("life {index}, {form}: {summary}"));
        index += 1;
    }
    ensure!(
        summary.kills == 0 || summary.in_flight > u64::from(summary.kills),
        "too little was in flight at the kills to show anything: {summary}"
    );
    ensure!(
        plan.steps == Steps::Unknown || summary.kills_at_steps > 0,
        "the server knows no steps: it was built without the feature fault-points"
    );
    ensure!(
        plan.moves == Moves::Never || summary.moves > 0,
        "the server moves no rings: it was built without the feature fault-points"
    );
    Ok(summary)
}

/// What differs between lives.
#[derive(Clone, Copy, Debug)]
struct Form {
    medium: Medium,
    layout: Layout,
    notification: Notification,
    aio: &'static str,
}

impl Form {
    /// Layouts and media come in turn, so that a short campaign has them all.
    fn choose(plan: &Plan, index: usize, random: &mut Rng) -> Self {
        let turns = plan.rings.len();
        let layout = match plan.rings[index % turns] {
            Rings::Split => Layout::Split,
            Rings::Packed => Layout::Packed(PACKED_SIZE),
        };
        let medium = plan.media[(index / turns) % plan.media.len()];
        let notification =
            if random.one_in(3) { Notification::Flags } else { Notification::EventIndex };
        let aio = match random.below(6) {
            0 => "native",
            1 => "threads",
            _ => "io_uring",
        };
        Self { medium, layout, notification, aio }
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { medium, layout, notification, aio } = self;
        write!(formatter, "{medium:?} {layout:?} {notification:?} {aio}")
    }
}

/// One image from its making to its end.
struct Life<'a> {
    program: &'a Program,
    plan: &'a Plan,
    arguments: Vec<String>,
    socket: PathBuf,
    /// What is served, or lies on the slow disk that is.
    image: PathBuf,
    load: Load,
    random: Rng,
    /// When the last server was killed, if nothing was completed since.
    killed: Option<Instant>,
    slow: Option<SlowDisk>,
    _memory: Option<TempDir>,
    _bench: Bench,
}

/// What becomes of a server.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// Killed so long after its process was made: perhaps before it serves.
    KilledAtStart(Duration),
    /// Killed so long after it took the client.
    KilledUnderLoad(Duration),
    /// Killed by itself when it comes to this step for the so-many-th time.
    KilledAtStep(&'static str, u64),
    /// Killed so long after it has completed everything that its predecessor had left.
    KilledAfterReplay(Duration),
    /// Stopped in order after so long, with requests waiting in the rings.
    Stopped(Duration),
    /// Stopped in order after so long, with everything completed.
    Finished(Duration),
}

impl<'a> Life<'a> {
    fn new(program: &'a Program, plan: &'a Plan, form: Form, seed: u64) -> Result<Self> {
        let bench = Bench::new()?;
        let (queues, slots) = (QUEUES, SLOTS);
        let data_bytes = Load::data_bytes(queues, slots);
        let Form { layout, notification, .. } = form;
        let tracking = plan.tracking;
        let shape = Shape { queues, slots, layout, notification, data_bytes, tracking };
        let load = Load::new(shape, SECTORS, seed)?;
        let memory = match form.medium {
            Medium::Memory => Some(tempfile::tempdir_in(MEMORY).context("a directory in memory")?),
            Medium::File | Medium::Slow => None,
        };
        let bytes = match &memory {
            Some(memory) => memory.path().join("image"),
            None => bench.path("image"),
        };
        image::create_with(&bytes, &load.first_image())?;
        let image = plan.format.make(&bytes)?;
        let slow = match form.medium {
            Medium::File | Medium::Memory => None,
            Medium::Slow => {
                let delays = Delays { seed, ..Delays::default() };
                plan.format.make_room(&image)?;
                Some(SlowDisk::new(&image, &bench.path("slow"), delays)?)
            }
        };
        let (driver, disk) = match &slow {
            None => ("file", image.clone()),
            Some(slow) => ("host_device", slow.device()),
        };
        let file = format::file(driver, &disk, form.aio, plan.locking);
        let socket = bench.path("s");
        let (objects, iothreads) = match plan.moves {
            Moves::Never => (
                ["iothread,id=t0", "iothread,id=t1"],
                [",iothread=t0", ",iothread.0=t0,iothread.1=t1"][plan.iothreads - 1],
            ),
            Moves::Random => (["iothread-pool,id=p,max=3", "iothread,id=t1"], ",iothread=p"),
        };
        let arguments = [
            "--object".to_owned(),
            objects[0].to_owned(),
            "--object".to_owned(),
            objects[1].to_owned(),
            "--blockdev".to_owned(),
            plan.format.node(&file, &bytes),
            "--export".to_owned(),
            format!(
                "type=vhost-user-blk,id=e,node-name=disk,addr.type=unix,addr.path={},writable=on,num-queues={QUEUES}\
                 {iothreads}",
                socket.display()
            ),
        ];
        let (mut arguments, mut random, killed) = (arguments.to_vec(), Rng::new(seed), None);
        if plan.moves == Moves::Random && random.one_in(2) {
            // Without fences iothreads end and start without an end.
            arguments.extend(["--sandbox".to_owned(), "off".to_owned()]);
        }
        Ok(Self {
            program,
            plan,
            arguments,
            socket,
            image,
            load,
            random,
            killed,
            slow,
            _memory: memory,
            _bench: bench,
        })
    }

    fn live(mut self, rounds: u32, summary: &mut Summary) -> Result<()> {
        for _ in 0..rounds {
            match self.plan.ending {
                Ending::Stops => self.serve_and_stop(summary)?,
                Ending::QuietStops => {
                    let fate = Fate::Finished(self.some_time(LOAD_MICROS_MAX));
                    self.serve(fate, summary)?;
                    summary.stops += 1;
                }
                Ending::Kills => {
                    // Now and then a server goes in order, and its successor starts from what it said.
                    if self.random.one_in(8) {
                        self.serve_and_stop(summary)?;
                    }
                    self.serve_and_kill(summary)?;
                }
            }
        }
        let fate = Fate::Finished(self.some_time(LOAD_MICROS_MAX));
        self.serve(fate, summary)?;
        if let Some(slow) = &self.slow {
            poll_until("the end of all I/O", FINISH_LIMIT, || {
                Ok((slow.in_flight() == 0).then_some(()))
            })?;
        }
        self.load.check_image(&self.plan.format.read(&self.image)?)?;
        summary.verified += self.load.verified();
        Ok(())
    }

    fn serve_and_stop(&mut self, summary: &mut Summary) -> Result<()> {
        let fate = Fate::Stopped(self.some_time(LOAD_MICROS_MAX));
        self.serve(fate, summary)?;
        summary.stops += 1;
        Ok(())
    }

    fn serve_and_kill(&mut self, summary: &mut Summary) -> Result<()> {
        let at_step = self.plan.steps == Steps::Known && self.random.one_in(2);
        let fate = match self.random.below(6) {
            _ if at_step => {
                let moves = self.plan.moves == Moves::Random && self.random.one_in(3);
                let steps = if moves { &MOVE_STEPS[..] } else { &STEPS };
                let step = steps[self.random.index(steps.len())];
                // Once in a while in what the predecessor has left, else under load.
                let most = if step == "BatchRepaired" { 4 } else { 300 };
                Fate::KilledAtStep(step, 1 + self.random.below(most))
            }
            0 => Fate::KilledAtStart(self.some_time(START_MICROS_MAX)),
            1 => Fate::KilledUnderLoad(self.some_time(LOAD_MICROS_MAX)),
            // In the middle of what the predecessor has left.
            2 | 3 => Fate::KilledUnderLoad(self.some_time(REPLAY_MICROS_MAX)),
            _ => Fate::KilledAfterReplay(self.some_time(LOAD_MICROS_MAX)),
        };
        self.serve(fate, summary)?;
        summary.kills += 1;
        summary.in_flight += wide(self.load.in_flight());
        if self.slow.is_none() {
            self.plan.format.check(&self.image).context("after a kill")?;
        }
        // The guest goes on, although nobody listens.
        self.load.answer_calls()?;
        self.load.fill()
    }

    fn some_time(&mut self, micros_max: u64) -> Duration {
        Duration::from_micros(self.random.below(micros_max))
    }

    /// Starts a server and loads it until its fate.
    fn serve(&mut self, fate: Fate, summary: &mut Summary) -> Result<()> {
        let mut program = self.program();
        if let Fate::KilledAtStep(step, count) = fate {
            program = program.with_variable(FAULT, &format!("{step}:{count}"));
        }
        let mut server = program.spawn(&self.arguments)?;
        let result = self.serve_with(&mut server, fate, summary);
        summary.moves += moves_of(&server);
        result.with_context(|| format!("{fate:?}; the server's output: {}", server.log()))
    }

    fn program(&mut self) -> Program {
        let program = self.program.clone();
        match self.plan.moves {
            Moves::Never => program,
            Moves::Random => program.with_variable(MOVES, &self.random.next_u64().to_string()),
        }
    }

    /// Another server takes the place of this one under load, now and then.
    fn take_over(&mut self, server: &mut Server, summary: &mut Summary) -> Result<()> {
        if self.plan.moves == Moves::Never || !self.random.one_in(3) {
            return Ok(());
        }
        let line = [&self.arguments[..], &["--takeover".to_owned()]].concat();
        let mut old = std::mem::replace(server, self.program().spawn(&line)?);
        let deadline = Deadline::after(self.plan.patience);
        while !server.log().contains(HANDED_OVER) {
            self.load_for(WAIT, summary)?;
            ensure!(!deadline.has_passed(), "not taken over: {}\n{}", old.log(), server.log());
        }
        let status = old.wait(STOP_LIMIT)?;
        ensure!(status.success(), "who was taken over ended with {status}: {}", old.log());
        summary.moves += moves_of(&old);
        summary.takeovers += 1;
        Ok(())
    }

    fn serve_with(&mut self, server: &mut Server, fate: Fate, summary: &mut Summary) -> Result<()> {
        let mut killer = if let Fate::KilledAtStart(delay) = fate {
            Some(server.kill_after(delay))
        } else {
            None
        };
        if self.connect(server)? == Session::Ended {
            summary.kills_at_start += 1;
            return self.bury(server, fate, killer, summary);
        }
        match fate {
            Fate::KilledAtStart(_) => {}
            Fate::KilledAtStep(..) => killer = Some(server.kill_after(STEP_LIMIT)),
            Fate::KilledUnderLoad(delay) => killer = Some(server.kill_after(delay)),
            Fate::KilledAfterReplay(delay) => {
                self.replay(summary)?;
                self.take_over(server, summary)?;
                killer = Some(server.kill_after(delay));
            }
            Fate::Stopped(delay) => {
                self.load_for(delay, summary)?;
                self.take_over(server, summary)?;
                return self.stop(server);
            }
            Fate::Finished(delay) => {
                self.replay(summary)?;
                self.take_over(server, summary)?;
                self.load_for(delay, summary)?;
                let session = self.load.finish(self.plan.patience)?;
                ensure!(session == Session::Open, "the server ended the session");
                return self.stop(server).and_then(|()| self.load.check_silence());
            }
        }
        let session =
            self.load_until(summary, Deadline::after(self.plan.patience), |_load| false)?;
        ensure!(session == Session::Ended, "the server survived its kill");
        self.bury(server, fate, killer, summary)
    }

    /// Waits until the server listens, and connects.
    fn connect(&mut self, server: &mut Server) -> Result<Session> {
        let guest = &mut self.load.guest;
        let socket = &self.socket;
        let session = poll_until("the server to listen", START_LIMIT, || {
            if !server.is_alive()? {
                return Ok(Some(Session::Ended));
            }
            if !is_listening(socket)? {
                return Ok(None);
            }
            // Nobody has asked the new server for anything yet.
            let left = self.slow.as_ref().map_or(0, SlowDisk::in_flight);
            ensure!(
                left == 0 || self.plan.locking == Locking::Off,
                "a server serves while {left} requests of a dead one are in flight"
            );
            guest.connect(socket).map(Some)
        })?;
        self.load.next_session();
        Ok(session)
    }

    /// The session has ended; that must have been by a kill.
    fn bury(
        &mut self,
        server: &mut Server,
        fate: Fate,
        killer: Option<Killer>,
        summary: &mut Summary,
    ) -> Result<()> {
        self.load.guest.disconnect();
        let killed = killer.map(Killer::call_off).transpose()?.flatten();
        let killed = match fate {
            Fate::KilledAtStep(..) if killed.is_none() => {
                summary.kills_at_steps += 1;
                now()
            }
            Fate::KilledAtStart(_)
            | Fate::KilledAtStep(..)
            | Fate::KilledUnderLoad(_)
            | Fate::KilledAfterReplay(_)
            | Fate::Stopped(_)
            | Fate::Finished(_) => {
                killed.context("the server ended the session without having been killed")?
            }
        };
        let status = server.wait(STOP_LIMIT)?;
        ensure!(status.signal() == Some(9), "the server ended with {status}");
        summary.outlived += self.slow.as_ref().map_or(0, |slow| wide(slow.in_flight()));
        self.killed.get_or_insert(killed);
        Ok(())
    }

    /// Loads until everything is completed that was in flight when the session began.
    fn replay(&mut self, summary: &mut Summary) -> Result<()> {
        let deadline = Deadline::after(self.plan.patience);
        let session = self.load_until(summary, deadline, Load::has_replayed)?;
        ensure!(session == Session::Open, "the server ended the session");
        let done = self.load.has_replayed();
        let patience = self.plan.patience;
        ensure!(done, "after {patience:?} of one session: {}", self.load.missing());
        Ok(())
    }

    fn load_for(&mut self, time: Duration, summary: &mut Summary) -> Result<()> {
        let session = self.load_until(summary, Deadline::after(time), |_load| false)?;
        ensure!(session == Session::Open, "the server ended the session");
        Ok(())
    }

    /// Keeps the rings full until the session ends, the deadline passes, or enough is done.
    fn load_until(
        &mut self,
        summary: &mut Summary,
        deadline: Deadline,
        enough: impl Fn(&Load) -> bool,
    ) -> Result<Session> {
        loop {
            self.load.fill()?;
            let session = self.load.guest.wait(WAIT)?;
            let before = self.load.verified();
            self.load.answer_calls()?;
            if self.load.verified() > before
                && let Some(killed) = self.killed.take()
            {
                let pause = now().saturating_duration_since(killed);
                summary.pause_max = summary.pause_max.max(pause);
            }
            if session == Session::Ended || enough(&self.load) || deadline.has_passed() {
                return Ok(session);
            }
        }
    }

    /// Stops the rings, hangs up and has the server exit.
    fn stop(&mut self, server: &mut Server) -> Result<()> {
        let session = self.load.guest.stop()?;
        ensure!(session == Session::Open, "the server ended the session");
        self.load.guest.disconnect();
        server.stop().map(drop)
    }
}

/// How many rings a server says to have moved.
fn moves_of(server: &Server) -> u64 {
    100 * wide(server.log().matches(HUNDRED_MOVES).count())
}

fn wide(value: usize) -> u64 {
    u64::try_from(value).expect("a usize fits 64 bits")
}
