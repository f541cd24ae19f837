//! `ringloom ctl move-disk`: a disk moves to other storage while it is used: a mirror, a comparison if that is asked for, a switch.
//!
//! Invariants: until the switch is asked for, whoever is interrupted leaves the disk where it is, and a job that goes on, as is said;
//! a file that was made for a move that fails is removed, and a daemon that dies until then does not need it. Afterwards nothing is taken back: it may be what guests write.

use std::sync::atomic::AtomicBool;

use anyhow::{Context, Error, Result, ensure};
use serde_json::{Value, json};

use crate::arguments::MoveDiskArgs;
use crate::client::QmpClient;
use crate::destination::Destination;
use crate::inventory::{Inventory, text};
use crate::jobs::{Interrupted, LOOK, remove, watch_until};
use crate::signals::interrupts;
use crate::table::Answer;
use crate::units::bytes;

/// The id of the job that moves a disk.
fn move_id(node: &str) -> String {
    format!("move-{}", node.replace(['#', '/'], "-"))
}

/// A move.
struct Move<'a> {
    /// The node that is left.
    node: String,
    /// The one that takes its place.
    new: String,
    destination: Destination,
    size: u64,
    /// Whether the disk is past the page cache.
    is_direct: bool,
    arguments: &'a MoveDiskArgs,
}

/// How much was compared, and how much of it differed.
#[derive(Debug, Clone, Copy)]
struct Compared {
    bytes: u64,
    differing: u64,
}

/// How often it is looked at what differed: a change that is under way is none.
const LOOKS_MAX: usize = 8;

/// What a job has compared.
fn compared(client: &mut QmpClient, id: &str) -> Result<Compared> {
    let jobs = client.list("query-block-jobs", &json!({}))?.unwrap_or_default();
    let job = jobs.iter().find(|job| text(job, "device") == id);
    let number = |key: &str| job.and_then(|job| job[key].as_u64());
    let bytes = number("ringloom-compared");
    let bytes = bytes.with_context(|| format!("job {id} does not say what it has compared"))?;
    Ok(Compared { bytes, differing: number("ringloom-differing").unwrap_or(0) })
}

/// Moves a disk to other storage while it is used: makes that, copies, switches, and closes what was there.
pub(crate) fn move_disk(client: &mut QmpClient, arguments: &MoveDiskArgs) -> Result<Answer> {
    let MoveDiskArgs { target, name, .. } = arguments;
    let interrupted = interrupts()?;
    let inventory = Inventory::read(client)?;
    let node = inventory.target(target)?;
    let size = inventory.node(&node).and_then(|it| it["size"].as_u64());
    let size = size.with_context(|| format!("node {node}: its size is not known"))?;
    let is_direct = inventory.node(&node).is_some_and(|it| it["direct"] == true);
    let destination = Destination::of(arguments)?;
    let new = name.clone().unwrap_or_else(|| format!("{node}-moved"));
    ensure!(inventory.node(&new).is_none(), "there is a node {new} already: say --node NAME");
    let it = Move { node, new, destination, size, is_direct, arguments };
    it.carry_out(client, &interrupted)
}

