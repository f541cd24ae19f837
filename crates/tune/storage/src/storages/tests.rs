//! Storage made with the real programs, and nothing left of it whatever happens.

mod bed;

use plan::contender::Subject;
use plan::matrix::Writes;
use plan::variant::{Aio, Layers};

use self::bed::{Bed, POLL, SIZE, TOOLS, variant};
pub(crate) use self::bed::{directory, program, skipped, wait_until};
use super::*;
use crate::clock;
use crate::interrupt::{Interrupt, Interrupted};
use crate::target::Origin;

/// The virtual disk of an image in a file, as a raw file beside it.
fn raw_of(image: &Path) -> Vec<u8> {
    let raw = image.with_extension("check");
    let words = ["convert", "-f", "qcow2", "-O", "raw"].map(AsRef::as_ref);
    let words = [&words[..], &[image.as_os_str(), raw.as_os_str()]].concat();
    Tools::of_system().run_anyway(tools::QEMU_IMG, &words).unwrap();
    let bytes = std::fs::read(&raw).unwrap();
    std::fs::remove_file(raw).unwrap();
    bytes
}

/// Noise has no page of zeroes.
fn is_noise(bytes: &[u8]) -> bool {
    bytes.chunks(4096).all(|page| page.iter().any(|&byte| byte != 0))
}

#[test]
fn raw_disks_are_files_of_noise() {
    let Some(bed) = Bed::new() else { return };
    let two = Variant { disks: 2, ..Variant::default() };
    let heard = std::cell::Cell::new(0);
    let report = |bytes| heard.set(bytes);
    let storages = bed.prepare_heard(&[two], &Interrupt::deaf(false), &report).unwrap();
    assert_eq!(heard.get(), StoragePlan::new(&[two]).fill_bytes(SIZE));
    let disks = storages.disks(&two);
    let contents: Vec<_> =
        disks.iter().map(|disk| std::fs::read(&disk.files[0]).unwrap()).collect();
    assert!(contents.iter().all(|content| content.len() == 16 << 20 && is_noise(content)));
    assert_ne!(contents[0], contents[1]);
    assert!(disks.iter().all(|disk| disk.bytes == SIZE.0 && disk.host_path().is_some()));
    assert_eq!(storages.disks(&Variant::default()), disks[..1]);
    drop(storages);
    bed.check_clean();
}

#[test]
fn file_systems_are_made_mounted_and_taken_away() {
    let Some(bed) = Bed::new() else { return };
    for (fs, magic) in [("ext4", "ext4"), ("xfs", "xfs")] {
        let variants = [variant("raw", fs, "none", "0"), variant("qcow2", fs, "2x64k", "1ms")];
        let storages = bed.prepare(&variants, &Interrupt::deaf(false)).unwrap();
        for variant in &variants {
            let disk = storages.disks(variant).remove(0);
            assert_eq!(crate::machine::file_system(&disk.files[0]), magic);
            assert!(storages.shortage(variant).is_none());
        }
        drop(storages);
        bed.check_clean();
    }
}

#[test]
fn images_are_filled_or_empty() {
    let Some(bed) = Bed::new() else { return };
    let full = variant("qcow2:cluster=4k:cache=1M:preallocation=metadata", "here", "none", "0");
    let empty = variant("qcow2:empty", "here", "none", "0");
    let storages = bed.prepare(&[full, empty], &Interrupt::deaf(false)).unwrap();
    let disk = storages.disks(&full).remove(0);
    assert_eq!((disk.bytes, disk.format, disk.host_path()), (SIZE.0, full.image, None));
    assert_eq!(disk_bytes(&disk.files[0]).unwrap(), Some(SIZE.0));
    assert!(is_noise(&raw_of(&disk.files[0])));
    let disk = storages.disks(&empty).remove(0);
    assert!(raw_of(&disk.files[0]).iter().all(|&byte| byte == 0));
    // What a run writes is gone before the next.
    let allocated = || std::fs::metadata(&disk.files[0]).unwrap().len();
    let before = allocated();
    let words = ["-f", "qcow2", "-c", "write -P 7 0 1M"].map(AsRef::as_ref);
    let words = [&words[..], &[disk.files[0].as_os_str()]].concat();
    let qemu_io = std::process::Command::new("qemu-io").args(&words).output().unwrap();
    assert!(qemu_io.status.success() && allocated() > before);
    storages.reset(&empty, &bed.tools, &Interrupt::deaf(false)).unwrap();
    assert_eq!(allocated(), before);
    storages.reset(&full, &bed.tools, &Interrupt::deaf(false)).unwrap();
    assert!(is_noise(&raw_of(&storages.disks(&full)[0].files[0])), "only empty ones are reset");
    drop(storages);
    bed.check_clean();
}

