//! `ringloom convert` and `ringloom map`, judged by qemu-img and by what is in the files.

use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Program, Server};

use crate::support::{Disk, ringloom as ringloom_daemon, stop};

/// What the numbers of the disk below are of: 256 KiB.
const UNIT: usize = 1 << 18;

fn ringloom(bench: &Bench, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringloom"));
    command.args(arguments).current_dir(bench.path(""));
    command.output().with_context(|| format!("{arguments:?}"))
}

/// What it prints, and that it ends well.
fn done(bench: &Bench, arguments: &[&str]) -> Result<String> {
    let output = ringloom(bench, arguments)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{arguments:?}: {}: {said}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Why it ends with this exit status.
fn refused(bench: &Bench, arguments: &[&str], status: i32) -> Result<String> {
    let output = ringloom(bench, arguments)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(status), "{arguments:?}: {}: {said}", output.status);
    Ok(said)
}

fn qemu_img(bench: &Bench, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("qemu-img");
    let output = command.args(arguments).current_dir(bench.path("")).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "qemu-img {arguments:?}: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A disk with data, zeroes that were written, and holes.
fn source(bench: &Bench) -> Result<Vec<u8>> {
    let path = bench.path("source.img");
    image::create_sparse(&path, (96 * UNIT) as u64)?;
    let mut bytes = vec![0; 96 * UNIT];
    let data = image::create_filled(&bench.path("data"), 24 * UNIT, 11)?;
    bytes[5 * UNIT..29 * UNIT].copy_from_slice(&data);
    bytes[9 * UNIT..12 * UNIT].fill(0);
    bytes[95 * UNIT..].copy_from_slice(&data[..UNIT]);
    let file = std::fs::OpenOptions::new().write(true).open(&path)?;
    for range in [5 * UNIT..29 * UNIT, 95 * UNIT..96 * UNIT] {
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes[range.clone()], range.start as u64)?;
    }
    Ok(bytes)
}

#[test]
fn copies_are_what_qemu_img_says_they_are() -> Result<()> {
    let bench = Bench::new()?;
    let bytes = source(&bench)?;
    done(&bench, &["convert", "source.img", "copy.img", "--verify"])?;
    ensure!(std::fs::read(bench.path("copy.img"))? == bytes, "another copy");
    let blocks = |name: &str| -> Result<u64> {
        use std::os::unix::fs::MetadataExt as _;
        Ok(std::fs::metadata(bench.path(name))?.blocks())
    };
    // Zeroes that were written take no room in the copy.
    ensure!(blocks("copy.img")? + (2 << 9) < blocks("source.img")?, "it is not sparse");
    let said = done(&bench, &["convert", "source.img", "copy.qcow2", "-O", "qcow2", "--json"])?;
    let said: Value = serde_json::from_str(&said)?;
    ensure!(said["bytes"] == bytes.len() && said["written-bytes"] == 22 * UNIT, "{said}");
    qemu_img(&bench, &["compare", "-f", "raw", "-F", "qcow2", "source.img", "copy.qcow2"])?;
    qemu_img(&bench, &["check", "-f", "qcow2", "copy.qcow2"])?;
    // A chain is flattened, by whatever it is named.
    let create = ["create", "-q", "-f", "qcow2", "-b", "copy.qcow2", "-F", "qcow2", "top.qcow2"];
    qemu_img(&bench, &create)?;
    let top = bench.text("top.qcow2");
    let mut io = Command::new("qemu-io");
    io.args(["-f", "qcow2", "-c", "write -P 9 1536k 256k", "-c", "write -z 5M 512k", &top]);
    ensure!(io.output()?.status.success(), "qemu-io");
    let named = ["--named-files", "on"];
    done(&bench, &[&["convert", "-f", "qcow2", "top.qcow2", "flat.img"], &named[..]].concat())?;
    qemu_img(&bench, &["compare", "-f", "qcow2", "-F", "raw", "top.qcow2", "flat.img"])?;
    let node = "driver=qcow2,file.driver=file,file.filename=top.qcow2";
    done(&bench, &[&["convert", node, "again.img"], &named[..]].concat())?;
    ensure!(
        std::fs::read(bench.path("flat.img"))? == std::fs::read(bench.path("again.img"))?,
        "again"
    );
    Ok(())
}