impl Move<'_> {
    fn id(&self) -> String {
        move_id(&self.node)
    }

    fn carry_out(&self, client: &mut QmpClient, interrupted: &AtomicBool) -> Result<Answer> {
        let made = self.destination.make(client, &self.new, self.size, self.is_direct);
        let begun = made.and_then(|()| client.ask("blockdev-mirror", &self.mirror()));
        if let Err(error) = begun {
            return Err(self.take_back(client, error));
        }
        let compared = match self.wait_until_equal(client, interrupted) {
            Ok(compared) => compared,
            Err(error) if error.is::<Interrupted>() => return Err(error.context(self.left())),
            Err(error) => return Err(self.take_back(client, error)),
        };
        self.switch(client).with_context(|| self.after_switch())?;
        let mut warnings = Vec::new();
        let dismissed = client.ask("job-dismiss", &json!({"id": self.id()}));
        warnings.extend(dismissed.err().map(|error| {
            let id = self.id();
            format!("job {id} is over and stays: 'ringloom ctl job dismiss {id}' ({error:#})")
        }));
        let said = self.close_old(client, &mut warnings);
        Ok(self.answer(said, warnings, compared))
    }

    /// Closes what was left; says where the disk is.
    fn close_old(&self, client: &mut QmpClient, warnings: &mut Vec<String>) -> String {
        let Self { node, new, destination, .. } = self;
        let (target, path) = (&self.arguments.target, destination.name());
        let closed = match self.arguments.keep {
            true => None,
            false => Some(client.ask("blockdev-del", &json!({"node-name": node}))),
        };
        let end = match closed {
            Some(Ok(_)) => "is closed, its file is as it was at the switch",
            Some(Err(error)) => {
                let close = format!("'ringloom ctl disk del {node}' closes it");
                warnings.push(format!("node {node} is still open: {close} ({error:#})"));
                "is still open"
            }
            None => "is still open",
        };
        format!("{target}: node {new}, {path}, is what its users have now; node {node} {end}")
    }

    fn mirror(&self) -> Value {
        let MoveDiskArgs { speed, volatile, verify, .. } = self.arguments;
        let mut mirror = json!({
            "job-id": self.id(), "device": self.node, "target": self.new, "sync": "full",
            "speed": speed.unwrap_or(0), "auto-dismiss": false,
        });
        if *volatile {
            mirror["ringloom-volatile"] = true.into();
        }
        if *verify {
            mirror["copy-mode"] = "write-blocking".into();
            mirror["ringloom-verify"] = true.into();
        }
        mirror
    }

    /// Waits until the disks are equal; what was compared of them.
    fn wait_until_equal(
        &self,
        client: &mut QmpClient,
        interrupted: &AtomicBool,
    ) -> Result<Option<Compared>> {
        let id = self.id();
        let state = watch_until(client, &id, interrupted)?;
        ensure!(state == "ready", "job {id} is {state}");
        if !self.arguments.verify {
            return Ok(None);
        }
        let mut found = compared(client, &id)?;
        for _ in 0..LOOKS_MAX {
            if found.differing == 0 {
                break;
            }
            client.wait_event(LOOK)?;
            found = compared(client, &id)?;
        }
        Ok(Some(found))
    }

    /// Has its users go on on the target. A signal waits for that.
    fn switch(&self, client: &mut QmpClient) -> Result<()> {
        let id = self.id();
        client.ask("job-complete", &json!({"id": id}))?;
        let never = AtomicBool::new(false);
        let state = loop {
            // It may have to catch up once more.
            let state = watch_until(client, &id, &never)?;
            if state != "ready" {
                break state;
            }
            client.wait_event(LOOK)?;
        };
        ensure!(state == "concluded", "job {id} is {state}");
        Ok(())
    }

    /// Whether its export has the target: somebody else may have had it switched.
    fn is_moved(&self, client: &mut QmpClient) -> bool {
        let target = Inventory::read(client).and_then(|it| it.target(&self.arguments.target));
        target.is_ok_and(|node| node == self.new)
    }

    /// Leaves the disk where it is; the file was made for this alone.
    fn take_back(&self, client: &mut QmpClient, error: Error) -> Error {
        let id = self.id();
        if self.is_moved(client) {
            let Self { node, new, destination, .. } = self;
            let path = destination.name();
            return error.context(format!(
                "somebody else has completed job {id}: node {new}, {path}, is the disk now, and node {node} is still open"
            ));
        }
        // Whatever of this there is no more is gone anyway.
        let _over = client.ask("job-cancel", &json!({"id": id}));
        let _over = client.ask("job-dismiss", &json!({"id": id}));
        remove(client, &self.new);
        // A daemon that has ended may have made the switch before.
        let is_closed = Inventory::read(client).is_ok_and(|it| it.node(&self.new).is_none());
        let left = self.destination.take_away(is_closed);
        error.context(format!("node {} stays where it is, and {left}", self.node))
    }

    /// What is left by who has had enough before the switch.
    fn left(&self) -> String {
        let (id, node, new) = (self.id(), &self.node, &self.new);
        format!(
            "node {node} stays where it is, and job {id} goes on: 'ringloom ctl job wait {id}' and 'job complete {id}' move the \
             disk; 'job cancel {id}', 'job dismiss {id}' and 'disk del {new}' give {} up",
            self.destination.name()
        )
    }

    /// What is said if nobody knows whether the switch was made.
    fn after_switch(&self) -> String {
        let target = &self.arguments.target;
        format!(
            "'ringloom ctl show {target}' says whether the disk is {} now",
            self.destination.name()
        )
    }

    fn answer(
        &self,
        mut said: String,
        mut warnings: Vec<String>,
        compared: Option<Compared>,
    ) -> Answer {
        if let Some(Compared { bytes: compared, differing }) = compared {
            let all = bytes(compared);
            said.push_str(&match differing {
                0 => format!("; {all} were compared before the switch: equal"),
                some => format!(
                    "; {all} were compared before the switch, and {} of that copied again",
                    bytes(some)
                ),
            });
            if differing > 0 {
                let found = bytes(differing);
                warnings.push(format!(
                    "{found} of {} differed from what was copied there: somebody else writes to it, or the storage does not \
                     keep what it is given",
                    self.destination.name()
                ));
            }
        }
        let json = json!({
            "node": self.new, "file": self.destination.name(), "bytes": self.size,
            "compared-bytes": compared.map(|it| it.bytes),
            "differing-bytes": compared.map(|it| it.differing), "warnings": warnings,
        });
        let mut answer = Answer::said(&said, json);
        answer.warnings = warnings;
        answer
    }
}
