//! Who runs the daemon: replaces it by new ones that go well, hang, die or have another line, kills it, and starts it again.
//!
//! Invariants: it alone has the processes. A kill of the process that serves, or that may serve, stands in a gap
//! (`Service`), so nobody takes the rig's own doing for the daemon's. Whatever happens, one process serves afterwards.
//! Threads: the campaign's own.
//! Limits: each wait has one of the limits below.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::STALL_MAX;
use super::disks::Disks;
use super::service::Service;
use super::watch::Bounds;
use crate::deadline::{Deadline, now, pause, poll_until};
use crate::process::{Program, Server, Signal};
use crate::rng::Rng;

/// The words of a new process when the old one has handed over.
const HANDED_OVER: &str = "has handed over";
/// How long a takeover may take, with attackers beside it.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(60);
/// How long a successor stands still at least.
const STOPPED: Duration = Duration::from_secs(1);
/// How long clients may wait until the old process goes on without a successor that stands still: five seconds for the
/// successor to be ready, and the rest for its end and for a busy machine.
const STOPPED_STALL_MAX: Duration = Duration::from_secs(8);
/// The longest time from the start of a new process to whatever ends or stops it: 2 to this, in microseconds.
const MOMENT_BITS_MAX: u64 = 20;
/// How long a daemon may take that is asked to end, and one that is killed.
const END_LIMIT: Duration = Duration::from_secs(10);

/// What can happen to a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new process takes over.
    Upgrade,
    /// A new process is stopped (SIGSTOP) at some moment (finding 2).
    StoppedUpgrade,
    /// A new process is killed at some moment (finding 2).
    KilledUpgrade,
    /// A new process has a line that serves other bytes (finding 11).
    WrongUpgrade,
    /// The daemon is killed, and started again.
    Kill,
}

/// All of them.
pub const EVENTS: [Event; 5] =
    [Event::Upgrade, Event::StoppedUpgrade, Event::KilledUpgrade, Event::WrongUpgrade, Event::Kill];

/// What has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Successors that took over.
    pub upgrades: u32,
    /// Successors that the daemon has sent away, as it may.
    pub refused: u32,
    /// Successors that were stopped or killed before they served: the old one went on.
    pub survived: u32,
    /// Successors that were stopped or killed, and served by then.
    pub too_late: u32,
    /// Lines that were found to be wrong.
    pub wrong_lines: u32,
    /// Daemons that were killed.
    pub kills: u32,
}

/// The one who runs the daemon.
#[derive(Debug)]
pub(super) struct Operator<'a> {
    program: &'a Program,
    disks: &'a Disks,
    bounds: Bounds,
    server: Server,
    /// Since when the log of the server grows.
    since: Instant,
    events: Events,
}

impl<'a> Operator<'a> {
    pub(super) fn start(program: &'a Program, disks: &'a Disks, bounds: Bounds) -> Result<Self> {
        let server = program.start(&disks.line(), &disks.sockets())?;
        let events = Events::default();
        Ok(Self { program, disks, bounds, server, since: now(), events })
    }

    pub(super) fn process(&self) -> u32 {
        self.server.pid()
    }

    pub(super) fn events(&self) -> Events {
        self.events
    }

    /// What the daemon has said, its end.
    pub(super) fn log(&self) -> String {
        let log = self.server.log();
        let start = log.len().saturating_sub(4000);
        log.get(start..).unwrap_or(&log).to_owned()
    }

    /// Whether the daemon is well, as far as its operator sees.
    pub(super) fn look(&mut self, service: &Service) -> Result<()> {
        ensure!(self.server.is_alive()?, "the daemon has ended by itself");
        service.judge()?;
        let (lines, seconds) = (self.server.log_lines(), self.since.elapsed().as_secs());
        let most = self.bounds.lines + seconds * self.bounds.lines_per_second;
        ensure!(lines <= most, "the daemon wrote {lines} lines in {seconds} s");
        Ok(())
    }

    /// Has something happen; what is to be told of it.
    pub(super) fn act(
        &mut self,
        event: Event,
        service: &Service,
        progress: &dyn Fn() -> u64,
        rng: &mut Rng,
    ) -> Result<Option<String>> {
        match event {
            Event::Upgrade => self.upgrade(service),
            Event::WrongUpgrade => self.wrong_upgrade(rng).map(|()| None),
            Event::StoppedUpgrade => {
                self.cut_short(Cut::Stopped, service, progress, rng).map(|()| None)
            }
            Event::KilledUpgrade => {
                self.cut_short(Cut::Killed, service, progress, rng).map(|()| None)
            }
            Event::Kill => self.kill(service).map(|()| None),
        }
        .with_context(|| format!("{event:?}"))
    }

    fn spawn(&self, line: &[String]) -> Result<Server> {
        let line: Vec<String> =
            std::iter::once("--takeover".to_owned()).chain(line.iter().cloned()).collect();
        self.program.spawn(&line)
    }

    /// An upgrade as it should be; what the new process says if it is refused.
    fn upgrade(&mut self, service: &Service) -> Result<Option<String>> {
        let mut new = self.spawn(&self.disks.line())?;
        if !takes_over(&mut new)? {
            // A guest that migrates, whose session ends just then, or whose disk hangs, may keep the daemon from it.
            let log = new.log();
            let may = ["migrated", "not finished within", "ended meanwhile"];
            ensure!(may.iter().any(|it| log.contains(it)), "an upgrade failed: {log}");
            self.events.refused += 1;
            let last = log.lines().last().unwrap_or_default();
            return Ok(Some(last.to_owned()));
        }
        self.replace(new, service)?;
        self.events.upgrades += 1;
        Ok(None)
    }

