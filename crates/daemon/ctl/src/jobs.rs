//! Jobs: what a daemon works on, what an administrator has one do, and a disk that moves.
//!
//! Invariants: whoever interrupts `job wait` or `move-disk` leaves a job that goes on, and can be waited for, completed or
//! cancelled: nothing is half done that would not be said by `list jobs`.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::arguments::{Format, JobWord, MoveDiskArgs};
use crate::client::QmpClient;
use crate::inventory::{Inventory, text};
use crate::progress::{ProgressLine, percent};
use crate::table::Answer;
use crate::units::{bytes, no};

const JOBS: &str =
    "JOB=id TYPE=type STATUS=status DONE=done OF=of PERCENT=percent SPEED=speed ERROR=error";

/// How often a job is looked at that is waited for.
pub(crate) const LOOK: Duration = Duration::from_millis(250);

/// The id of the job that moves a disk.
fn move_id(node: &str) -> String {
    format!("move-{}", node.replace(['#', '/'], "-"))
}

/// All jobs, with how far each has come.
pub(crate) fn list(client: &mut QmpClient) -> Result<Answer> {
    let jobs = client.list("query-jobs", &json!({}))?.unwrap_or_default();
    let block = client.list("query-block-jobs", &json!({}))?.unwrap_or_default();
    let row = |job: &Value| {
        let (current, total) = progress(job);
        let is_block = |it: &&Value| it["device"] == job["id"];
        let speed = block.iter().find(is_block).and_then(|it| it["speed"].as_u64());
        let limit = speed.filter(|speed| *speed > 0).map(|speed| format!("{}/s", bytes(speed)));
        json!({
            "id": job["id"], "type": job["type"], "status": job["status"], "error": job["error"],
            "current-progress": current, "total-progress": total, "done": bytes(current),
            "of": bytes(total), "percent": percent(current, total), "speed": limit,
        })
    };
    Ok(Answer::table(JOBS, jobs.iter().map(row).collect(), "jobs"))
}

/// What was done of a job, and of how much.
pub(crate) fn progress(job: &Value) -> (u64, u64) {
    let number = |key: &str| job[key].as_u64().unwrap_or_default();
    (number("current-progress"), number("total-progress"))
}

/// What is done with a job.
pub(crate) fn job(client: &mut QmpClient, word: &JobWord) -> Result<Answer> {
    let (command, id, said) = match word {
        JobWord::Wait { job } => return wait_for(client, job),
        JobWord::Speed { job, speed } => {
            find(client, job)?;
            let arguments = json!({"device": job, "speed": speed});
            client.ask("block-job-set-speed", &arguments)?;
            let said = if *speed == 0 {
                format!("job {job}: as fast as it can")
            } else {
                format!("job {job}: at most {}/s", bytes(*speed))
            };
            return Ok(Answer::said(&said, arguments));
        }
        JobWord::Cancel { job, keep: true } => {
            find(client, job)?;
            let arguments = json!({"device": job});
            client.ask("block-job-cancel", &arguments)?;
            let said = format!("job {job}: its target keeps what the disk has now");
            return Ok(Answer::said(&said, arguments));
        }
        JobWord::Cancel { job, keep: false } => ("job-cancel", job, "is cancelled"),
        JobWord::Pause { job } => ("job-pause", job, "rests"),
        JobWord::Resume { job } => ("job-resume", job, "goes on"),
        JobWord::Complete { job } => ("job-complete", job, "ends with its result"),
        JobWord::Finalize { job } => ("job-finalize", job, "its result counts"),
        JobWord::Dismiss { job } => ("job-dismiss", job, "is forgotten"),
    };
    find(client, id)?;
    client.ask(command, &json!({"id": id}))?;
    Ok(Answer::said(&format!("job {id} {said}"), json!({"id": id})))
}

/// The job of that name.
fn find(client: &mut QmpClient, id: &str) -> Result<Value> {
    let jobs = client.list("query-jobs", &json!({}))?.unwrap_or_default();
    match jobs.iter().find(|job| job["id"] == id) {
        Some(job) => Ok(job.clone()),
        None => bail!("there is {}", no("job", id, jobs.iter().map(|job| text(job, "id")))),
    }
}

/// Waits until a job is over, or can be completed.
fn wait_for(client: &mut QmpClient, id: &str) -> Result<Answer> {
    find(client, id)?;
    let state = watch(client, id)?;
    let said = match state.as_str() {
        "ready" => format!("job {id} can be completed: ringloom ctl job complete {id}"),
        "pending" => format!("job {id} waits to be finalized: ringloom ctl job finalize {id}"),
        _ => format!("job {id} is over"),
    };
    Ok(Answer::said(&said, json!({"id": id, "status": state})))
}

/// Looks at a job until it is over or waits for somebody; gives where it is then. Fails if the job has.
fn watch(client: &mut QmpClient, id: &str) -> Result<String> {
    let mut line = ProgressLine::new(format!("job {id}"));
    loop {
        let jobs = client.list("query-jobs", &json!({}))?.unwrap_or_default();
        let Some(job) = jobs.iter().find(|job| job["id"] == id) else {
            line.end();
            return Ok("null".to_owned());
        };
        if let Some(error) = job["error"].as_str() {
            line.end();
            bail!("job {id} has failed: {error}");
        }
        line.show(progress(job));
        let state = text(job, "status");
        if matches!(state, "ready" | "pending" | "concluded") {
            line.end();
            return Ok(state.to_owned());
        }
        ensure!(
            !matches!(state, "paused" | "standby"),
            "job {id} rests: ringloom ctl job resume {id}"
        );
        client.wait_event(LOOK)?;
    }
}

