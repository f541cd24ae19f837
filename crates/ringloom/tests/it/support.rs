//! Command lines and checks that several tests share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use testkit::image;
use testkit::process::{Bench, Leave, Program, Server};
use testkit::report::skipped;

/// The binary under test.
pub(crate) fn ringloom() -> Program {
    Program::ringloom(env!("CARGO_BIN_EXE_ringloom"))
}

/// The same as a terminal's shell starts it, whatever the tests were started with: a signal that was ignored then stays
/// ignored.
pub(crate) fn ringloom_that_hears() -> Program {
    let words = ["--default-signal=HUP,INT", env!("CARGO_BIN_EXE_ringloom"), "serve"];
    Program::named("ringloom", "env", &words)
}

/// The same on a host that forbids io_uring.
pub(crate) fn ringloom_without_io_uring() -> Program {
    ringloom().without_io_uring()
}

/// A copy of the binary under test in the directory of a test. By another process: a program that is open for writing
/// cannot be started, and what another test starts meanwhile has for a moment all that this process has open.
pub(crate) fn copy_binary(bench: &Bench, name: &str) -> Result<PathBuf> {
    let path = bench.path(name);
    let mut copy = std::process::Command::new("cp");
    let status = copy.arg(env!("CARGO_BIN_EXE_ringloom")).arg(&path).status().context("cp")?;
    anyhow::ensure!(status.success(), "copy the binary: {status}");
    Ok(path)
}

/// Checks that a server says that it serves without io_uring.
pub(crate) fn check_epoll(log: &str) -> Result<()> {
    let said = "epoll (io_uring is not available: Operation not permitted";
    anyhow::ensure!(log.contains(said), "not said what it waits with: {log}");
    Ok(())
}

/// Runs a behaviour with a program, or says why it cannot.
#[track_caller]
pub(crate) fn with(program: &Program, behaviour: impl FnOnce(&Program) -> Result<()>) {
    if let Some(reason) = program.missing() {
        skipped(&reason);
        return;
    }
    if let Err(error) = behaviour(program) {
        panic!("{}: {error:#}", program.name());
    }
}

/// Who serves the queues of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Iothreads {
    /// The internal iothread `main`.
    None,
    /// One, named as qemu-storage-daemon takes it too.
    One,
    /// A list of two, which only ringloom takes.
    Two,
}

/// How the daemons of a disk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// All in good order.
    Order,
    /// Some were killed.
    Kills,
}

/// One writable disk: `--blockdev` and `--export` with this id, socket `<id>.sock`, image `<id>.img`.
#[derive(Clone, Debug)]
pub(crate) struct Disk<'a> {
    pub(crate) bench: &'a Bench,
    pub(crate) id: &'a str,
    pub(crate) queues: usize,
    pub(crate) iothreads: Iothreads,
    /// `on` or `off`.
    pub(crate) direct: &'a str,
    /// An engine, if it is named.
    pub(crate) aio: Option<&'a str>,
    /// `on` or `off`.
    pub(crate) writable: &'a str,
    /// What the image is.
    pub(crate) format: Format,
}

/// What an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// The bytes of the disk.
    Raw,
    /// A qcow2 image on `<id>.base`, a raw one.
    Overlay,
}

impl<'a> Disk<'a> {
    /// A writable disk served without the page cache.
    pub(crate) fn new(bench: &'a Bench, id: &'a str, queues: usize) -> Self {
        let iothreads = Iothreads::None;
        let format = Format::Raw;
        Self { bench, id, queues, iothreads, direct: "on", aio: None, writable: "on", format }
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.bench.path(&format!("{}.img", self.id))
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.bench.path(&format!("{}.sock", self.id))
    }

    /// Makes the image, and returns its content.
    pub(crate) fn create(&self, length: usize, seed: u64) -> Result<Vec<u8>> {
        image::create_filled(&self.image(), length, seed)
    }

    /// Makes an image of zeroes.
    pub(crate) fn create_sparse(&self, length: u64) -> Result<()> {
        let Self { bench, id, .. } = self;
        match self.format {
            Format::Raw => image::create_sparse(&self.image(), length),
            Format::Overlay => {
                image::create_sparse(&bench.path(&format!("{id}.base")), length)?;
                qemu_img(bench, &format!("create -q -f qcow2 -b {id}.base -F raw {id}.img"))
                    .map(drop)
            }
        }
    }

    /// The bytes of the disk in a file, whose image qemu-img finds right but for leaks, if it was killed.
    pub(crate) fn flatten(&self, after: After) -> Result<PathBuf> {
        let Self { bench, id, .. } = self;
        match self.format {
            Format::Raw => return Ok(self.image()),
            Format::Overlay => {}
        }
        if after == After::Kills {
            // It repairs nothing else, and the next check shows that there was nothing else.
            qemu_img(bench, &format!("check -q -f qcow2 -r leaks {id}.img"))?;
        }
        qemu_img(bench, &format!("check -q -f qcow2 {id}.img"))?;
        qemu_img(bench, &format!("convert -f qcow2 -O raw {id}.img {id}.raw"))?;
        Ok(bench.path(&format!("{id}.raw")))
    }

