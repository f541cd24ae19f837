//! Files that only an image names: opened as the operator allowed it, and refused with the answers.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::process::{Bench, Program};

use crate::support::{qemu_img, ringloom, stop, with};

const LIMIT: Duration = Duration::from_secs(20);

/// The type of the header extension that has the backing file's format, and what follows it.
const FORMAT_EXTENSION: &[u8] = &[0xe2, 0x79, 0x2a, 0xca];

/// `pool/base.qcow2`, a raw image `pool/raw.img`, and images that name other files in their own ways.
fn make_images(bench: &Bench) -> Result<()> {
    for directory in ["pool", "pool/deep", "away", "run"] {
        fs::create_dir(bench.path(directory)).context("make a directory")?;
    }
    fs::write(bench.path("away/secret"), vec![0x5e; 1 << 20]).context("write")?;
    fs::write(bench.path("pool/raw.img"), vec![0x5f; 1 << 20]).context("write")?;
    for link in ["pool/link", "pool/deep/base.qcow2"] {
        symlink(bench.path("away/secret"), bench.path(link)).context("link")?;
    }
    qemu_img(bench, "create -q -f qcow2 pool/base.qcow2 1M")?;
    let named = [
        ("relative", "base.qcow2", "qcow2"),
        ("raw", "raw.img", "raw"),
        ("deep/above", "../raw.img", "raw"),
        ("up", "../away/secret", "raw"),
        ("over", "link", "raw"),
        ("deep/link", "base.qcow2", "raw"),
        ("json", "json:{\"driver\":\"null-co\"}", "raw"),
        ("nbd", "nbd://127.0.0.1:1/x", "raw"),
        ("prefix", "file:raw.img", "raw"),
        ("vmdk", "base.vmdk", "vmdk"),
        ("directory", "deep", "raw"),
        ("itself", "itself.qcow2", "qcow2"),
        ("ring", "ring2.qcow2", "qcow2"),
        ("ring2", "ring.qcow2", "qcow2"),
        ("own", "own.qcow2", "raw"),
    ];
    for (name, backing, format) in named {
        let words = format!("create -q -f qcow2 -u -b {backing} -F {format} pool/{name}.qcow2 1M");
        qemu_img(bench, &words)?;
    }
    let absolute = bench.text("away/secret");
    qemu_img(bench, &format!("create -q -f qcow2 -b {absolute} -F raw pool/absolute.qcow2"))?;
    fs::copy(bench.path("pool/raw.qcow2"), bench.path("pool/unsaid.qcow2")).context("copy")?;
    // Whatever the extension is now, it is no format.
    let path = bench.path("pool/unsaid.qcow2");
    let bytes = fs::read(&path).context("read")?;
    let place = bytes.windows(4).position(|word| word == FORMAT_EXTENSION).context("no format")?;
    let file = fs::OpenOptions::new().write(true).open(&path).context("open")?;
    file.write_all_at(&[0x12, 0x34, 0x56, 0x78], u64::try_from(place)?).context("write")?;
    qemu_img(bench, "create -q -f qcow2 -o data_file=pool/data.raw pool/split.qcow2 1M")?;
    // The name is relative to the image when it is opened, and was not when it was made.
    fs::create_dir(bench.path("pool/pool")).context("make a directory")?;
    fs::rename(bench.path("pool/data.raw"), bench.path("pool/pool/data.raw")).context("rename")
}

/// A line of the short form with that image.
fn line(bench: &Bench, image: &str, more: &[&str]) -> Vec<String> {
    let image = format!("pool/{image}.qcow2");
    let socket = bench.text("run/s");
    let line = [&[image.as_str(), "--socket", &socket, "--format", "qcow2"][..], more].concat();
    line.into_iter().map(str::to_owned).collect()
}

fn bench() -> Result<(Bench, Program)> {
    let bench = Bench::new()?;
    make_images(&bench)?;
    let program = ringloom().in_directory(bench.path(""));
    Ok((bench, program))
}

/// Each image is refused with words that say why and what can be done.
fn refuse(cases: &[(&str, &[&str], &[&str])]) {
    with(&ringloom(), |_| {
        let (bench, program) = bench()?;
        for (image, more, named) in cases {
            let exit = program.refusal(&line(&bench, image, more), LIMIT)?;
            ensure!(exit.status.code() == Some(1), "{image} {more:?}: {exit:?}");
            let sentence = exit.stderr.lines().last().unwrap_or_default();
            for name in *named {
                ensure!(sentence.contains(name), "{image} {more:?}: no {name:?}: {sentence}");
            }
            ensure!(!bench.path("run/s").exists(), "{image} {more:?} left a socket behind");
        }
        Ok(())
    });
}

