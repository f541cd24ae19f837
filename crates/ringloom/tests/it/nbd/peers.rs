//! What clients of others do with a disk: read, write, copy, map, in all styles of headers.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testkit::image;
use testkit::process::{Bench, Program};

use super::{disk, outcome, server, start, tool, uri};
use crate::support::{ringloom, ringloom_without_io_uring, stop, with};

const MIB: u64 = 1 << 20;

/// libnbd describes the export, maps it and copies it both ways; QEMU writes and reads through extended headers.
fn tools_find_what_was_written(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let path = bench.path("a.img");
    image::create_sparse(&path, 64 * MIB)?;
    let mut line = server(&bench, &["--object", "iothread,id=t0", "--object", "iothread,id=t1"]);
    line.extend(disk(&bench, "a", ",name=disk,description=of a test,iothread.0=t0,iothread.1=t1"));
    let server = start(program, &bench, &line)?;
    let uri = uri(&bench, "disk");
    let told: Value = serde_json::from_str(&tool("nbdinfo", &["--json", "--list", &uri])?)?;
    let export = &told["exports"][0];
    ensure!(export["export-name"] == "disk", "{told}");
    ensure!(export["description"] == "of a test", "{told}");
    ensure!(export["export-size"] == 64 * MIB && export["is_read_only"] == false, "{told}");
    ensure!(export["can_multi_conn"] == true && export["can_trim"] == true, "{told}");
    ensure!(export["block_size_minimum"] == 512, "{told}");
    // QEMU 10 asks for extended headers and block status.
    let done = tool(
        "qemu-io",
        &[
            "-f",
            "raw",
            "-c",
            "write -P 0x5a 1M 3M",
            "-c",
            "write -f -P 0x5b 8M 64k",
            "-c",
            "read -P 0x5a 1M 3M",
            "-c",
            "write -z -u 2M 1M",
            "-c",
            "read -P 0 2M 1M",
            "-c",
            "discard 8M 64k",
            "-c",
            "flush",
            &uri,
        ],
    )?;
    ensure!(!done.contains("failed"), "{done}");
    let map: Value = serde_json::from_str(&tool("nbdinfo", &["--json", "--map", &uri])?)?;
    let runs = map.as_array().map_or(&[][..], Vec::as_slice);
    let is = |run: &&Value, start: u64, kind: u64| {
        let (from, count) = (run["offset"].as_u64(), run["length"].as_u64());
        let found =
            from.zip(count).is_some_and(|(from, count)| from <= start && start < from + count);
        found && run["type"] == kind
    };
    ensure!(runs.iter().any(|run| is(&run, MIB, 0)), "data at 1 MiB: {map}");
    ensure!(runs.iter().any(|run| is(&run, 2 * MIB, 3)), "a hole at 2 MiB: {map}");
    let copy = bench.text("copy");
    tool("nbdcopy", &["--connections=4", &uri, &copy])?;
    ensure!(std::fs::read(&path)? == std::fs::read(&copy)?, "the copy is another one");
    // And back, over what is there.
    let source = bench.text("source");
    let bytes = image::create_filled(source.as_ref(), usize::try_from(64 * MIB)?, 7)?;
    tool("nbdcopy", &["--flush", "--connections=4", &source, &uri])?;
    ensure!(std::fs::read(&path)? == bytes, "what was copied is not there");
    let log = stop(server, &[&super::socket(&bench)])?;
    ensure!(log.contains("extended headers, block status"), "{log}");
    Ok(())
}

