//! Each fence is tried from inside, and once without it, which shows that the attempt is one.
//!
//! Landlock and capabilities hold for a thread, so a thread of the test goes behind them. The
//! filters of system calls hold for the process and kill: the test starts itself again, with the
//! attempt in the environment, and looks at how that ended.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;

use testkit::trespass;

use super::*;
use crate::options::parse;

/// A disk, its socket, its pidfile, and a file that nobody named.
struct Place {
    _dir: tempfile::TempDir,
    root: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["disks", "sockets", "secrets"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        std::fs::write(root.join("disks/a.img"), [0; 4096]).unwrap();
        std::fs::write(root.join("sockets/a.sock"), []).unwrap();
        std::fs::write(root.join("secrets/key"), []).unwrap();
        Self { _dir: dir, root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn sandbox(&self, sandbox: &str) -> Option<Arc<Sandbox>> {
        prepare(&self.root, sandbox)
    }
}

fn prepare(root: &Path, sandbox: &str) -> Option<Arc<Sandbox>> {
    let root = root.display();
    let words = [
        "--blockdev".to_owned(),
        format!("file,node-name=n,filename={root}/disks/a.img"),
        "--export".to_owned(),
        format!("vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={root}/sockets/a.sock"),
        "--sandbox".to_owned(),
        sandbox.to_owned(),
    ];
    let crate::options::Command::Serve(plan) = parse(words.map(Into::into)).unwrap() else {
        panic!("a line that serves")
    };
    Sandbox::prepare(&plan).unwrap()
}

/// Runs this on a thread behind the fences that hold for a thread.
fn confined<T: Send + 'static>(place: &Place, task: impl FnOnce() -> T + Send + 'static) -> T {
    let sandbox = place.sandbox("on").unwrap();
    let thread = std::thread::spawn(move || {
        sandbox.confine().unwrap();
        task()
    });
    thread.join().unwrap()
}

/// The errno of what must fail.
#[track_caller]
fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().map(|error| error.raw_os_error().unwrap_or_default())
}

#[test]
fn no_file_can_be_opened_not_even_a_disk() {
    let place = Place::new();
    let names = ["secrets/key", "disks/a.img", "disks/below/b.img", "sockets/c.img"];
    std::fs::create_dir(place.path("disks/below")).unwrap();
    let mut paths: Vec<PathBuf> = names.iter().map(|name| place.path(name)).collect();
    for path in &paths[2..] {
        std::fs::write(path, []).unwrap();
    }
    paths.extend(["/etc/passwd", "/proc/self/status", "/dev/null"].map(PathBuf::from));
    // By a descriptor that is open for reading, one for writing is not to be had.
    let own = File::open(place.path("disks/a.img")).unwrap();
    paths.push(format!("/proc/self/fd/{}", own.as_raw_fd()).into());
    for path in paths {
        let open =
            |path: &Path, write: bool| OpenOptions::new().read(!write).write(write).open(path);
        let name = path.display().to_string();
        assert_eq!(errno(open(&path, false)), None, "{name}");
        let [read, write] =
            confined(&place, move || [false, true].map(|write| errno(open(&path, write))));
        assert_eq!((read, write), (Some(libc::EACCES), Some(libc::EACCES)), "{name}");
    }
}

#[test]
fn sockets_are_removed_and_nothing_else_is_made_or_removed() {
    let place = Place::new();
    let [socket, disk, made, other] =
        ["sockets/a.sock", "disks/a.img", "disks/b.img", "sockets/b.sock"]
            .map(|name| place.path(name));
    let (socket, removed, made) = confined(&place, || {
        let socket = std::fs::remove_file(socket);
        let made = [errno(File::create(made)), errno(UnixListener::bind(other))];
        (errno(socket), errno(std::fs::remove_file(disk)), made)
    });
    assert_eq!(socket, None);
    assert_eq!(removed, Some(libc::EACCES));
    assert_eq!(made, [Some(libc::EACCES); 2]);
}

#[test]
fn neither_tcp_nor_abstract_sockets_can_be_reached() {
    let place = Place::new();
    let name = format!("ringloom-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap();
    assert_eq!(errno(UnixStream::connect_addr(&address)), None);
    assert_eq!(errno(std::net::TcpStream::connect(port)), None);
    let (local, remote) = confined(&place, move || {
        (errno(UnixStream::connect_addr(&address)), errno(std::net::TcpStream::connect(port)))
    });
    assert_eq!(local, Some(libc::EPERM));
    assert_eq!(remote, Some(libc::EACCES));
}

#[test]
fn no_capability_is_left_in_any_set() {
    use rustix::thread::{CapabilitySet, capabilities, no_new_privs};
    let place = Place::new();
    let had = capabilities(None).unwrap();
    let (sets, forever, bounding) = confined(&place, move || {
        let bounding = rustix::thread::capability_is_in_bounding_set(CapabilitySet::SYS_ADMIN);
        (capabilities(None).unwrap(), no_new_privs().unwrap(), bounding.unwrap())
    });
    let all = sets.effective | sets.permitted | sets.inheritable;
    assert!(all.is_empty(), "{all:?}");
    assert!(forever);
    // Without the right to change it, it stays; no_new_privs makes it worthless.
    assert!(!(bounding && had.effective.contains(CapabilitySet::SETPCAP)));
    // The rest of the process is as it was.
    assert_eq!(capabilities(None).unwrap(), had);
}

#[test]
fn threads_started_inside_are_inside() {
    let place = Place::new();
    let key = place.path("secrets/key");
    let sandbox = place.sandbox("on").unwrap();
    let (told, heard) = channel();
    let thread = sandbox.inside(|| std::thread::spawn(move || told.send(errno(File::open(key)))));
    assert_eq!(heard.recv().unwrap(), Some(libc::EACCES));
    thread.unwrap().join().unwrap().unwrap();
}

#[test]
fn off_is_no_sandbox() {
    assert!(Place::new().sandbox("off").is_none());
}

/// How an attempt in a process of its own ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Succeeded,
    Refused(i32),
    Killed(i32),
}

