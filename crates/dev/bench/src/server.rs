//! A server as a process on its own CPUs: ringloom and qemu-storage-daemon take the same command line.
//!
//! Invariants: a server never outlives its `Server`; the next starts only after it has gone, since
//! stopping waits for its end.

use std::fs;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use load::client::{Connection, connect};
use load::probe::CacheMode;
use load::{Continuation, LoadError, Watch, Workload};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::clock;
use crate::cpus::ProcessCpus;
use crate::disks::{DISK_BYTES, DiskFile, Format};
use crate::rbd_disk;

const START_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(2);
/// Where waiting is what is measured.
const POLL_OFTEN: Duration = Duration::from_micros(100);

/// Which program serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Program {
    Ringloom(PathBuf),
    Qsd(PathBuf),
}

/// What it serves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Service<'a> {
    /// `None` is the null disk.
    pub(crate) file: Option<DiskFile<'a>>,
    pub(crate) exports: u16,
    pub(crate) queues: u16,
    pub(crate) iothreads: Iothreads,
}

/// Which threads serve an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Iothreads {
    /// So many; without one the main thread of qemu-storage-daemon, which takes one at most.
    Fixed(u16),
    /// Ringloom's `iothread=auto`.
    Auto,
}

#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    directory: TempDir,
    is_peer: bool,
    ended: bool,
}

impl Program {
    fn command(&self) -> Command {
        match self {
            // Under that name there are no subcommands. That program in ringloom's place shows how far
            // apart two that are equal come out.
            Self::Ringloom(path) if path.file_name() == Some("qemu-storage-daemon".as_ref()) => {
                Command::new(path)
            }
            Self::Ringloom(path) => {
                let mut command = Command::new(path);
                command.arg("serve");
                command
            }
            Self::Qsd(path) => Command::new(path),
        }
    }

    fn arguments(&self, service: &Service<'_>, directory: &Path) -> Vec<String> {
        let iothreads = match (self, service.iothreads) {
            (Self::Ringloom(_), Iothreads::Fixed(count)) => count,
            (Self::Qsd(_), Iothreads::Fixed(count)) => count.min(1),
            (_, Iothreads::Auto) => 0,
        };
        let mut arguments = Vec::new();
        for thread in 0..iothreads {
            arguments.extend(["--object".to_owned(), format!("iothread,id=t{thread}")]);
        }
        for export in 0..service.exports {
            for node in self.blockdevs(service.file, export) {
                arguments.extend(["--blockdev".to_owned(), node]);
            }
            let socket = directory.join(export.to_string());
            let mut option = format!(
                "type=vhost-user-blk,id=e{export},node-name=d{export},addr.type=unix,\
                 addr.path={},writable=on,num-queues={}",
                socket.display(),
                service.queues
            );
            match iothreads {
                0 if service.iothreads == Iothreads::Auto => option.push_str(",iothread=auto"),
                0 => {}
                1 => option.push_str(",iothread=t0"),
                _ => option.extend((0..iothreads).map(|t| format!(",iothread.{t}=t{t}"))),
            }
            arguments.extend(["--export".to_owned(), option]);
        }
        arguments
    }

    /// The nodes of an export; the last is called `d` and its number.
    fn blockdevs(&self, file: Option<DiskFile<'_>>, export: u16) -> Vec<String> {
        let name = format!("d{export}");
        let Some(DiskFile { path, cache, format, nbd }) = file else {
            return vec![format!(
                "driver=null-co,node-name={name},size={DISK_BYTES},read-zeroes=off"
            )];
        };
        let (backing, l2_cache) = match format {
            Format::Raw => return vec![self.protocol(&name, path, cache)],
            // Without direct I/O qemu-storage-daemon has librbd cache.
            Format::Cluster => {
                return vec![format!(
                    "driver=rbd,node-name={name},pool={},image={},conf={},cache.direct=on",
                    rbd_disk::POOL,
                    rbd_disk::IMAGE,
                    path.display()
                )];
            }
            Format::Qcow2 { backing, l2_cache } => (backing, l2_cache),
        };
        let mut nodes = Vec::new();
        let mut below: Option<String> = None;
        let images = backing.iter().enumerate().map(|(place, path)| (place + 1, &**path));
        for (place, path) in images.rev().chain([(0, path)]) {
            let (file, disk) = match place {
                0 => (format!("f{export}"), name.clone()),
                _ => (format!("f{export}-{place}"), format!("b{export}-{place}")),
            };
            let read_only = if place == 0 { "" } else { ",read-only=on" };
            let protocol = match nbd {
                Some(socket) => {
                    let socket = socket.display();
                    format!("driver=nbd,node-name={file},server.type=unix,server.path={socket}")
                }
                None => self.protocol(&file, path, cache),
            };
            nodes.push(protocol + read_only);
            let mut image = format!("driver=qcow2,node-name={disk},file={file}{read_only}");
            image.extend(l2_cache.map(|bytes| format!(",l2-cache-size={bytes}")));
            image.extend(below.take().map(|below| format!(",backing={below}")));
            nodes.push(image);
            below = Some(disk);
        }
        nodes
    }

