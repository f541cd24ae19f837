//! Command lines that must be refused: with an exit code, a sentence on stderr, and nothing left behind.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Shape};
use testkit::image;
use testkit::process::{Bench, Exit, Program};

use crate::support::{Disk, ringloom, with};

const REFUSAL_LIMIT: Duration = Duration::from_secs(20);
const FILE: &str = "driver=file,node-name=f0,filename=IMAGE";
const EXPORT: &str = "type=vhost-user-blk,id=e0,node-name=f0,addr.type=unix,addr.path=SOCKET";

/// Runs a command line that must be refused.
fn refusal(program: &Program, bench: &Bench, line: &[&str]) -> Result<Exit> {
    let words: Vec<String> = line
        .iter()
        .map(|word| {
            word.replace("IMAGE", &bench.text("disk.img"))
                .replace("SOCKET", &bench.text("e0.sock"))
                .replace("DIRECTORY", &bench.text(""))
        })
        .collect();
    let exit = program.refusal(&words, REFUSAL_LIMIT).with_context(|| format!("line {line:?}"))?;
    ensure!(!exit.status.success(), "{line:?} was accepted");
    ensure!(exit.status.code().is_some(), "{line:?} crashed it: {exit:?}");
    ensure!(!exit.stderr.trim().is_empty(), "{line:?} was refused without a word");
    ensure!(!bench.path("e0.sock").exists(), "{line:?} left a socket behind");
    Ok(exit)
}

/// Both programs must refuse the line; ringloom's sentence must name each of `named`.
#[track_caller]
fn both_refuse(line: &[&str], named: &[&str]) {
    with(&Program::qemu_storage_daemon(), |program| {
        let bench = bench()?;
        refusal(program, &bench, line).map(drop)
    });
    ringloom_refuses(line, named);
}

#[track_caller]
fn ringloom_refuses(line: &[&str], named: &[&str]) {
    with(&ringloom(), |program| {
        let bench = bench()?;
        let exit = refusal(program, &bench, line)?;
        for name in named {
            ensure!(exit.stderr.contains(name), "{name:?} is not named: {}", exit.stderr);
        }
        ensure!(!exit.stderr.contains("panicked"), "{line:?} made it panic: {}", exit.stderr);
        Ok(())
    });
}

fn bench() -> Result<Bench> {
    let bench = Bench::new()?;
    image::create_filled(&bench.path("disk.img"), 1 << 20, 0x71)?;
    image::create_filled(&bench.path("x.qcow2"), 1 << 20, 0x72)?;
    Ok(bench)
}

/// An export with one more option.
fn export_with(more: &str) -> String {
    format!("{EXPORT},{more}")
}

#[test]
fn an_unknown_option_is_refused() {
    both_refuse(&["--blokdev", FILE], &["blokdev", "blockdev"]);
}

#[test]
fn an_unknown_driver_is_refused_with_the_nearest_name() {
    both_refuse(&["--blockdev", "driver=fiel,node-name=f0,filename=IMAGE"], &["fiel", "file"]);
}

#[test]
fn an_unknown_key_is_refused() {
    both_refuse(
        &["--blockdev", "driver=file,node-name=f0,filname=IMAGE"],
        &["filname", "filename"],
    );
    let export = export_with("num-queue=2");
    both_refuse(&["--blockdev", FILE, "--export", &export], &["num-queue"]);
}

#[test]
fn values_of_the_wrong_kind_are_refused() {
    both_refuse(
        &["--blockdev", "driver=file,node-name=f0,filename=IMAGE,read-only=perhaps"],
        &["perhaps"],
    );
    for more in ["num-queues=many", "num-queues=0", "num-queues=70000", "writable=2"] {
        both_refuse(&["--blockdev", FILE, "--export", &export_with(more)], &[]);
    }
}

#[test]
fn a_logical_block_size_that_is_none_is_refused() {
    for more in ["logical-block-size=1000", "logical-block-size=256", "logical-block-size=-512"] {
        both_refuse(&["--blockdev", FILE, "--export", &export_with(more)], &["logical-block-size"]);
    }
}