#[test]
fn stripes_of_ringloom_hold_the_image_in_turn() {
    let Some(bed) = Bed::new() else { return };
    let striped = variant("qcow2", "here", "3x64k", "500us");
    let storages = bed.prepare(&[striped], &Interrupt::deaf(false)).unwrap();
    let disk = storages.disks(&striped).remove(0);
    assert_eq!((disk.files.len(), disk.chunk), (3, Some(64 << 10)));
    assert_eq!(disk.delay, Duration::from_micros(500));
    let members: Vec<_> = disk.files.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let mut chunks: Vec<_> = members.iter().map(|member| member.chunks(64 << 10)).collect();
    let mut all = Vec::new();
    while let Some(chunk) = chunks[0].next() {
        all.extend_from_slice(chunk);
        for chunks in &mut chunks[1..] {
            all.extend_from_slice(chunks.next().unwrap());
        }
    }
    let image = bed.directory.path().join("joined");
    std::fs::write(&image, all).unwrap();
    assert!(is_noise(&raw_of(&image)));
    std::fs::remove_file(image).unwrap();
    drop(storages);
    bed.check_clean();
}

#[test]
fn a_missing_program_is_named_and_nothing_is_left() {
    for (fs, image, missing, package) in [
        ("ext4", "raw", "losetup", "mount"),
        ("ext4", "raw", "mkfs.ext4", "e2fsprogs"),
        ("xfs", "raw", "mkfs.xfs", "xfsprogs"),
        ("here", "qcow2", "qemu-img", "qemu-utils"),
    ] {
        let Some(bed) = Bed::new() else { return };
        let others: Vec<_> = TOOLS.into_iter().filter(|name| *name != missing).collect();
        let bed = bed.with_programs(&others);
        let error =
            bed.prepare(&[variant(image, fs, "none", "0")], &Interrupt::deaf(false)).unwrap_err();
        let message = format!("{error:#}");
        let expected = format!("{missing} is not installed: install the package {package}");
        assert!(message.contains(&expected), "{message}");
        bed.check_clean();
    }
}

#[test]
fn a_step_that_fails_leaves_nothing() {
    for (failing, script) in [
        ("losetup", "echo no device >&2; exit 1"),
        ("losetup", "echo nothing"),
        ("mkfs.ext4", "echo bad blocks >&2; exit 1"),
        // A file system that cannot be mounted.
        ("mkfs.ext4", "exit 0"),
        ("qemu-img", "[ $1 = convert ] || exec /usr/bin/qemu-img \"$@\"; echo broken >&2; exit 1"),
        ("qemu-img", "[ $1 = create ] || exec /usr/bin/qemu-img \"$@\"; exit 1"),
    ] {
        let Some(bed) = Bed::new() else { return };
        let bed = bed.with_programs(&TOOLS);
        bed.fake(failing, script);
        // Detaching must work also then.
        if failing == "losetup" {
            bed.fake("losetup", &format!("case $1 in --detach) exit 0;; esac; {script}"));
        }
        let variant = variant("qcow2", "ext4", "2x64k", "0");
        let error = bed.prepare(&[variant], &Interrupt::deaf(false)).unwrap_err();
        assert!(format!("{error:#}").starts_with("make the "), "{error:#}");
        bed.check_clean();
    }
}

#[test]
fn a_signal_in_any_step_leaves_nothing() {
    for (name, first) in
        [("mkfs.xfs", "-q"), ("losetup", "--find"), ("qemu-img", "convert"), ("qemu-img", "create")]
    {
        let Some(bed) = Bed::new() else { return };
        let bed = bed.with_programs(&TOOLS);
        let marker = bed.programs.path().join("marker");
        let (real, place) = (program(name).unwrap(), marker.display());
        let real = real.display();
        // What it does is done when the signal comes.
        let hang = format!("{real} \"$@\" > /dev/null; touch {place}; exec sleep 100");
        bed.fake(name, &format!("[ $1 = {first} ] || exec {real} \"$@\"; {hang}"));
        let interrupt = Interrupt::deaf(false);
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_until(|| marker.exists(), || format!("{name} {first} was never started"));
                interrupt.raise();
            });
            bed.prepare(&[variant("qcow2", "xfs", "none", "0")], &interrupt).unwrap_err()
        });
        assert!(Interrupted::caused(&error), "{error:#}");
        bed.check_clean();
    }
}

