//! Each fence is tried from inside, and once without it, which shows that the attempt is one.
//!
//! Landlock and capabilities hold for a thread, so a thread of the test goes behind them. The
//! filters of system calls hold for the process and kill: see [`attempts`].

mod attempts;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use super::*;

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

    fn sandbox(&self, sandbox: SandboxMode) -> Option<Arc<Sandbox>> {
        prepare(&self.root, sandbox, &[])
    }
}

fn prepare(
    root: &Path,
    sandbox: SandboxMode,
    allowed: &[AllowedDirectory],
) -> Option<Arc<Sandbox>> {
    let socket = root.join("sockets/a.sock");
    let needs = SandboxNeeds { removed: vec![&socket], allowed, ..SandboxNeeds::default() };
    Sandbox::prepare(sandbox, &needs).unwrap()
}

/// Runs this on a thread behind the fences that hold for a thread.
fn confined<T: Send + 'static>(place: &Place, task: impl FnOnce() -> T + Send + 'static) -> T {
    let sandbox = place.sandbox(SandboxMode::Required).unwrap();
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
fn a_client_of_a_cluster_connects_to_every_port_and_listens_on_none() {
    let there = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = there.local_addr().unwrap();
    let fenced = |connects| {
        let rules = LandlockRules::new(&[], &[], connects).unwrap();
        on_another_thread(move || {
            rules.put_up().unwrap();
            let connected = errno(std::net::TcpStream::connect(address));
            (connected, errno(std::net::TcpListener::bind("127.0.0.1:0")))
        })
        .unwrap()
    };
    assert_eq!(fenced(ConnectedPorts::All), (None, Some(libc::EACCES)));
    let others = ConnectedPorts::These(&[1]);
    assert_eq!(fenced(others), (Some(libc::EACCES), Some(libc::EACCES)));
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
    let sandbox = place.sandbox(SandboxMode::Required).unwrap();
    let (told, heard) = channel();
    let thread = sandbox.inside(|| std::thread::spawn(move || told.send(errno(File::open(key)))));
    assert_eq!(heard.recv().unwrap(), Some(libc::EACCES));
    thread.unwrap().join().unwrap().unwrap();
}

#[test]
fn off_is_no_sandbox() {
    assert!(Place::new().sandbox(SandboxMode::Off).is_none());
}
