//! Uses found in tables made for the test, and real ones.

use plan::variant::FileSystem;

use super::*;
use crate::interrupt::Interrupt;
use crate::storages::container::{attach, mount_fresh};
use crate::storages::tests::{directory, program, skipped, wait_until};
use crate::storages::tools::{LOSETUP, Tools, check_root};
use crate::storages::undo::{Step, Undo};

fn judged(writes: Writes, uses: &[Use]) -> Result<Vec<String>, String> {
    judge(Path::new("/d/disk"), writes, uses).map_err(|error| error.to_string())
}

fn image(access: Access) -> Use {
    Use::Image { access, by: Some(Process { pid: 7, name: "qemu-system-x86".to_owned() }) }
}

#[test]
fn writers_forbid_measuring_and_readers_forbid_writing() {
    assert_eq!(judged(Writes::Allowed, &[]), Ok(Vec::new()));
    let reader = [image(Access::Reads)];
    let note = "the disk is in use, qemu-system-x86 (pid 7) reads it as an image";
    assert_eq!(judged(Writes::Skipped, &reader), Ok(vec![note.to_owned()]));
    assert!(judged(Writes::Allowed, &reader).unwrap_err().contains("pid 7"));
    let writer = judged(Writes::Skipped, &[image(Access::Writes)]).unwrap_err();
    assert_eq!(
        writer,
        "disk /d/disk: is in use, qemu-system-x86 (pid 7) has it as an image, to write it: stop the \
         virtual machine or program, or measure another disk or a scratch file"
    );
}

#[test]
fn every_use_says_what_to_do() {
    let device = || "/dev/sdb1".to_owned();
    for (one, parts) in [
        (
            Use::Mounted { device: device(), at: PathBuf::from("/srv") },
            ["/dev/sdb1 is mounted on /srv", "umount /srv"],
        ),
        (Use::Swap, ["swap space", "swapoff"]),
        (
            Use::Holder { device: device(), name: "dm-3".to_owned() },
            ["dm-3 stands on /dev/sdb1", "take dm-3 away"],
        ),
        (
            Use::Loop { device: "/dev/loop4".to_owned(), access: Access::Writes },
            ["/dev/loop4 shows it", "losetup -d /dev/loop4"],
        ),
        (Use::Image { access: Access::Writes, by: None }, ["not named", "stop the virtual"]),
        (Use::Exclusive, ["for itself", "end that program"]),
    ] {
        let message = judged(Writes::Skipped, std::slice::from_ref(&one)).unwrap_err();
        for part in parts {
            assert!(message.contains(part), "'{part}' is missing in: {message}");
        }
    }
}

#[test]
fn locks_tell_what_their_holder_does() {
    let locks = |ranges: &[(u64, u64)]| -> Vec<Lock> {
        let line = |(start, end): &(u64, u64)| {
            format!("1: OFDLCK ADVISORY READ -1 fe:00:5 {start} {end}\n")
        };
        tables::locks(&ranges.iter().map(line).collect::<String>())
    };
    for (ranges, access) in [
        (&[][..], None),
        (&[(0, 99)], None),
        (&[(100, 100)], Some(Access::Reads)),
        (&[(100, 100), (201, 201), (203, 203)], Some(Access::Reads)),
        (&[(100, 101), (201, 201), (203, 203)], Some(Access::Writes)),
        (&[(103, 103)], Some(Access::Writes)),
        (&[(200, 200)], Some(Access::Writes)),
    ] {
        assert_eq!(image_access(&locks(ranges)), access, "{ranges:?}");
    }
}