    /// The new process serves; the old one leaves in good order.
    fn replace(&mut self, new: Server, service: &Service) -> Result<()> {
        service.taken_over(new.pid());
        let mut old = std::mem::replace(&mut self.server, new);
        self.since = now();
        let status = old.wait(END_LIMIT)?;
        ensure!(status.code() == Some(0), "the old process ended with {status}: {}", old.log());
        Ok(())
    }

    /// A line under which a bystander's disk has other bytes.
    fn wrong_upgrade(&mut self, rng: &mut Rng) -> Result<()> {
        let mut new = self.spawn(&self.disks.wrong_line(rng.next_u64()))?;
        ensure!(!takes_over(&mut new)?, "other bytes were taken over: {}", new.log());
        let status = new.wait(END_LIMIT)?;
        ensure!(!status.success(), "a wrong line left with {status}: {}", new.log());
        self.events.wrong_lines += 1;
        Ok(())
    }

    /// A successor is stopped or killed at some moment: either it serves by then, or the old one goes on.
    fn cut_short(
        &mut self,
        cut: Cut,
        service: &Service,
        progress: &dyn Fn() -> u64,
        rng: &mut Rng,
    ) -> Result<()> {
        let mut new = self.spawn(&self.disks.line())?;
        // As often in the first milliseconds as in the last hundreds.
        let most = 1 << (10 + rng.below(MOMENT_BITS_MAX - 9));
        pause(Duration::from_micros(rng.below(most)));
        service.open_gap();
        let hit = match cut {
            Cut::Killed => new.kill(),
            Cut::Stopped => new.freeze(),
        };
        if let Err(error) = hit {
            // It was sent away before it could be hit.
            ensure!(cut == Cut::Killed || !new.is_alive()?, "{error:#}");
            service.withdraw_gap();
            self.events.refused += 1;
            return Ok(());
        }
        let (before, moment) = (progress(), Deadline::after(STOPPED));
        let limit = match cut {
            Cut::Stopped => STOPPED_STALL_MAX,
            Cut::Killed => STALL_MAX,
        };
        let old_ended = poll_until("the old process to go on or to end", limit, || {
            if !self.server.is_alive()? {
                return Ok(Some(true));
            }
            // Whoever was served before the cut may still get an answer or two of it.
            let goes_on = progress() > before + 3;
            let is_late = cut == Cut::Killed || moment.has_passed();
            Ok((goes_on && is_late).then_some(false))
        })?;
        match (old_ended, cut) {
            (true, Cut::Stopped) => {
                new.signal(Signal::CONT)?;
                poll_until("the successor to go on", TAKEOVER_LIMIT, || {
                    Ok((progress() > before + 3).then_some(()))
                })
                .with_context(|| format!("new: {}", new.log()))?;
                self.replace(new, service)?;
                service.close_gap();
                self.events.too_late += 1;
            }
            (true, Cut::Killed) => {
                let status = self.server.wait(END_LIMIT)?;
                ensure!(status.code() == Some(0), "the old process ended with {status}");
                self.start_again(service)?;
                self.events.too_late += 1;
            }
            (false, Cut::Killed) => {
                service.withdraw_gap();
                self.events.survived += 1;
            }
            (false, Cut::Stopped) => {
                // How long it took is known.
                service.close_gap();
                self.events.survived += 1;
                if new.is_alive()? {
                    new.kill()?;
                }
            }
        }
        Ok(())
    }

    /// The daemon is killed under attack: it must be gone, whatever it is doing.
    fn kill(&mut self, service: &Service) -> Result<()> {
        service.open_gap();
        self.server.signal(Signal::KILL)?;
        self.server.wait(END_LIMIT).context("after SIGKILL")?;
        self.events.kills += 1;
        self.start_again(service)
    }

    fn start_again(&mut self, service: &Service) -> Result<()> {
        self.server = self.program.start(&self.disks.line(), &self.disks.sockets())?;
        self.since = now();
        service.started(self.server.pid());
        Ok(())
    }

    /// Stops all threads of the daemon for so long, without a word to anybody.
    pub(super) fn stall(&self, time: Duration) -> Result<()> {
        self.server.freeze()?;
        pause(time);
        self.server.signal(Signal::CONT)
    }

    /// Kills the daemon without a word to anybody.
    pub(super) fn betray(&self) -> Result<()> {
        self.server.signal(Signal::KILL)
    }

    /// Ends the daemon of a campaign that has failed, so that nobody waits for it.
    pub(super) fn abandon(&self) {
        // An error means that it has ended, which is what is wanted.
        drop(self.server.signal(Signal::KILL));
    }

    /// Asks the daemon to end, whose clients are still there.
    pub(super) fn end(&mut self, service: &Service) -> Result<()> {
        self.look(service)?;
        service.open_gap();
        self.server.signal(Signal::TERM)?;
        let status = self.server.wait(END_LIMIT).context("after SIGTERM")?;
        if status.code() != Some(0) {
            bail!("the daemon left with {status}: {}", self.log());
        }
        Ok(())
    }
}

/// Whether a successor serves in the end, or has ended instead.
fn takes_over(new: &mut Server) -> Result<bool> {
    let waited = poll_until("the takeover", TAKEOVER_LIMIT, || {
        if new.log().contains(HANDED_OVER) {
            return Ok(Some(true));
        }
        if new.is_alive()? {
            return Ok(None);
        }
        // Whatever it said has been read then.
        new.wait(END_LIMIT)?;
        Ok(Some(new.log().contains(HANDED_OVER)))
    });
    waited.with_context(|| format!("new: {}", new.log()))
}

/// What befalls a successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Stopped,
    Killed,
}
