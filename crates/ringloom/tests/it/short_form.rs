//! `ringloom serve disk.img --socket S`: what a newcomer types first, and the lines it prints.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Request, Segment, Shape, Status};
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Program, STOP_LIMIT, Server};
use testkit::queue_report;
use testkit::rawring::{RawDevice, RawShape, feature};
use testkit::report::skipped;

use crate::paused_qemu::Qemu;
use crate::support::{copy_binary, is_root, ringloom, stop, with};

mod xml;

const REFUSAL_LIMIT: Duration = Duration::from_secs(20);

/// A directory with `disk.img` of one MiB.
fn bench() -> Result<(Bench, Vec<u8>)> {
    let bench = Bench::new()?;
    let content = image::create_filled(&bench.path("disk.img"), 1 << 20, 0xc1)?;
    Ok((bench, content))
}

fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|word| (*word).to_owned()).collect()
}

/// Starts the short form in the directory of the bench, with the socket `s`.
fn start(program: &Program, bench: &Bench, image: &str, more: &[&str]) -> Result<Server> {
    let line = [&[image, "--socket", "s"][..], more].concat();
    let program = program.clone().in_directory(bench.path(""));
    program.start(&words(&line), &[bench.path("s")])
}

/// What stdout holds once all of the lines are there.
fn printed(server: &Server, last: &str) -> Result<String> {
    poll_until("the lines that attach a guest", STOP_LIMIT, || {
        let text = server.stdout();
        Ok((text.contains(last) && text.ends_with('\n')).then_some(text))
    })
}

/// A short form that must be refused; its sentence names all of this, and no socket is left.
#[track_caller]
fn refuse(line: &[&str], named: &[&str]) {
    with(&ringloom(), |program| {
        let (bench, _) = bench()?;
        std::fs::copy(bench.path("disk.img"), bench.path("x.qcow2")).context("copy")?;
        std::fs::create_dir(bench.path("directory")).context("make a directory")?;
        image::create_sparse(&bench.path("odd.img"), 1_000_100)?;
        image::create_with(&bench.path("hidden.img"), b"QFI\xfb\0\0\0\x03 and so on")?;
        refused(&program.clone().in_directory(bench.path("")), &bench, line, named)
    });
}

fn refused(program: &Program, bench: &Bench, line: &[&str], named: &[&str]) -> Result<()> {
    let exit = program.refusal(&words(line), REFUSAL_LIMIT)?;
    ensure!(exit.status.code() == Some(1), "{line:?}: {exit:?}");
    for name in named {
        ensure!(exit.stderr.contains(name), "{line:?}: {name:?} is not in {}", exit.stderr);
    }
    ensure!(exit.stderr.lines().count() == 1, "{line:?}: not one sentence: {}", exit.stderr);
    ensure!(exit.stdout.is_empty(), "{line:?}: lines for a guest: {}", exit.stdout);
    ensure!(!bench.path("s").exists(), "{line:?} left a socket behind");
    Ok(())
}

#[test]
fn an_image_is_served_over_two_iothreads() {
    with(&ringloom(), |program| {
        let (bench, content) = bench()?;
        let server = start(program, &bench, "disk.img", &["--iothreads", "2"])?;
        let shape = Shape { queues: 4, ..Shape::small() };
        let mut client = Client::connect(&bench.path("s"), shape)?;
        ensure!(client.configuration()?.capacity_bytes == 1 << 20, "another size");
        ensure!(client.read(4096, 4096, 0)? == content[4096..8192], "other bytes");
        client.write(8192, &[0x5a; 4096], 0)?;
        for queue in 0..4 {
            ensure!(client.execute(queue, &Request::Flush)? == Status::Ok, "flush {queue}");
        }
        drop(client);
        let log = stop(server, &[&bench.path("s")])?;
        let reports = queue_report::parse(&log);
        let served: Vec<_> =
            reports.iter().map(|report| (report.queue, report.iothread.as_str())).collect();
        let (first, second) = ("iothread0", "iothread1");
        ensure!(served == [(0, first), (1, second), (2, first), (3, second)], "{log}");
        let found = std::fs::read(bench.path("disk.img")).context("read the image")?;
        ensure!(found[8192..12288] == [0x5a; 4096], "the write is lost");
        Ok(())
    });
}