/// Moves a disk to another file while it is used: makes the file, copies, switches, and closes what was there.
pub(crate) fn move_disk(client: &mut QmpClient, arguments: &MoveDiskArgs) -> Result<Answer> {
    let MoveDiskArgs { target, to, format, speed, name, volatile, keep } = arguments;
    let inventory = Inventory::read(client)?;
    let node = inventory.target(target)?;
    let size = inventory.node(&node).and_then(|it| it["size"].as_u64());
    let size = size.with_context(|| format!("node {node}: its size is not known"))?;
    let path = std::path::absolute(to).with_context(|| format!("{to}: where is that?"))?;
    ensure!(path.symlink_metadata().is_err(), "{} exists already", path.display());
    let path = path.display().to_string();
    let new = name.clone().unwrap_or_else(|| format!("{node}-moved"));
    ensure!(inventory.node(&new).is_none(), "there is a node {new} already: say --node NAME");
    make(client, &new, &path, *format, size)?;
    let id = move_id(&node);
    let mut mirror = json!({
        "job-id": id, "device": node, "target": new, "sync": "full", "speed": speed.unwrap_or(0),
        "auto-dismiss": false,
    });
    if *volatile {
        mirror["ringloom-volatile"] = true.into();
    }
    if let Err(error) = client.ask("blockdev-mirror", &mirror) {
        remove(client, &new);
        return Err(error.context(format!("node {node} stays where it is; {path} was made for it")));
    }
    let moved = carry_over(client, &id);
    if let Err(error) = moved {
        return Err(give_up(client, &id, &new, error, &node));
    }
    client.ask("job-dismiss", &json!({"id": id}))?;
    let mut said = format!("{target}: node {new}, {path}, is what its users have now");
    if *keep {
        said.push_str(&format!("; node {node} is still open"));
    } else {
        client.ask("blockdev-del", &json!({"node-name": node}))?;
        said.push_str(&format!("; node {node} is closed, its file is as it was at the switch"));
    }
    Ok(Answer::said(&said, json!({"node": new, "file": path, "bytes": size})))
}

/// Waits until the disks are equal, and switches.
fn carry_over(client: &mut QmpClient, id: &str) -> Result<()> {
    let state = watch(client, id)?;
    ensure!(state == "ready", "job {id} is {state}");
    client.ask("job-complete", &json!({"id": id}))?;
    let state = loop {
        // It may have to catch up once more.
        let state = watch(client, id)?;
        if state != "ready" {
            break state;
        }
        client.wait_event(LOOK)?;
    };
    ensure!(state == "concluded", "job {id} is {state}");
    Ok(())
}

/// Leaves a disk where it is.
fn give_up(
    client: &mut QmpClient,
    id: &str,
    new: &str,
    error: anyhow::Error,
    node: &str,
) -> anyhow::Error {
    // Whatever of this there is no more is gone anyway.
    let _over = client.ask("job-cancel", &json!({"id": id}));
    let _over = client.ask("job-dismiss", &json!({"id": id}));
    remove(client, new);
    error.context(format!("node {node} stays where it is"))
}

/// Closes a node, if it is there and nobody uses it.
pub(crate) fn remove(client: &mut QmpClient, node: &str) {
    let _gone = client.ask("blockdev-del", &json!({"node-name": node}));
}

/// Makes a file, and an image in it, and a node of that name.
fn make(client: &mut QmpClient, node: &str, path: &str, format: Format, size: u64) -> Result<()> {
    let id = format!("make-{node}");
    let length = if format == Format::Raw { size } else { 0 };
    let file = json!({"driver": "file", "filename": path, "size": length});
    create(client, &id, &file).with_context(|| format!("{path} cannot be made"))?;
    let file = json!({"driver": "file", "filename": path, "discard": "unmap"});
    let mut added = match format {
        Format::Raw => file,
        Format::Qcow2 => {
            let below = format!("{node}-file");
            let mut file = file;
            file["node-name"] = below.as_str().into();
            client.ask("blockdev-add", &file)?;
            let image = json!({"driver": "qcow2", "file": below, "size": size});
            let made = create(client, &id, &image);
            remove(client, &below);
            made.with_context(|| format!("{path}: no image can be made"))?;
            json!({"driver": "qcow2", "file": {"driver": "file", "filename": path, "discard": "unmap"}})
        }
    };
    added["node-name"] = node.into();
    added["discard"] = "unmap".into();
    client.ask("blockdev-add", &added).map(drop)
}

/// Carries a job out that makes something.
pub(crate) fn create(client: &mut QmpClient, id: &str, options: &Value) -> Result<()> {
    client.ask("blockdev-create", &json!({"job-id": id, "options": options}))?;
    let ended = watch(client, id);
    client.ask("job-dismiss", &json!({"id": id}))?;
    ended.map(drop)
}
