//! Disks that are plugged and unplugged, and one that is there from the beginning.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use guest::{Controller, Guest, Plug, Plugged, Source};
use testkit::deadline::Deadline;
use testkit::process::{Program, Server};
use testkit::report::note;

use crate::rig::{IMAGE_BYTES, LIMIT, Rig, patient, plug};

const QEMU_SERVES: [Controller; 3] =
    [Controller::VirtioBlk, Controller::VirtioScsi, Controller::Nvme];

/// A server of vhost-user-blk for an image.
fn serve(image: &Path, socket: &Path) -> Server {
    let arguments = [
        "--blockdev".to_owned(),
        format!("driver=file,node-name=f,filename={}", image.display()),
        "--export".to_owned(),
        format!(
            "type=vhost-user-blk,id=e,node-name=f,addr.type=unix,addr.path={},writable=on,num-queues=2",
            socket.display()
        ),
    ];
    Program::qemu_storage_daemon().start(&arguments, &[socket.to_path_buf()]).unwrap()
}

fn disk_behind(socket: &Path, slot: u16) -> Plug {
    let source = Source::Socket(socket.to_path_buf());
    let controller = Controller::VhostUserBlk;
    Plug { controller, source, queues: 2, iothreads: 0, read_only: false, slot }
}

/// What the first line of a disk is made of.
fn letter(guest: &mut Guest, disk: &Plugged) -> u8 {
    let script = format!("dd if={} bs=512 count=1 iflag=direct 2>/dev/null", disk.device);
    let line = guest.run(&script, LIMIT, &mut patient).unwrap().output;
    assert_eq!(line.len(), 512, "{disk:?}");
    assert!(line[..511].iter().all(|byte| *byte == line[0]), "{disk:?}");
    line[0]
}

/// Writes this letter into the second sector.
fn write(guest: &mut Guest, disk: &Plugged, letter: char) -> i32 {
    let script = format!(
        "printf %512s {letter} | dd of={} bs=512 seek=1 oflag=direct conv=fsync 2>&1",
        disk.device
    );
    guest.run(&script, LIMIT, &mut patient).unwrap().status
}

fn written(image: &Path) -> u8 {
    let mut byte = [0];
    std::fs::File::open(image).unwrap().read_exact_at(&mut byte, 1023).unwrap();
    byte[0]
}

fn disks_in(guest: &mut Guest) -> String {
    guest.run("ls /sys/block", LIMIT, &mut patient).unwrap().text()
}

#[track_caller]
fn check(guest: &mut Guest, disk: &Plugged, image: &Path, expected: u8) {
    assert_eq!((disk.bytes, disk.queues), (IMAGE_BYTES, 2), "{disk:?}");
    assert_eq!(letter(guest, disk), expected, "{disk:?}");
    assert_eq!(write(guest, disk, 'w'), 0, "{disk:?}");
    assert_eq!(written(image), b'w', "{disk:?}");
}

/// What was plugged is as it was said; what was unplugged leaves nothing.
pub(crate) fn each_controller_twice(rig: &Rig, guest: &mut Guest) {
    let before = disks_in(guest);
    for (letter, queues) in [(b'a', 2), (b'b', 1)] {
        for controller in QEMU_SERVES {
            let image = rig.image("d.img", letter);
            let disk = Plug { queues, ..plug(controller, 0, &image) };
            let clock = Deadline::after(LIMIT);
            let disk = guest.plug(&disk, &mut patient).unwrap();
            let plugged = clock.elapsed();
            if queues == 2 {
                check(guest, &disk, &image, letter);
            }
            assert_eq!(disk.queues, queues, "{controller:?}");
            let clock = Deadline::after(LIMIT);
            guest.unplug(disk, &mut patient).unwrap();
            note(&format!("{controller:?}: there in {plugged:?}, gone in {:?}", clock.elapsed()));
            assert_eq!(disks_in(guest), before, "{controller:?}");
        }
        let (image, socket) = (rig.image("d.img", letter), rig.bench.path("v"));
        let mut server = serve(&image, &socket);
        let disk = guest.plug(&disk_behind(&socket, 9), &mut patient).unwrap();
        check(guest, &disk, &image, letter);
        guest.unplug(disk, &mut patient).unwrap();
        assert_eq!(disks_in(guest), before);
        server.terminate().unwrap();
    }
}

/// Each disk is found by what it is, in any slot.
pub(crate) fn several_at_once(rig: &Rig, guest: &mut Guest) {
    let images: Vec<_> =
        (b'a'..=b'd').map(|it| rig.image(&format!("{}.img", char::from(it)), it)).collect();
    let socket = rig.bench.path("v");
    let mut server = serve(&images[3], &socket);
    let disks: Vec<Plugged> = [
        plug(Controller::VirtioBlk, 11, &images[0]),
        plug(Controller::VirtioScsi, 8, &images[1]),
        plug(Controller::Nvme, 3, &images[2]),
        disk_behind(&socket, 0),
    ]
    .iter()
    .map(|disk| guest.plug(disk, &mut patient).unwrap())
    .collect();
    for (disk, letter) in disks.iter().zip(b'a'..) {
        check(guest, disk, &images[usize::from(letter - b'a')], letter);
    }
    for disk in disks {
        guest.unplug(disk, &mut patient).unwrap();
    }
    server.terminate().unwrap();
}

