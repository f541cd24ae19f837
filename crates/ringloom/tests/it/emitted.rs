//! The configurations that the tuner writes, given to those they are written for: QEMU with a guest, libvirt, KubeVirt's
//! schema, and `ringloom serve`, which prints the same of what it serves.

use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::image;
use testkit::process::{Bench, Program, Server};
use tuner::emit::{Backend, Wanted};

mod boot;
mod kubevirt;
pub(crate) mod libvirt;
mod printed;
mod report;

/// What the disk begins with.
const KNOWN: &str = "the disk of the number";
const QUEUES: u16 = 4;

/// A disk of one MiB for a guest with four CPUs.
fn wanted(bench: &Bench, by: Backend, iothreads: &str) -> Result<Wanted> {
    let disk = bench.path("disk.img");
    image::create_with(&disk, KNOWN.as_bytes())?;
    std::fs::File::options().write(true).open(&disk)?.set_len(1 << 20)?;
    let iothreads = iothreads.parse().context("a number of iothreads")?;
    let mut wanted = Wanted::new(by, iothreads, disk);
    wanted.socket = bench.path("s");
    Ok(wanted)
}

/// Writes the files and gives the path of the one whose name ends so.
fn written(bench: &Bench, wanted: &Wanted, name: &str) -> Result<PathBuf> {
    let files = wanted.files();
    for file in &files {
        let path = bench.path(file.name);
        std::fs::create_dir_all(path.parent().context("a directory")?)?;
        std::fs::write(path, &file.content)?;
    }
    let found = files.iter().find(|file| file.name.ends_with(name));
    Ok(bench.path(found.with_context(|| format!("there is no {name}"))?.name))
}

/// What a shell makes of `qemu.args` when it is used as its comment says.
fn arguments(bench: &Bench, wanted: &Wanted) -> Result<Vec<String>> {
    let path = written(bench, wanted, "qemu.args")?;
    split("grep -v '^#' \"$1\"", &path.display().to_string())
}

/// The words that a command of the shell prints, `$1` being the argument.
fn split(command: &str, argument: &str) -> Result<Vec<String>> {
    let script = format!("eval \"set -- $({command})\"; printf '%s\\0' \"$@\"");
    let output = run(Command::new("sh").args(["-euc", &script, "sh", argument]))?;
    let text = said(&output);
    ensure!(output.status.success(), "{script}: {text}");
    let words = output.stdout.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let mut words: Vec<String> = words.map(String::from).collect();
    words.pop();
    Ok(words)
}

/// The values of an option that are JSON.
fn objects(words: &[String], option: &str) -> Vec<Value> {
    let values = words.windows(2).filter(|pair| pair[0] == option).map(|pair| &pair[1]);
    values.filter_map(|value| serde_json::from_str(value).ok()).collect()
}

/// Starts what `serve.sh` starts, with these options more.
fn serve(bench: &Bench, wanted: &Wanted, more: &[&str]) -> Result<Server> {
    let script = written(bench, wanted, "serve.sh")?.display().to_string();
    let ringloom = PathBuf::from(env!("CARGO_BIN_EXE_ringloom"));
    let mut path = ringloom.parent().context("its directory")?.as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let path = path.into_string().ok().context("the search path is text")?;
    let program = Program::named("serve.sh", "sh", &[&script]).with_variable("PATH", &path);
    let more: Vec<String> = more.iter().map(|&word| word.to_owned()).collect();
    program.start(&more, &[bench.path("s")])
}

fn run(command: &mut Command) -> Result<Output> {
    let output = command.output();
    output.with_context(|| format!("start {}", command.get_program().display()))
}

/// Everything that a program has printed.
fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}
