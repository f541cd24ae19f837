//! `--gauges-fd`: what a daemon does, as lines of JSON on a descriptor.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::client::{Client, Shape};
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Program};

use crate::support::{stop, with};

const LIMIT: Duration = Duration::from_secs(20);

/// A daemon that has `gauges` open as descriptor 9 for appending, and as 8 for reading; 7 is none, whatever the test has.
fn program(bench: &Bench) -> Program {
    let script = "exec 7>&- 8<gauges 9>>gauges; exec \"$@\"";
    let binary = env!("CARGO_BIN_EXE_ringloom");
    Program::named("ringloom", "sh", &["-c", script, "sh", binary, "serve"])
        .in_directory(bench.path(""))
}

fn line(more: &[&str]) -> Vec<String> {
    let words = ["d.img", "--socket", "s", "--gauges-fd", "9", "--iothreads", "auto:2"];
    words.iter().chain(more).map(|word| (*word).to_owned()).collect()
}

fn bench() -> Result<Bench> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("d.img"), 1 << 20)?;
    Ok(bench)
}

/// All names of fields in a value.
fn fields(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| {
            found.insert(name.clone());
            fields(value, found);
        }),
        Value::Array(all) => all.iter().for_each(|value| fields(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn each_second_a_line_says_what_is_done_behind_the_fences() {
    let bench = bench().expect("files");
    std::fs::write(bench.path("gauges"), "").expect("a file");
    with(&program(&bench), |program| {
        let server = program.start(&line(&[]), &[bench.path("s")])?;
        let mut client = Client::connect(&bench.path("s"), Shape::small())?;
        for block in 0..32 {
            client.write(block * 4096, &[1; 4096], 0)?;
        }
        let found = poll_until("a line with what was written", LIMIT, || {
            let text = std::fs::read_to_string(bench.path("gauges"))?;
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let Some(last) = whole.lines().last() else { return Ok(None) };
            let value: Value = serde_json::from_str(last).context(last.to_owned())?;
            let is_whole = value["disks"][0]["placement"]["iothreads"] == 1;
            Ok((is_whole && value["disks"][0]["requests"] == 32).then_some(value))
        })?;
        let queue = &found["queues"][0];
        ensure!(queue["writes"] == 32 && queue["written_bytes"] == 32 * 4096, "{queue}");
        ensure!(queue["iothread"] == "auto-0" && queue["export"] == "d", "{queue}");
        ensure!(found["pools"][0]["max"] == 2 && found["iothreads"][0]["queues"] == 1, "{found}");
        let document = include_str!("../../../../docs/gauges.md");
        let mut names = BTreeSet::new();
        fields(&found, &mut names);
        for name in names {
            ensure!(document.contains(&format!("`{name}`")), "docs/gauges.md has no {name}");
        }
        drop(client);
        let log = stop(server, &[&bench.path("s")])?;
        ensure!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
        Ok(())
    });
}

/// A pipe with as little room as can be, and nothing left of it.
fn full_pipe(bench: &Bench) -> Result<File> {
    let path = bench.path("gauges");
    let made = std::process::Command::new("mkfifo").arg(&path).status().context("mkfifo")?;
    ensure!(made.success(), "mkfifo: {made}");
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut pipe = File::options().read(true).write(true).custom_flags(flags).open(&path)?;
    rustix::pipe::fcntl_setpipe_size(&pipe, 4096)?;
    pipe.write_all(&[b' '; 4096])?;
    Ok(pipe)
}

#[test]
fn whoever_does_not_read_holds_up_nobody() {
    let bench = bench().expect("files");
    let pipe = full_pipe(&bench).expect("a pipe");
    with(&program(&bench), |program| {
        let mut server = program.start(&line(&[]), &[bench.path("s")])?;
        server.wait_while_running(Duration::from_millis(2200))?;
        let mut client = Client::connect(&bench.path("s"), Shape::small())?;
        client.write(0, &[7; 4096], 0)?;
        drop(client);
        server.signal(rustix::process::Signal::USR1)?;
        server.wait_for_log("pool auto: 1 of 2 iothreads run", LIMIT)?;
        stop(server, &[&bench.path("s")])?;
        drop(pipe);
        Ok(())
    });
}

#[test]
fn a_reader_that_goes_is_told_of_and_a_descriptor_that_cannot_be_is_refused() {
    let bench = bench().expect("files");
    let pipe = full_pipe(&bench).expect("a pipe");
    // Its own end for reading keeps a pipe alive, so this one has none.
    let script = "exec 9>>gauges; exec \"$@\"";
    let binary = env!("CARGO_BIN_EXE_ringloom");
    let program = Program::named("ringloom", "sh", &["-c", script, "sh", binary, "serve"])
        .in_directory(bench.path(""));
    with(&program, |program| {
        let server = program.start(&line(&[]), &[bench.path("s")])?;
        drop(pipe);
        server.wait_for_log("gauges are not written any more: Broken pipe", LIMIT)?;
        let mut client = Client::connect(&bench.path("s"), Shape::small())?;
        client.write(0, &[7; 4096], 0)?;
        drop(client);
        stop(server, &[&bench.path("s")]).map(drop)
    });
    std::fs::remove_file(bench.path("gauges")).expect("removed");
    std::fs::write(bench.path("gauges"), "").expect("a file");
    let refused = |program: &Program, words: &[&str], sentence: &str| -> Result<()> {
        let exit = program.refusal(&line(words), LIMIT)?;
        ensure!(exit.status.code() == Some(1), "{words:?}: {exit:?}");
        ensure!(exit.stderr.contains(sentence), "{words:?}: {}", exit.stderr);
        ensure!(exit.stderr.lines().count() == 1, "not one sentence: {}", exit.stderr);
        Ok(())
    };
    let program = self::program(&bench);
    with(&program, |program| {
        refused(program, &["--gauges-fd", "7"], "--gauges-fd 7: the descriptor is not open: Bad")?;
        let sentence = "--gauges-fd 8: the descriptor is not open for writing";
        refused(program, &["--gauges-fd", "8"], sentence)?;
        for text in ["", "x", "-1", "4294967296"] {
            refused(program, &["--gauges-fd", text], "the number of an open descriptor")?;
        }
        Ok(())
    });
}