/// How many clusters of an image are compressed.
fn compressed_clusters(bench: &Bench, image: &str) -> Result<u64> {
    let found = qemu_img(bench, &["check", "-f", "qcow2", "--output=json", image])?;
    let found: Value = serde_json::from_str(&found)?;
    found["compressed-clusters"].as_u64().with_context(|| format!("{found}"))
}

#[test]
fn a_copy_has_as_much_compressed_as_that_of_qemu_img() -> Result<()> {
    let bench = Bench::new()?;
    let line = b"what shrinks is stored compressed, and all else as it is\n";
    let mut bytes: Vec<u8> = line.iter().copied().cycle().take(16 * UNIT).collect();
    bytes.extend(image::create_filled(&bench.path("data"), 4 * UNIT, 11)?);
    std::fs::write(bench.path("source.img"), &bytes)?;
    let from = ["-f", "raw", "-O", "qcow2", "source.img"];
    done(&bench, &[&["convert", "-q", "--compress"], &from[..], &["ours"]].concat())?;
    qemu_img(&bench, &[&["convert", "-c"], &from[..], &["theirs"]].concat())?;
    qemu_img(&bench, &["compare", "-q", "-f", "raw", "-F", "qcow2", "source.img", "ours"])?;
    let clusters = |name: &str| compressed_clusters(&bench, name);
    let (ours, theirs) = (clusters("ours")?, clusters("theirs")?);
    ensure!(ours == theirs && ours >= 64, "{ours} clusters, qemu-img {theirs}");
    // The file is longer than what is in it, and takes no more room.
    let room = |name: &str| -> Result<u64> {
        use std::os::unix::fs::MetadataExt as _;
        Ok(std::fs::metadata(bench.path(name))?.blocks() * 512)
    };
    let (ours, theirs) = (room("ours")?, room("theirs")?);
    ensure!(ours <= theirs + theirs / 20 + UNIT as u64, "{ours} bytes, qemu-img {theirs}");
    let raw = ["convert", "-q", "-c", "-f", "raw", "-O", "raw", "source.img", "no"];
    let said = refused(&bench, &raw, 1)?;
    ensure!(said.contains("compress") && !bench.path("no").exists(), "{said}");
    Ok(())
}

#[test]
fn what_is_there_is_written_over_only_if_that_is_said() -> Result<()> {
    let bench = Bench::new()?;
    let bytes = source(&bench)?;
    let size = bytes.len();
    image::create_filled(&bench.path("old.img"), size + UNIT, 5)?;
    let said = refused(&bench, &["convert", "source.img", "old.img"], 1)?;
    ensure!(said.contains("--into-existing"), "{said}");
    done(&bench, &["convert", "source.img", "old.img", "--into-existing", "--verify"])?;
    ensure!(std::fs::read(bench.path("old.img"))?[..size] == bytes, "another copy");
    image::create_sparse(&bench.path("small.img"), 1 << 20)?;
    for (arguments, status, why) in [
        (&["convert", "source.img", "small.img", "-n"][..], 1, "small.img has 1048576 bytes"),
        (&["convert", "nothing.img", "x"], 1, "No such file"),
        (&["convert", "copy.qcow2", "x"], 1, "looks like qcow2"),
        (&["convert", "source.img", "x", "-O", "vmdk"], 1, "vmdk"),
        (&["convert", "source.img", "x", "--rate", "0"], 2, "above 0"),
        (&["convert", "source.img", "nowhere/x"], 1, "nowhere/x"),
        (&["convert", "source.img"], 2, "<TARGET>"),
        (&["map", "nothing.img"], 1, "No such file"),
    ] {
        let said = refused(&bench, arguments, status)?;
        ensure!(said.contains(why), "{arguments:?}: {said}");
        ensure!(!bench.path("x").exists(), "{arguments:?} leaves something behind");
    }
    // Whoever writes the source keeps it.
    let disk = Disk::new(&bench, "held", 1);
    disk.create_sparse(1 << 20)?;
    let holder = disk.serve(&ringloom_daemon())?;
    let said = refused(&bench, &["convert", "held.img", "y"], 1)?;
    ensure!(said.contains("lock"), "{said}");
    ensure!(!bench.path("y").exists(), "it leaves its target behind");
    stop(holder, &[&disk.socket()]).map(drop)?;
    Ok(())
}