/// Lines with a QEMU that takes them: it must find a disk named `id`, connected.
fn check_qemu_lines(bench: &Bench, server: &Server, id: &str, queues: &str) -> Result<()> {
    let text = printed(server, "-device")?;
    ensure!(text.contains("share=on"), "the memory is not shared: {text}");
    let mut qemu = Qemu::start(bench, &text.replace("4G", "256M")).with_context(|| text.clone())?;
    let tree = qemu.ask_person("info qtree")?;
    let device = format!(r#"dev: vhost-user-blk-pci, id \"{id}\""#);
    ensure!(tree.contains(&device), "no such device: {tree}");
    let chardev = format!(r#"chardev = \"char-{id}\""#);
    ensure!(tree.contains(&chardev) && tree.contains(queues), "{queues}: {tree}");
    let chardevs = qemu.ask_person("info chardev")?;
    let connected = format!("char-{id}: filename=unix:");
    ensure!(chardevs.contains(&connected), "not connected: {chardevs}");
    let status = qemu.ask(r#"{"execute":"query-status"}"#)?;
    ensure!(status.contains("prelaunch"), "{status}");
    ensure!(qemu.is_alive()?, "QEMU ended");
    ensure!(!server.log().contains("the client has left"), "a session ended: {}", server.log());
    qemu.quit()?;
    server.wait_for_log("the client has left", STOP_LIMIT)
}

fn with_qemu(behaviour: impl FnOnce(&Program) -> Result<()>) {
    match Qemu::missing() {
        Some(reason) => skipped(&reason),
        None => with(&ringloom(), behaviour),
    }
}

#[test]
fn qemu_takes_the_printed_lines() {
    with_qemu(|program| {
        let (bench, _) = bench()?;
        let server = start(program, &bench, "disk.img", &["--iothreads", "2"])?;
        check_qemu_lines(&bench, &server, "disk", "num-queues = 1 ")?;
        stop(server, &[&bench.path("s")]).map(drop)
    });
}

/// Blanks, quotes and commas in the path survive the shell and QEMU.
#[test]
fn qemu_takes_the_printed_lines_of_odd_names() {
    with_qemu(|program| {
        let (bench, _) = bench()?;
        let odd = "a b,c'd$e\"f";
        std::fs::rename(bench.path("disk.img"), bench.path("9 lives.raw")).context("rename")?;
        std::fs::create_dir(bench.path(odd)).context("make a directory")?;
        let socket = bench.path(odd).join("s,1");
        let line = ["9 lives.raw", "--socket", &format!("{odd}/s,1"), "--num-queues", "3"];
        let program = program.clone().in_directory(bench.path(""));
        let server = program.spawn(&words(&line))?;
        // Its path has a blank, which `is_listening` cannot read.
        server.wait_for_log("listening", STOP_LIMIT)?;
        check_qemu_lines(&bench, &server, "disk-9-lives", "num-queues = 3 ")?;
        stop(server, &[&socket]).map(drop)
    });
}

#[test]
fn libvirt_takes_the_printed_elements() {
    with(&ringloom(), |program| {
        let (bench, _) = bench()?;
        let program = program.clone().in_directory(bench.path(""));
        let line = ["disk.img", "--socket", "a&'<s>", "--num-queues", "3", "--print", "libvirt"];
        let server = program.spawn(&words(&line))?;
        let text = printed(&server, "</disk>")?;
        let elements = xml::elements(&text).with_context(|| text.clone())?;
        let has = |path: &str, key: &str, value: &str| {
            elements.iter().any(|element| element.has(path, key, value))
        };
        let socket = bench.text("a&'<s>");
        for (path, key, value) in [
            ("memoryBacking/source", "type", "memfd"),
            ("memoryBacking/access", "mode", "shared"),
            ("disk", "type", "vhostuser"),
            ("disk/driver", "queues", "3"),
            ("disk/source", "path", &socket),
            ("disk/target", "bus", "virtio"),
        ] {
            ensure!(has(path, key, value), "no {path} with {key}={value}: {elements:?}");
        }
        validate(&bench, &text)?;
        stop(server, &[&bench.path("a&'<s>")]).map(drop)
    });
}

/// libvirt's own schema, where it is installed; elsewhere the structure above must do.
fn validate(bench: &Bench, text: &str) -> Result<()> {
    let (memory, devices) = text.split_once("<!-- in <devices>").context("two parts")?;
    let (_, devices) = devices.split_once("-->").context("the end of the comment")?;
    let domain = format!(
        "<domain type='kvm'><name>x</name><memory unit='MiB'>256</memory>{memory}\
         <os><type arch='x86_64' machine='q35'>hvm</type></os><devices>{devices}</devices></domain>"
    );
    let path = bench.path("domain.xml");
    std::fs::write(&path, domain).context("write the domain")?;
    let Ok(output) = Command::new("virt-xml-validate").arg(&path).arg("domain").output() else {
        return Ok(());
    };
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "virt-xml-validate: {said}, the lines: {text}");
    Ok(())
}

#[test]
fn a_read_only_disk_says_so_and_refuses_writes() {
    with(&ringloom(), |program| {
        let (bench, content) = bench()?;
        let path = bench.path("disk.img");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o444)).context("chmod")?;
        let server = start(program, &bench, "disk.img", &["--read-only"])?;
        let device = RawDevice::connect(&bench.path("s"), RawShape::default())?;
        ensure!(device.features & feature::BLK_RO != 0, "VIRTIO_BLK_F_RO is not offered");
        drop(device);
        let mut client = Client::connect(&bench.path("s"), Shape::small())?;
        let segments = vec![Segment { offset: 0, length: 4096 }];
        let status = client.execute(0, &Request::Write { offset: 0, segments })?;
        ensure!(status == Status::IoError, "a write ended with {status:?}");
        ensure!(client.read(0, 4096, 0)? == content[..4096], "other bytes");
        drop(client);
        stop(server, &[&bench.path("s")])?;
        ensure!(std::fs::read(&path).context("read the image")? == content, "it was changed");
        Ok(())
    });
}

