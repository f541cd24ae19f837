//! `cargo xtask cluster`: a Kubernetes of two nodes with local volumes and KubeVirt on this machine, for tests that need a real one.
//!
//! Everything runs in mount, process, network and host name namespaces of its own below one process, `serve`; killing
//! that ends all. `up` prepares and starts it, `test` tries what others build on, `down` ends it and looks that this
//! machine is as it was.
//!
//! Invariants: nothing is installed into this machine; all files are below `target/cluster`, what is made at run time
//! below `target/cluster/run`. Limits: one cluster at a time for a checkout.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command line tool talks to its user on the terminal")]

mod bring_up;
mod certificates;
mod clock;
mod contents;
mod control_plane;
mod domain;
mod forward;
mod handler;
mod host;
mod image;
mod images;
mod kubectl;
mod kubevirt;
mod namespace;
mod node;
mod packages;
mod place;
mod programs;
mod run;
mod running;
mod serve;
mod smoke;
mod volumes;

use anyhow::Result;
use clap::Parser;

use crate::place::Place;

/// A Kubernetes of two nodes with KubeVirt for tests, private to this machine's namespaces
#[derive(Debug, Parser)]
#[command(name = "cargo xtask cluster")]
enum Command {
    /// Build what is missing, start the cluster, print how to reach it
    Up,
    /// Start it if it does not run, then try pods on claims, and the tests that want a real cluster
    Test,
    /// End it, and look that this machine is as it was
    Down,
    /// The process that keeps the cluster: started by `up`
    #[command(hide = true)]
    Serve,
    /// What it runs in namespaces of its own
    #[command(hide = true)]
    Inside {
        /// The port of this machine that leads to the API server
        port: u16,
    },
}

fn main() -> Result<()> {
    let command = Command::parse();
    let place = Place::find()?;
    match command {
        Command::Up => bring_up::up(&place),
        Command::Test => smoke::test(&place),
        Command::Down => bring_up::down(&place),
        Command::Serve => serve::serve(&place),
        Command::Inside { port } => control_plane::run(&place, port),
    }
}
