//! Servers under test as child processes: ringloom and its peer qemu-storage-daemon take the same command line.
//!
//! Where it stands: every protocol test starts here. `Bench` is the private directory of one test, `Program` says
//! which binary serves, `Server` is the running process.
//!
//! Invariants: a server never outlives its `Server` (it is killed by its own pid on drop); its output is read all the
//! time, so that a full pipe never stops it.
//! Threads: one reader thread per captured stream, which ends when the stream does.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
pub use rustix::process::Signal;
use rustix::process::{Pid, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

use crate::deadline::{Deadline, now, poll_until};
use crate::report::note;
use crate::seccomp::{self, Denied};

/// How long a server may take to listen on its sockets.
pub const START_LIMIT: Duration = Duration::from_secs(30);
/// How long a program may take to print its version.
const PROBE_LIMIT: Duration = Duration::from_secs(10);
/// How long a server may take to drain, flush and exit.
pub const STOP_LIMIT: Duration = Duration::from_secs(30);

const PEER: &str = "qemu-storage-daemon";

/// How a server has left that was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// With 0.
    InOrder,
    /// The peer only: version 10.0.2 crashes in one of some thousand stops right after a client has hung up. What it
    /// has completed stands, its sockets stay.
    PeerCrashed,
}

/// The private directory of one test. Its path is short, because a unix socket's path has at most 107 bytes.
#[derive(Debug)]
pub struct Bench {
    directory: TempDir,
}

impl Bench {
    /// A fresh directory, removed on drop.
    pub fn new() -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("rl-")
            .tempdir_in("/var/tmp")
            .or_else(|_| tempfile::Builder::new().prefix("rl-").tempdir())
            .context("make a directory for the test")?;
        Ok(Self { directory })
    }

    /// The path of this name inside.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The path of this name inside, as text for a command line.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("the directory's path is plain ASCII").to_owned()
    }
}

/// A binary that serves disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    name: &'static str,
    path: PathBuf,
    first_arguments: Vec<OsString>,
    directory: Option<PathBuf>,
    variables: Vec<(String, String)>,
    /// What its host lacks.
    denied: Vec<Denied>,
}

impl Program {
    /// ringloom at this path; `ringloom`'s tests pass `env!("CARGO_BIN_EXE_ringloom")`.
    pub fn ringloom(path: impl Into<PathBuf>) -> Self {
        Self::named("ringloom", path, &["serve"])
    }

    /// Any program, with arguments that come before those of a start.
    pub fn named(name: &'static str, path: impl Into<PathBuf>, first_arguments: &[&str]) -> Self {
        let first_arguments = first_arguments.iter().map(OsString::from).collect();
        Self {
            name,
            path: path.into(),
            first_arguments,
            directory: None,
            variables: Vec::new(),
            denied: Vec::new(),
        }
    }

    /// The same, on a host that forbids io_uring (seccomp, EPERM).
    pub fn without_io_uring(self) -> Self {
        self.without(Denied::IO_URING)
    }

    /// The same, on a host without landlock.
    pub fn without_landlock(self) -> Self {
        self.without(Denied::LANDLOCK)
    }

    /// The same, on a host that takes no further filters of system calls.
    pub fn without_seccomp(self) -> Self {
        self.without(Denied::SECCOMP)
    }

    /// The same, on a host that closes descriptors one by one only (seccomp, ENOSYS).
    pub fn without_close_range(self) -> Self {
        self.without(Denied::CLOSE_RANGE)
    }

    fn without(mut self, denied: Denied) -> Self {
        self.denied.push(denied);
        self
    }

    /// The same, on a host without locks of open file descriptions (seccomp, EINVAL).
    pub fn without_locks(self) -> Self {
        self.without(Denied::LOCKS)
    }

    /// The same, with one more environment variable.
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same, started in this directory.
    pub fn in_directory(self, directory: PathBuf) -> Self {
        Self { directory: Some(directory), ..self }
    }

    /// The peer, from the search path.
    pub fn qemu_storage_daemon() -> Self {
        Self::named(PEER, PEER, &[])
    }

    /// Its name, for messages.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Why it cannot run here, if it cannot.
    pub fn missing(&self) -> Option<String> {
        let started = Command::new(&self.path)
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut child = match started {
            Ok(child) => child,
            Err(error) => return Some(format!("{} cannot be started: {error}", self.name)),
        };
        let ended = poll_until("the version to be printed", PROBE_LIMIT, || {
            child.try_wait().context("wait for the version")
        });
        if let Err(error) = ended {
            // An error means that it has ended by now.
            let _already_ended = child.kill();
            let _already_reaped = child.wait();
            return Some(format!("{} --version: {error:#}", self.name));
        }
        None
    }

    /// Starts it and waits until it listens on all of `sockets`.
    pub fn start(&self, arguments: &[String], sockets: &[PathBuf]) -> Result<Server> {
        let mut server = self.spawn(arguments)?;
        for socket in sockets {
            let what = format!("{} to listen on {}", self.name, socket.display());
            let waited = poll_until(&what, START_LIMIT, || {
                if let Some(status) = server.child.try_wait().context("look at the server")? {
                    bail!("{} ended with {status} instead of listening", server.name);
                }
                Ok(is_listening(socket)?.then_some(()))
            });
            if let Err(error) = waited {
                return Err(error.context(format!("its output: {}", server.log())));
            }
        }
        Ok(server)
    }

