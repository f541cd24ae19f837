//! Which guests and disks are measured, from literal answers.

use records::results::GivenDisk;

use super::*;

const FACTS: &str = "kernel=Linux 6.1.0 x86_64\nhost=vm1\nmachine=3d1219c7c4c5404aaa1f6d2a48adfda4\ncpus=4\n\
    cpu= Test CPU\nmemory=  1024 kB\ndetected=none\nflag=4\nxen=\nvendor=QEMU\nfio=fio-3.33\n\
    fio_path=/usr/bin/fio\nkind=block\nsectors=131072\nread_only=0\nmodel=\nrotational=0\n\
    scheduler=[none] mq-deadline\nqueues=4\npart=254:16 vdb\npart=254:17 vdb1\nreal=/dev/vdb\n\
    writable=yes\nreadable=yes\ndirect=yes\nio_uring_disabled=0\n";
const TABLES: &str = "@mounts\n27 1 254:0 / / rw - ext4 /dev/vda rw\n@swaps\nFilename Type\n";

fn terms(writes: Writes) -> Terms {
    let address = "ssh://root@vm1/dev/vdb".parse().unwrap();
    Terms { address, config: None, writes, engine: GuestEngine::IoUring }
}

fn answer(facts: &str, tables: &str, writes: Writes) -> Result<(GivenGuest, Vec<String>)> {
    let survey = Survey::parse(&format!("{facts}{tables}"))?;
    let terms = terms(writes);
    let fio = fio(&survey, &terms)?;
    judge(&survey, &terms, fio)
}

#[test]
fn a_guest_is_described() {
    let (guest, notes) = answer(FACTS, TABLES, Writes::Allowed).unwrap();
    assert!(notes.is_empty(), "{notes:?}");
    assert_eq!(guest.description(), "vm1 (Linux 6.1.0 x86_64, 4 CPUs, unknown)");
    assert_eq!((guest.memory_kib, guest.fio.as_str()), (Some(1024), "3.33"));
    assert!(!format!("{guest:?}").contains("3d1219c7"), "the machine id stays in the guest");
    let GivenDisk { bytes, queues, scheduler, rotational, direct, .. } = guest.disk.clone();
    assert_eq!((bytes, queues, rotational, direct), (64 << 20, Some(4), Some(false), true));
    assert_eq!(scheduler.as_deref(), Some("none"));
    assert_eq!(guest.disk.description(), "64M on block device in your guest, O_DIRECT");
    let json = serde_json::to_string(&guest).unwrap();
    assert_eq!(serde_json::from_str::<GivenGuest>(&json).unwrap(), guest);
}

#[test]
fn the_hypervisor_is_what_the_guest_says() {
    for (detected, flag, expected) in [
        ("kvm", "4", Some("kvm")),
        ("qemu", "4", Some("qemu")),
        ("none", "4", Some("unknown")),
        ("none", "0", None),
        ("", "", None),
    ] {
        let facts = FACTS
            .replace("detected=none", &format!("detected={detected}"))
            .replace("flag=4", &format!("flag={flag}"));
        let (guest, _) = answer(&facts, TABLES, Writes::Skipped).unwrap();
        assert_eq!(guest.hypervisor.as_deref(), expected, "{detected} {flag}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_a_reason() {
    let mounted = "27 1 254:17 / /mnt/a\\040b rw - ext4 /dev/vdb1 rw";
    for (from, to, reason) in [
        ("kind=block\n", "", "there is no such device or file"),
        ("kind=block", "kind=directory", "is a directory"),
        ("kind=block", "kind=other", "is neither a file nor a block device"),
        ("readable=yes", "readable=", "that user may not read it"),
        ("writable=yes\n", "", "that user may not write it"),
        ("read_only=0", "read_only=1", "is read-only"),
        ("sectors=131072", "sectors=100", "51200 bytes are too few"),
        ("sectors=131072", "sectors=x", "its size is not known"),
        ("fio_path=/usr/bin/fio", "", "fio is not installed in guest root@vm1: install"),
        ("fio-3.33", "fio-2.19", "is fio 2.19, which is too old: 3.18 is the oldest"),
        ("fio-3.33", "hello", "says 'hello', which is no version of fio"),
        ("io_uring_disabled=0", "io_uring_disabled=2", "use --engine libaio"),
        ("real=", "holder=vdb1 dm-3\nreal=", "dm-3 stands on /dev/vdb1"),
        ("27 1 254:0 / / rw - ext4 /dev/vda rw", mounted, "/dev/vdb1 is mounted on /mnt/a b"),
        ("Type\n", "Type\n/dev/vdb1 partition 1 0 -2\n", "it is swap space"),
    ] {
        let both = format!("{FACTS}\u{0}{TABLES}").replace(from, to);
        let (facts, tables) = both.split_once('\u{0}').unwrap();
        let error = answer(facts, tables, Writes::Allowed).unwrap_err();
        let message = format!("{error:#}");
        assert!(message.contains(reason) && message.contains("vm1"), "{from}: {message}");
    }
}

#[test]
fn half_an_answer_is_none() {
    let error = Survey::parse(&FACTS.replace("@swaps", "")).unwrap_err().to_string();
    assert!(error.contains("did not answer all questions"), "{error}");
}

#[test]
fn a_file_has_its_own_notes() {
    let facts = FACTS
        .replace("kind=block", "kind=file\nbytes=1048576\nstored=8 512\nfile_system=tmpfs")
        .replace("part=254:16 vdb\npart=254:17 vdb1\n", "")
        .replace("direct=yes\n", "");
    let (guest, notes) = answer(&facts, TABLES, Writes::Skipped).unwrap();
    assert_eq!((guest.disk.kind.as_str(), guest.disk.direct), ("tmpfs", false));
    assert!(notes[0].contains("knows no O_DIRECT") && notes[1].contains("has holes"), "{notes:?}");
    let looped = format!("{facts}loop=/dev/loop3 0\n");
    let error = answer(&looped, TABLES, Writes::Skipped).unwrap_err().to_string();
    assert!(error.contains("/dev/loop3 shows it as a loop device"), "{error}");
}

#[test]
fn another_guest_is_told_from_this_one() {
    let (guest, _) = answer(FACTS, TABLES, Writes::Skipped).unwrap();
    assert!(guest.differences(&guest).is_empty());
    let facts = FACTS.replace("3d1219c7", "4d1219c7").replace("Linux 6.1.0", "Linux 6.2.0");
    let (other, _) = answer(&facts, TABLES, Writes::Skipped).unwrap();
    let differences = other.differences(&guest);
    assert_eq!(differences.len(), 2, "{differences:?}");
    assert!(differences[1].contains("kernel of your guest is Linux 6.2.0 x86_64, was Linux 6.1.0"));
}
