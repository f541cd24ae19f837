//! Images with which something is wrong that no request tells: removed, replaced, empty.

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Shape};
use testkit::image;
use testkit::process::{Bench, STOP_LIMIT, Server};

use crate::support::{Disk, ringloom, stop, with};

/// The file that the log offers instead of one that is gone.
fn offered(server: &Server) -> Result<std::path::PathBuf> {
    let log = server.log();
    let (_, rest) = log.split_once("As long as it runs, ").context("no file is offered")?;
    let (path, _) = rest.split_once(" is that file").context("no file is offered")?;
    Ok(path.into())
}

#[test]
fn an_image_that_was_removed_or_replaced_is_said_when_a_client_comes_and_can_be_saved() {
    with(&ringloom(), |program| {
        for is_replaced in [false, true] {
            let bench = Bench::new()?;
            let disk = Disk::new(&bench, "e0", 1);
            let content = disk.create(1 << 20, 0x51)?;
            let server = disk.serve(program)?;
            Client::connect(&disk.socket(), Shape::small())?.read(0, 4096, 0)?;
            ensure!(!server.log().contains("was removed"), "too early: {}", server.log());
            if is_replaced {
                image::create_filled(&bench.path("other"), 1 << 20, 0x52)?;
                std::fs::rename(bench.path("other"), disk.image()).context("replace the image")?;
            } else {
                std::fs::remove_file(disk.image()).context("remove the image")?;
            }
            for _ in 0..3 {
                let mut client = Client::connect(&disk.socket(), Shape::small())?;
                ensure!(client.read(4096, 4096, 0)? == content[4096..8192], "other bytes");
            }
            let said = format!("export e0: {} was removed or replaced", disk.image().display());
            server.wait_for_log(&said, STOP_LIMIT)?;
            ensure!(server.log().matches("was removed").count() == 1, "{}", server.log());
            ensure!(
                std::fs::read(offered(&server)?).context("read it")? == content,
                "another file"
            );
            stop(server, &[&disk.socket()])?;
        }
        Ok(())
    });
}

#[test]
fn an_empty_image_is_served_and_said() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "e0", 1);
        image::create_sparse(&disk.image(), 0)?;
        let server = disk.serve(program)?;
        let path = disk.image().display().to_string();
        let said = format!("export e0: {path} is empty, so its client finds a disk of 0 bytes");
        server.wait_for_log(&said, STOP_LIMIT)?;
        stop(server, &[&disk.socket()]).map(drop)
    });
}
