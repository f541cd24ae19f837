//! What a process behind all fences tries, and how that ends: each attempt in a process of its own.
//!
//! The test starts itself again, with the attempt in the environment, puts the fences up there, and
//! looks at the exit. What is refused is tried without the fences too, which shows that it is an
//! attempt; what succeeds is what docs/sandbox.md says that a breached daemon can still do.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use block::ByteOffset;
use kernel_io::{
    Aio, BouncePool, BounceSize, EngineKernel, FileTable, Kernel, KernelError, OpenFile,
    ReactorChoice, ReactorKind, SpareRings, Tag, WaitMode,
};
use testkit::trespass;

use super::super::privileges;
use super::super::seccomp::{FilterNeeds, SeccompFilters};
use super::{Access, AllowedDirectory, Place, SandboxMode, prepare};

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Succeeded,
    Refused(i32),
    Killed(i32),
}

const ATTEMPT: &str = "RINGLOOM_TEST_ATTEMPT";
const ROOT: &str = "RINGLOOM_TEST_ROOT";
const SANDBOX: &str = "RINGLOOM_TEST_SANDBOX";
/// The value of [`SANDBOX`] that puts up the filters of system calls and nothing else.
const CALLS_ONLY: &str = "calls";
/// The value of [`SANDBOX`] for all fences with `--allow-below` for the disks, and for the secrets only for reading.
const COMMANDS: &str = "commands";
/// An exit code that is this and an errno is an attempt that was refused. A test that panics exits with 101.
const REFUSED: i32 = 120;