#[test]
fn an_interrupt_leaves_nothing_behind() -> Result<()> {
    let bench = Bench::new()?;
    source(&bench)?;
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_ringloom"), "convert"]);
    command.args(["source.img", "slow.img", "--rate", "100k"]).current_dir(bench.path(""));
    let mut slow = command.stderr(std::process::Stdio::piped()).spawn()?;
    poll_until("a beginning", Duration::from_secs(20), || {
        Ok(bench.path("slow.img").exists().then_some(()))
    })?;
    let process = rustix::process::Pid::from_child(&slow);
    rustix::process::kill_process(process, rustix::process::Signal::INT)?;
    let status = slow.wait()?;
    ensure!(status.code() == Some(1), "{status}");
    ensure!(!bench.path("slow.img").exists(), "it leaves its target behind");
    Ok(())
}

#[test]
fn a_map_is_that_of_qemu_img() -> Result<()> {
    let bench = Bench::new()?;
    source(&bench)?;
    let create = ["create", "-q", "-f", "qcow2", "-b", "source.img", "-F", "raw", "top.qcow2"];
    qemu_img(&bench, &create)?;
    let top = bench.text("top.qcow2");
    let mut io = Command::new("qemu-io");
    io.args(["-f", "qcow2", "-c", "write -P 9 1536k 256k", "-c", "write -z 5M 512k", &top]);
    ensure!(io.output()?.status.success(), "qemu-io");
    let key = |run: &Value| {
        ["start", "length", "depth", "zero", "data"].map(|key| run[key].to_string()).join(" ")
    };
    for (format, file) in [("raw", "source.img"), ("qcow2", "top.qcow2")] {
        let named = ["--named-files", "on", "--json"];
        let ours = done(&bench, &[&["map", "-f", format, file], &named[..]].concat())?;
        let theirs = qemu_img(&bench, &["map", "-f", format, "--output=json", file])?;
        let read = |text: &str| -> Result<Vec<String>> {
            let runs: Vec<Value> = serde_json::from_str(text)?;
            Ok(runs.iter().map(key).collect())
        };
        let (ours, theirs) = (read(&ours)?, read(&theirs)?);
        ensure!(ours == theirs, "{file}: {ours:#?} instead of {theirs:#?}");
    }
    let said = done(&bench, &["map", "source.img"])?;
    ensure!(said.lines().count() == 5 && said.contains("6.00 MiB  data"), "{said}");
    Ok(())
}