#[test]
fn what_looks_like_another_format_is_refused_with_both_answers() {
    for image in ["x.qcow2", "hidden.img"] {
        let answers = ["qcow2", "--format raw", "--format qcow2"];
        refuse(&[image, "--socket", "s"], &[&[image][..], &answers].concat());
    }
    refuse(&["x.qcow2", "--socket", "s", "--format", "qed"], &["qed", "not supported yet"]);
    refuse(&["x.qcow2", "--socket", "s", "--format", "qcow2"], &["it is not a qcow2 image"]);
    refuse(&["disk.img", "--socket", "s", "--format", "rwa"], &["rwa", "raw"]);
}

#[test]
fn format_raw_serves_it_as_it_is() {
    with(&ringloom(), |program| {
        let (bench, content) = bench()?;
        std::fs::rename(bench.path("disk.img"), bench.path("x.qcow2")).context("rename")?;
        let server = start(program, &bench, "x.qcow2", &["--format", "raw"])?;
        let mut client = Client::connect(&bench.path("s"), Shape::small())?;
        ensure!(client.read(0, 4096, 0)? == content[..4096], "other bytes");
        drop(client);
        stop(server, &[&bench.path("s")]).map(drop)
    });
}

/// Makes the bench and a copy of the binary usable for everybody.
fn open_to_all(bench: &Bench) -> Result<String> {
    let mode = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).context("chmod")
    };
    mode(&bench.path(""), 0o777)?;
    let copy = copy_binary(bench, "ringloom")?;
    mode(&copy, 0o755)?;
    Ok(bench.text("ringloom"))
}

#[test]
fn an_image_of_somebody_else_is_refused_by_its_path() {
    if !is_root() {
        skipped("becoming somebody else needs root");
        return;
    }
    with(&ringloom(), |_| {
        let (bench, _) = bench()?;
        let binary = open_to_all(&bench)?;
        let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", &binary, "serve"];
        let program =
            Program::named("ringloom as nobody", "setpriv", &nobody).in_directory(bench.path(""));
        let image = bench.path("disk.img");
        let denied = ["disk.img", "Permission denied"];
        for (mode, more) in [(0o600, &["--read-only"][..]), (0o600, &[]), (0o644, &[])] {
            std::fs::set_permissions(&image, PermissionsExt::from_mode(mode)).context("chmod")?;
            let line = [&["disk.img", "--socket", "s"][..], more].concat();
            refused(&program, &bench, &line, &denied)?;
        }
        // What it may read it may serve.
        let line = words(&["disk.img", "--socket", "s", "--read-only"]);
        let server = program.start(&line, &[bench.path("s")])?;
        stop(server, &[&bench.path("s")]).map(drop)
    });
}