/// Iothreads are threads of QEMU; disks take what exists.
pub(crate) fn iothreads(rig: &Rig, guest: &mut Guest) {
    let images = [rig.image("a.img", b'a'), rig.image("b.img", b'b')];
    assert!(guest.iothreads().unwrap().is_empty());
    for (count, expected) in [(2, 2), (1, 2), (3, 3)] {
        for controller in [Controller::VirtioBlk, Controller::VirtioScsi] {
            let disks: Vec<Plugged> = images
                .iter()
                .zip(0..)
                .map(|(image, slot)| {
                    let disk = Plug { iothreads: count, ..plug(controller, slot, image) };
                    guest.plug(&disk, &mut patient).unwrap()
                })
                .collect();
            for (disk, letter) in disks.iter().zip(b'a'..) {
                check(guest, disk, &images[usize::from(letter - b'a')], letter);
            }
            let threads = guest.iothreads().unwrap();
            assert_eq!(threads.len(), expected);
            for (name, thread) in threads {
                let place = format!("/proc/{}/task/{thread}/comm", guest.pid());
                let text = std::fs::read_to_string(&place).unwrap();
                assert_eq!(text.trim(), format!("IO {name}"));
            }
            for disk in disks {
                guest.unplug(disk, &mut patient).unwrap();
            }
        }
    }
}

/// The guest cannot write.
pub(crate) fn read_only(rig: &Rig, guest: &mut Guest) {
    for controller in QEMU_SERVES {
        let image = rig.image("r.img", b'r');
        let disk = Plug { read_only: true, ..plug(controller, 1, &image) };
        let disk = guest.plug(&disk, &mut patient).unwrap();
        assert_eq!(disk.is_read_only, controller != Controller::Nvme, "{controller:?}");
        assert_ne!(write(guest, &disk, 'w'), 0, "{controller:?}");
        assert_eq!(written(&image), 0, "{controller:?}");
        guest.unplug(disk, &mut patient).unwrap();
    }
}

/// QEMU finds the next server on the same socket.
pub(crate) fn a_server_that_starts_again(rig: &Rig, guest: &mut Guest) {
    let (image, socket) = (rig.image("d.img", b'x'), rig.bench.path("v"));
    let mut server = serve(&image, &socket);
    let disk = guest.plug(&disk_behind(&socket, 0), &mut patient).unwrap();
    assert_eq!(letter(guest, &disk), b'x');
    server.terminate().unwrap();
    rig.image("d.img", b'y');
    let mut server = serve(&image, &socket);
    assert_eq!(letter(guest, &disk), b'y');
    guest.unplug(disk, &mut patient).unwrap();
    server.terminate().unwrap();
}

/// A disk that cannot be is refused in a sentence, and leaves its slot free.
pub(crate) fn what_is_refused(rig: &Rig, guest: &mut Guest) {
    let image = rig.image("d.img", b'x');
    let absent = rig.bench.path("absent");
    let disk = plug(Controller::VirtioBlk, 0, &image);
    let socket = rig.bench.path("v");
    let mut server = serve(&rig.image("v.img", b'x'), &socket);
    for (disk, words) in [
        (plug(Controller::VirtioBlk, 0, &absent), "No such file"),
        (disk_behind(&absent, 0), "No such file"),
        (disk_behind(&image, 0), "is no socket"),
        (plug(Controller::Nvme, 12, &image), "12 slots"),
        (Plug { iothreads: 1, ..plug(Controller::Nvme, 0, &image) }, "gives nvme no iothreads"),
        (Plug { queues: 2000, ..plug(Controller::VirtioScsi, 0, &image) }, "refuses device_add"),
        (Plug { read_only: true, ..disk_behind(&socket, 0) }, "lets the guest write"),
    ] {
        let error = format!("{:#}", guest.plug(&disk, &mut patient).unwrap_err());
        assert!(error.contains(words) && error.contains("slot "), "{words}: {error}");
    }
    let first = guest.plug(&disk, &mut patient).unwrap();
    let error = format!("{:#}", guest.plug(&disk, &mut patient).unwrap_err());
    assert!(error.contains("a disk is there"), "{error}");
    guest.unplug(first, &mut patient).unwrap();
    server.terminate().unwrap();
}

/// The disk that is there from the beginning.
pub(crate) fn cold(guest: &mut Guest) {
    let disk = guest.cold_disk().unwrap();
    assert_eq!(disk.bytes, IMAGE_BYTES);
    let script = format!("head -c 3 {}", disk.device);
    assert_eq!(guest.run(&script, LIMIT, &mut patient).unwrap().output, b"ccc");
}
