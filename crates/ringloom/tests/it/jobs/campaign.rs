//! Random jobs on random chains, under a client that knows what each completed write was: jobs end well, are cancelled, have
//! targets that fail, the daemon is killed, or the power is cut.
//!
//! `RINGLOOM_JOB_ROUNDS` says how many rounds (`cargo xtask jobs --rounds N`), `RINGLOOM_JOB_SEED` repeats the choices of a
//! run, not how threads interleave.

use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use testkit::client::RingLayout;
use testkit::deadline::{Deadline, poll_until};
use testkit::fuse_faults::FaultDisk;
use testkit::image;
use testkit::process::{Bench, START_LIMIT, Server};
use testkit::qmp::QmpClient;
use testkit::rawring::{Collected, Survivor};
use testkit::report::note;
use testkit::rng::Rng;

use crate::control::{monitor, monitor_socket};
use crate::support::{qemu_img, ringloom, stop};

const ROUNDS: u64 = 16;
const SEED: u64 = 0x22;
const QUEUES: u16 = 2;

/// The longest chain of images.
const CHAIN_MAX: u64 = 4;

/// The latest time of a kill after a job has begun.
const KILL_MAX_MS: u64 = 120;

/// The directory of a disk whose power is cut.
const POWER: &str = "power/";

/// A client has no request in flight any more by then.
const REST_LIMIT: Duration = Duration::from_secs(20);

/// A daemon that was killed is gone by then.
const GONE_LIMIT: Duration = Duration::from_secs(20);

/// How a round goes on once its job has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// The job ends with its result.
    Complete,
    /// It leaves the target as the source is.
    Keep,
    /// It is cancelled.
    Cancel,
    /// The daemon is killed.
    Kill,
    /// It is killed, and what it had not made durable is lost in part. Its client does not flush.
    PowerCut,
}

/// One round: a chain, and a job on it.
struct Round {
    bench: Bench,
    /// The images, the uppermost first; one raw file if there is one only.
    images: Vec<String>,
    course: Course,
    rng: Rng,
    /// Where the files are, if the power is to be cut; then their names begin with [`POWER`].
    power: Option<FaultDisk>,
    /// What a disk was when a backup began, and its target.
    instant: Option<(Vec<u8>, &'static str)>,
    /// A server of a target that fails now and then.
    peer: Option<Child>,
}

impl Drop for Round {
    fn drop(&mut self) {
        if let Some(peer) = &mut self.peer {
            // It may have ended by itself.
            let _gone = peer.kill();
            let _reaped = peer.wait();
        }
    }
}

fn bytes() -> u64 {
    Survivor::disk_bytes(QUEUES)
}

impl Round {
    fn new(seed: u64) -> Result<Self> {
        let (bench, mut rng) = (Bench::new()?, Rng::new(seed));
        let course = match rng.below(8) {
            0 => Course::Keep,
            1 => Course::Cancel,
            2 | 3 => Course::Kill,
            4 | 5 if FaultDisk::missing().is_none() => Course::PowerCut,
            _ => Course::Complete,
        };
        let is_cut = course == Course::PowerCut;
        let power = is_cut.then(|| FaultDisk::mount_empty(&bench.path(POWER))).transpose()?;
        let count = 1 + rng.below(CHAIN_MAX);
        let images = (0..count).rev().map(|number| format!("c{number}")).collect();
        let round = Self { bench, images, course, rng, power, instant: None, peer: None };
        round.make_raw("c0")?;
        for pair in round.images.windows(2).rev() {
            let [name, below] = pair else { bail!("a pair") };
            let (format, file) = (if below == "c0" { "raw" } else { "qcow2" }, round.file(name));
            qemu_img(&round.bench, &format!("create -q -f qcow2 -b {below} -F {format} {file}"))?;
        }
        Ok(round)
    }

