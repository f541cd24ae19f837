//! The daemon under test as a child process: its command line, start, death and stop.
//!
//! Invariants: at most one child per `Running`, stopped and waited for on every way out (`load::child`).
//! Not here: waiting for the socket, which `measure` does by connecting.

use std::ffi::OsString;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use emit::export::{AUTO, Export, named};
use load::child::{Request, Supervised};
use plan::contender::Iothreads;
use plan::variant::Aio;
use storage::clock;
use storage::storages::DiskFiles;
use tempfile::TempDir;

use crate::progress::say;

/// A path must fit into `sockaddr_un` with its final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// How long a daemon may take to listen; longer than the 30 s for which it waits for the lock of its image.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(40);
const START_POLL: Duration = Duration::from_millis(3);
/// How long a daemon may take to drain and leave.
const STOP_LIMIT: Duration = Duration::from_secs(20);
const TAIL_LINES: usize = 12;
const TAIL_BYTES_MAX: u64 = 16 << 10;

/// The program that serves the disk.
#[derive(Clone, Debug)]
pub struct Daemon {
    program: PathBuf,
}

impl Daemon {
    /// The running program itself, with its subcommand `serve`.
    ///
    /// # Errors
    /// If the system does not tell the path of the running program.
    pub fn this_program() -> io::Result<Self> {
        std::env::current_exe().map(Self::at)
    }

    /// Another program that takes the options of `ringloom serve`. Under the name
    /// `qemu-storage-daemon` it is started without the word `serve`.
    #[must_use]
    pub fn at(program: PathBuf) -> Self {
        Self { program }
    }

    fn subcommand(&self) -> Option<&'static str> {
        (!self.is_peer()).then_some("serve")
    }

    /// Whether it goes by the name of the daemon whose options ringloom takes.
    fn is_peer(&self) -> bool {
        self.program.file_name().unwrap_or_default() == "qemu-storage-daemon"
    }

    /// The first line of `--version`.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub(crate) fn version(&self) -> Result<String> {
        let output = Command::new(&self.program)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("start the daemon {}", self.program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().next().unwrap_or("unknown").to_owned())
    }
}

/// What the daemon shall serve and how: each disk on an export of its own, all on the same iothreads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Service<'a> {
    pub(crate) disks: &'a [DiskFiles],
    pub(crate) aio: Aio,
    pub(crate) iothreads: Iothreads,
    /// Of each disk.
    pub(crate) queues: u16,
    pub(crate) writable: bool,
}

/// The options of the daemon, in qemu-storage-daemon's spelling, with the sockets in this directory.
fn options(service: &Service<'_>, directory: &Path) -> Vec<OsString> {
    let mut options = Vec::new();
    let mut push = |name: &str, value: String| {
        options.extend([OsString::from(name), OsString::from(value)]);
    };
    for thread in 0..named(service.iothreads) {
        push("--object", format!("iothread,id=t{thread}"));
    }
    for (number, disk) in service.disks.iter().enumerate() {
        let node = format!("disk{number}");
        for (name, value) in disk.daemon_options(&node, service.aio, !service.writable) {
            push(&name, value);
        }
        push("--export", export(service, number, &node, &socket(directory, number)));
    }
    options
}

fn socket(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("s{number}"))
}

fn export(service: &Service<'_>, number: usize, node: &str, socket: &Path) -> String {
    // Each disk goes on where the one before ended, as with QEMU, so that all threads have as much to do.
    let first = number * usize::from(service.queues);
    let count = named(service.iothreads);
    let thread = |place: u16| (first + usize::from(place)) % usize::from(count);
    Export {
        id: &format!("export{number}"),
        node,
        writable: service.writable,
        socket,
        queues: service.queues,
        iothreads: if service.iothreads.is_auto() {
            vec![AUTO.to_owned()]
        } else {
            (0..count).map(|place| format!("t{}", thread(place))).collect()
        },
    }
    .option()
}

/// A started daemon.
#[derive(Debug)]
pub(crate) struct Running {
    child: Supervised,
    sockets: Vec<PathBuf>,
    log: PathBuf,
    /// Where the log of this start begins.
    log_start: u64,
    is_peer: bool,
    _directory: TempDir,
}

