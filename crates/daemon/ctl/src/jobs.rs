//! Jobs: what a daemon works on, and what an administrator has one do.
//!
//! Invariants: whoever interrupts `job wait` leaves a job that goes on, and can be waited for, completed or cancelled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use crate::arguments::JobWord;
use crate::client::QmpClient;
use crate::inventory::text;
use crate::progress::{ProgressLine, percent};
use crate::table::Answer;
use crate::units::{bytes, no};

const JOBS: &str =
    "JOB=id TYPE=type STATUS=status DONE=done OF=of PERCENT=percent SPEED=speed ERROR=error";

/// The user has had enough.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// How often a job is looked at that is waited for.
pub(crate) const LOOK: Duration = Duration::from_millis(250);

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
pub(crate) fn watch(client: &mut QmpClient, id: &str) -> Result<String> {
    watch_until(client, id, &AtomicBool::new(false))
}

/// The same until the flag is raised.
pub(crate) fn watch_until(
    client: &mut QmpClient,
    id: &str,
    interrupted: &AtomicBool,
) -> Result<String> {
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
        if interrupted.load(Ordering::Relaxed) {
            line.end();
            return Err(Interrupted.into());
        }
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

/// Closes a node, if it is there and nobody uses it.
pub(crate) fn remove(client: &mut QmpClient, node: &str) {
    let _gone = client.ask("blockdev-del", &json!({"node-name": node}));
}

/// Carries a job out that makes something.
pub(crate) fn create(client: &mut QmpClient, id: &str, options: &Value) -> Result<()> {
    client.ask("blockdev-create", &json!({"job-id": id, "options": options}))?;
    let ended = watch(client, id);
    client.ask("job-dismiss", &json!({"id": id}))?;
    ended.map(drop)
}
