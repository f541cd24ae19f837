//! Which graphs may be: the same command lines get the same verdict from qemu-storage-daemon and from
//! ringloom, and what is refused is named.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Shape};
use testkit::image;
use testkit::process::{Bench, Program};
use testkit::report::skipped;

use crate::support::{ringloom, stop, with};

mod qcow2;

const LIMIT: Duration = Duration::from_secs(20);
const IMAGE_BYTES: usize = 1 << 20;

/// What becomes of a line.
#[derive(Debug, Clone, Copy)]
enum Verdict {
    /// It is served on sockets `0` to so many.
    Served(usize),
    /// It is refused; ringloom says these words.
    Refused(&'static [&'static str]),
}
use Verdict::{Refused, Served};

/// A line in short: what has no `=` before the first comma of a word is `--blockdev` of that driver;
/// `NODE>SOCKET` is a read-only export of it, `NODE>>SOCKET` a writable one; `IMAGE` and `FROZEN` are files,
/// the second on a read-only file system. `TOGETHER` is a driver that gives its children a meaning together.
fn words(program: &Program, bench: &Bench, line: &str) -> Vec<String> {
    let together = if is_ours(program) { "stripe,chunk=65536" } else { "quorum,vote-threshold=1" };
    let word = |word: &str| {
        let (node, socket) = word.split_once('>').unwrap_or((word, ""));
        if socket.is_empty() {
            let word = word.replace("IMAGE", &bench.text("disk.img")).replace("TOGETHER", together);
            return [
                "--blockdev".to_owned(),
                word.replace("FROZEN", &bench.text("frozen/disk.img")),
            ];
        }
        let (socket, writable) = match socket.strip_prefix('>') {
            Some(socket) => (socket, "on"),
            None => (socket, "off"),
        };
        let path = bench.text(socket);
        let export = format!(
            "vhost-user-blk,id=e{socket},node-name={node},writable={writable},addr.type=unix,\
             addr.path={path}"
        );
        ["--export".to_owned(), export]
    };
    line.split_whitespace().flat_map(word).collect()
}

fn is_ours(program: &Program) -> bool {
    program.name() == ringloom().name()
}

#[track_caller]
fn check(line: &str, verdict: Verdict) {
    for program in [Program::qemu_storage_daemon(), ringloom()] {
        with(&program, |program| {
            let bench = Bench::new()?;
            image::create_filled(&bench.path("disk.img"), IMAGE_BYTES, 0x64)?;
            let _frozen = line.contains("FROZEN").then(|| Frozen::new(&bench)).transpose()?;
            judged(program, &bench, line, &[], verdict).with_context(|| line.to_owned())
        });
    }
}

/// Judges a line, and words behind it that are written out already.
fn judged(
    program: &Program,
    bench: &Bench,
    line: &str,
    more: &[&str],
    verdict: Verdict,
) -> Result<()> {
    let mut words = words(program, bench, line);
    words.extend(more.iter().map(|word| (*word).to_owned()));
    match verdict {
        Served(count) => {
            let sockets: Vec<PathBuf> =
                (0..count).map(|number| bench.path(&number.to_string())).collect();
            let server = program.start(&words, &sockets)?;
            let served: Vec<&std::path::Path> = sockets.iter().map(PathBuf::as_path).collect();
            stop(server, &served).map(drop)
        }
        Refused(named) => {
            let exit = program.refusal(&words, LIMIT)?;
            ensure!(
                exit.status.code().is_some_and(|code| code != 0),
                "accepted, or crashed: {exit:?}"
            );
            let missing =
                named.iter().find(|name| is_ours(program) && !exit.stderr.contains(**name));
            ensure!(missing.is_none(), "{missing:?} is not named: {}", exit.stderr);
            Ok(())
        }
    }
}

/// A file system that lets nobody write, with an image.
struct Frozen(PathBuf);

