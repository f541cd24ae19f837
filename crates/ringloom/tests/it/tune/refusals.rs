//! What cannot be measured is refused before anything is made, with what is missing and what to do.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit::image;
use testkit::loop_device::LoopDevice;
use testkit::process::Program;
use testkit::report::skipped;

use super::{BRIEF, OUT, Rig, emulated, with_guest, with_rig};

/// The programs of this machine.
const SYSTEM: &str = "/usr/bin:/usr/sbin:/bin:/sbin";

/// A directory with a program that prints one line.
fn talker(rig: &Rig, name: &str, line: &str) -> Result<String> {
    let path = rig.path("programs").join(name);
    std::fs::create_dir_all(rig.path("programs"))?;
    std::fs::write(&path, format!("#!/bin/sh\necho '{line}'\n"))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(rig.bench.text("programs"))
}

#[test]
fn a_fio_that_is_missing_or_too_old_is_refused() {
    with_rig(|_| {
        let line = format!("{BRIEF} --subject host --load fio");
        let rig = Rig::new()?.with_search_path(&["/nonexistent"]);
        rig.refuse(&line, &["fio is not installed", "install the package fio"])?;
        rig.check_nothing_left(&[])?;
        let rig = Rig::new()?;
        let programs = talker(&rig, "fio", "fio-2.19")?;
        let rig = rig.with_search_path(&[&programs, SYSTEM]);
        rig.refuse(&line, &["fio 2.19", "too old", "is the oldest that"])?;
        rig.check_nothing_left(&["programs"])
    });
}

/// Guests that the user does not insist on are left out, which both the start and the report say.
#[test]
fn without_guests_a_client_is_measured() {
    with_rig(|_| {
        let rig = Rig::new()?;
        let programs = talker(&rig, "fio", "fio-3.33")?;
        let rig = rig.with_search_path(&[&programs]);
        let ran = rig.run(&format!("{BRIEF} --iothreads none"))?;
        ensure!(ran.status.success(), "{ran:?}");
        let said = "No guest is measured: qemu-system-x86_64";
        ensure!(ran.stderr.starts_with(said), "{}", ran.stderr);
        let said = "No guest was measured, but a client of ringloom serve on this host.\n";
        ensure!(ran.stdout.trim_start().starts_with(said), "{}", ran.stdout);
        ensure!(rig.lines()?.len() == 2, "client and host: {}", ran.stdout);
        rig.refuse(&format!("{BRIEF} --accel kvm --out no"), &["qemu-system-x86_64"])
    });
}

/// With `--accel tcg` the user insists on guests.
#[test]
fn guests_are_measured_where_they_run() {
    with_guest(|rig| {
        let ran = rig.run(&format!("{BRIEF} --dry-run {}", emulated()))?;
        ensure!(ran.status.success() && !ran.stderr.contains("No guest"), "{ran:?}");
        ensure!(ran.stderr.contains("Guests are emulated"), "{}", ran.stderr);
        rig.check_nothing_left(&[])
    });
}

#[test]
fn a_guest_without_qemu_or_kernel_is_refused() {
    with_guest(|rig| {
        let line = format!("{BRIEF} --subject vm:qemu --iothreads none");
        let kernel = emulated();
        rig.refuse(&format!("{line} {kernel} --qemu /no/qemu"), &["/no/qemu", "No such file"])?;
        rig.refuse(&format!("{line} {kernel} --qemu /bin/true"), &["/bin/true"])?;
        rig.refuse(
            &format!("{line} --guest-kernel /no/vmlinuz"),
            &["/no/vmlinuz: --guest-kernel names another", "No such file"],
        )?;
        // What a directory lacks is named.
        let directory = rig.bench.text("tmp");
        rig.refuse(&format!("{line} --guest-kernel {directory}"), &["no guest kernel in"])?;
        let small = kernel.replace("512M", "100M");
        rig.refuse(&format!("{line} {small}"), &["100", "384"])?;
        rig.check_nothing_left(&[])?;
        let kernels = std::fs::read_dir("/boot").map_or(0, Iterator::count);
        if kernels == 0 {
            rig.refuse(&line, &["no kernel for guests", "/boot/vmlinuz-", "--guest-kernel"])?;
        }
        Ok(())
    });
}