#[test]
fn a_signal_while_filling_leaves_nothing() {
    let Some(bed) = Bed::new() else { return };
    let variants = [variant("raw", "here", "none", "0"), variant("raw", "ext4", "4x64k", "2ms")];
    for limit in [0, SIZE.0 / 2, SIZE.0 + (1 << 20), SIZE.0 * 2 - 1] {
        let interrupt = Interrupt::deaf(false);
        let raise = |bytes| {
            if bytes > limit {
                interrupt.raise();
            }
        };
        let error = bed.prepare_heard(&variants, &interrupt, &raise).unwrap_err();
        assert!(Interrupted::caused(&error), "{error:#}");
        bed.check_clean();
    }
}

#[test]
fn an_existing_file_is_never_overwritten() {
    let Some(bed) = Bed::new() else { return };
    let name = format!("ringloom-scratch-{}-0.ext4", std::process::id());
    let path = bed.directory.path().join(name);
    std::fs::write(&path, "mine").unwrap();
    let error =
        bed.prepare(&[variant("raw", "ext4", "none", "0")], &Interrupt::deaf(false)).unwrap_err();
    assert!(format!("{error:#}").contains("File exists"), "{error:#}");
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    std::fs::remove_file(path).unwrap();
    bed.check_clean();
}

/// A small file system, so that it can be full.
struct Small<'a> {
    bed: &'a Bed,
    undo: Undo,
    place: PathBuf,
}

impl<'a> Small<'a> {
    fn new(bed: &'a Bed) -> Self {
        let mut undo = Undo::new(&bed.tools);
        let base = bed.directory.path().join("small");
        let interrupt = Interrupt::deaf(false);
        let fs = FileSystem::Ext4;
        let mounted = container::mount_fresh(fs, &base, 0, &bed.tools, &mut undo, &interrupt);
        Self { bed, undo, place: mounted.unwrap().unwrap() }
    }

    /// Leaves so many bytes to others.
    fn occupy(&mut self, leave: u64) {
        let bytes = free_bytes(&self.place).unwrap() - leave;
        container::reserved_file(&self.place.join("others"), bytes, &mut self.undo).unwrap();
    }

    fn workshop<'b>(&'b self, interrupt: &'b Interrupt, report: &'b dyn Fn(u64)) -> Workshop<'b> {
        let Bed { tools, mapper, .. } = self.bed;
        let (directory, size) = (self.place.as_path(), SIZE);
        Workshop { directory, size, seed: 3, tools, mapper, interrupt, report }
    }
}

#[test]
fn too_little_room_is_said_before_anything_is_made() {
    let Some(bed) = Bed::new() else { return };
    let mut small = Small::new(&bed);
    small.occupy(100 << 20);
    let interrupt = Interrupt::deaf(false);
    let workshop = small.workshop(&interrupt, &|_| {});
    let many = Variant { disks: 3, ..Variant::default() };
    let error = StoragePlan::new(&[many]).check(&workshop).unwrap_err().to_string();
    assert!(
        error.contains("storage of 48M for 3 disks of 16M does not fit")
            && error.contains("M to spare"),
        "{error}"
    );
    assert!(StoragePlan::new(&[Variant::default()]).check(&workshop).is_ok());
    let container = variant("raw", "xfs", "none", "0");
    let error = StoragePlan::new(&[container]).check(&workshop).unwrap_err().to_string();
    assert!(error.contains("storage of 320M"), "{error}");
    drop(small);
    bed.check_clean();
}

#[test]
fn a_disk_that_fills_up_is_explained() {
    let Some(bed) = Bed::new() else { return };
    let mut small = Small::new(&bed);
    let interrupt = Interrupt::deaf(false);
    let variants =
        [variant("qcow2:empty", "here", "none", "0"), variant("raw", "here", "none", "0")];
    let plan = StoragePlan::new(&variants[..1]);
    let storages = Storages::prepare(&plan, &small.workshop(&interrupt, &|_| {})).unwrap();
    assert_eq!(storages.shortage(&variants[0]), None);
    small.occupy(512 << 10);
    let sentence = storages.shortage(&variants[0]).unwrap();
    assert!(sentence.contains("is full") && sentence.contains("--size"), "{sentence}");
    drop(storages);
    // Images that find no room while they are made.
    let full = variant("qcow2:preallocation=full:empty", "here", "none", "0");
    let plan = StoragePlan::new(&[full]);
    let error = Storages::prepare(&plan, &small.workshop(&interrupt, &|_| {})).unwrap_err();
    let message = format!("{error:#}");
    assert!(message.starts_with("make the qcow2 image: /"), "{message}");
    assert!(message.contains("k are free now)") && message.contains("--size"), "{message}");
    // Somebody took the room between the check and the file.
    let file = small.place.join("late");
    let error = container::reserved_file(&file, SIZE.0, &mut small.undo).unwrap_err();
    let message = format!("{error:#}");
    assert!(message.contains("reserve 16M for") && message.contains("k free)"), "{message}");
    assert!(message.contains("No space left"), "{message}");
    drop(small);
    bed.check_clean();
}

