//! The same commands, given to qemu-storage-daemon and to ringloom, have the same answers.
//!
//! The commands are in the text files beside this one, a command a line: its name and its arguments as QMP has them, `!` and
//! a message as it is sent, `job ID` to wait for the end of a job, `status JOB STATUS`, or `event NAME`. A difference that is meant stands behind
//! its line: ` ## KIND: reason`. A difference that is not there any more fails too.

mod compare;
mod schema;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use testkit::deadline::Deadline;
use testkit::image;
use testkit::process::{Bench, Program, Server};
use testkit::qmp::QmpClient;
use testkit::report::skipped;

use super::{monitor, monitor_socket, start, state};
use crate::support::{qemu_img, ringloom, stop};
use compare::{Difference, compare};

const TABLES: [&str; 11] = [
    include_str!("parity/snapshots.txt"),
    include_str!("parity/bitmaps.txt"),
    include_str!("parity/backup.txt"),
    include_str!("parity/objects.txt"),
    include_str!("parity/nodes.txt"),
    include_str!("parity/jobs.txt"),
    include_str!("parity/block_jobs.txt"),
    include_str!("parity/job_arguments.txt"),
    include_str!("parity/drive_jobs.txt"),
    include_str!("parity/exports.txt"),
    include_str!("parity/protocol.txt"),
];

/// How many commands are compared at least.
const COMMANDS_MIN: usize = 300;

/// For how long the monitor is asked something until an event must have come: jobs of the peer rest now and then.
const EVENT_LIMIT: Duration = Duration::from_secs(5);

/// What stands for the directory of a bench.
const DIRECTORY: &str = "DIR";

/// Separates a line from the difference that is meant.
const MARK: &str = " ## ";

/// One of the two programs, with files of the same names.
struct Side {
    bench: Bench,
    server: Server,
    client: QmpClient,
}

impl Side {
    fn start(program: &Program, keeps_state: bool) -> Result<Self> {
        let bench = Bench::new()?;
        let names = [
            "disk", "other", "third", "fourth", "readonly", "active", "source", "target", "base",
            "lowest", "copied", "drive",
        ];
        for (seed, name) in (1..).zip(names) {
            image::create_filled(&bench.path(name), 1 << 20, seed)?;
        }
        image::create_with(&bench.path("garbage"), &[0x55; 65536])?;
        qemu_img(&bench, "create -q -f qcow2 qcow2 4M")?;
        qemu_img(&bench, "create -q -f qcow2 -o cluster_size=512 bitmaps 4M")?;
        qemu_img(&bench, "create -q -f qcow2 -o compat=0.10 bitmaps2 4M")?;
        qemu_img(&bench, "create -q -f qcow2 snaps 1M")?;
        qemu_img(&bench, "create -q -f qcow2 -o compat=0.10 snaps2 1M")?;
        qemu_img(&bench, "create -q -f qcow2 -o data_file=snapsd.raw snapsd 1M")?;
        qemu_img(&bench, "create -q -f qcow2 -o refcount_bits=1,preallocation=metadata snaps1 1M")?;
        qemu_img(&bench, "create -q -f qcow2 snapsr 1M")?;
        qemu_img(&bench, "snapshot -c s1 snapsr")?;
        qemu_img(&bench, "create -q -f qcow2 -b other -F raw over")?;
        qemu_img(&bench, "create -q -f qcow2 -b other -F raw over2")?;
        qemu_img(&bench, "create -q -f qcow2 -b base -F raw upper")?;
        qemu_img(&bench, "create -q -f qcow2 -b base -F raw upper2")?;
        qemu_img(&bench, "create -q -f qcow2 -b lowest -F raw chain1")?;
        qemu_img(&bench, "create -q -f qcow2 -b chain1 -F qcow2 chain2")?;
        qemu_img(&bench, "create -q -f qcow2 -b chain2 -F qcow2 chain3")?;
        if keeps_state {
            let (server, client) = start(program, &bench, &state(&bench), &[])?;
            return Ok(Self { bench, server, client });
        }
        let mut arguments = monitor(&bench);
        arguments.truncate(4);
        let server = program.start(&arguments, &[monitor_socket(&bench)])?;
        let client = QmpClient::connect(&monitor_socket(&bench))?;
        Ok(Self { bench, server, client })
    }