#[test]
fn malformed_json_is_refused() {
    both_refuse(&["--blockdev", r#"{"driver":"file","#], &[]);
    both_refuse(
        &["--blockdev", r#"{"driver":"file","node-name":"f0","filename":7}"#],
        &["filename"],
    );
}

#[test]
fn a_missing_file_and_a_directory_are_refused() {
    both_refuse(
        &["--blockdev", "driver=file,node-name=f0,filename=/nonexistent/x"],
        &["/nonexistent/x"],
    );
    both_refuse(&["--blockdev", "driver=file,node-name=f0,filename=DIRECTORY"], &["directory"]);
}

#[test]
fn names_that_do_not_exist_are_refused() {
    let elsewhere = EXPORT.replace("node-name=f0", "node-name=f9");
    both_refuse(&["--blockdev", FILE, "--export", &elsewhere], &["f9"]);
    let export = export_with("iothread=t9");
    both_refuse(&["--blockdev", FILE, "--export", &export], &["t9"]);
}

#[test]
fn names_used_twice_are_refused() {
    both_refuse(&["--blockdev", FILE, "--blockdev", FILE], &["f0"]);
    both_refuse(&["--object", "iothread,id=t0", "--object", "iothread,id=t0"], &["t0"]);
    // The peer leaves a socket behind here.
    ringloom_refuses(&["--blockdev", FILE, "--export", EXPORT, "--export", EXPORT], &["e0"]);
}

#[test]
fn a_missing_name_is_refused() {
    both_refuse(&["--blockdev", FILE, "--export", &EXPORT.replace("id=e0,", "")], &["id"]);
    both_refuse(
        &["--blockdev", FILE, "--export", &EXPORT.replace("node-name=f0,", "")],
        &["node-name"],
    );
    both_refuse(&["--blockdev", "node-name=f0,filename=IMAGE"], &["driver"]);
}

#[test]
fn a_writable_export_of_a_read_only_node_is_refused() {
    let node = format!("{FILE},read-only=on");
    both_refuse(&["--blockdev", &node, "--export", &export_with("writable=on")], &["f0"]);
}

#[test]
fn a_socket_path_that_is_too_long_is_refused() {
    let long = EXPORT.replace("SOCKET", &format!("/tmp/{}", "x".repeat(120)));
    both_refuse(&["--blockdev", FILE, "--export", &long], &["xxxx"]);
}

#[test]
fn a_socket_in_a_missing_directory_is_refused() {
    let nowhere = EXPORT.replace("SOCKET", "/nonexistent/e0.sock");
    both_refuse(&["--blockdev", FILE, "--export", &nowhere], &["/nonexistent/e0.sock"]);
}

#[test]
fn linux_aio_through_the_page_cache_is_refused() {
    both_refuse(
        &["--blockdev", "driver=file,node-name=f0,filename=IMAGE,aio=native"],
        &["aio=native was specified, but it requires cache.direct=on, which was not specified."],
    );
}

#[test]
fn options_of_later_issues_are_refused_by_name() {
    ringloom_refuses(&["--object", "iothread,id=t0,aio-max-batch=1"], &["aio-max-batch"]);
    ringloom_refuses(
        &["--blockdev", "driver=file,node-name=f0,filename=IMAGE,aio-max-batch=4"],
        &["aio-max-batch"],
    );
    ringloom_refuses(&["--monitor", "chardev=c0"], &["monitor"]);
    ringloom_refuses(&["--blockdev", "driver=vhdx,node-name=f0,file=f1"], &["vhdx"]);
}

#[test]
fn a_disk_without_a_format_is_refused_with_both_answers() {
    ringloom_refuses(&["DIRECTORYx.qcow2", "--socket", "SOCKET"], &["qcow2", "raw"]);
}

#[test]
fn a_size_that_is_no_multiple_of_the_block_size_is_refused() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        image::create_sparse(&bench.path("disk.img"), 1_000_100)?;
        let exit = refusal(program, &bench, &["--blockdev", FILE, "--export", EXPORT])?;
        ensure!(exit.stderr.contains("1000100"), "the size is not named: {}", exit.stderr);
        Ok(())
    });
}

/// A socket of a process that lives is not taken away from it.
#[test]
fn a_socket_in_use_is_refused_and_stays() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "e0", 1);
        disk.create(1 << 20, 0x72)?;
        image::create_filled(&bench.path("disk.img"), 1 << 20, 0x73)?;
        let mut first = disk.serve(program)?;
        let second = program.refusal(
            &[
                "--blockdev".to_owned(),
                FILE.replace("IMAGE", &bench.text("disk.img")),
                "--export".to_owned(),
                EXPORT.replace("SOCKET", &bench.text("e0.sock")),
            ],
            REFUSAL_LIMIT,
        )?;
        ensure!(!second.status.success(), "the socket was taken over");
        ensure!(second.stderr.contains("e0.sock"), "not named: {}", second.stderr);
        Client::connect(&disk.socket(), Shape::small())?.read(0, 4096, 0)?;
        ensure!(first.is_alive()?, "the first server ended");
        Ok(())
    });
}

fn stale_socket_is_replaced(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let disk = Disk::new(&bench, "e0", 1);
    disk.create(1 << 20, 0x74)?;
    disk.serve(program)?.kill()?;
    ensure!(disk.socket().exists(), "a killed server leaves its socket");
    let server = disk.serve(program)?;
    Client::connect(&disk.socket(), Shape::small())?.read(0, 4096, 0)?;
    crate::support::stop(server, &[&disk.socket()]).map(drop)
}

#[test]
fn a_stale_socket_is_replaced() {
    with(&Program::qemu_storage_daemon(), stale_socket_is_replaced);
    with(&ringloom(), stale_socket_is_replaced);
}