    /// Starts it without waiting for anything.
    pub fn spawn(&self, arguments: &[String]) -> Result<Server> {
        let mut command = Command::new(&self.path);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        for denied in &self.denied {
            seccomp::deny(&mut command, *denied);
        }
        let mut child = command
            .args(&self.first_arguments)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", self.path.display()))?;
        let stdout = Capture::of(child.stdout.take().context("the child's stdout")?);
        let stderr = Capture::of(child.stderr.take().context("the child's stderr")?);
        Ok(Server { name: self.name, child, stdout, stderr })
    }

    /// Starts it where it is expected to refuse its command line, and waits for its exit.
    pub fn refusal(&self, arguments: &[String], limit: Duration) -> Result<Exit> {
        let mut server = self.spawn(arguments)?;
        let status = server.wait(limit)?;
        Ok(Exit { status, stdout: server.stdout.text(), stderr: server.stderr.text() })
    }
}

/// What a process that ended by itself left.
#[derive(Clone, Debug)]
pub struct Exit {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    name: &'static str,
    child: Child,
    stdout: Capture,
    stderr: Capture,
}

impl Server {
    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How long it has used a CPU so far, in steps of the kernel's accounts (10 ms).
    pub fn cpu_time(&self) -> Result<Duration> {
        let path = format!("/proc/{}/stat", self.pid());
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        // The name, which is in parentheses, may hold anything; after it come the fields from the third on
        // (proc_pid_stat(5)).
        let (_, fields) = text.rsplit_once(')').with_context(|| text.clone())?;
        let ticks: u64 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|field| field.parse::<u64>().context("a number of ticks"))
            .sum::<Result<u64>>()?;
        Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
    }

    /// What it has written to stderr so far.
    pub fn log(&self) -> String {
        self.stderr.text()
    }

    /// How many lines it has written to stderr so far.
    pub fn log_lines(&self) -> u64 {
        self.stderr.lines()
    }

    /// What it has written to stdout so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().context("look at the server")?.is_none())
    }

    /// Lets it run for so long; an error if it ends before.
    pub fn wait_while_running(&mut self, time: Duration) -> Result<()> {
        let deadline = Deadline::after(time);
        poll_until("nothing", time + START_LIMIT, || {
            ensure!(self.is_alive()?, "{} has ended: {}", self.name, self.log());
            Ok(deadline.has_passed().then_some(()))
        })
    }

    /// Waits until its stderr holds `text`.
    pub fn wait_for_log(&self, text: &str, limit: Duration) -> Result<()> {
        poll_until(&format!("{text:?} in the log of {}", self.name), limit, || {
            Ok(self.stderr.text().contains(text).then_some(()))
        })
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("signal {signal:?} to {}", self.name))
    }

    /// Stops all its threads (SIGSTOP), and returns when they stand. A signal that comes later waits for SIGCONT.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        poll_until(&format!("{} to stand", self.name), STOP_LIMIT, || {
            let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            waitid(WaitId::Pid(Pid::from_child(&self.child)), options).context("wait for the stop")
        })?;
        Ok(())
    }

    /// Has it killed after this time, whatever this thread does until then. The server is not to be waited for before
    /// the killer has ended.
    pub fn kill_after(&self, delay: Duration) -> Killer {
        let pid = Pid::from_child(&self.child);
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || match stopped.recv_timeout(delay) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                let at = now();
                kill_process(pid, Signal::KILL).context("kill the server")?;
                Ok(Some(at))
            }
        });
        Killer { stop, thread }
    }

    /// Asks it to stop (SIGTERM) and waits for its exit; afterwards `log` is complete.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait(STOP_LIMIT)
    }

    /// Waits for its exit; afterwards `log` is complete.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let name = self.name;
        let child = &mut self.child;
        let waited = poll_until(&format!("the exit of {name}"), limit, || {
            child.try_wait().context("wait for the server")
        });
        let status = waited.with_context(|| format!("its output: {}", self.stderr.text()))?;
        self.stdout.finish()?;
        self.stderr.finish()?;
        Ok(status)
    }

    /// Asks it to stop (SIGTERM) and waits until it has left in order.
    pub fn stop(&mut self) -> Result<Leave> {
        self.signal(Signal::TERM)?;
        self.wait_for_leave()
    }

    /// Waits until it has left in order after a signal that asked for it.
    pub fn wait_for_leave(&mut self) -> Result<Leave> {
        let status = self.wait(STOP_LIMIT)?;
        if self.name == PEER && status.signal().is_some() {
            note(&format!("{PEER} crashed after it was asked to stop: {status}"));
            return Ok(Leave::PeerCrashed);
        }
        ensure!(status.code() == Some(0), "{} left with {status}: {}", self.name, self.log());
        Ok(Leave::InOrder)
    }

    /// Waits until it has killed itself.
    pub fn wait_for_crash(&mut self, limit: Duration) -> Result<()> {
        let status = self.wait(limit)?;
        ensure!(status.signal() == Some(9), "{} ended with {status}: {}", self.name, self.log());
        Ok(())
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("kill the server")?;
        let status = self.child.wait().context("reap the server")?;
        ensure!(status.signal() == Some(9), "{} ended with {status} before", self.name);
        Ok(())
    }
}

