//! Paths at the edge: what once lost a disk or a socket.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::image;
use testkit::process::{Bench, Program};

use crate::support::{ringloom, with};

fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|word| (*word).to_owned()).collect()
}

fn place(program: &Program) -> Result<(Bench, Program)> {
    let bench = Bench::new()?;
    image::create_filled(&bench.path("disk.img"), 1 << 20, 0xd1)?;
    let program = program.clone().in_directory(bench.path(""));
    Ok((bench, program))
}

/// a short relative path works in a directory with a long one, as with the peer.
#[test]
fn a_relative_socket_works_in_a_deep_directory() {
    with(&ringloom(), |program| {
        let (bench, program) = place(program)?;
        let deep = bench.path(&"d".repeat(120));
        std::fs::create_dir(&deep).context("make a directory")?;
        let program = program.in_directory(deep.clone());
        let server = program.spawn(&words(&["../disk.img", "--socket", "s"]))?;
        server.wait_for_log("listening", Duration::from_secs(10)).with_context(|| server.log())?;
        ensure!(deep.join("s").exists(), "no socket");
        Ok(())
    });
}

/// a pidfile that is the disk destroys the disk.
#[test]
fn a_pidfile_that_is_the_image_is_refused() {
    with(&ringloom(), |program| {
        let (bench, program) = place(program)?;
        let line = words(&["disk.img", "--socket", "s", "--pidfile", "disk.img"]);
        let mut server = program.spawn(&line)?;
        let _status = server.wait(Duration::from_secs(2)).or_else(|_| server.terminate())?;
        let length = bench.path("disk.img").metadata().context("the image is gone")?.size();
        ensure!(length == 1 << 20, "the image has {length} bytes");
        Ok(())
    });
}