    /// Sends what a line says; gives all answers to it, with the directory as it is in the tables.
    fn carry_out(&mut self, line: &str) -> Result<Vec<Value>> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let earlier = self.heard_of_jobs(rest);
        let directory = self.bench.path("");
        let directory = directory.to_str().context("the directory")?.trim_end_matches('/');
        let rest = rest.replace(DIRECTORY, directory);
        let answers = match word {
            "event" => vec![self.event(&rest, |_| true)?],
            "job" => self.job(&rest)?,
            "status" => self.status(&rest)?,
            "!" => self.answers(&rest)?,
            command if rest.is_empty() => self.answers(&format!("{{'execute':'{command}'}}"))?,
            command => self.answers(&format!("{{'execute':'{command}','arguments':{rest}}}"))?,
        };
        if answers.iter().any(|answer| answer.get("error").is_some()) {
            earlier.into_iter().rev().for_each(|event| self.client.events.push_front(event));
        }
        let text = Value::from(answers).to_string().replace(directory, DIRECTORY);
        serde_json::from_str(&text).context(text)
    }

    /// Takes out what was heard of jobs with the names of those that this line begins: of others, unless it is refused.
    fn heard_of_jobs(&mut self, rest: &str) -> Vec<Value> {
        let ids: Vec<&str> =
            rest.split("'job-id':'").skip(1).filter_map(|part| part.split('\'').next()).collect();
        let is_of_them = |event: &Value| {
            let id = event["data"]["id"].as_str();
            event["event"] == "JOB_STATUS_CHANGE" && id.is_some_and(|id| ids.contains(&id))
        };
        let (earlier, others): (Vec<_>, Vec<_>) =
            self.client.events.drain(..).partition(is_of_them);
        self.client.events = others.into();
        earlier
    }

    fn answers(&mut self, message: &str) -> Result<Vec<Value>> {
        // The answer to this one is behind all answers to the message.
        const LAST: &str = "{\"execute\":\"query-version\",\"id\":\"last\"}";
        self.client.send(format!("{message}\n{LAST}\n").as_bytes())?;
        let mut answers = Vec::new();
        loop {
            let answer = self.client.answer()?;
            if answer["id"] == "last" {
                return Ok(answers);
            }
            answers.push(answer);
        }
    }

    /// The data of the next event that is meant; nothing if it does not come.
    fn event(&mut self, name: &str, is_meant: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Deadline::after(EVENT_LIMIT);
        while !deadline.remaining().is_zero() {
            let is_it = |event: &Value| event["event"] == name && is_meant(&event["data"]);
            if let Some(at) = self.client.events.iter().position(is_it) {
                let event = self.client.events.remove(at).unwrap_or_default();
                return Ok(event["data"].clone());
            }
            self.client.execute("query-version", &json!({}))?;
        }
        Ok(Value::Null)
    }

    /// Waits until a job has that status.
    fn status(&mut self, rest: &str) -> Result<Vec<Value>> {
        let (id, status) = rest.split_once(' ').context("a job and its status")?;
        let event =
            self.event("JOB_STATUS_CHANGE", |data| data["id"] == id && data["status"] == status)?;
        ensure!(!event.is_null(), "job {id} is not {status}");
        Ok(vec![event])
    }

    /// Where a job has been, up to its end. One that did not begin has been nowhere.
    fn job(&mut self, id: &str) -> Result<Vec<Value>> {
        let jobs = self.client.execute("query-jobs", &json!({}))?;
        let is_there = jobs.as_array().is_some_and(|all| all.iter().any(|job| job["id"] == id));
        let mut stations = Vec::new();
        self.client.events.retain(|event| event["data"]["status"] != "null");
        while is_there && stations.last().is_none_or(|last| last != "concluded") {
            let event = self.event("JOB_STATUS_CHANGE", |data| data["id"] == id)?;
            ensure!(!event.is_null(), "job {id} does not end: {stations:?}");
            stations.push(event["status"].clone());
        }
        Ok(stations)
    }
}

/// A line of a table, and the difference that is meant.
fn parts(line: &str) -> Result<Option<(&str, Option<&str>)>> {
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let Some((command, meant)) = line.split_once(MARK) else {
        return Ok(Some((line, None)));
    };
    let Some((kind, reason)) = meant.split_once(": ") else { bail!("no reason: {line}") };
    ensure!(!reason.is_empty(), "no reason: {line}");
    Ok(Some((command.trim_end(), Some(kind))))
}

fn check(peer: &mut Side, ours: &mut Side, line: &str, wrong: &mut Vec<String>) -> Result<()> {
    let Some((command, meant)) = parts(line)? else { return Ok(()) };
    let expected = peer.carry_out(command).with_context(|| format!("the peer: {line}"))?;
    let is_empty = command.starts_with("event ") && expected == [Value::Null];
    ensure!(!is_empty, "the peer sends no such event: {line}");
    let found = ours.carry_out(command).with_context(|| format!("ringloom: {line}"))?;
    let difference = compare(command, &expected, &found);
    let kind = difference.as_ref().map(Difference::kind);
    if kind != meant {
        let what = difference.map_or_else(|| "no difference".to_owned(), |it| it.to_string());
        wrong.push(format!("{line}\n    {what}"));
    }
    Ok(())
}

#[test]
fn commands_have_the_answers_of_the_peer() {
    let program = Program::qemu_storage_daemon();
    if let Some(reason) = program.missing() {
        skipped(&reason);
        return;
    }
    compare_all(&program).unwrap_or_else(|error| panic!("{error:#}"));
}

fn compare_all(program: &Program) -> Result<()> {
    let (mut peer, mut ours) = (Side::start(program, false)?, Side::start(&ringloom(), true)?);
    let (mut wrong, mut count) = (Vec::new(), 0);
    for line in TABLES.iter().flat_map(|table| table.lines()) {
        check(&mut peer, &mut ours, line, &mut wrong).with_context(|| wrong.join("\n"))?;
        count += usize::from(parts(line)?.is_some());
    }
    ensure!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.join("\n"));
    ensure!(count >= COMMANDS_MIN, "only {count} commands");
    let sockets: [&Path; 1] = [&monitor_socket(&ours.bench)];
    stop(ours.server, &sockets)?;
    stop(peer.server, &[]).map(drop)
}
