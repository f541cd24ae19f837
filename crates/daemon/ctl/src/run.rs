//! Carries a word out and prints what came of it.

use std::env;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::arguments::{CtlArgs, Kind, Word};
use crate::backup::{self, BackupArgs};
use crate::client::{QmpClient, write};
use crate::move_disk::move_disk;
use crate::restore;
use crate::show::{list, log_levels, show};
use crate::table::Answer;
use crate::{changes, jobs};

/// Names the daemon's socket if the command line does not.
const SOCKET_VARIABLE: &str = "RINGLOOM_MONITOR";

/// Said if neither does.
const NO_SOCKET: &str = "which daemon? Say -s SOCKET or set RINGLOOM_MONITOR. A daemon has a monitor if it is started with
  ringloom serve … --chardev socket,id=qmp,path=SOCKET,server=on,wait=off --monitor chardev=qmp";

/// How a word has ended that was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "it decides the exit code"]
pub enum CtlEnd {
    /// All of it is done.
    Done,
    /// It is done, and something has to be looked at, as was said.
    Attention,
}

/// Carries a word out.
///
/// # Errors
/// If the daemon refuses it or cannot be talked to, or if nobody said which daemon.
pub fn run(arguments: &CtlArgs) -> Result<CtlEnd> {
    if let Some(answer) = without_daemon(&arguments.word) {
        return finish(&answer?, arguments);
    }
    // Before the daemon is asked for, which may take its time.
    let order = if let Word::Backup(arguments) = &arguments.word {
        Some(backup::prepare(arguments)?)
    } else {
        None
    };
    let socket = daemon_socket(arguments.socket.as_deref())?;
    let mut client = QmpClient::connect(&socket, |notice| {
        // Nobody is left to hear that stderr cannot be written.
        drop(write(&mut io::stderr().lock(), &format!("ringloom ctl: {notice}\n")));
    })?;
    if matches!(arguments.word, Word::Events) {
        return events(&mut client, arguments.json).map(|()| CtlEnd::Done);
    }
    let answer = match order {
        Some(order) => backup::backup(&mut client, order)?,
        None => carry_out(&mut client, &arguments.word)?,
    };
    finish(&answer, arguments)
}

/// The socket of the daemon that is meant: the one that was given, or that of the environment.
///
/// # Errors
/// If neither says one; the sentence says how a daemon gets a monitor.
pub fn daemon_socket(given: Option<&Path>) -> Result<PathBuf> {
    let named = || env::var_os(SOCKET_VARIABLE).filter(|it| !it.is_empty()).map(PathBuf::from);
    given.map(Path::to_owned).or_else(named).context(NO_SOCKET)
}

/// Prints what came of a word. Of a disk that was copied something is left, whether that can be printed or not.
fn finish(answer: &Answer, arguments: &CtlArgs) -> Result<CtlEnd> {
    let is_json = arguments.json;
    let printed =
        print(&if is_json { format!("{:#}\n", answer.json) } else { answer.text.clone() });
    let is_list = matches!(&arguments.word, Word::Backup(backup) if backup.list.is_some());
    let is_copy = matches!(arguments.word, Word::Backup(_) | Word::Restore(_) | Word::MoveDisk(_));
    let is_done = is_copy && !is_list;
    let mut warnings = answer.warnings.clone();
    let ended = match printed {
        Err(error) if is_done => {
            warnings.push(format!("it is done, but: {error:#}"));
            Ok(())
        }
        printed => printed.map(drop),
    };
    for warning in &warnings {
        // Nobody is left to hear that stderr cannot be written.
        drop(write(&mut io::stderr().lock(), &format!("ringloom ctl: {warning}\n")));
    }
    ended.map(|()| if warnings.is_empty() { CtlEnd::Done } else { CtlEnd::Attention })
}

/// What is done with files alone.
fn without_daemon(word: &Word) -> Option<Result<Answer>> {
    if let Word::Restore(arguments) = word {
        return Some(restore::restore(arguments));
    }
    let Word::Backup(arguments) = word else { return None };
    let BackupArgs { list, .. } = &**arguments;
    list.as_deref().map(backup::list)
}

fn carry_out(client: &mut QmpClient, word: &Word) -> Result<Answer> {
    match word {
        Word::List { what } => list(client, *what),
        Word::Show { name } => show(client, name.as_deref()),
        Word::Resize { target, size, shrink } => changes::resize(client, target, *size, *shrink),
        Word::Snapshot { target, file, node, volatile } => {
            changes::snapshot(client, target, file, node.as_deref(), *volatile)
        }
        Word::Throttle { group: None, .. } => list(client, Kind::ThrottleGroups),
        Word::Throttle { group: Some(group), limits } => changes::throttle(client, group, limits),
        Word::Polling { iothread: None, .. } => list(client, Kind::Iothreads),
        Word::Polling { iothread: Some(iothread), nanoseconds } => {
            changes::polling(client, iothread, *nanoseconds)
        }
        Word::Iothread(word) => changes::iothread(client, word),
        Word::Export(word) => changes::export(client, word),
        Word::Nbd(word) => changes::nbd(client, word),
        Word::Disk(word) => changes::disk(client, word),
        Word::Filter(word) => changes::filter(client, word),
        Word::Job(word) => jobs::job(client, word),
        Word::MoveDisk(arguments) => move_disk(client, arguments),
        Word::Move { target: (export, queue), iothread } => {
            changes::move_to(client, export, *queue, iothread)
        }
        Word::Pin { target: (export, queue), iothread } => {
            changes::pin(client, export, *queue, iothread)
        }
        Word::Placement { pool, mode } => changes::placement(client, pool, mode.word()),
        Word::Log { setting: None } => log_levels(client),
        Word::Log { setting: Some(setting) } => changes::log(client, setting),
        Word::Qmp { command, arguments } => {
            let json = client.ask(command, arguments)?;
            Ok(Answer::said(&format!("{json:#}"), json))
        }
        Word::Backup(_) | Word::Restore(_) => bail!("it is no word of a daemon"),
        Word::Quit | Word::Events => {
            client.ask("quit", &json!({}))?;
            Ok(Answer::said("the daemon finishes what is open and leaves", json!({})))
        }
    }
}

/// Prints events until the reader or the daemon goes away.
fn events(client: &mut QmpClient, is_json: bool) -> Result<()> {
    client.wait_at_most(None)?;
    loop {
        let event = client.message("the next event")?;
        if !print(&if is_json { format!("{event}\n") } else { event_text(&event) })? {
            return Ok(());
        }
    }
}

/// `22:40:01.000123 UTC  JOB_STATUS_CHANGE  id=j0 status=running`.
fn event_text(event: &Value) -> String {
    let time = |key| event["timestamp"][key].as_u64().unwrap_or(0);
    let (seconds, micros) = (time("seconds") % 86_400, time("microseconds"));
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let name = event["event"].as_str().unwrap_or("?");
    let value = |it: &Value| it.as_str().map_or_else(|| it.to_string(), str::to_owned);
    let data = event["data"].as_object().into_iter().flatten();
    let data: Vec<String> = data.map(|(key, it)| format!("{key}={}", value(it))).collect();
    format!("{hours:02}:{minutes:02}:{seconds:02}.{micros:06} UTC  {name}  {}\n", data.join(" "))
}

/// Prints to standard output. Gives whether somebody reads it: a reader that has gone away is no error.
///
/// # Errors
/// All others of standard output.
pub fn print(text: &str) -> Result<bool> {
    match write(&mut io::stdout().lock(), text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("write to standard output"),
    }
}