impl Frozen {
    fn new(bench: &Bench) -> Result<Self> {
        let directory = bench.path("frozen");
        fs::create_dir(&directory).context("make a directory")?;
        let frozen = Self(directory);
        frozen.run("mount", &["-t", "tmpfs", "-o", "size=4M", "none"])?;
        image::create_filled(&frozen.0.join("disk.img"), IMAGE_BYTES, 0x65)?;
        frozen.run("mount", &["-o", "remount,ro"])?;
        Ok(frozen)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let status = Command::new(program).args(arguments).arg(&self.0).status();
        ensure!(status.with_context(|| program.to_owned())?.success(), "{program} {arguments:?}");
        Ok(())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // A file system that is left mounted fails no test.
        drop(self.run("umount", &["--lazy"]));
    }
}

#[test]
fn several_exports_may_write_to_one_node() {
    let null = "null-co,node-name=n,size=1048576";
    check(&format!("{null} n>>0 n>>1 n>2"), Served(3));
    check(&format!("{null} raw,node-name=a,file=n raw,node-name=b,file=n a>>0 b>>1"), Served(2));
    check(&format!("{null} raw,node-name=a,file=n,offset=512 a>>0 n>>1"), Served(2));
    let both = "raw,node-name=a,file=n,size=524288 raw,node-name=b,file=n,offset=524288";
    check(&format!("{null} {both} a>>0 b>>1 n>2"), Served(3));
    check(&format!("{null} n>>0 raw,node-name=a,file=n,size=512,read-only=on a>1"), Served(2));
}

#[test]
fn nobody_else_writes_to_what_means_something_only_together() {
    const CONFLICT: &str = "Permission conflict on node 'n'";
    let nulls = "null-co,node-name=n,size=1048576 null-co,node-name=m,size=1048576";
    let together = "TOGETHER,node-name=q,children.0=n,children.1=m";
    check(&format!("{nulls} {together} q>>0 n>1 m>2"), Served(3));
    let by_export = Refused(&[CONFLICT, "'write'", "export 'e0'", "node 'q'", "'children.0'"]);
    check(&format!("{nulls} {together} n>>0"), by_export);
    check(&format!("{nulls} {together} n>>0 q>>1"), by_export);
    check(&format!("{nulls} n>>0 {together}"), by_export);
    let raw = "raw,node-name=a,file=n";
    let by_node = Refused(&[CONFLICT, "'write'", "node 'a'", "node 'q'"]);
    check(&format!("{nulls} {raw} {together} a>>0"), by_node);
    check(&format!("{nulls} {raw} {together} a>0 q>>1"), Served(2));
}

#[test]
fn what_stands_on_a_read_only_node_cannot_be_written() {
    let null = "null-co,node-name=n,read-only=on";
    check(&format!("{null} raw,node-name=a,file=n a>0 n>1"), Served(2));
    check(&format!("{null} raw,node-name=a,file=n a>>0"), Refused(&["'a'", "read-only"]));
    check(&format!("{null} raw,node-name=a,file=n,auto-read-only=on a>>0"), Refused(&["'a'"]));
    let twice = "raw,node-name=a,file=n raw,node-name=b,file=a,offset=512";
    check(&format!("{null} {twice} b>>0"), Refused(&["'b'", "read-only"]));
}

#[test]
fn files_that_cannot_be_written_may_be_read_if_that_is_asked_for() {
    if !rustix::process::geteuid().is_root() {
        skipped("only root may mount a file system");
        return;
    }
    let not_open = Refused(&["could not open", "frozen/disk.img", "Read-only file system"]);
    let remedy =
        Refused(&["could not open", "say --read-only, or read-only=on", "Read-only file system"]);
    check("file,node-name=n,filename=FROZEN n>0", not_open);
    check("file,node-name=n,filename=FROZEN,read-only=on n>0", Served(1));
    check("file,node-name=n,filename=FROZEN,auto-read-only=on n>0", Served(1));
    check("file,node-name=n,filename=FROZEN,auto-read-only=on n>>0", remedy);
    check("raw,node-name=n,auto-read-only=on,file.driver=file,file.filename=FROZEN n>0", Served(1));
    check("raw,node-name=n,auto-read-only=on,file.driver=file,file.filename=FROZEN n>>0", not_open);
    check("file,node-name=n,filename=IMAGE,auto-read-only=on n>>0", Served(1));
}

