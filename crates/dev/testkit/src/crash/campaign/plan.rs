//! What a campaign of crashes does, and what happened in it.

use std::time::Duration;

use super::super::format::Format;
use super::super::front_end::Tracking;

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A file.
    File,
    /// A file in memory, which completes everything at once: most kills hit the server at its own work.
    Memory,
    /// A disk whose I/O outlives the process (`slow_disk`). Needs root.
    Slow,
}

/// How the rings are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rings {
    /// Split rings.
    Split,
    /// Packed rings, whose size is no power of two.
    Packed,
}

/// How servers end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Most are killed, some are stopped in order.
    Kills,
    /// All are stopped in order, with requests waiting in the rings.
    Stops,
    /// All are stopped in order, once everything is completed: qemu-storage-daemon 10.0 answers GET_VRING_BASE while
    /// its requests still run.
    QuietStops,
}

/// Whether the image is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    /// As the server does it if nothing is said: a server that serves has waited for the I/O of a dead one.
    Usual,
    /// `locking=off`: the I/O of a dead server may come later than its successor's.
    Off,
}

/// Whether the server knows the steps at which a crash is tried out (feature `fault-points`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// It does not: it is only killed from outside, which seldom hits the few nanoseconds between two steps.
    Unknown,
    /// It does, and half of the kills are at such steps.
    Known,
}

/// Where the rings are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// They stay where they begin.
    Never,
    /// On a pool of iothreads which moves half of them every few milliseconds and starts and ends iothreads (feature
    /// `fault-points`); now and then another server takes over under load.
    Random,
}

/// What a campaign does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How often the server is ended.
    pub rounds: u32,
    /// Decides everything but the interleaving of the processes.
    pub seed: u64,
    /// What the disks are, in turn.
    pub media: Vec<Medium>,
    /// What they lie in.
    pub format: Format,
    /// What the rings are, in turn.
    pub rings: Vec<Rings>,
    /// How the servers end.
    pub ending: Ending,
    /// Whether the servers are given an in-flight region.
    pub tracking: Tracking,
    /// Iothreads that serve the rings, 1 or 2; qemu-storage-daemon takes one.
    pub iothreads: usize,
    /// Whether the image is locked by the server.
    pub locking: Locking,
    /// How long a request may take after a restart.
    pub patience: Duration,
    /// Whether some servers kill themselves at a step of a request.
    pub steps: Steps,
    /// Whether rings are moved.
    pub moves: Moves,
}

impl Plan {
    /// What `cargo xtask crash` does on files.
    pub fn new(rounds: u32, seed: u64) -> Self {
        Self {
            rounds,
            seed,
            media: vec![Medium::File],
            format: Format::Raw,
            rings: vec![Rings::Split, Rings::Packed],
            ending: Ending::Kills,
            tracking: Tracking::Region,
            iothreads: 2,
            locking: Locking::Usual,
            patience: Duration::from_secs(30),
            steps: Steps::Unknown,
            moves: Moves::Never,
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Lives whose end was as it had to be.
    pub lives: u32,
    /// Kills.
    pub kills: u32,
    /// Kills before the server served its client.
    pub kills_at_start: u32,
    /// Kills by the server itself, at a step of a request.
    pub kills_at_steps: u32,
    /// Servers that were stopped in order instead.
    pub stops: u32,
    /// Servers whose place another one took under load.
    pub takeovers: u32,
    /// Moves of rings, at least.
    pub moves: u64,
    /// Requests that were completed and checked.
    pub verified: u64,
    /// Requests that were in flight at the kills, all together.
    pub in_flight: u64,
    /// Requests that were in flight in the kernel when a process was gone (slow disks).
    pub outlived: u64,
    /// The longest time from a kill to the next completion.
    pub pause_max: Duration,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "{} kills ({} before the client was served, {} at a step), {} orderly stops and {} takeovers in {} lives, {} moves of rings; \
             {} requests verified; {} in flight at the kills, {} of them on the disk when the process was gone; longest pause {} ms",
            self.kills,
            self.kills_at_start,
            self.kills_at_steps,
            self.stops,
            self.takeovers,
            self.lives,
            self.moves,
            self.verified,
            self.in_flight,
            self.outlived,
            self.pause_max.as_millis()
        )
    }
}