#[test]
fn the_users_disk_stays_as_it_is() {
    let directory = directory();
    let path = directory.path().join("disk");
    std::fs::write(&path, vec![1; 2 << 20]).unwrap();
    let target = Target::open(&path, Origin::User, Writes::Skipped).unwrap();
    let of_user = |variant: Variant| Storages::of_user(&target, &[variant]);
    let slow = variant("raw", "here", "none", "2ms");
    let disks = of_user(slow).unwrap().disks(&slow);
    assert_eq!((disks.len(), disks[0].delay), (1, Duration::from_millis(2)));
    for (variant, part) in [
        (variant("raw", "xfs", "none", "0"), "--fs xfs is made for scratch files only"),
        (variant("raw", "here", "2x64k", "0"), "--stripe 2x64k"),
        (variant("qcow2:empty", "here", "none", "0"), "--image qcow2:empty"),
        (variant("qcow2", "here", "none", "0"), "is no qcow2 image"),
        (Variant { vms: 2, ..Variant::default() }, "is one disk, but --vms times --disks are 2"),
    ] {
        let error = of_user(variant).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("disk /"), "{error}");
    }
    let mut image = vec![0; 2 << 20];
    image[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    image[24..32].copy_from_slice(&(1_u64 << 30).to_be_bytes());
    std::fs::write(&path, image).unwrap();
    let qcow2 = variant("qcow2:cache=1M", "here", "none", "0");
    let disk = of_user(qcow2).unwrap().disks(&qcow2).remove(0);
    assert_eq!((disk.bytes, disk.format), (1 << 30, qcow2.image));
}

#[test]
fn what_cannot_be_taken_away_does_not_keep_the_rest() {
    let Some(bed) = Bed::new() else { return };
    let bed = bed.with_programs(&TOOLS);
    let ext4 = variant("raw", "ext4", "none", "0");
    let storages = bed.prepare(&[ext4], &Interrupt::deaf(false)).unwrap();
    // The loop device cannot be detached; the mount and the files go all the same.
    bed.fake("losetup", "echo busy >&2; exit 1");
    drop(storages);
    let left: Vec<_> = std::fs::read_dir(bed.directory.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let place = bed.directory.path().display().to_string();
    let loops = Tools::of_system().run_anyway(tools::LOSETUP, &["-a".as_ref()]).unwrap();
    let line = loops.lines().find(|line| line.contains(&place)).unwrap();
    let device = line.split_once(':').unwrap().0;
    let words = ["--detach", device].map(AsRef::as_ref);
    Tools::of_system().run_anyway(tools::LOSETUP, &words).unwrap();
    bed.check_clean();
}

/// Starts a daemon with these options and sees that it comes up; fails with what it says.
#[track_caller]
fn check_serves(program: &str, disk: &DiskFiles, aio: Aio, read_only: bool) {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).display().to_string();
    let (pidfile, log) = (place("pid"), place("log"));
    let mut command = std::process::Command::new(program);
    if !program.ends_with("qemu-storage-daemon") {
        command.arg("serve");
    }
    for (option, value) in disk.daemon_options("d", aio, read_only) {
        command.args([option, value]);
    }
    let writable = if read_only { "off" } else { "on" };
    let socket = place("s");
    command.args([
        "--export".to_owned(),
        format!(
            "vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path={socket},writable={writable}"
        ),
    ]);
    command.args(["--pidfile", &pidfile]);
    let output = std::fs::File::create(&log).unwrap();
    let mut child = command.stderr(output).spawn().unwrap();
    let text = || std::fs::read_to_string(&log).unwrap();
    while !Path::new(&pidfile).exists() && child.try_wait().unwrap().is_none() {
        clock::pause(POLL);
    }
    let ended = child.try_wait().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ended.is_none(), "{command:?}: {ended:?}\n{}", text());
}