    /// The node with the bytes of a file.
    fn protocol(&self, name: &str, path: &Path, cache: CacheMode) -> String {
        let mut option = format!("driver=file,node-name={name},filename={}", path.display());
        if cache == CacheMode::Direct {
            option.push_str(",cache.direct=on");
            // Its default is a pool of threads, which is slower on real disks. On a tmpfs it is
            // faster than its io_uring.
            if let Self::Qsd(_) = self {
                option.push_str(",aio=io_uring");
            }
        }
        option
    }

    /// Starts it on the CPUs of servers.
    pub(crate) fn start(&self, service: &Service<'_>, cpus: &ProcessCpus) -> Result<Server> {
        self.start_with(cpus, |directory| self.arguments(service, directory))
    }

    /// The same, with a disk as the export `d0` of an NBD server on a socket of that name.
    pub(crate) fn start_nbd(
        &self,
        file: Option<DiskFile<'_>>,
        cpus: &ProcessCpus,
    ) -> Result<Server> {
        self.start_with(cpus, |directory| {
            let mut arguments = vec!["--object".to_owned(), "iothread,id=t0".to_owned()];
            for node in self.blockdevs(file, 0) {
                arguments.extend(["--blockdev".to_owned(), node]);
            }
            let socket = directory.join("0");
            let server = format!("addr.type=unix,addr.path={}", socket.display());
            let export = "type=nbd,id=e0,node-name=d0,name=d0,writable=on,iothread=t0".to_owned();
            arguments.extend(["--nbd-server".to_owned(), server, "--export".to_owned(), export]);
            arguments
        })
    }

    fn start_with(
        &self,
        cpus: &ProcessCpus,
        arguments: impl FnOnce(&Path) -> Vec<String>,
    ) -> Result<Server> {
        // Short: a socket's path has at most 107 bytes.
        let directory = TempDir::with_prefix_in("rl-bench-", "/tmp").context("make a directory")?;
        let log = fs::File::create(directory.path().join("log")).context("make a log")?;
        let mut command = self.command();
        command.args(arguments(directory.path()));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = cpus.as_server(|| command.spawn())?;
        let child = child.with_context(|| format!("start {}", command.get_program().display()))?;
        Ok(Server { child, directory, is_peer: matches!(self, Self::Qsd(_)), ended: false })
    }
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where its exports' sockets are, by number.
    pub(crate) fn socket(&self, export: u16) -> PathBuf {
        self.directory.path().join(export.to_string())
    }

    /// Connects to an export, as soon as the server listens.
    pub(crate) fn connect(&mut self, export: u16, workload: &Workload) -> Result<Connection> {
        let socket = self.socket(export);
        let deadline = clock::now() + START_LIMIT;
        loop {
            let refused = match connect(&socket, workload, &mut Patient) {
                Ok(connection) => return Ok(connection),
                Err(error @ LoadError::SetUp { .. }) => error,
                Err(error) => return Err(error.into()),
            };
            self.check_alive()?;
            if clock::now() > deadline {
                return Err(refused).with_context(|| format!("its log: {}", self.log()));
            }
            clock::pause(POLL);
        }
    }

    /// Waits until an export's socket takes a connection, which is closed at once.
    pub(crate) fn wait_until_it_accepts(&mut self, export: u16) -> Result<()> {
        let socket = self.socket(export);
        let deadline = clock::now() + START_LIMIT;
        while let Err(refused) = UnixStream::connect(&socket) {
            self.check_alive()?;
            if clock::now() > deadline {
                return Err(refused).with_context(|| format!("its log: {}", self.log()));
            }
            clock::pause(POLL_OFTEN);
        }
        Ok(())
    }