fn serve(cases: &[(&str, &[&str])]) {
    with(&ringloom(), |_| {
        let (bench, program) = bench()?;
        for (image, more) in cases {
            let required = [&["--sandbox", "on"][..], more].concat();
            let socket = bench.path("run/s");
            let server = program
                .start(&line(&bench, image, &required), std::slice::from_ref(&socket))
                .with_context(|| format!("{image} {more:?}"))?;
            stop(server, &[&socket])?;
        }
        Ok(())
    });
}

const POOL: &[&str] = &["--named-files", "pool"];
const ON: &[&str] = &["--named-files", "on"];

#[test]
fn what_only_the_image_names_is_not_opened_unasked() {
    let answers = ["backing=NODE", "backing=null", "--named-files DIRECTORY", "--named-files on"];
    let said = [&["image pool/relative.qcow2", "backing file 'base.qcow2'"][..], &answers].concat();
    let data = ["data file", "data.raw", "data-file=NODE", "--named-files on"];
    let off = &["--named-files", "off"];
    refuse(&[("relative", &[], &said), ("relative", off, &said), ("split", &[], &data)]);
}

#[test]
fn names_are_relative_to_their_image_and_stay_below_the_directory() {
    serve(&[("split", ON)]);
    serve(&[("base", &[]), ("relative", POOL), ("raw", POOL), ("deep/above", POOL)]);
    serve(&[("relative", ON), ("up", ON), ("over", ON), ("absolute", ON)]);
    serve(&[("up", &["--named-files", "pool", "--named-files", "away"])]);
    let outside = ["away/secret is in no directory of --named-files"];
    refuse(&[
        ("up", POOL, &outside),
        ("over", POOL, &outside),
        ("deep/link", POOL, &outside),
        ("absolute", POOL, &outside),
        ("deep/above", &["--named-files", "pool/deep"], &["raw.img is in no directory"]),
    ]);
}

/// It could be the disk of somebody else.
#[test]
fn what_a_directory_allows_is_not_written() {
    let said = ["image pool/split.qcow2", "data.raw", "not written", "data-file=NODE"];
    refuse(&[("split", POOL, &said)]);
    with(&ringloom(), |_| {
        let (bench, program) = bench()?;
        let socket = bench.path("run/s");
        let words = line(&bench, "split", &["--named-files", "pool", "--read-only"]);
        let server = program.start(&words, std::slice::from_ref(&socket))?;
        let data = bench.path("pool/pool/data.raw").canonicalize()?;
        let mut modes = Vec::new();
        for entry in fs::read_dir(format!("/proc/{}/fd", server.pid())).context("list")? {
            let link = entry?.path();
            if link.read_link().is_ok_and(|target| target == data) {
                modes.push(link.symlink_metadata().context("look at it")?.mode() & 0o700);
            }
        }
        // The rights of such a link are how the file is open.
        ensure!(!modes.is_empty(), "the data file is not open");
        ensure!(modes.iter().all(|mode| mode & 0o200 == 0), "it is open for writing: {modes:?}");
        stop(server, &[&socket]).map(drop)
    });
}

#[test]
fn what_is_no_file_of_a_known_format_is_refused_by_name() {
    refuse(&[
        ("json", ON, &["backing file 'json:{", "no path of a file", "backing=NODE"]),
        ("nbd", ON, &["'nbd://127.0.0.1:1/x'", "no path of a file"]),
        ("prefix", ON, &["'file:raw.img'", "no path of a file"]),
        ("vmdk", ON, &["'base.vmdk'", "format 'vmdk'", "raw, qcow2"]),
        ("unsaid", ON, &["'raw.img'", "without its format", "backing=NODE", "qemu-img rebase"]),
        ("directory", ON, &["'deep'", "neither a regular file nor a block device"]),
    ]);
}

#[test]
fn an_image_does_not_stand_on_itself() {
    let itself = |name| ["node disk/backing", name, "an image that stands on itself"];
    refuse(&[
        ("itself", ON, &itself("pool/itself.qcow2")),
        ("ring", POOL, &itself("pool/ring.qcow2")),
        ("ring2", ON, &itself("pool/ring2.qcow2")),
        ("own", ON, &itself("pool/own.qcow2")),
    ]);
}