/// A sysfs and procfs made of files.
fn fixture() -> (tempfile::TempDir, Kernel) {
    let directory = tempfile::tempdir().unwrap();
    let kernel = Kernel { proc: directory.path().join("proc"), sys: directory.path().join("sys") };
    let write = |path: PathBuf, text: &str| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write(kernel.sys.join("devices/sdz/dev"), "250:0\n");
    write(kernel.sys.join("devices/sdz/sdz1/dev"), "250:1\n");
    write(kernel.sys.join("devices/sdz/sdz1/partition"), "1\n");
    write(kernel.sys.join("devices/sdz/queue/dev"), "no partition\n");
    std::fs::create_dir_all(kernel.sys.join("devices/sdz/sdz1/holders/dm-0")).unwrap();
    std::fs::create_dir_all(kernel.sys.join("dev/block")).unwrap();
    for (number, place) in [("250:0", "sdz"), ("250:1", "sdz/sdz1")] {
        let target = Path::new("../../devices").join(place);
        std::os::unix::fs::symlink(target, kernel.sys.join("dev/block").join(number)).unwrap();
    }
    write(kernel.proc.join("self/mountinfo"), "1 0 250:1 / /srv rw - ext4 /nowhere rw\n");
    (directory, kernel)
}

#[test]
fn a_disk_is_in_use_if_a_partition_is() {
    let (_directory, kernel) = fixture();
    let device = "/dev/sdz1".to_owned();
    let expected = [
        Use::Mounted { device: device.clone(), at: PathBuf::from("/srv") },
        Use::Holder { device, name: "dm-0".to_owned() },
    ];
    for minor in [0, 1] {
        assert_eq!(kernel.device_uses(rustix::fs::makedev(250, minor)).unwrap(), expected);
    }
    assert_eq!(kernel.device_uses(rustix::fs::makedev(251, 0)).unwrap(), []);
}

#[test]
fn swap_is_found_by_its_file() {
    let (directory, kernel) = fixture();
    let path = directory.path().join("swap");
    std::fs::write(&path, "").unwrap();
    let uses = || kernel.swap(&path, &std::fs::metadata(&path).unwrap()).unwrap();
    assert_eq!(uses(), []);
    let text = format!("Filename Type\n{} file 1 0 -2\n", path.display());
    std::fs::write(kernel.proc.join("swaps"), text).unwrap();
    assert_eq!(uses(), [Use::Swap]);
}

/// A file on the disk, and the right to make loop devices.
fn file() -> Option<(tempfile::TempDir, PathBuf)> {
    if let Err(error) = check_root("a loop device") {
        skipped(&format!("{error:#}"));
        return None;
    }
    let directory = directory();
    let path = directory.path().join("disk.img");
    std::fs::write(&path, vec![0x5a; 4 << 20]).unwrap();
    Some((directory, path))
}

#[track_caller]
fn check_refused(path: &Path, writes: Writes, parts: &[&str]) {
    let message = check(path, writes).unwrap_err().to_string();
    for part in parts {
        assert!(message.contains(part), "'{part}' is missing in: {message}");
    }
}

#[test]
fn a_file_of_nobody_is_free() {
    let Some((_directory, path)) = file() else { return };
    assert_eq!(check(&path, Writes::Allowed).unwrap(), Vec::<String>::new());
}

#[test]
fn a_file_behind_a_loop_device_is_in_use() {
    let Some((directory, path)) = file() else { return };
    let tools = Tools::of_system();
    let mut undo = Undo::new(&tools);
    let device = attach(&path, &tools, &mut undo, &Interrupt::deaf(false)).unwrap();
    let name = device.display().to_string();
    check_refused(&path, Writes::Skipped, &["in use", &name, &format!("losetup -d {name}")]);
    let link = directory.path().join("another-name");
    std::fs::hard_link(&path, &link).unwrap();
    check_refused(&link, Writes::Skipped, &[&name]);
    // The device itself is free.
    assert_eq!(check(&device, Writes::Allowed).unwrap(), Vec::<String>::new());
    drop(undo);
    // It goes with the last one who looks at it: another test may, to find a free one.
    let is_free = || check(&path, Writes::Allowed).is_ok();
    wait_until(is_free, || format!("{name} does not go"));
    let mut undo = Undo::new(&tools);
    let words = ["--find", "--show", "--read-only"].map(AsRef::as_ref);
    let words = [&words[..], &[path.as_os_str()]].concat();
    let device = tools.run(LOSETUP, &words, &Interrupt::deaf(false)).unwrap();
    undo.push(Step::Loop(PathBuf::from(device.trim())));
    check_refused(&path, Writes::Allowed, &[device.trim()]);
    let notes = check(&path, Writes::Skipped).unwrap();
    assert!(notes.len() == 1 && notes[0].contains(device.trim()), "{notes:?}");
}