    /// The file of an image, inside the bench.
    fn file(&self, name: &str) -> String {
        // What a server has is of another machine.
        let is_there = self.power.is_some() && !(name == "raw" && self.peer.is_some());
        format!("{}{name}", if is_there { POWER } else { "" })
    }

    /// A durable file of zeroes.
    fn make_raw(&self, name: &str) -> Result<()> {
        let path = self.bench.path(&self.file(name));
        image::create_sparse(&path, bytes())?;
        Ok(std::fs::File::open(path)?.sync_all()?)
    }

    fn node(&self, name: &str, backing: Option<&str>) -> Value {
        let file = json!({
            "driver": "file", "filename": self.bench.text(&self.file(name)), "discard": "unmap", "read-only": false,
        });
        if name == "c0" || name == "raw" {
            let mut node = file;
            node["node-name"] = name.into();
            return node;
        }
        json!({
            "driver": "qcow2", "node-name": name, "file": file, "backing": backing, "discard": "unmap",
        })
    }

    fn serve(&self) -> Result<Server> {
        let state = ["--state".to_owned(), self.bench.text(&self.file("state"))];
        let mut arguments = [monitor(&self.bench), state.to_vec()].concat();
        for id in ["t0", "t1"] {
            arguments.extend(["--object".to_owned(), format!("iothread,id={id}")]);
        }
        let mut below = None;
        for name in self.images.iter().rev() {
            arguments.extend(["--blockdev".to_owned(), self.node(name, below).to_string()]);
            below = Some(name);
        }
        // What commands may connect to is below the directory.
        arguments.extend(["--allow-connect".to_owned(), "127.0.0.1:1".to_owned()]);
        let export = format!(
            "vhost-user-blk,id=e,node-name={},writable=on,addr.type=unix,addr.path={},num-queues={QUEUES},\
             iothread.0=t0,iothread.1=t1",
            self.images[0],
            self.bench.text("e.sock")
        );
        arguments.extend(["--export".to_owned(), export]);
        let sockets = [self.bench.path("e.sock"), monitor_socket(&self.bench)];
        ringloom().start(&arguments, &sockets)
    }

    /// A target for a mirror: a node that is added, and whether it is one that may become what is served.
    fn target(&mut self) -> Result<Value> {
        match self.rng.below(4) {
            0 | 1 => {
                self.make_raw("raw")?;
                Ok(self.node("raw", None))
            }
            2 => {
                let file = self.file("new");
                qemu_img(&self.bench, &format!("create -q -f qcow2 {file} {}", bytes()))?;
                Ok(self.node("new", None))
            }
            _ => self.failing_target(),
        }
    }

    /// A disk of an NBD server that fails now and then, and keeps what it is sent in a file.
    fn failing_target(&mut self) -> Result<Value> {
        image::create_sparse(&self.bench.path("raw"), bytes())?;
        let socket = self.bench.text("nbd.sock");
        let arguments = [
            "-f",
            "-U",
            &socket,
            "--filter=error",
            "file",
            &self.bench.text("raw"),
            "error-pwrite-rate=10%",
            "error-zero-rate=10%",
            "error=EIO",
        ];
        self.peer = Some(Command::new("nbdkit").args(arguments).spawn().context("nbdkit")?);
        poll_until("nbdkit", START_LIMIT, || Ok(Path::new(&socket).exists().then_some(())))?;
        let server = json!({"type": "unix", "path": socket});
        Ok(json!({"driver": "nbd", "node-name": "raw", "server": server, "discard": "unmap"}))
    }