#[test]
fn daemons_open_what_is_described() {
    let Some(bed) = Bed::new() else { return };
    let variants = [
        variant("raw", "here", "none", "0"),
        variant("qcow2:cache=1M", "here", "none", "0"),
        variant("qcow2:cluster=4k:preallocation=falloc:empty", "ext4", "none", "0"),
    ];
    let storages = bed.prepare(&variants, &Interrupt::deaf(false)).unwrap();
    for variant in &variants {
        let disk = storages.disks(variant).remove(0);
        for aio in [Aio::Auto, Aio::Native, Aio::Threads, Aio::IoUring] {
            for read_only in [false, true] {
                check_serves("qemu-storage-daemon", &disk, aio, read_only);
            }
        }
        // The graph for QMP, opened by QEMU's own code.
        let graph = format!("json:{}", disk.qemu_blockdev(Aio::Native, true));
        let words = ["info".as_ref(), graph.as_ref()];
        let text = Tools::of_system().run_anyway(tools::QEMU_IMG, &words).unwrap();
        assert!(text.contains("16 MiB"), "{text}");
    }
    drop(storages);
    bed.check_clean();
}

/// Set where `layers_of_the_kernel` shall run: as root, on a kernel with device-mapper.
const WITH_MAPPER: &str = "RINGLOOM_TEST_DEVICE_MAPPER";

/// The bytes of a device, and how long the first of them took.
fn read_device(path: &Path) -> (Vec<u8>, Duration) {
    let mut file = std::fs::File::open(path).unwrap();
    let start = clock::now();
    let mut all = vec![0; 4096];
    std::io::Read::read_exact(&mut file, &mut all).unwrap();
    let taken = clock::now() - start;
    std::io::Read::read_to_end(&mut file, &mut all).unwrap();
    (all, taken)
}

/// The files of a disk whose name tells its number, of as many as there are stripes.
fn members(bed: &Bed, storage: usize, count: usize) -> Vec<Vec<u8>> {
    let base = format!("ringloom-scratch-{}-{storage}-0", std::process::id());
    let name = |member| match count {
        1 => format!("{base}.img"),
        _ => format!("{base}-{member}.img"),
    };
    (0..count).map(|it| std::fs::read(bed.directory.path().join(name(it))).unwrap()).collect()
}

fn interleaved(members: &[Vec<u8>], chunk: usize) -> Vec<u8> {
    let rows = members[0].len() / chunk;
    let places = (0..rows).flat_map(|row| members.iter().map(move |member| (row, member)));
    places.flat_map(|(row, member)| member[row * chunk..][..chunk].iter().copied()).collect()
}

/// Does nothing where nobody says that there is a device-mapper.
#[test]
fn layers_of_the_kernel() {
    if std::env::var_os(WITH_MAPPER).is_none() {
        return;
    }
    let tools = Tools::of_system();
    let mapper = Mapper::probe(&tools, &Interrupt::deaf(false)).unwrap();
    let (directory, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let bed = Bed { directory, programs, tools, mapper };
    // In the order of storages: of the key, stripes come before the delay.
    let variants = [
        variant("raw", "here", "none", "20ms"),
        variant("raw", "here", "4x64k", "0"),
        variant("raw", "here", "4x64k", "20ms"),
        variant("qcow2", "here", "2x64k", "1ms"),
    ];
    let storages = bed.prepare(&variants, &Interrupt::deaf(false)).unwrap();
    for (number, variant) in variants.iter().enumerate() {
        let layers = bed.mapper.layers(variant.stripe, variant.delay);
        assert_eq!(layers, Layers::Kernel, "{variant}");
        let disk = storages.disks(variant).remove(0);
        assert_eq!((disk.kind, disk.chunk, disk.files.len()), (Kind::BlockDevice, None, 1));
        assert_eq!((disk.delay, disk.bytes), (Duration::ZERO, SIZE.0));
        if variant.image != Image::Raw {
            assert_eq!(disk_bytes(&disk.files[0]).unwrap(), Some(SIZE.0));
            continue;
        }
        let (bytes, taken) = read_device(&disk.files[0]);
        assert!(taken >= variant.delay.duration(), "{variant}: {taken:?}");
        let files = members(&bed, number, if number == 0 { 1 } else { 4 });
        assert!(bytes == interleaved(&files, 64 << 10), "{variant}: other bytes");
        assert_eq!(disk.host_path(), Some(disk.files[0].as_path()));
    }
    assert!(variants[0].fits(Subject::Host, 0, &Layers::Kernel).is_ok());
    drop(storages);
    bed.check_clean();
    let words = ["ls"].map(AsRef::as_ref);
    let left = Tools::of_system().run_anyway(tools::DMSETUP, &words).unwrap();
    assert_eq!(left.trim(), "No devices found");
}