const ATTEMPT: &str = "RINGLOOM_TEST_ATTEMPT";
const ROOT: &str = "RINGLOOM_TEST_ROOT";
const SANDBOX: &str = "RINGLOOM_TEST_SANDBOX";
/// An exit code that is this and an errno is an attempt that was refused.
const REFUSED: i32 = 100;

fn attempt(name: &str, sandbox: &str) -> End {
    let place = Place::new();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sandbox::tests::the_attempt", "--nocapture"])
        .env(ATTEMPT, name)
        .env(ROOT, &place.root)
        .env(SANDBOX, sandbox)
        .output()
        .unwrap();
    let status = output.status;
    match (status.code(), status.signal()) {
        (Some(0), _) => End::Succeeded,
        (Some(code), _) if (REFUSED..REFUSED + 100).contains(&code) => End::Refused(code - REFUSED),
        (None, Some(signal)) => End::Killed(signal),
        (code, _) => panic!("{name}: {code:?}: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// The other side of [`attempt`]; nothing without its environment.
#[test]
#[expect(clippy::exit, reason = "the answer is the exit code, and this process is only for it")]
fn the_attempt() {
    let Ok(name) = std::env::var(ATTEMPT) else { return };
    let root = PathBuf::from(std::env::var(ROOT).unwrap());
    let disk = OpenOptions::new().read(true).write(true).open(root.join("disks/a.img")).unwrap();
    // Somebody else, who ends with this process.
    let other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    if let Some(sandbox) = prepare(&root, &std::env::var(SANDBOX).unwrap()) {
        sandbox.close().unwrap();
    }
    let code = match carry_out(&name, &root, &disk, &other) {
        Ok(()) => 0,
        Err(error) => REFUSED + error.raw_os_error().unwrap(),
    };
    std::process::exit(code);
}

fn carry_out(name: &str, root: &Path, disk: &File, other: &Child) -> io::Result<()> {
    match name {
        // Only returns if it fails.
        "execute" => Err(Command::new("/bin/true").exec()),
        "internet" => std::net::UdpSocket::bind("127.0.0.1:0").map(drop),
        "local" => UnixListener::bind(root.join("sockets/b.sock")).map(drop),
        "mode" => {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(root.join("disks/a.img"), mode)
        }
        "rename" => std::fs::rename(root.join("disks/a.img"), root.join("disks/b.img")),
        "map code" => trespass::map_code(),
        "turn data into code" => trespass::turn_data_into_code(),
        "trace" => trespass::trace(),
        "fork" => trespass::fork(),
        "name space" => trespass::leave_name_space(),
        "ring" => trespass::make_ring(),
        "handle" => trespass::open_by_handle(),
        "limit" => kernel_io::raise_open_files_limit().map(drop),
        "other thread" => std::thread::spawn(trespass::make_ring).join().unwrap(),
        "signal another" => trespass::signal(other.id(), libc::SIGKILL),
        "tell another to end" => trespass::signal_by_descriptor(other.id(), libc::SIGTERM),
        "end another" => trespass::signal_by_descriptor(other.id(), libc::SIGKILL),
        "abort" => std::process::abort(),
        "serve" => serve_a_little(root, disk),
        other => panic!("no attempt is called {other}"),
    }
}

/// What must go on: files, threads, memory, output.
fn serve_a_little(root: &Path, mut image: &File) -> io::Result<()> {
    image.write_all(&[1; 512])?;
    image.sync_data()?;
    image.set_len(8192)?;
    std::thread::Builder::new()
        .name("worker".to_owned())
        .spawn(|| vec![1; 1 << 22])?
        .join()
        .unwrap();
    std::fs::remove_file(root.join("sockets/a.sock"))?;
    io::stderr().write_all(b"served\n")
}

/// An attempt that succeeds, or at least gets past the fence, without a sandbox.
#[track_caller]
fn check(name: &str, expected: End) {
    let free = attempt(name, "off");
    assert_ne!(free, expected, "{name} without a sandbox");
    assert_eq!(attempt(name, "on"), expected, "{name}");
}

#[test]
fn what_only_an_attacker_calls_ends_the_process() {
    for name in ["execute", "internet", "trace", "name space", "handle"] {
        check(name, End::Killed(libc::SIGSYS));
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
        "limit",
        "other thread",
        "signal another",
        "tell another to end",
    ];
    for name in names {
        check(name, End::Refused(libc::EPERM));
    }
}

/// One that takes over and hangs.
#[test]
fn another_process_can_be_ended() {
    assert_eq!(attempt("end another", "on"), End::Succeeded);
}

#[test]
fn what_serving_needs_goes_on() {
    assert_eq!(attempt("serve", "on"), End::Succeeded);
    // The end of a panic; it leaves a core to look at.
    assert_eq!(attempt("abort", "on"), End::Killed(libc::SIGABRT));
}