#[test]
fn who_copies_on_read_writes_to_what_is_below_and_ends_in_its_chain() {
    let null = "null-co,node-name=n,size=1048576";
    let copy = "copy-on-read,node-name=c,file=n";
    check(&format!("{null} {copy} c>>0"), Served(1));
    check(&format!("{null} {copy},read-only=on c>0"), Served(1));
    check(&format!("{null} {copy},read-only=on c>>0"), Refused(&["'c'", "read-only"]));
    check(&format!("{null} {copy},bottom=n c>0 n>1"), Served(2));
    check(&format!("{null},read-only=on {copy},read-only=on c>0"), Refused(&["'n'", "read-only"]));
    check(&format!("{null} {copy},bottom=m c>0"), Refused(&["Bottom node 'm' not found"]));
    check(&format!("{null} {copy},bottom=c c>0"), Refused(&["Bottom node 'c' is a filter"]));
    let twice = "copy-on-read,node-name=d,file=c,bottom=c";
    check(&format!("{null} {copy} {twice} d>0"), Refused(&["Bottom node 'c' is a filter"]));
    let image = "file,node-name=n,filename=IMAGE,auto-read-only=on";
    check(&format!("{image} {copy} c>0"), Served(1));
    // The peer holds off the writes of others; here nobody else may write.
    let writer = format!("{null} {copy} c>0 n>>1");
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        judged(program, &bench, &writer, &[], Refused(&["'n'", "write"]))
    });
    // Here the peer never answers.
    let other = format!("{null} null-co,node-name=m {copy},bottom=m c>0");
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        judged(program, &bench, &other, &[], Refused(&["'m'", "not in the backing chain"]))
    });
}

#[test]
fn what_is_kept_as_it_was_has_one_writer_and_a_target_that_is_written() {
    const CONFLICT: &str = "Permission conflict on node 'n'";
    let nulls = "null-co,node-name=n,size=1048576 null-co,node-name=m,size=1048576";
    let kept = format!("{nulls} copy-before-write,node-name=c,file=n,target=m");
    check(&format!("{kept} c>>0 n>1 m>>2"), Served(3));
    check(&format!("{kept} n>>0"), Served(1));
    let conflict = Refused(&[CONFLICT, "'write'", "node 'c'", "'file'"]);
    check(&format!("{kept} c>>0 n>>1"), conflict);
    check(&format!("{kept} n>>0 c>1"), conflict);
    let shown = "snapshot-access,node-name=a,file=c";
    check(&format!("{kept} {shown} c>>0 a>1"), Served(2));
    check(&format!("{kept} {shown} c>>0 a>>1"), Served(2));
    check(&format!("{kept} {shown} n>>0"), conflict);
    check(&format!("{kept},on-cbw-error=break-snapshot,cbw-timeout=7 c>>0"), Served(1));
    check(&format!("{kept},min-cluster-size=1M c>>0"), Served(1));
    check(&format!("{kept},min-cluster-size=1000 c>>0"), Refused(&["node c", "a power of 2"]));
    check(&format!("{kept},on-cbw-error=ignore c>>0"), Refused(&["'on-cbw-error'", "'ignore'"]));
    check(&format!("{kept},cbw-timeout=4294967296 c>>0"), Refused(&["'cbw-timeout'"]));
    check(&format!("{kept},bitmap.node=n,bitmap.name=b c>>0"), Refused(&["bitmap 'b'"]));
    check(&format!("{nulls} copy-before-write,node-name=c,file=n c>>0"), Refused(&["'target'"]));
    let read_only = "null-co,node-name=r,read-only=on";
    let to_read_only =
        format!("{nulls} {read_only} copy-before-write,node-name=c,file=n,target=r c>>0");
    check(&to_read_only, Refused(&["'r'", "read-only"]));
    let of_read_only = format!("{nulls} {read_only},size=512");
    check(&format!("{of_read_only} copy-before-write,node-name=c,file=r,target=n c>0"), Served(1));
    // The peer notices when it is written, or read.
    let ours = |line: &str, words: &'static [&'static str]| {
        with(&ringloom(), |program| {
            let bench = Bench::new()?;
            judged(program, &bench, line, &[], Refused(words))
        });
    };
    let small = "null-co,node-name=n,size=1048576 null-co,node-name=m,size=1048064";
    let small = format!("{small} copy-before-write,node-name=c,file=n,target=m c>>0");
    ours(&small, &["node c", "'m' has 1048064 bytes", "1048576"]);
    ours(
        &format!("{nulls} snapshot-access,node-name=a,file=n a>0"),
        &["node a", "'n' keeps no snapshot"],
    );
}