fn attempt(name: &str, sandbox: &str) -> End {
    let place = Place::new();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sandbox::tests::attempts::the_attempt", "--nocapture"])
        .env(ATTEMPT, name)
        .env(ROOT, &place.root)
        .env(SANDBOX, sandbox)
        .output()
        .unwrap();
    let status = output.status;
    match (status.code(), status.signal()) {
        (Some(0), _) => End::Succeeded,
        (Some(code), _) if code > REFUSED => End::Refused(code - REFUSED),
        (None, Some(signal)) => End::Killed(signal),
        (code, _) => panic!("{name}: {code:?}: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// The other side of [`attempt`]; nothing without its environment.
#[test]
#[expect(clippy::exit, reason = "the answer is the exit code, and this process is only for it")]
fn the_attempt() {
    let Ok(name) = std::env::var(ATTEMPT) else { return };
    let scene = Scene::new(PathBuf::from(std::env::var(ROOT).unwrap()));
    let sandbox = std::env::var(SANDBOX).unwrap();
    let mode = if sandbox == "off" { SandboxMode::Off } else { SandboxMode::Required };
    let allowed = [("disks", Access::ReadWrite), ("secrets", Access::ReadOnly)]
        .map(|(name, access)| AllowedDirectory { path: scene.at(name), access });
    let allowed = if sandbox == COMMANDS { &allowed[..] } else { &[] };
    if sandbox == CALLS_ONLY {
        privileges::give_up().unwrap();
        SeccompFilters::new(FilterNeeds {
            opening: false,
            makes: false,
            discards: false,
            ids: false,
            listens: false,
            connects: false,
            connects_unix: false,
        })
        .unwrap()
        .put_up()
        .unwrap();
    } else if let Some(sandbox) = prepare(&scene.root, mode, allowed) {
        sandbox.close().unwrap();
    }
    let code = match scene.carry_out(&name) {
        Ok(()) => 0,
        Err(error) => REFUSED + error.raw_os_error().unwrap(),
    };
    std::process::exit(code);
}

/// What a daemon has open when its fences go up.
struct Scene {
    root: PathBuf,
    disk: File,
    listener: UnixListener,
    /// A client that waits to be accepted.
    client: UnixStream,
    /// A session, and its front end.
    session: UnixStream,
    front_end: UnixStream,
    /// What lines for the host's log are sent with, and another service of that kind.
    log: UnixDatagram,
    service: UnixDatagram,
    /// Another process, which ends with this one.
    other: Child,
    spare_rings: SpareRings,
}

impl Scene {
    fn new(root: PathBuf) -> Self {
        let mut options = OpenOptions::new();
        let disk = options.read(true).write(true).open(root.join("disks/a.img")).unwrap();
        let listener = UnixListener::bind(root.join("sockets/live.sock")).unwrap();
        let client = UnixStream::connect(root.join("sockets/live.sock")).unwrap();
        let (session, front_end) = UnixStream::pair().unwrap();
        let [log, service] = ["log", "other"]
            .map(|name| UnixDatagram::bind(root.join("sockets").join(name)).unwrap());
        let other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let spare_rings = SpareRings::default();
        // Where there is no io_uring, there is none to take.
        spare_rings.fill(1).ok();
        Self { root, disk, listener, client, session, front_end, log, service, other, spare_rings }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn carry_out(&self, name: &str) -> io::Result<()> {
        let (disk, session, other) = (self.disk.as_fd(), self.session.as_fd(), self.other.id());
        match name {
            // Only returns if it fails.
            "execute" => Err(Command::new("/bin/true").exec()),
            "internet" => std::net::UdpSocket::bind("127.0.0.1:0").map(drop),
            "local" => UnixListener::bind(self.at("sockets/b.sock")).map(drop),
            "mode" => {
                let mode = PermissionsExt::from_mode(0o777);
                std::fs::set_permissions(self.at("disks/a.img"), mode)
            }
            "open" => File::open(self.at("disks/a.img")).map(drop),
            "rename" => std::fs::rename(self.at("disks/a.img"), self.at("disks/b.img")),
            "list" => std::fs::read_dir(self.at("disks")).map(drop),
            "map code" => trespass::map_code(),
            "turn data into code" => trespass::turn_data_into_code(),
            "trace" => trespass::trace(),
            "fork" => trespass::fork(),
            "name space" => trespass::leave_name_space(),
            "ring" => trespass::make_ring(),
            "late iothread" => self.read_through_a_ring(&self.spare_rings),
            "late iothread without a spare ring" => {
                self.read_through_a_ring(&SpareRings::default())
            }
            "bell of a ring" => trespass::register_bell(),
            "handle" => trespass::open_by_handle(),
            "limit" => host::raise_open_files_limit().map(drop),
            "other thread" => std::thread::spawn(trespass::make_ring).join().unwrap(),
            "signal another" => trespass::signal(other, libc::SIGKILL),
            "hold another" => trespass::signal_by_descriptor(other, libc::SIGKILL),
            "tell a peer to end" => trespass::signal_peer(session, libc::SIGTERM),
            "socket filter" => trespass::filter_socket(session),
            "owner of signals" => trespass::control(session, libc::F_SETOWN, 1),
            "signals of a socket" => trespass::control(session, libc::F_SETFL, libc::O_ASYNC),
            "lease" => trespass::control(disk, libc::F_SETLEASE, libc::F_WRLCK),
            "terminal" => trespass::control_device(session, libc::TIOCSTI),
            // No block device was named.
            "discard" => trespass::control_device(disk, 0x1277),
            "write what is read only" => {
                OpenOptions::new().write(true).open(self.at("secrets/key")).map(drop)
            }
            "make where it is read only" => File::create(self.at("secrets/b.img")).map(drop),
            "make elsewhere" => File::create(self.at("sockets/b.img")).map(drop),
            "connect" => UnixStream::connect(self.at("sockets/live.sock")).map(drop),
            // A program that runs as its owner.
            "mode of a program" => self.disk.set_permissions(PermissionsExt::from_mode(0o4755)),
            _ => self.do_what_is_left(name),
        }
    }

    /// What docs/sandbox.md says of a breached daemon, line by line.
    fn do_what_is_left(&self, name: &str) -> io::Result<()> {
        let (disk, session) = (self.disk.as_fd(), self.session.as_fd());
        match name {
            "use the disks" => self.use_the_disks(),
            "lock" => trespass::unlock(disk),
            "hand over" => trespass::hand_over(session, disk),
            "accept" => self.listener.accept().and_then(|(mut session, _)| {
                session.write_all(b"hello")?;
                self.client.shutdown(std::net::Shutdown::Both)
            }),
            "write to clients" => (&self.session).write_all(b"hello").and_then(|()| {
                let mut said = [0; 5];
                io::Read::read_exact(&mut &self.front_end, &mut said)
            }),
            "send datagrams" => {
                self.log.send_to(b"hello", self.at("sockets/other"))?;
                self.service.recv(&mut [0; 5]).map(drop)
            }
            "remove" => std::fs::remove_file(self.at("sockets/live.sock")),
            "look at names" => look_at_names(&self.at("secrets/key")),
            // Who has made both ends of a connection is the peer of both.
            "end a peer" => trespass::signal_peer(session, libc::SIGKILL),
            "memory and threads" => use_memory_and_threads(),
            "say" => io::stderr().write_all(b"anything\n"),
            "open what is allowed" => {
                let names = std::fs::read_dir(self.at("disks"))?;
                assert_ne!(names.count(), 0);
                OpenOptions::new().write(true).open(self.at("disks/a.img"))?;
                File::open(self.at("secrets/key")).map(drop)
            }
            "make what is allowed" => {
                File::create(self.at("disks/b.img"))?.write_all(b"anything")?;
                UnixListener::bind(self.at("disks/b.sock"))?;
                std::fs::remove_file(self.at("disks/b.img"))
            }
            "change modes" => self.disk.set_permissions(PermissionsExt::from_mode(0o777)),
            "abort" => std::process::abort(),
            other => panic!("no attempt is called {other}"),
        }
    }

    /// Reads the disk as an iothread does that starts now, unless it has no io_uring.
    fn read_through_a_ring(&self, spare_rings: &SpareRings) -> io::Result<()> {
        let (files, path) = (Arc::new(FileTable::default()), self.at("disks/a.img"));
        let disk =
            OpenFile::adopt(self.disk.as_fd().try_clone_to_owned()?, path, 4096, Aio::IoUring);
        let file = files.insert(Arc::new(disk));
        let read = move || {
            let allowed = ReactorChoice::Any;
            let mut kernel = Kernel::with_spare_rings(files, allowed, spare_rings).unwrap();
            if let ReactorKind::EpollInstead(KernelError::Uring(error)) = kernel.waits_with() {
                return Err(io::Error::from_raw_os_error(error.raw_os_error().unwrap()));
            }
            let buffer = BouncePool::default().take(BounceSize::Small);
            kernel.read_bounce(file, ByteOffset(0), 512, buffer, Tag(1));
            loop {
                kernel.wait(WaitMode::Block)?;
                if let Some((_, result, _)) = kernel.next_finished() {
                    return result.map_err(io::Error::other);
                }
            }
        };
        std::thread::scope(|scope| scope.spawn(read).join().unwrap())
    }

    fn use_the_disks(&self) -> io::Result<()> {
        let mut image = &self.disk;
        image.write_all(&[1; 512])?;
        image.sync_data()?;
        image.set_len(8192)?;
        image.set_len(0)
    }
}

fn look_at_names(path: &Path) -> io::Result<()> {
    let length = path.metadata()?.len();
    assert_eq!(length, 0);
    std::env::set_current_dir(path.parent().expect("a directory"))?;
    let link = rustix::fs::readlink("/proc/self/exe", Vec::new())?;
    assert!(!link.as_bytes().is_empty());
    Ok(())
}

fn use_memory_and_threads() -> io::Result<()> {
    let threads: Vec<_> = (0..8)
        .map(|_| std::thread::Builder::new().spawn(|| vec![1_u8; 1 << 22].len()))
        .collect::<io::Result<_>>()?;
    threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 1 << 22));
    Ok(())
}

/// An attempt that succeeds, or at least gets past the fence, without a sandbox.
#[track_caller]
fn check(name: &str, sandbox: &str, expected: End) {
    let free = attempt(name, "off");
    assert_ne!(free, expected, "{name} without a sandbox");
    assert_eq!(attempt(name, sandbox), expected, "{name}");
}

#[test]
fn what_only_an_attacker_calls_ends_the_process() {
    for name in ["execute", "internet", "trace", "name space", "handle"] {
        check(name, "on", End::Killed(libc::SIGSYS));
    }
}

#[test]
fn everything_that_is_not_needed_is_refused() {
    let names = [
        "local",
        "mode",
        "rename",
        "map code",
        "turn data into code",
        "fork",
        "ring",
        "bell of a ring",
        "limit",
        "other thread",
        "signal another",
        "tell a peer to end",
        "socket filter",
        "owner of signals",
        "signals of a socket",
        "lease",
        "terminal",
        "discard",
    ];
    for name in names {
        check(name, "on", End::Refused(libc::EPERM));
    }
}

/// Before Linux 6.5 a process that takes over is held by its id, and so may others be.
#[test]
fn no_process_is_held_by_its_id_where_a_connection_gives_it() {
    if host::gives_peer_processes().unwrap() {
        check("hold another", "on", End::Refused(libc::EPERM));
    }
}

/// Where io_uring is to be had.
#[test]
fn an_iothread_that_starts_late_has_a_spare_ring_or_none() {
    if attempt("ring", "off") == End::Succeeded {
        assert_eq!(attempt("late iothread", "on"), End::Succeeded);
        check("late iothread without a spare ring", "on", End::Refused(libc::EPERM));
    }
}

#[test]
fn opening_is_refused_twice() {
    for name in ["open", "list"] {
        check(name, "on", End::Refused(libc::EACCES));
        // On a host without landlock.
        check(name, CALLS_ONLY, End::Refused(libc::EACCES));
    }
}

/// Commands of a monitor open and make files where the line says so, and nowhere else.
#[test]
fn what_commands_may_do_ends_at_the_directories_of_the_line() {
    for name in ["execute", "internet", "trace", "name space", "handle"] {
        check(name, COMMANDS, End::Killed(libc::SIGSYS));
    }
    for name in ["mode", "rename", "fork", "ring", "connect", "mode of a program", "limit"] {
        check(name, COMMANDS, End::Refused(libc::EPERM));
    }
    let names =
        ["local", "make elsewhere", "write what is read only", "make where it is read only"];
    for name in names {
        check(name, COMMANDS, End::Refused(libc::EACCES));
    }
    let document = include_str!("../../../../../../docs/sandbox.md");
    for name in ["open what is allowed", "make what is allowed", "change modes"] {
        assert_eq!(attempt(name, COMMANDS), End::Succeeded, "{name}");
        assert!(document.contains(&format!("| {name} |")), "{name} is not in docs/sandbox.md");
        assert_ne!(attempt(name, "on"), End::Succeeded, "{name} without --allow-below");
    }
}

/// What stays, because serving needs it and a fence cannot tell one from the other.
#[test]
fn what_a_breached_process_can_still_do_is_told() {
    let document = include_str!("../../../../../../docs/sandbox.md");
    let names = [
        "use the disks",
        "lock",
        "hand over",
        "accept",
        "write to clients",
        "send datagrams",
        "remove",
        "look at names",
        "end a peer",
        "memory and threads",
        "say",
    ];
    for name in names {
        match attempt(name, "on") {
            End::Succeeded => {}
            End::Killed(libc::SIGKILL) if name == "end a peer" => {}
            // Landlock knows where they go from its ninth version on.
            End::Refused(libc::EACCES) if name == "send datagrams" => {}
            end @ (End::Refused(_) | End::Killed(_)) => panic!("{name}: {end:?}"),
        }
        assert!(document.contains(&format!("| {name} |")), "{name} is not in docs/sandbox.md");
    }
}

/// The end of a panic; it leaves a core to look at.
#[test]
fn a_process_can_end_itself() {
    assert_eq!(attempt("abort", "on"), End::Killed(libc::SIGABRT));
}