/// Somebody who may write to the image.
#[test]
fn an_image_or_device_in_use_is_refused_with_who_it_is() {
    with_rig(|rig| {
        image::create_filled(&rig.path("disk.img"), 8 << 20, 5)?;
        let line = format!("{} --subject host --load fio", BRIEF.replace("--size 16M ", ""));
        let peer = Program::qemu_storage_daemon();
        match peer.missing() {
            Some(reason) => skipped(&reason),
            None => {
                let (file, socket) = (rig.bench.text("disk.img"), rig.path("e0.sock"));
                let words = [
                    "--blockdev".to_owned(),
                    format!("driver=file,node-name=n,filename={file}"),
                    "--export".to_owned(),
                    format!(
                        "vhost-user-blk,id=e0,node-name=n,writable=on,addr.type=unix,addr.path={}",
                        socket.display()
                    ),
                ];
                let mut server = peer.start(&words, std::slice::from_ref(&socket))?;
                rig.refuse(&format!("{line} {file}"), &["disk.img", "in use"])?;
                let _status = server.terminate()?;
            }
        }
        let ran = rig.run(&format!("{line} {}", rig.bench.text("disk.img")))?;
        ensure!(ran.status.code() == Some(0), "nobody has it any more: {ran:?}");
        if let Some(reason) = LoopDevice::missing() {
            skipped(reason);
            return Ok(());
        }
        let file_system = FileSystem::new(rig, 8)?;
        let device = file_system.device.path().display();
        let words = [&device.to_string(), "mounted", "mnt"];
        rig.refuse(&format!("{line} {device}"), &words)
    });
}

#[test]
fn results_of_another_format_or_of_other_options_are_not_continued() {
    with_rig(|rig| {
        std::fs::create_dir(rig.path(OUT))?;
        let path = rig.path(OUT).join("results.jsonl");
        let old = r#"{"format":1,"ringloom":"0.1.0","daemon":"ringloom 0.1.0"}"#;
        std::fs::write(&path, format!("{old}\n"))?;
        let line = format!("{BRIEF} --subject host --load fio --resume");
        rig.refuse(&line, &["results.jsonl", "format 1"])?;
        ensure!(std::fs::read_to_string(&path)? == format!("{old}\n"), "they stay as they are");
        rig.check_nothing_left(&[OUT])
    });
}

/// What grows finds no room any more, because somebody else has taken it: what was measured before is kept.
#[test]
fn a_disk_that_fills_up_is_told_and_what_was_measured_is_kept() {
    if let Some(reason) = LoopDevice::missing() {
        skipped(reason);
        return;
    }
    with_rig(|rig| {
        let file_system = FileSystem::new(rig, 280)?;
        let out = rig.bench.text(OUT);
        let line = format!(
            "--subject client --iothreads none --image raw,qcow2:empty --op randwrite \
             --bs 64k --size 64M --jobs 2 --iodepth 16 --repeats 1 --runtime 6 --ramp 0.5 \
             --seed 1 --out {out}"
        );
        let mut tuning = rig.start_in("mnt", &line)?;
        // Everything was found to have room by now; the first run takes longer than the rest of the disk.
        tuning.wait_for_child("ringloom", "serve", None)?;
        file_system.fill()?;
        let ran = tuning.end(super::LIMIT)?;
        for words in ["full", "left", "use a smaller --size"] {
            ensure!(ran.stderr.contains(words), "{words:?} is missing in: {ran:?}");
        }
        let lines = rig.lines()?;
        let kinds: Vec<String> =
            lines.iter().map(|it| format!("{} {}", it["kind"], it["image"])).collect();
        let expected = ["\"run\" \"raw\"", "\"failure\" \"qcow2:empty\""];
        ensure!(kinds == expected, "{kinds:?}, {ran:?}");
        let left = super::names(&rig.path("mnt"))?;
        let own = |it: &String| it == "filler" || it == "lost+found";
        ensure!(left.iter().all(own), "files are left: {left:?}");
        Ok(())
    });
}

/// An ext4 of so many MiB on a loop device, mounted at `mnt`.
struct FileSystem {
    mount: String,
    device: LoopDevice,
}

impl FileSystem {
    fn new(rig: &Rig, mebibytes: u64) -> Result<Self> {
        let image = rig.path("fs.img");
        image::create_sparse(&image, mebibytes << 20)?;
        let device = LoopDevice::attach(&image, 512)?;
        run("mkfs.ext4", &["-q", "-F", "-m", "0", &device.path().to_string_lossy()])?;
        let mount = rig.bench.text("mnt");
        std::fs::create_dir(&mount)?;
        run("mount", &[&device.path().to_string_lossy(), &mount])?;
        Ok(Self { mount, device })
    }

    /// Leaves no room.
    fn fill(&self) -> Result<()> {
        let path = std::path::Path::new(&self.mount).join("filler");
        let mut file = std::fs::File::create(path).context("create a filler")?;
        let bytes = vec![0x5a; 1 << 20];
        loop {
            match std::io::Write::write_all(&mut file, &bytes) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error).context("fill the disk"),
            }
        }
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        let unmounted = run("umount", &[&self.mount]);
        if !std::thread::panicking() {
            assert!(unmounted.is_ok(), "{} stays mounted: {unmounted:?}", self.mount);
        }
    }
}

fn run(program: &str, words: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .env("PATH", SYSTEM)
        .args(words)
        .output()
        .with_context(|| format!("run {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {words:?}: {said}");
    Ok(())
}