#[test]
fn windows_must_fit_into_what_is_below() {
    let raw =
        |rest: &str| format!("null-co,node-name=n,size=1048576 raw,node-name=a,file=n,{rest}");
    check(&format!("{} a>0", raw("offset=512,size=1048064")), Served(1));
    check(&format!("{} a>0", raw("offset=1048576")), Served(1));
    check(&format!("{} a>0", raw("offset=1048577")), Refused(&["Offset (1048577)", "(1048576)"]));
    check(
        &format!("{} a>0", raw("offset=512,size=1048576")),
        Refused(&["node a", "offset (512)", "size (1048576)"]),
    );
    check(&format!("{} a>0", raw("size=513")), Refused(&["node a", "not multiple of 512"]));
    check(&raw("offset=1k"), Refused(&["'offset'"]));
    check(
        "raw,node-name=a,offset=2097152,file.driver=file,file.filename=IMAGE a>0",
        Refused(&["node a", "Offset (2097152)"]),
    );
}

#[test]
fn names_must_be_there_and_lead_nowhere_back() {
    let null = "null-co,node-name=n";
    check(&format!("raw,node-name=a,file=n {null}"), Refused(&["'n'", "only after its use"]));
    check(&format!("n>0 {null}"), Refused(&["'n'", "only after its use"]));
    check("raw,node-name=a,file=a", Refused(&["'a'", "a -> a"]));
    check("raw,node-name=a,file=b raw,node-name=b,file=a", Refused(&["'a'", "a -> b -> a"]));
    check(&format!("{null} raw,node-name=a,file=m"), Refused(&["'m'", "did you mean"]));
    check(&format!("{null} {null}"), Refused(&["'n'", "exists already"]));
    check(
        "null-co,node-name=n,active=off raw,node-name=a,file=n",
        Refused(&["'n'", "'a'", "file"]),
    );
}

/// Two disks side by side in one image, which nobody sees beyond.
#[test]
fn windows_of_one_image_are_disks_of_their_own() {
    for program in [Program::qemu_storage_daemon(), ringloom()] {
        with(&program, |program| {
            let bench = Bench::new()?;
            image::create_filled(&bench.path("disk.img"), IMAGE_BYTES, 0x66)?;
            let before = fs::read(bench.path("disk.img")).context("read the image")?;
            let line = "file,node-name=n,filename=IMAGE raw,node-name=a,file=n,offset=4096,size=65536 \
                        raw,node-name=b,file=n,offset=69632 a>>0 b>>1";
            let sockets = [bench.path("0"), bench.path("1")];
            let server = program.start(&words(program, &bench, line), &sockets)?;
            let mut expected = before.clone();
            for (socket, (start, bytes)) in
                sockets.iter().zip([(4096, 65_536), (69_632, IMAGE_BYTES - 69_632)])
            {
                let mut client = Client::connect(socket, Shape::small())?;
                let capacity = client.configuration()?.capacity_bytes;
                ensure!(capacity == u64::try_from(bytes)?, "{capacity} bytes at {start}");
                ensure!(client.read(0, 4096, 0)? == before[start..start + 4096], "another place");
                for (offset, byte) in [(0, 0x41), (bytes - 4096, 0x42)] {
                    client.write(u64::try_from(offset)?, &[byte; 4096], 0)?;
                    expected[start + offset..start + offset + 4096].fill(byte);
                }
                client.flush()?;
            }
            stop(server, &[&sockets[0], &sockets[1]])?;
            let found = fs::read(bench.path("disk.img")).context("read the image")?;
            let difference = found.iter().zip(&expected).position(|(left, right)| left != right);
            ensure!(difference.is_none(), "the image differs at byte {difference:?}");
            Ok(())
        });
    }
}