#[test]
fn the_name_of_the_peer_means_serve() {
    with(&ringloom(), |_| {
        let (bench, content) = bench()?;
        let link = bench.path("qemu-storage-daemon");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ringloom"), &link).context("link")?;
        let program = Program::named("ringloom as qemu-storage-daemon", &link, &[]);
        let export = "type=vhost-user-blk,id=e0,node-name=n,addr.type=unix,addr.path=SOCKET";
        let line = [
            "--blockdev",
            &format!("driver=file,node-name=n,filename={}", bench.text("disk.img")),
            "--export",
            &export.replace("SOCKET", &bench.text("s")),
        ];
        let server = program.start(&words(&line), &[bench.path("s")])?;
        let mut client = Client::connect(&bench.path("s"), Shape::small())?;
        ensure!(client.read(0, 4096, 0)? == content[..4096], "other bytes");
        drop(client);
        stop(server, &[&bench.path("s")])?;
        let exit = program.refusal(&words(&["--exprot", "x"]), REFUSAL_LIMIT)?;
        let sentence = exit.stderr.trim();
        ensure!(sentence.starts_with("qemu-storage-daemon: "), "another name: {sentence}");
        ensure!(sentence.contains("--export"), "no nearest name: {sentence}");
        Ok(())
    });
}

#[test]
fn an_unknown_option_is_answered_with_the_nearest() {
    for (wrong, right) in [
        ("--sokcet", "--socket"),
        ("--iothread", "--iothreads"),
        ("--readonly", "--read-only"),
        ("--num-queue", "--num-queues"),
        ("--fromat", "--format"),
        ("--deamonize", "--daemonize"),
        ("--pid-file", "--pidfile"),
    ] {
        refuse(&["disk.img", "--socket", "s", wrong, "1"], &[wrong, &format!("'{right}'")]);
    }
}

#[test]
fn values_out_of_range_are_refused() {
    for (option, value) in [
        ("--iothreads", "0"),
        ("--iothreads", "65"),
        ("--iothreads", "-1"),
        ("--iothreads", "two"),
        ("--num-queues", "0"),
        ("--num-queues", "257"),
        ("--num-queues", "99999999999999999999"),
        ("--direct", "maybe"),
        ("--print", "xen"),
    ] {
        refuse(&["disk.img", "--socket", "s", option, value], &[option]);
    }
}

#[test]
fn what_cannot_be_a_disk_is_refused_by_its_path() {
    refuse(&["absent.img", "--socket", "s"], &["absent.img", "No such file"]);
    refuse(&["directory", "--socket", "s"], &["directory", "is a directory"]);
    refuse(&["/dev/null", "--socket", "s"], &["/dev/null", "not a regular file"]);
    refuse(&["odd.img", "--socket", "s"], &["odd", "1000100", "512"]);
}

#[test]
fn a_size_that_does_not_fit_the_logical_blocks_is_refused() {
    with(&ringloom(), |program| {
        let (bench, _) = bench()?;
        image::create_sparse(&bench.path("odd.img"), (1 << 20) + 512)?;
        let program = program.clone().in_directory(bench.path(""));
        let export = "vhost-user-blk,id=e0,node-name=n,addr.type=unix,addr.path=s";
        for block in ["1024", "4096", "2097152"] {
            let export = format!("{export},logical-block-size={block}");
            let line = ["--blockdev", "file,node-name=n,filename=odd.img", "--export", &export];
            refused(&program, &bench, &line, &["1049088", block])?;
        }
        let line = ["--blockdev", "file,node-name=n,filename=odd.img", "--export", export];
        let server = program.start(&words(&line), &[bench.path("s")])?;
        stop(server, &[&bench.path("s")]).map(drop)
    });
}

#[test]
fn a_line_that_says_too_little_or_too_much_is_refused() {
    refuse(&["disk.img"], &["--socket"]);
    refuse(&["--socket", "s"], &["image"]);
    refuse(&["disk.img", "odd.img", "--socket", "s"], &["odd.img"]);
    refuse(&["disk.img", "--socket", "s", "--object", "iothread,id=t0"], &["--object"]);
}
