//! The processes below a process: a browser is a tree of them, which outlives its driver.
//!
//! Invariants: only descendants are killed, each by its pid.
//! Limits: those that were killed are waited for at most `END_LIMIT`.

use std::collections::HashMap;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::deadline::poll_until;
use crate::report::note;

/// A killed browser frees its memory in well under a second.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Kills all descendants of a process, and waits until they have gone.
pub(super) fn end_descendants(root: u32) {
    let all = descendants(root);
    for pid in all.iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
        // An error means that it has ended already, which is what is wanted.
        let _already_ended = kill_process(pid, Signal::KILL);
    }
    let waited = poll_until("the end of the browser", END_LIMIT, || {
        let left = all.iter().any(|pid| stat(*pid).is_some_and(|it| !it.has_ended));
        Ok((!left).then_some(()))
    });
    if let Err(error) = waited {
        note(&format!("{error:#}"));
    }
}

/// What the kernel says of a process.
struct Stat {
    parent: u32,
    /// A zombie, which its parent will look for.
    has_ended: bool,
}

/// None if there is no such process.
fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, which is in parentheses, may hold anything; after it come state and parent (proc_pid_stat(5)).
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let has_ended = fields.next() == Some("Z");
    Some(Stat { parent: fields.next()?.parse().ok()?, has_ended })
}

/// The children of a process, theirs, and so on.
pub(super) fn descendants(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|it| it.parse().ok()) else { continue };
        if let Some(Stat { parent, .. }) = stat(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![root];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(children.remove(pid).unwrap_or_default());
        next += 1;
    }
    found.split_off(1)
}