    fn check_alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            self.ended = true;
            bail!("the server ended ({status}): {}", self.log());
        }
        Ok(())
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Stops it in order. That qemu-storage-daemon crashes now is only told: version 10.0.2 does so in one of some
    /// thousand stops right after a client has hung up, and what was measured is over.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.check_alive()?;
        kill_process(Pid::from_child(&self.child), Signal::TERM).context("stop the server")?;
        let deadline = clock::now() + STOP_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.ended = true;
                if self.is_peer && status.signal().is_some() {
                    tell_crash(status);
                    return Ok(());
                }
                ensure!(status.success(), "the server ended with {status}: {}", self.log());
                return Ok(());
            }
            ensure!(clock::now() < deadline, "the server does not stop: {}", self.log());
            clock::pause(POLL);
        }
    }
}

#[expect(clippy::print_stderr, reason = "a note beside the table on stdout")]
fn tell_crash(status: ExitStatus) {
    eprintln!(
        "note: qemu-storage-daemon crashed after SIGTERM ({status}); its sample was over and counts"
    );
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.ended {
            // On the way out of another error, which is the one to report.
            let _killed = self.child.kill();
            let _reaped = self.child.wait();
        }
    }
}

/// Never stops anything.
#[derive(Debug)]
pub(crate) struct Patient;

impl Watch for Patient {
    fn window_opens(&mut self) {}
    fn window_closes(&mut self) {}
    fn tick(&mut self) -> Continuation {
        Continuation::GoOn
    }
    fn second(&mut self, _: &load::Interval) {}
    fn fifth(&mut self, _: &load::Fifth) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(program: &Program, file: Option<DiskFile<'_>>) -> String {
        let service = Service { file, exports: 1, queues: 2, iothreads: Iothreads::Fixed(2) };
        program.arguments(&service, Path::new("/t")).join(" ")
    }

    #[test]
    fn both_programs_get_the_same_null_disk() {
        let ringloom = line(&Program::Ringloom("r".into()), None);
        assert!(ringloom.ends_with(",num-queues=2,iothread.0=t0,iothread.1=t1"), "{ringloom}");
        let qsd = line(&Program::Qsd("q".into()), None);
        assert_eq!(
            qsd,
            "--object iothread,id=t0 \
             --blockdev driver=null-co,node-name=d0,size=536870912,read-zeroes=off \
             --export type=vhost-user-blk,id=e0,node-name=d0,addr.type=unix,addr.path=/t/0,\
             writable=on,num-queues=2,iothread=t0"
        );
    }

    #[test]
    fn an_image_stands_on_the_nodes_of_its_chain() {
        let below = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let backing = std::slice::from_ref(&below);
        let format = Format::Qcow2 { backing, l2_cache: Some(1 << 20) };
        let file =
            DiskFile { path: Path::new("/d"), cache: CacheMode::Buffered, format, nbd: None };
        let line = line(&Program::Qsd("qemu-storage-daemon".into()), Some(file));
        let nodes = format!(
            "--blockdev driver=file,node-name=f0-1,filename={},read-only=on \
             --blockdev driver=qcow2,node-name=b0-1,file=f0-1,read-only=on,l2-cache-size=1048576 \
             --blockdev driver=file,node-name=f0,filename=/d \
             --blockdev driver=qcow2,node-name=d0,file=f0,l2-cache-size=1048576,backing=b0-1 ",
            below.display()
        );
        assert!(line.contains(&nodes), "{line}");
    }

    #[test]
    fn direct_files_use_io_uring_in_both() {
        let file = DiskFile::raw(Path::new("/d"), CacheMode::Direct);
        let qsd = line(&Program::Qsd("q".into()), Some(file));
        assert!(qsd.contains("filename=/d,cache.direct=on,aio=io_uring "), "{qsd}");
        let ringloom = line(&Program::Ringloom("r".into()), Some(file));
        assert!(ringloom.contains("filename=/d,cache.direct=on "), "{ringloom}");
    }

    #[test]
    fn only_the_peer_may_crash_when_it_is_stopped() {
        for (is_peer, on_term, is_fine) in [
            (true, "kill -SEGV $$", true),
            (true, "exit 1", false),
            (false, "kill -SEGV $$", false),
            (false, "exit 0", true),
        ] {
            let directory = TempDir::new().unwrap();
            let ready = directory.path().join("ready");
            let script = format!("trap '{on_term}' TERM; >$0; while :; do sleep 0.01; done");
            let child = Command::new("sh").args(["-c", &script]).arg(&ready).spawn().unwrap();
            while !ready.exists() {
                clock::pause(POLL);
            }
            let server = Server { child, directory, is_peer, ended: false };
            assert_eq!(server.stop().is_ok(), is_fine, "{is_peer} {on_term}");
        }
    }
}