impl Running {
    /// Starts the daemon with its socket in a fresh private directory; its output goes to `log`.
    ///
    /// # Errors
    /// If the program cannot be started or the temporary directory has too long a name.
    pub(crate) fn start(daemon: &Daemon, service: &Service<'_>, log: &Path) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("ringloom-tune-").tempdir()?;
        let sockets: Vec<_> =
            (0..service.disks.len()).map(|number| socket(directory.path(), number)).collect();
        if let Some(long) = sockets.iter().find(|it| it.as_os_str().len() > SOCKET_PATH_BYTES_MAX) {
            let name = long.display();
            bail!("socket {name}: longer than {SOCKET_PATH_BYTES_MAX} bytes; set TMPDIR=/tmp");
        }
        let options = options(service, directory.path());
        let mut command = Command::new(&daemon.program);
        command.args(daemon.subcommand()).args(&options);
        let mut file = open_log(log)?;
        writeln!(file, "$ {command:?}")?;
        let log_start = file.seek(SeekFrom::End(0))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = Supervised::start(&mut command, Request::Terminate, STOP_LIMIT)
            .with_context(|| format!("start the daemon {}", daemon.program.display()))?;
        let (log, is_peer) = (log.to_path_buf(), daemon.is_peer());
        Ok(Self { child, sockets, log, log_start, is_peer, _directory: directory })
    }

    /// The socket of a disk, in their order.
    pub(crate) fn socket(&self, number: usize) -> &Path {
        &self.sockets[number]
    }

    /// Waits until all sockets are there, for somebody who gives up at once if they are not.
    ///
    /// # Errors
    /// If the daemon ends, takes longer than `START_LIMIT`, or `watch` fails.
    pub(crate) fn wait_for_sockets(&mut self, watch: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let deadline = clock::now() + START_LIMIT;
        while !self.sockets.iter().all(|socket| socket.exists()) {
            watch()?;
            self.check_alive()?;
            if clock::now() > deadline {
                let limit = START_LIMIT.as_secs();
                bail!("the daemon has no socket after {limit} s{}", self.tail());
            }
            clock::pause(START_POLL);
        }
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Fails if the daemon has ended by itself, with the end of its log.
    pub(crate) fn check_alive(&mut self) -> Result<()> {
        match self.child.poll().context("ask for the state of the daemon")? {
            None => Ok(()),
            Some(status) => bail!("the daemon ended early ({status}){}", self.tail()),
        }
    }

    /// Stops the daemon, whose run is over, and checks that it left in order.
    ///
    /// qemu-storage-daemon may crash now: version 10.0.2 does so in one of some thousand stops right after a client has
    /// left. That is no fault of what was measured, so it is told, and returned for the results.
    ///
    /// # Errors
    /// If it has ended before, ended with an error now, or had to be killed.
    pub(crate) fn stop(mut self) -> Result<Option<Crash>> {
        self.check_alive()?;
        match self.child.end()? {
            Some(status) if status.success() => Ok(None),
            Some(status) if self.is_peer && status.signal().is_some() => {
                say(&format!(
                    "Note: qemu-storage-daemon crashed ({status}) after SIGTERM; its run was over and counts{}",
                    self.tail()
                ));
                Ok(Some(Crash(status)))
            }
            Some(status) => {
                bail!("the daemon ended with {status} after SIGTERM{}", self.tail())
            }
            None => {
                let limit = STOP_LIMIT.as_secs();
                bail!("the daemon did not end within {limit} s of SIGTERM{}", self.tail())
            }
        }
    }

    /// The last lines of this start's log, for an error message.
    fn tail(&self) -> String {
        let text = read_from(&self.log, self.log_start).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        if last.is_empty() {
            return format!("; it wrote nothing to {}", self.log.display());
        }
        format!("; the end of {}:\n  {}", self.log.display(), last.join("\n  "))
    }
}

/// How qemu-storage-daemon crashed after its run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crash(ExitStatus);

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn open_log(path: &Path) -> Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| format!("open the daemon's log {}", path.display()))
}