/// A thread that kills a server at its time.
#[derive(Debug)]
pub struct Killer {
    stop: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<Result<Option<Instant>>>,
}

impl Killer {
    /// Whether it has done its work, or was told to stop.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until it has killed; when that was.
    pub fn wait(self) -> Result<Option<Instant>> {
        // Keeps the sender: without it the thread would stop at once.
        let Self { stop: _stop, thread } = self;
        thread.join().expect("the killer does not panic")
    }

    /// Ends it, without a kill if there was none yet; when the kill was.
    pub fn call_off(self) -> Result<Option<Instant>> {
        drop(self.stop);
        self.thread.join().expect("the killer does not panic")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that it has ended already, which is what is wanted.
        let _already_ended = self.child.kill();
        let _already_reaped = self.child.wait();
    }
}

/// A server that left its starter (`--daemonize`), known by its pidfile; killed on drop.
#[derive(Debug)]
pub struct Daemon {
    pid: Pid,
}

impl Daemon {
    /// The process whose id stands in this pidfile.
    pub fn from_pidfile(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("read the pidfile {}", path.display()))?;
        let number = text.trim().parse().with_context(|| format!("pidfile holds {text:?}"))?;
        let pid = Pid::from_raw(number).context("the pidfile holds zero")?;
        Ok(Self { pid })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_pid().cast_unsigned()
    }

    /// Asks it to stop (SIGTERM).
    pub fn terminate(&self) -> Result<()> {
        kill_process(self.pid, Signal::TERM).context("signal the daemon")
    }

    /// Whether it still runs. One that has ended and waits for its new parent to notice does not.
    pub fn is_alive(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        // The state comes after the name, which stands in parentheses.
        stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().starts_with(" Z"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // An error means that it has ended already, which is what is wanted.
        let _already_ended = kill_process(self.pid, Signal::KILL);
    }
}

/// A stream that a thread reads to its end.
#[derive(Debug)]
pub(crate) struct Capture {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: std::thread::JoinHandle<()>,
}

impl Capture {
    pub(crate) fn of(mut stream: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut chunk) {
                sink.lock().expect("no holder panics").extend_from_slice(&chunk[..length]);
            }
        });
        Self { bytes, reader }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().expect("no holder panics")).into_owned()
    }

    fn lines(&self) -> u64 {
        let bytes = self.bytes.lock().expect("no holder panics");
        bytes.iter().map(|byte| u64::from(*byte == b'\n')).sum()
    }

    /// Waits until the stream has ended, so that `text` is complete.
    pub(crate) fn finish(&self) -> Result<()> {
        poll_until("the end of the server's output", Duration::from_secs(5), || {
            Ok(self.reader.is_finished().then_some(()))
        })
    }
}

/// Whether some process listens on this unix socket. The kernel's table is asked, because a connection made to find
/// out would be a session for the server.
pub fn is_listening(socket: &Path) -> Result<bool> {
    /// `__SO_ACCEPTCON` in the flags column of `/proc/net/unix`.
    const LISTENS: &str = "00010000";
    let path = socket.to_str().context("a socket path is text")?;
    let table = std::fs::read_to_string("/proc/net/unix").context("read /proc/net/unix")?;
    Ok(table.lines().any(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        columns.get(3) == Some(&LISTENS) && columns.get(7) == Some(&path)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell in place of a server, which does this when it is asked to stop.
    fn server(name: &'static str, on_term: &str) -> Server {
        let script = format!("trap '{on_term}' TERM; echo ready >&2; while :; do sleep 0.01; done");
        let program = Program::named(name, "sh", &["-c"]);
        let server = program.spawn(&[script]).unwrap();
        server.wait_for_log("ready", START_LIMIT).unwrap();
        server
    }

    #[test]
    fn only_the_peer_may_crash_when_it_is_stopped() {
        for (name, on_term, expected) in [
            ("ringloom", "exit 0", Some(Leave::InOrder)),
            ("ringloom", "kill -SEGV $$", None),
            ("ringloom", "exit 1", None),
            (PEER, "exit 0", Some(Leave::InOrder)),
            (PEER, "kill -SEGV $$", Some(Leave::PeerCrashed)),
            (PEER, "exit 1", None),
        ] {
            assert_eq!(server(name, on_term).stop().ok(), expected, "{name}: {on_term}");
        }
    }

    #[test]
    fn signals_to_a_frozen_server_wait_until_it_goes_on() {
        let mut server = server("frozen", "exit 0");
        server.freeze().unwrap();
        server.signal(Signal::TERM).unwrap();
        assert!(server.is_alive().unwrap());
        server.signal(Signal::CONT).unwrap();
        assert_eq!(server.wait_for_leave().unwrap(), Leave::InOrder);
    }
}