    /// `--blockdev … --export …`; the iothreads' objects come from `iothread_objects`.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let Self { id, queues, direct, writable, .. } = self;
        let read_only = if *writable == "on" { "off" } else { "on" };
        let image = self.image().display().to_string();
        let (driver, below, more) = match self.format {
            Format::Raw => ("file", "", String::new()),
            Format::Overlay => {
                let base = self.bench.text(&format!("{id}.base"));
                let file = "backing.driver=raw,backing.file.driver=file,backing.file.filename";
                ("qcow2", "file.", format!(",file.driver=file,{file}={base}"))
            }
        };
        let aio = self.aio.map(|aio| format!(",{below}aio={aio}")).unwrap_or_default();
        let socket = self.socket().display().to_string();
        let iothread = match self.iothreads {
            Iothreads::None => "",
            Iothreads::One => ",iothread=t0",
            Iothreads::Two => ",iothread.0=t0,iothread.1=t1",
        };
        vec![
            "--blockdev".to_owned(),
            format!(
                "driver={driver},node-name=file-{id},{below}filename={image},\
                 cache.direct={direct},read-only={read_only},discard=unmap{aio}{more}"
            ),
            "--export".to_owned(),
            format!(
                "type=vhost-user-blk,id={id},node-name=file-{id},addr.type=unix,addr.path={socket},\
                 writable={writable},num-queues={queues}{iothread}"
            ),
        ]
    }

    /// Starts a server for this disk alone.
    pub(crate) fn serve(&self, program: &Program) -> Result<Server> {
        serve(program, std::slice::from_ref(self))
    }
}

/// Starts one server for all the disks.
pub(crate) fn serve(program: &Program, disks: &[Disk<'_>]) -> Result<Server> {
    serve_beside(program, disks, &[])
}

/// The same with more arguments.
pub(crate) fn serve_beside(
    program: &Program,
    disks: &[Disk<'_>],
    more: &[String],
) -> Result<Server> {
    let mut arguments = Vec::new();
    let uses = |iothreads| disks.iter().any(|disk| disk.iothreads == iothreads);
    let names: &[&str] = match (uses(Iothreads::Two), uses(Iothreads::One)) {
        (true, _) => &["t0", "t1"],
        (false, true) => &["t0"],
        (false, false) => &[],
    };
    for name in names {
        arguments.extend(["--object".to_owned(), format!("iothread,id={name}")]);
    }
    arguments.extend(disks.iter().flat_map(Disk::arguments));
    arguments.extend_from_slice(more);
    let sockets: Vec<PathBuf> = disks.iter().map(Disk::socket).collect();
    program.start(&arguments, &sockets)
}

/// Stops a server as an operator does; it must exit with 0 and take its sockets along.
pub(crate) fn stop(mut server: Server, sockets: &[&Path]) -> Result<String> {
    let leave = server.stop()?;
    let log = server.log();
    if leave == Leave::PeerCrashed {
        return Ok(log);
    }
    for socket in sockets {
        let left = socket.try_exists().context("look at the socket")?;
        anyhow::ensure!(!left, "{} is left behind", socket.display());
    }
    Ok(log)
}

/// Whether this process may do everything.
pub(crate) fn is_root() -> bool {
    let owner =
        std::fs::metadata("/proc/self").map(|found| std::os::unix::fs::MetadataExt::uid(&found));
    owner.is_ok_and(|uid| uid == 0)
}

/// Waits until somebody has locked this byte of an image.
pub(crate) fn wait_for_lock(image: &Path, byte: u64, limit: Duration) -> Result<()> {
    let metadata = std::fs::metadata(image).context("look at the image")?;
    let inode = format!(":{} ", std::os::unix::fs::MetadataExt::ino(&metadata));
    testkit::deadline::poll_until("the lock", limit, || {
        let table = std::fs::read_to_string("/proc/locks").context("read the kernel's locks")?;
        let is_byte = |line: &str| {
            // The last two columns are the first and the last byte.
            let range: Vec<u64> =
                line.split_whitespace().skip(6).filter_map(|word| word.parse().ok()).collect();
            line.contains(&inode) && range.len() == 2 && (range[0]..=range[1]).contains(&byte)
        };
        Ok(table.lines().any(is_byte).then_some(()))
    })
}

/// Runs qemu-img in the directory of a bench, with words that have no blanks; returns what it printed.
pub(crate) fn qemu_img(bench: &Bench, line: &str) -> Result<String> {
    run(bench, "qemu-img", &line.split_whitespace().collect::<Vec<_>>())
}

/// Runs qemu-io in the directory of a bench; returns what it printed.
pub(crate) fn qemu_io(bench: &Bench, words: &[&str]) -> Result<String> {
    run(bench, "qemu-io", words)
}

fn run(bench: &Bench, program: &str, words: &[&str]) -> Result<String> {
    let output = std::process::Command::new(program)
        .args(words)
        .current_dir(bench.path(""))
        .output()
        .with_context(|| format!("run {program}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    anyhow::ensure!(
        output.status.success(),
        "{program} {words:?}: {}: {text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}
