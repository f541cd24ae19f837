//! `ringloom check`: what a line would do, and that nothing is changed by asking.

use anyhow::{Result, ensure};
use testkit::image;
use testkit::process::{Bench, Exit, Program};

use crate::support::{Disk, qemu_img, ringloom, stop, with};

const LIMIT: std::time::Duration = std::time::Duration::from_secs(20);

fn ask(bench: &Bench, line: &str) -> Result<Exit> {
    let program = Program::named("ringloom", env!("CARGO_BIN_EXE_ringloom"), &["check"]);
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    program.in_directory(bench.path("")).refusal(&words, LIMIT)
}

#[track_caller]
fn check(exit: &Exit, code: i32, expected: &[&str]) {
    assert_eq!(exit.status.code(), Some(code), "{exit:?}");
    for part in expected {
        assert!(exit.stdout.contains(part), "{part}: {}", exit.stdout);
    }
}

#[test]
fn its_help_is_its_own() {
    let bench = Bench::new().expect("a directory");
    let exit = ask(&bench, "--help").expect("it ends");
    check(&exit, 0, &["Usage: ringloom check [ARGUMENTS OF SERVE]", "ringloom serve --help"]);
}

#[test]
fn what_a_line_would_do_is_said_and_nothing_is_changed() {
    let bench = Bench::new().expect("a directory");
    let base = image::create_filled(&bench.path("base"), 1 << 20, 3).expect("an image");
    qemu_img(&bench, "create -q -f qcow2 -b base -F raw over").expect("an image");
    let over = std::fs::read(bench.path("over")).expect("it is there");
    let line = "over --format qcow2 --named-files . --socket s --iothreads 3 --num-queues 2";
    let exit = ask(&bench, line).expect("it ends");
    check(
        &exit,
        0,
        &[
            "export over: node disk, 1 MiB, writable, blocks of 512 bytes",
            "queues: 2; served by iothread0, iothread1, iothread2",
            "socket s: nobody listens there",
            "file over: 192 KiB, free, past the page cache",
            "iothreads: up to 3",
            "unwise: export over: 3 iothreads for 2 queues; some do nothing",
            "a start would serve this",
        ],
    );
    assert!(!bench.path("s").exists(), "a socket was made");
    assert!(
        std::fs::read(bench.path("over")).expect("it is there") == over,
        "the image was changed"
    );
    assert!(
        std::fs::read(bench.path("base")).expect("it is there") == base,
        "the base was changed"
    );
    let kept = "--state state --chardev null,id=c --monitor c --allow-below .";
    check(&ask(&bench, kept).expect("it ends"), 0, &["state state: nothing is kept there yet"]);
    assert!(!bench.path("state").exists(), "a state file was made");
}

#[test]
fn what_a_start_would_refuse_is_said_with_exit_code_1() {
    let bench = Bench::new().expect("a directory");
    image::create_sparse(&bench.path("a"), 1 << 20).expect("an image");
    std::fs::write(bench.path("junk"), "junk").expect("a file");
    let exit = ask(&bench, "a --socket nowhere/s").expect("it ends");
    check(&exit, 1, &["refused: export a: socket nowhere/s: there is no directory nowhere"]);
    let exit = ask(&bench, "junk --format qcow2 --socket s").expect("it ends");
    check(&exit, 1, &["refused: node disk", "a start would fail"]);
    let exit = ask(&bench, "a --socket s --state junk").expect("it ends");
    check(&exit, 1, &["refused: state file junk: no state of ringloom is in it"]);
    let exit = ask(&bench, "none --socket s").expect("it ends");
    assert!(
        exit.status.code() == Some(1) && exit.stderr.contains("could not open 'none'"),
        "{exit:?}"
    );
    with(&ringloom(), |program| {
        let disk = Disk::new(&bench, "e0", 1);
        disk.create_sparse(1 << 20)?;
        let server = disk.serve(program)?;
        let exit = ask(&bench, "e0.img --socket e0.sock")?;
        check(&exit, 1, &["is served by a live process", "locked by somebody else"]);
        ensure!(exit.stdout.contains("a start would fail"), "{exit:?}");
        stop(server, &[&disk.socket()]).map(drop)
    });
}