    /// The commands that begin a job; whether it is one that waits to be completed.
    fn job(&mut self) -> Result<(Vec<(&'static str, Value)>, bool)> {
        let last = self.images.len() - 1;
        let kind = if last == 0 { [0, 4][self.rng.index(2)] } else { self.rng.below(5) };
        let speed = [0, 0, 1 << 20][self.rng.index(3)];
        match kind {
            0 | 1 => {
                let target = self.target()?;
                let is_failing = self.peer.is_some();
                let policy = if is_failing {
                    ["report", "ignore", "stop"][self.rng.index(3)]
                } else {
                    "report"
                };
                let mode = ["background", "write-blocking"][self.rng.index(2)];
                let mirror = json!({
                    "job-id": "j", "device": self.images[0], "target": target["node-name"], "sync": "full",
                    "copy-mode": mode, "speed": speed, "on-target-error": policy, "granularity": 4096,
                    "auto-dismiss": false,
                });
                Ok((vec![("blockdev-add", target), ("blockdev-mirror", mirror)], true))
            }
            2 => {
                let top = self.rng.index(last);
                let base = top + 1 + self.rng.index(last - top);
                let commit = json!({
                    "job-id": "j", "device": self.images[0], "top-node": self.images[top],
                    "base-node": self.images[base], "speed": speed, "auto-dismiss": false,
                });
                Ok((vec![("block-commit", commit)], top == 0))
            }
            3 => {
                let top = self.rng.index(last);
                let mut stream = json!({
                    "job-id": "j", "device": self.images[top], "speed": speed, "auto-dismiss": false,
                });
                let base = top + 1 + self.rng.index(last - top);
                if self.rng.below(2) == 0 {
                    stream["base-node"] = self.images[base].clone().into();
                }
                Ok((vec![("block-stream", stream)], false))
            }
            _ => {
                let target = self.target()?;
                let policy = if self.peer.is_some() { "ignore" } else { "report" };
                let backup = json!({
                    "job-id": "j", "device": self.images[0], "target": target["node-name"], "sync": "full",
                    "speed": speed, "on-target-error": policy, "on-cbw-error": "break-snapshot",
                    "auto-dismiss": false,
                });
                Ok((vec![("blockdev-add", target), ("blockdev-backup", backup)], false))
            }
        }
    }

    /// Carries the job out beside a client; what the client wrote is there afterwards, and on a target that was to be kept
    /// what it had written when that was asked for.
    fn run(mut self) -> Result<String> {
        let server = self.serve()?;
        let connect = match self.power {
            Some(_) => Survivor::connect_write_through,
            None => Survivor::connect,
        };
        let mut client = connect(&self.bench.path("e.sock"), RingLayout::Split, QUEUES)?;
        let (commands, is_completed) = self.job()?;
        let what = format!("{:?} of {:?}: {commands:?}", self.course, self.images);
        self.carry_out(server, &mut client, &commands, is_completed).context(what.clone())?;
        Ok(what)
    }

    fn carry_out(
        &mut self,
        mut server: Server,
        client: &mut Survivor,
        commands: &[(&'static str, Value)],
        is_completed: bool,
    ) -> Result<()> {
        let mut rng = Rng::new(self.rng.below(u64::MAX));
        for _ in 0..4 {
            client.submit(&mut rng)?;
            ensure!(client.collect()? != Collected::Gone, "gone before the job: {}", server.log());
        }
        let mut qmp = QmpClient::connect(&monitor_socket(&self.bench))?;
        self.begin(&mut qmp, client, commands)?;
        let killer = matches!(self.course, Course::Kill | Course::PowerCut)
            .then(|| server.kill_after(Duration::from_millis(self.rng.below(KILL_MAX_MS))));
        let ended = self.go_on(&mut qmp, client, &mut rng, is_completed)?;
        if ended.is_err() {
            self.instant = None;
        }
        if let Some(killer) = killer {
            killer.wait()?;
            server.wait(GONE_LIMIT)?;
            if let Some(disk) = &self.power {
                disk.cut_power(&mut rng);
            }
            server = self.serve().context("started again")?;
            client.reconnect()?;
            qmp = QmpClient::connect(&monitor_socket(&self.bench))?;
        } else if let Err(error) = ended {
            // Only what was made to fail may.
            ensure!(self.peer.is_some(), "{error:#}: {}", server.log());
        }
        client.drain().with_context(|| format!("log: {}", server.log()))?;
        if self.course == Course::Keep && is_completed {
            self.keep(&mut qmp, client)?;
        }
        for _ in 0..4 {
            client.submit(&mut rng)?;
            ensure!(client.collect()? != Collected::Gone, "gone after the job: {}", server.log());
        }
        client.drain()?;
        let root = root(&mut qmp)?;
        drop(qmp);
        let log = stop(server, &[&self.bench.path("e.sock")])?;
        ensure!(!log.contains("panicked"), "{log}");
        self.judge(&root, &client.expected()).context(log)
    }

    /// Has the job begin.
    fn begin(
        &mut self,
        qmp: &mut QmpClient,
        client: &mut Survivor,
        commands: &[(&'static str, Value)],
    ) -> Result<()> {
        for (command, arguments) in commands {
            if *command == "blockdev-backup" {
                client.drain()?;
                let target = if arguments["target"] == "new" { "new" } else { "raw" };
                self.instant = Some((client.expected(), target));
            }
            qmp.execute(command, arguments)?;
        }
        Ok(())
    }

    /// Has the client write until the job has ended as it should, or the daemon is gone; gives how the job has ended. Now and
    /// then the client rests before a switch, so that nothing that it writes later makes durable what the switch has left.
    fn go_on(
        &self,
        qmp: &mut QmpClient,
        client: &mut Survivor,
        rng: &mut Rng,
        is_completed: bool,
    ) -> Result<Result<()>> {
        let (course, rests) = (self.course, rng.one_in(2));
        let (is_over, has_rested) = (AtomicBool::new(false), AtomicBool::new(false));
        // Nobody goes on on a disk that fails.
        let completes = self.peer.is_none()
            && matches!(course, Course::Complete | Course::Kill | Course::PowerCut);
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let result = if is_completed { wait_ready(qmp) } else { wait_end(qmp) };
                if rests && result.is_ok() {
                    is_over.store(true, Ordering::Relaxed);
                    poll_until("a client that rests", REST_LIMIT, || {
                        Ok(has_rested.load(Ordering::Acquire).then_some(()))
                    })?;
                }
                let result = match (result, is_completed) {
                    (Ok(()), true) if completes => complete(qmp),
                    (Ok(()), true) if course == Course::Cancel => {
                        qmp.ask("job-cancel", &json!({"id": "j"})).map(drop)
                    }
                    (result, _) => result,
                };
                is_over.store(true, Ordering::Relaxed);
                result
            });
            while !is_over.load(Ordering::Relaxed) {
                client.submit(rng)?;
                if client.collect()? == Collected::Gone {
                    break;
                }
            }
            while rests && client.in_flight() > 0 && client.collect()? != Collected::Gone {}
            has_rested.store(true, Ordering::Release);
            Ok(asking.join().expect("it does not panic"))
        })
    }

    /// What is served has all completed writes, and a backup what was there when it began.
    fn judge(&self, root: &str, expected: &[u8]) -> Result<()> {
        let found = self.content(root)?;
        ensure!(found[..expected.len()] == *expected, "{root} lacks completed writes");
        if let Some((instant, target)) = &self.instant {
            let found = self.content(target)?;
            let is_equal = found[..instant.len()] == instant[..];
            ensure!(is_equal, "{target} is not what the disk was when the backup began");
        }
        Ok(())
    }

    /// Has the target of a mirror keep what it has, while the client waits.
    fn keep(&mut self, qmp: &mut QmpClient, client: &Survivor) -> Result<()> {
        let jobs = qmp.execute("query-jobs", &json!({}))?;
        if jobs[0]["status"] != "ready" {
            return Ok(());
        }
        qmp.execute("block-job-cancel", &json!({"device": "j"}))?;
        let ended = wait_end(qmp);
        let commit = jobs[0]["type"] == "commit";
        if ended.is_err() || commit {
            ensure!(ended.is_ok() || self.peer.is_some(), "{ended:?}");
            return Ok(());
        }
        let has_new = self.bench.path(&self.file("new")).exists();
        let name = if has_new { "new" } else { "raw" };
        let expected = client.expected();
        let node = if self.peer.is_some() { None } else { Some(name) };
        if let Some(node) = node {
            qmp.execute("blockdev-del", &json!({"node-name": node}))?;
        }
        let found = self.content(name)?;
        ensure!(found[..expected.len()] == expected[..], "the target is not what the source was");
        Ok(())
    }

    /// What an image shows, by the names that headers have.
    fn content(&self, name: &str) -> Result<Vec<u8>> {
        if name == "c0" || name == "raw" {
            return Ok(std::fs::read(self.bench.path(&self.file(name)))?);
        }
        // A killed daemon leaks clusters at worst.
        let file = self.file(name);
        qemu_img(&self.bench, &format!("check -q -f qcow2 -r leaks {file}"))?;
        qemu_img(&self.bench, &format!("convert -f qcow2 -O raw {file} flat"))?;
        Ok(std::fs::read(self.bench.path("flat"))?)
    }
}

fn root(qmp: &mut QmpClient) -> Result<String> {
    let exports = qmp.execute("query-block-exports", &json!({}))?;
    Ok(exports[0]["node-name"].as_str().context("an export")?.to_owned())
}

/// Where a job is, with its error; `None` if it is gone.
fn status(qmp: &mut QmpClient) -> Result<Option<(String, Option<String>)>> {
    let jobs = qmp.execute("query-jobs", &json!({}))?;
    let text = |key: &str| jobs[0][key].as_str().map(str::to_owned);
    Ok(text("status").map(|status| (status, text("error"))))
}

/// Waits for a job to be in one of these states; one that rests after an error goes on, and one that is slower than what its
/// client writes loses its limit.
fn wait_for(qmp: &mut QmpClient, states: &[&str]) -> Result<()> {
    let deadline = Deadline::after(Duration::from_secs(60));
    let slow = Deadline::after(Duration::from_secs(2));
    loop {
        if slow.has_passed() {
            qmp.ask("block-job-set-speed", &json!({"device": "j", "speed": 0}))?;
        }
        match status(qmp)? {
            None => bail!("the job is gone"),
            Some((_, Some(error))) => bail!("the job has failed: {error}"),
            Some((state, None)) if states.contains(&state.as_str()) => return Ok(()),
            Some((state, None)) if state == "paused" || state == "standby" => {
                // It may go on by itself meanwhile.
                qmp.ask("job-resume", &json!({"id": "j"}))?;
            }
            Some((state, None)) => ensure!(!deadline.remaining().is_zero(), "the job is {state}"),
        }
    }
}

fn wait_ready(qmp: &mut QmpClient) -> Result<()> {
    wait_for(qmp, &["ready"])
}

fn wait_end(qmp: &mut QmpClient) -> Result<()> {
    wait_for(qmp, &["concluded"])
}

fn complete(qmp: &mut QmpClient) -> Result<()> {
    let answer = qmp.ask("job-complete", &json!({"id": "j"}))?;
    ensure!(answer.get("return").is_some(), "{answer}");
    wait_end(qmp)
}

/// A number that a variable of the environment has.
pub(super) fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

#[test]
fn nothing_is_lost_whatever_becomes_of_a_job() {
    let rounds = number_from("RINGLOOM_JOB_ROUNDS", ROUNDS);
    let seed = number_from("RINGLOOM_JOB_SEED", SEED);
    for round in 0..rounds {
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(round);
        match Round::new(seed).and_then(Round::run) {
            Ok(what) => note(&format!("round {round}: {what}")),
            Err(error) => panic!("round {round} of {rounds}, seed {seed}: {error:#}"),
        }
    }
}