/// Sizes that are no multiple of a sector, as qemu-img has them: the copy has whole sectors.
#[test]
fn a_disk_that_ends_inside_a_sector_is_copied() -> Result<()> {
    let bench = Bench::new()?;
    image::create_filled(&bench.path("odd.img"), 1_000_448, 3)?;
    let file = std::fs::OpenOptions::new().write(true).open(bench.path("odd.img"))?;
    file.set_len(1_000_100)?;
    for arguments in [&["odd.img", "a.img"][..], &["odd.img", "b.qcow2", "-O", "qcow2"]] {
        done(&bench, &[&["convert", "--verify"][..], arguments].concat())?;
        let direct = [&["convert", "--direct"][..], arguments, &["-n"]].concat();
        let said = refused(&bench, &direct, 1)?;
        ensure!(said.contains("direct I/O does not reach its last 164 bytes"), "{said}");
    }
    ensure!(std::fs::metadata(bench.path("a.img"))?.len() == 1_000_448, "no whole sectors");
    qemu_img(&bench, &["compare", "-f", "raw", "-F", "raw", "odd.img", "a.img"])?;
    qemu_img(&bench, &["compare", "-f", "raw", "-F", "qcow2", "odd.img", "b.qcow2"])?;
    // Into one of the same size, which it keeps.
    std::fs::File::create(bench.path("c.img"))?.set_len(1_000_100)?;
    done(&bench, &["convert", "odd.img", "c.img", "-n", "--verify"])?;
    ensure!(std::fs::read(bench.path("c.img"))? == std::fs::read(bench.path("odd.img"))?, "c");
    let map: Value = serde_json::from_str(&done(&bench, &["map", "--json", "odd.img"])?)?;
    ensure!(map[0]["length"] == 1_000_100, "{map}");
    Ok(())
}

/// Both sides may be disks of NBD servers, named by URI; nbdcopy finds the same there.
#[test]
fn disks_of_nbd_servers_are_named_by_uri() -> Result<()> {
    let bench = Bench::new()?;
    let bytes = source(&bench)?;
    let kit = |socket: &str, arguments: &[&str]| -> Result<Server> {
        let options = ["-f", "--exit-with-parent", "-U", &bench.text(socket)];
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        Program::named("nbdkit", "nbdkit", &options).start(&arguments, &[bench.path(socket)])
    };
    let uri = |socket: &str| format!("nbd+unix:///?socket={}", bench.text(socket));
    let (from, to) = (uri("from.sock"), uri("to.sock"));
    let mut servers = vec![
        kit("from.sock", &["file", &bench.text("source.img")])?,
        kit("to.sock", &["memory", &bytes.len().to_string()])?,
        kit("odd.sock", &["--no-sr", "memory", "1000100"])?,
    ];
    let said = refused(&bench, &["convert", &from, &to], 1)?;
    ensure!(said.contains("is written over with --into-existing"), "{said}");
    done(&bench, &["convert", &from, &to, "-n", "--verify"])?;
    done(&bench, &["convert", &to, "back.img"])?;
    ensure!(std::fs::read(bench.path("back.img"))? == bytes, "another copy");
    done(&bench, &["convert", "source.img", "copy.qcow2", "-O", "qcow2"])?;
    servers.push(kit("image.sock", &["file", &bench.text("copy.qcow2")])?);
    done(&bench, &["convert", "-f", "qcow2", &uri("image.sock"), "image.img"])?;
    ensure!(std::fs::read(bench.path("image.img"))? == bytes, "an image behind a server");
    let map: Value = serde_json::from_str(&done(&bench, &["map", "--json", &from])?)?;
    ensure!(map[0]["zero"] == true && map[1]["data"] == true, "{map}");
    // A server whose disk ends inside a sector.
    let odd = uri("odd.sock");
    std::fs::write(bench.path("odd.img"), &bytes[5 * UNIT..5 * UNIT + 1_000_100])?;
    done(&bench, &["convert", "odd.img", &odd, "-n", "--verify"])?;
    let mut copied = Command::new("nbdcopy");
    ensure!(copied.args([&odd, &bench.text("odd.copy")]).status()?.success(), "nbdcopy");
    ensure!(std::fs::read(bench.path("odd.copy"))? == std::fs::read(bench.path("odd.img"))?, "odd");
    let said = refused(&bench, &["map", "nbds://127.0.0.1/"], 1)?;
    ensure!(said.contains("TLS needs credentials"), "{said}");
    servers.iter_mut().try_for_each(Server::kill)
}
