//! Many stacks, one after the other: each is known by its seed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use testkit::ceph::Cluster;
use testkit::conformance::play::{Played, play};
use testkit::conformance::stack::{Subject, Which};
use testkit::deadline::Deadline;

use crate::subjects::{self, Pace};
use crate::{images, instants, live, mirrors};

/// One of so many stacks has one subject alone.
const ALONE_ONE_IN: u64 = 3;

/// How a stack is played with.
#[derive(Clone, Debug)]
pub enum Form {
    /// In memory.
    Pure,
    /// On iothreads, with files in these directories, in turn.
    Live(Vec<PathBuf>),
    /// On iothreads, with images of a cluster, and files in the directory.
    Cluster(PathBuf, Arc<Cluster>),
    /// Images on a disk in memory, whose power goes at any step.
    Images,
    /// Images on iothreads, with files in these directories.
    LiveImages(Vec<PathBuf>),
    /// Disks in memory that are kept as they were at an instant.
    Instants,
    /// Disks in memory that are copied while guests change them.
    Mirrors,
}

/// When a campaign ends, if nothing is found.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// After so many stacks.
    Stacks(u64),
    /// After so long.
    Time(Duration),
}

/// What a campaign did.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Stacks.
    pub stacks: u64,
    /// Requests that ended well.
    pub done: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// How often a node held a request.
    pub held: u64,
    /// How often a node kept a request that was carried out.
    pub kept: u64,
    /// How often each subject stood in a stack.
    pub subjects: BTreeMap<&'static str, u64>,
}

/// Plays with stacks of this seed and the following ones; the first mistake ends it.
pub fn run(form: &Form, seed: u64, end: End) -> Result<Summary> {
    let mut summary = Summary::default();
    let deadline = match end {
        End::Stacks(_) => None,
        End::Time(time) => Some(Deadline::after(time)),
    };
    loop {
        let is_over = match (&deadline, end) {
            (Some(deadline), _) => deadline.has_passed(),
            (None, End::Stacks(stacks)) => summary.stacks == stacks,
            (None, End::Time(_)) => true,
        };
        if is_over {
            return Ok(summary);
        }
        let played = one(form, seed.wrapping_add(summary.stacks))?;
        summary.stacks += 1;
        summary.done += played.tally.done;
        summary.refused += played.tally.refused;
        summary.held += played.held;
        summary.kept += played.kept;
        for name in played.names {
            *summary.subjects.entry(name).or_default() += 1;
        }
    }
}

/// Plays with the stack, or the image, of this seed.
fn one(form: &Form, seed: u64) -> Result<Played> {
    match form {
        Form::Pure => {
            let subjects = subjects::all(Pace::Jumping);
            play(seed, &subjects, which(seed, &subjects)?)
        }
        Form::Live(directories) => {
            let subjects = subjects::all(Pace::Real);
            live::play(seed, &subjects, which(seed, &subjects)?, directories)
        }
        Form::Cluster(directory, cluster) => {
            let subjects = subjects::all(Pace::Real);
            live::play_on_cluster(seed, &subjects, which(seed, &subjects)?, directory, cluster)
        }
        Form::Images => images::play_image(seed),
        Form::LiveImages(directories) => live::play_image(seed, directories),
        Form::Instants => instants::play(seed),
        Form::Mirrors => mirrors::play(seed),
    }
}

fn which(seed: u64, subjects: &[Arc<dyn Subject>]) -> Result<Which<'_>> {
    let above: Vec<&Arc<dyn Subject>> =
        subjects.iter().filter(|subject| subject.children().1 > 0).collect();
    let count = u64::try_from(above.len()).context("the number of subjects")?;
    if !seed.is_multiple_of(ALONE_ONE_IN) {
        return Ok(Which::Any);
    }
    let place = usize::try_from(seed / ALONE_ONE_IN % count).context("a small number")?;
    Ok(Which::Alone(above[place].as_ref()))
}