/// Writes to a read-only export, names that do not exist, and lines that nobody could reach.
fn what_cannot_be_is_refused(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), MIB)?;
    let mut line =
        server(&bench, &["--blockdev", "null-co,node-name=n,size=1048576,read-zeroes=on"]);
    line.extend(["--export".to_owned(), "nbd,id=ro,node-name=n,name=ro".to_owned()]);
    let server = start(program, &bench, &line)?;
    let wrong = outcome("nbdinfo", &[&uri(&bench, "nothing")])?;
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    ensure!(!wrong.status.success() && said.contains("nothing"), "{said}");
    let uri = uri(&bench, "ro");
    let written = outcome("qemu-io", &["-f", "raw", "-c", "write 0 512", &uri])?;
    let said = String::from_utf8_lossy(&written.stdout).into_owned()
        + &String::from_utf8_lossy(&written.stderr);
    // It opens no disk for writing that is read-only.
    ensure!(said.contains("Permission denied"), "{said}");
    // The empty name is that of the only export.
    tool("nbdinfo", &[&super::uri(&bench, "")])?;
    stop(server, &[&super::socket(&bench)]).map(drop)
}

/// A qcow2 image over its base, with block status and depth.
fn depth_is_told(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let (base, top) = (bench.text("base.img"), bench.text("top.qcow2"));
    image::create_filled(base.as_ref(), usize::try_from(4 * MIB)?, 3)?;
    tool("qemu-img", &["create", "-q", "-f", "qcow2", "-b", &base, "-F", "raw", &top])?;
    tool("qemu-io", &["-f", "qcow2", "-c", "write -P 9 1M 64k", &top])?;
    let mut line = server(&bench, &["--named-files", "on", "--blockdev"]);
    let node = json!({
        "driver": "qcow2", "node-name": "q", "read-only": true,
        "file": {"driver": "file", "filename": top},
    });
    line.push(node.to_string());
    line.extend(["--export".to_owned(), "nbd,id=q,node-name=q,allocation-depth=on".to_owned()]);
    let server = start(program, &bench, &line)?;
    let uri = uri(&bench, "q");
    let depths = tool("nbdinfo", &["--map=qemu:allocation-depth", "--json", &uri])?;
    let depths: Value = serde_json::from_str(&depths)?;
    let found: Vec<_> = depths.as_array().into_iter().flatten().collect();
    let kinds: Vec<_> =
        found.iter().map(|run| (run["offset"].clone(), run["type"].clone())).collect();
    let expected = [(0, 2), (MIB, 1), (MIB + 65536, 2)];
    let expected = expected.map(|(offset, kind)| (json!(offset), json!(kind)));
    ensure!(kinds == expected, "{depths}");
    let copy = bench.text("copy");
    tool("nbdcopy", &[&uri, &copy])?;
    tool("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", &top, &copy])?;
    stop(server, &[&super::socket(&bench)]).map(drop)
}

/// fio's own client of NBD, which verifies what it has written, at a depth.
fn fio_verifies(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), 32 * MIB)?;
    let mut line = server(&bench, &["--object", "iothread,id=t0", "--object", "iothread,id=t1"]);
    line.extend(disk(&bench, "a", ",iothread.0=t0,iothread.1=t1"));
    let server = start(program, &bench, &line)?;
    let uri = format!("--uri={}", uri(&bench, "a"));
    let output = outcome(
        "fio",
        &[
            "--name=v",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bsrange=512-64k",
            "--iodepth=16",
            "--size=32m",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--randseed=5",
        ],
    )?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success() && said.contains("err= 0"), "{said}");
    stop(server, &[&super::socket(&bench)]).map(drop)
}

#[test]
fn clients_of_others_find_what_was_written() {
    with(&ringloom(), tools_find_what_was_written);
}

#[test]
fn clients_of_others_find_what_was_written_without_io_uring() {
    with(&ringloom_without_io_uring(), tools_find_what_was_written);
}

#[test]
fn names_and_writes_that_cannot_be_are_refused() {
    with(&ringloom(), what_cannot_be_is_refused);
}

#[test]
fn the_depth_of_a_chain_is_told() {
    with(&ringloom(), depth_is_told);
}

#[test]
fn fio_finds_what_it_has_written() {
    with(&ringloom(), fio_verifies);
}
