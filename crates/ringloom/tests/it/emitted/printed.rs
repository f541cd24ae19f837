//! `ringloom serve --print` says the same of an export as the tuner's files.

use anyhow::{Context, Result, ensure};
use testkit::deadline::poll_until;
use testkit::process::{Bench, STOP_LIMIT, Server};
use tuner::emit::Backend;

use super::{arguments, objects, serve, split, wanted, written};
use crate::support::{ringloom, stop, with};

fn printed(server: &Server, last: &str) -> Result<String> {
    poll_until("the lines that attach a guest", STOP_LIMIT, || {
        let text = server.stdout();
        Ok((text.contains(last) && text.ends_with('\n')).then_some(text))
    })
}

#[test]
fn the_same_arguments_are_printed_for_qemu() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let wanted = wanted(&bench, Backend::Ringloom, "2")?;
        let server = serve(&bench, &wanted, &["--print", "qemu"])?;
        std::fs::write(bench.path("printed"), printed(&server, "-device")?)?;
        let printed = split("grep -v '^#' \"$1\"", &bench.text("printed"))?;
        let emitted = arguments(&bench, &wanted)?;
        for option in ["-chardev", "-machine"] {
            let value = |words: &[String]| {
                let mut pairs = words.windows(2);
                pairs.find(|pair| pair[0] == option).map(|pair| pair[1].clone())
            };
            ensure!(value(&printed) == value(&emitted), "{option}: {printed:?}, {emitted:?}");
        }
        let device = printed.last().context("a device")?;
        let object = objects(&emitted, "-device").pop().context("a device")?;
        for (number, pair) in device.split(',').enumerate() {
            let (key, value) = pair.split_once('=').unwrap_or(("driver", pair));
            ensure!((number == 0) == (key == "driver"), "{device}");
            let found = object[key].to_string();
            ensure!(found.trim_matches('"') == value, "{key} is {found}, printed is {device}");
        }
        stop(server, &[&bench.path("s")]).map(drop)
    });
}

#[test]
fn the_same_elements_are_printed_for_libvirt() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let wanted = wanted(&bench, Backend::Ringloom, "2")?;
        let server = serve(&bench, &wanted, &["--print", "libvirt"])?;
        let emitted = std::fs::read_to_string(written(&bench, &wanted, "libvirt.xml")?)?;
        let text = printed(&server, "</disk>")?;
        let lines = text.lines().filter(|line| !line.starts_with("<!--"));
        let elements: Vec<_> = lines.map(|line| line.trim().trim_end_matches("/>")).collect();
        ensure!(elements.len() > 8, "too few: {text}");
        for element in elements {
            // The tuner's may have more attributes.
            ensure!(emitted.contains(element), "{element} is not in {emitted}");
        }
        stop(server, &[&bench.path("s")]).map(drop)
    });
}
