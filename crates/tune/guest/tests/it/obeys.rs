//! Scripts and files.

use guest::{Guest, Refusal};
use serde_json::{Value, json};
use testkit::deadline::poll_until;

use crate::rig::{LIMIT, patient};

/// Any output and any status come back.
pub(crate) fn scripts(guest: &mut Guest) {
    for (script, status, output) in [
        ("echo a", 0, &b"a\n"[..]),
        ("printf 'a\\0\\377\\n\\r\\n'", 0, b"a\0\xff\n\r\n"),
        ("echo out; echo err >&2; exit 7", 7, b"out\nerr\n"),
        ("", 0, b""),
        ("exit 255", 255, b""),
        ("echo '@@end 1 2'; printf @@end", 0, b"@@end 1 2\n@@end"),
        ("cat; echo there is no input", 0, b"there is no input\n"),
        ("echo to the file > /dev/stdout", 0, b"to the file\n"),
        // The shell around it says how it ended.
        ("kill -9 $$", 137, b"Killed\n"),
        ("for it in 1 2 3; do\n  echo $it\ndone\n", 0, b"1\n2\n3\n"),
        ("fio --version | cut -c 1-4", 0, b"fio-\n"),
    ] {
        let finished = guest.run(script, LIMIT, &mut patient).unwrap();
        assert_eq!((finished.status, &finished.output[..]), (status, output), "{script}");
    }
    let script = "dd if=/dev/zero bs=64k count=64 2>/dev/null | tr '\\0' '\\n'";
    let output = guest.run(script, LIMIT, &mut patient).unwrap().output;
    assert_eq!(output, vec![b'\n'; 4 << 20]);
}

/// A script can be followed while it runs, and no other one can be started. It ends when it sees a disk, which is
/// plugged by hand.
pub(crate) fn what_was_printed_so_far(guest: &mut Guest) {
    guest
        .start("echo first; until [ -e /sys/block/vda ]; do usleep 1000; done; echo second")
        .unwrap();
    poll_until("the first line", LIMIT, || {
        assert!(guest.poll()?.is_none(), "it waits");
        Ok((guest.partial_output() == b"first\n").then_some(()))
    })
    .unwrap();
    let error = guest.start("true").unwrap_err();
    assert!(format!("{error:#}").contains("was not answered yet"), "{error:#}");

    let monitor = guest.monitor();
    monitor
        .command("blockdev-add", json!({"driver": "null-co", "node-name": "n", "size": 65536}))
        .unwrap();
    let device = json!({"driver": "virtio-blk-pci", "id": "d", "bus": "port5", "drive": "n"});
    monitor.command("device_add", device).unwrap();
    let finished = poll_until("its end", LIMIT, || guest.poll()).unwrap();
    assert_eq!(finished.output, b"first\nsecond\n");
    assert!(guest.partial_output().is_empty());

    let monitor = guest.monitor();
    monitor.command("device_del", json!({"id": "d"})).unwrap();
    let is_it = |data: &Value| data["device"] == "d";
    monitor.wait_event("DEVICE_DELETED", is_it, LIMIT, &mut patient).unwrap();
    monitor.command("blockdev-del", json!({"node-name": "n"})).unwrap();
    let error = monitor.command("blockdev-del", json!({"node-name": "n"})).unwrap_err();
    assert!(error.is::<Refusal>(), "{error:#}");
}

/// Files go both ways as they are.
pub(crate) fn files(guest: &mut Guest) {
    let big: Vec<u8> = (0..1_u32 << 18).flat_map(|it| (it ^ 0x5a5a).to_le_bytes()).collect();
    for (path, content) in
        [("/tmp/big file", &big[..]), ("/tmp/it's", b"x"), ("/tmp/empty", b""), ("/tmp/it's", b"y")]
    {
        guest.write_file(path, content, &mut patient).unwrap();
        assert!(guest.read_file(path, &mut patient).unwrap() == content, "{path}");
    }
    let error = guest.read_file("/tmp/none", &mut patient).unwrap_err();
    assert!(format!("{error:#}").contains("No such file"), "{error:#}");
    let error = guest.write_file("/none/none", b"abc", &mut patient).unwrap_err();
    assert!(format!("{error:#}").contains("none"), "{error:#}");
    // The agent has not lost its place.
    assert_eq!(guest.run("echo on", LIMIT, &mut patient).unwrap().output, b"on\n");
}

/// Its processors are threads of QEMU.
pub(crate) fn threads(guest: &mut Guest) {
    let cpus = guest.vcpus().unwrap();
    assert_eq!(cpus.len(), 2);
    for cpu in cpus {
        let place = format!("/proc/{}/task/{cpu}/comm", guest.pid());
        let name = std::fs::read_to_string(&place).unwrap();
        // Emulated ones share a thread.
        assert!(name.starts_with("ALL CPUs"), "{name}");
    }
}
