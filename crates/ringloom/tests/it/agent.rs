//! `ringloom agent` as a process: it is killed, left and joined, and no fio stays behind.

use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use agent::{AgentError, Client, JOB, Start, Token};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, test_kill_process};
use tempfile::TempDir;
use testkit::deadline::poll_until;

const LIMIT: Duration = Duration::from_secs(60);

/// A process that is killed at the end of a test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It is gone already where a test has killed it.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn start(words: &[&str]) -> Result<Process> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringloom"));
    command.arg("agent").args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
    Ok(Process(command.spawn().context("start ringloom agent")?))
}

fn greet(process: &mut Process, token: Option<&Token>) -> Result<Client, AgentError> {
    let output = process.0.stdin.take().expect("a pipe");
    let input = process.0.stdout.take().expect("a pipe");
    Client::greet(Box::new(input), Box::new(output), token, &mut || Ok(()))
}

/// A file for fio, whose name is that of the test alone.
fn file(directory: &TempDir) -> Result<PathBuf> {
    let path = directory.path().join("disk.data");
    std::fs::write(&path, vec![1; 1 << 20])?;
    Ok(path)
}

/// Has fio run for minutes; returns its process once it is there.
fn run_fio(client: &mut Client, file: &Path) -> Result<Pid> {
    client.put(&format!(
        "[global]\nioengine=psync\nthread=1\ntime_based=1\nruntime=600\nrw=randread\nrate_iops=50\n[disk]\nfilename={}\n",
        file.display()
    ));
    client.start(&[JOB.to_owned()], Start::Now)?;
    poll_until("fio to run", LIMIT, || match client.poll()? {
        None => fio_on(file),
        Some(ended) => bail!("fio has ended: {ended:?}"),
    })
}

/// The fio that has the file open: neither what becomes fio nor the agent does.
fn fio_on(file: &Path) -> Result<Option<Pid>> {
    for process in std::fs::read_dir("/proc")?.flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|it| it.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        // Processes come and go; those of others may not be looked at.
        let Ok(open) = std::fs::read_dir(process.path().join("fd")) else { continue };
        if open.flatten().any(|it| std::fs::read_link(it.path()).is_ok_and(|it| it == file)) {
            return Ok(Some(pid));
        }
    }
    Ok(None)
}

fn wait_until_gone(pid: Pid) -> Result<()> {
    let is_gone = || Ok((test_kill_process(pid).is_err() || is_zombie(pid)).then_some(()));
    poll_until("the end of fio", LIMIT, is_gone)
}

/// Where nobody takes leave of orphans, what is dead stays in the table.
fn is_zombie(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|it| it.rsplit(')').next().is_some_and(|it| it.trim_start().starts_with('Z')))
}

#[test]
fn a_killed_agent_takes_its_fio_along() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = file(&directory)?;
    let mut process = start(&[])?;
    let mut client = greet(&mut process, None)?;
    ensure!(client.facts().ringloom == env!("CARGO_PKG_VERSION"));
    let fio = run_fio(&mut client, &file)?;
    process.0.kill()?;
    process.0.wait()?;
    wait_until_gone(fio)?;
    poll_until("the client to notice", LIMIT, || Ok(client.poll().err().map(drop)))
}

#[test]
fn a_client_that_leaves_ends_the_agent_and_its_fio() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = file(&directory)?;
    let mut process = start(&[])?;
    let mut client = greet(&mut process, None)?;
    let fio = run_fio(&mut client, &file)?;
    drop(client);
    ensure!(process.0.wait()?.success());
    wait_until_gone(fio)
}

#[test]
fn a_relay_joins_a_client_to_an_agent_that_listens() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = file(&directory)?;
    let token = Token::random()?;
    let secret = directory.path().join("token");
    std::fs::write(&secret, format!("{}\n", token.reveal()))?;
    // A port that is free now.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let _agent =
        start(&["--listen", &address, "--token-file", secret.to_str().context("a name")?])?;
    let (mut relay, mut client) = poll_until("the agent to listen", LIMIT, || {
        let mut relay = start(&["connect", &address])?;
        let client = greet(&mut relay, Some(&token));
        Ok(client.ok().map(|client| (relay, client)))
    })?;
    let fio = run_fio(&mut client, &file)?;
    // The node of the relay is gone: what is left of the connection says so.
    relay.0.kill()?;
    relay.0.wait()?;
    wait_until_gone(fio)
}

#[test]
fn the_process_of_a_container_holds_until_it_is_asked_to_end() -> Result<()> {
    let mut hold = start(&["hold"])?;
    let status = format!("/proc/{}/status", hold.0.id());
    // Until it hears signals, one would end it.
    poll_until("it to hear signals", LIMIT, || {
        Ok(std::fs::read_to_string(&status)?.lines().find(|it| hears_sigterm(it)).map(drop))
    })?;
    rustix::process::kill_process(Pid::from_child(&hold.0), rustix::process::Signal::TERM)?;
    let status = hold.0.wait()?;
    ensure!(status.success() && status.signal().is_none(), "{status}");
    Ok(())
}

fn hears_sigterm(line: &str) -> bool {
    let Some(mask) = line.strip_prefix("SigCgt:") else { return false };
    u64::from_str_radix(mask.trim(), 16).is_ok_and(|it| it & (1 << 14) != 0)
}

#[test]
fn an_agent_that_listens_needs_a_token() -> Result<()> {
    let output = Command::new(env!("CARGO_BIN_EXE_ringloom"))
        .args(["agent", "--listen", "127.0.0.1:0"])
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(2) && said.contains("--token-file"), "{said}");
    Ok(())
}