fn read_from(path: &Path, start: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let end = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(start.max(end.saturating_sub(TAIL_BYTES_MAX))))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use load::probe::CacheMode;
    use plan::variant::Image;
    use storage::target::Kind;

    use super::*;

    fn disk(path: &str, cache: CacheMode, kind: Kind) -> DiskFiles {
        DiskFiles {
            format: Image::Raw,
            kind,
            files: vec![PathBuf::from(path)],
            chunk: None,
            delay: Duration::ZERO,
            bytes: 1 << 30,
            cache,
        }
    }

    fn line(disks: &[DiskFiles], iothreads: u16, writable: bool) -> String {
        let iothreads = Iothreads::new(iothreads);
        let service = Service { disks, aio: Aio::Auto, iothreads, queues: 4, writable };
        let words = options(&service, Path::new("/tmp/a,b"));
        words.join(std::ffi::OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn none_names_no_iothread() {
        let disk = disk("/d/disk.img", CacheMode::Direct, Kind::File);
        assert_eq!(
            line(&[disk], 0, true),
            "--blockdev driver=file,cache.direct=on,filename=/d/disk.img,node-name=disk0 \
             --export vhost-user-blk,id=export0,node-name=disk0,writable=on,addr.type=unix,\
             addr.path=/tmp/a,,b/s0,num-queues=4"
        );
    }

    #[test]
    fn one_iothread_has_the_form_qemu_knows() {
        let disk = disk("/dev/sdx", CacheMode::Buffered, Kind::BlockDevice);
        assert_eq!(
            line(&[disk], 1, false),
            "--object iothread,id=t0 \
             --blockdev driver=host_device,filename=/dev/sdx,node-name=disk0,read-only=on \
             --export vhost-user-blk,id=export0,node-name=disk0,addr.type=unix,\
             addr.path=/tmp/a,,b/s0,num-queues=4,iothread=t0"
        );
    }

    #[test]
    fn several_iothreads_are_a_list_for_every_disk() {
        let disk = disk("/d/disk.img", CacheMode::Direct, Kind::File);
        let line = line(&[disk.clone(), disk], 3, true);
        assert!(line.starts_with("--object iothread,id=t0 --object iothread,id=t1 --object"));
        assert!(line.contains("num-queues=4,iothread.0=t0,iothread.1=t1,iothread.2=t2"), "{line}");
        assert!(line.contains("num-queues=4,iothread.0=t1,iothread.1=t2,iothread.2=t0"), "{line}");
        assert!(line.contains("addr.path=/tmp/a,,b/s1"), "{line}");
    }

    #[test]
    fn auto_names_the_pool_of_ringloom() {
        let disk = disk("/d/disk.img", CacheMode::Direct, Kind::File);
        let service = Service {
            disks: &[disk],
            aio: Aio::Auto,
            iothreads: Iothreads::AUTO,
            queues: 4,
            writable: true,
        };
        let options = options(&service, Path::new("/tmp"));
        assert!(options.last().unwrap().to_str().unwrap().ends_with("num-queues=4,iothread=auto"));
        assert!(!options.iter().any(|it| it == "--object"), "{options:?}");
    }

    fn start(program: &str) -> (Result<Running>, TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("daemon.log");
        let disk = disk("/d/disk.img", CacheMode::Direct, Kind::File);
        let (iothreads, aio) = (Iothreads::NONE, Aio::Auto);
        let service = Service { disks: &[disk], aio, iothreads, queues: 1, writable: false };
        (Running::start(&Daemon::at(PathBuf::from(program)), &service, &log), directory)
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let error = start("/nonexistent/daemon").0.unwrap_err();
        assert!(format!("{error:#}").contains("/nonexistent/daemon"), "{error:#}");
    }

    #[test]
    fn an_early_death_shows_the_log() {
        // `ls` dislikes the options of a daemon, says so on standard error and ends.
        let (running, _directory) = start("/bin/ls");
        let mut running = running.unwrap();
        let deadline = clock::now() + Duration::from_secs(10);
        let error = loop {
            match running.check_alive() {
                Err(error) => break error.to_string(),
                Ok(()) => assert!(clock::now() < deadline, "ls does not end"),
            }
        };
        assert!(error.contains("ended early (exit status: 2)"), "{error}");
        assert!(error.contains("--blockdev"), "{error}");
    }
}