#[test]
fn a_device_that_somebody_has_alone_is_in_use() {
    let Some((_directory, path)) = file() else { return };
    let tools = Tools::of_system();
    let mut undo = Undo::new(&tools);
    let device = attach(&path, &tools, &mut undo, &Interrupt::deaf(false)).unwrap();
    let flag = i32::try_from(OFlags::EXCL.bits()).unwrap();
    let alone = OpenOptions::new().read(true).custom_flags(flag).open(&device).unwrap();
    check_refused(&device, Writes::Skipped, &["for itself", "end that program"]);
    // Who lets go of it in time is no user: udev looks at devices so.
    let passing = std::thread::spawn(move || {
        clock::pause(PASSING / 8);
        drop(alone);
    });
    check(&device, Writes::Skipped).unwrap();
    passing.join().unwrap();
}

#[test]
fn a_mounted_device_is_in_use() {
    let Some((directory, _)) = file() else { return };
    let tools = Tools::of_system();
    let mut undo = Undo::new(&tools);
    let base = directory.path().join("fs");
    let interrupt = Interrupt::deaf(false);
    let mounted =
        mount_fresh(FileSystem::Ext4, &base, 0, &tools, &mut undo, &interrupt).unwrap().unwrap();
    let mounts = tables::mounts(&std::fs::read_to_string("/proc/self/mountinfo").unwrap());
    let device = mounts.into_iter().find(|mount| mount.at == mounted).unwrap().source;
    let place = mounted.display().to_string();
    check_refused(&device, Writes::Skipped, &["is mounted on", &place, "umount"]);
}

/// qemu-storage-daemon with an export of the file.
struct Daemon(std::process::Child);

impl Daemon {
    fn start(directory: &Path, file: &Path, writable: &str) -> Self {
        let (pidfile, socket) = (directory.join("pid"), directory.join("s"));
        drop(std::fs::remove_file(&pidfile));
        let read_only = if writable == "on" { "off" } else { "on" };
        let child = std::process::Command::new("qemu-storage-daemon")
            .arg("--blockdev")
            .arg(format!("file,node-name=d,filename={},read-only={read_only}", file.display()))
            .arg("--nbd-server")
            .arg(format!("addr.type=unix,addr.path={}", socket.display()))
            .arg("--export")
            .arg(format!("nbd,id=e,node-name=d,writable={writable}"))
            .arg("--pidfile")
            .arg(&pidfile)
            .spawn()
            .unwrap();
        wait_until(|| pidfile.exists(), || "qemu-storage-daemon does not start".to_owned());
        Self(child)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn an_image_of_a_running_daemon_is_in_use() {
    let Some((_directory, path)) = file() else { return };
    if program("qemu-storage-daemon").is_none() {
        return skipped("qemu-storage-daemon is not installed");
    }
    // The names of sockets are short.
    let short = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(short.path(), &path, "on");
    let pid = format!("(pid {})", daemon.0.id());
    for writes in [Writes::Allowed, Writes::Skipped] {
        check_refused(&path, writes, &["qemu-storage-da", &pid, "to write it", "stop the"]);
    }
    // Another user sees the locks, not the process.
    let file = FileId::of(&path).unwrap();
    let proc = short.path().join("proc");
    std::fs::create_dir(&proc).unwrap();
    std::fs::copy("/proc/locks", proc.join("locks")).unwrap();
    let anonymous = Kernel { proc, sys: PathBuf::from("/sys") };
    let expected = [Use::Image { access: Access::Writes, by: None }];
    assert_eq!(anonymous.images(file).unwrap(), expected);
    drop(daemon);
    let daemon = Daemon::start(short.path(), &path, "off");
    check_refused(&path, Writes::Allowed, &["reads it as an image"]);
    let notes = check(&path, Writes::Skipped).unwrap();
    assert!(notes.len() == 1 && notes[0].contains("reads it as an image"), "{notes:?}");
    drop(daemon);
    assert_eq!(check(&path, Writes::Allowed).unwrap(), Vec::<String>::new());
}
