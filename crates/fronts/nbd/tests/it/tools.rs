//! Clients nobody here wrote: libnbd's tools and QEMU's.

use std::process::{Command, Output};

use kernel_io::ReactorChoice;

use crate::certificates;
use crate::server::{Listening, Server};

const DISK_BYTES: u64 = 64 << 20;

fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    let command = Command::new(program).args(arguments).output();
    match command {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            testkit::report::skipped(&format!("{program} is not installed"));
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

fn good(program: &str, arguments: &[&str]) -> Option<String> {
    let output = run(program, arguments)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {}", text(&output.stderr));
    Some(text(&output.stdout))
}

#[test]
fn libnbd_finds_what_is_offered() {
    let listening = Listening::new(Server::of_file(ReactorChoice::Any, DISK_BYTES));
    let uri = listening.uri();
    let Some(json) = good("nbdinfo", &["--json", &uri]) else { return };
    for expected in [
        "\"export-name\": \"disk\"",
        "\"description\": \"a disk for tests\"",
        "\"is_read_only\": false",
        "\"can_multi_conn\": true",
        "\"can_fua\": true",
        "\"can_cache\": true",
        "\"can_df\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"can_fast_zero\": true",
        "\"base:allocation\"",
        "\"qemu:allocation-depth\"",
        "\"block_size_minimum\": 512",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
        "\"export-size\": 67108864",
    ] {
        assert!(json.contains(expected), "no {expected} in {json}");
    }
    let list = good("nbdinfo", &["--list", &uri]).unwrap();
    assert!(list.contains("export=\"disk\""), "{list}");
    let map = good("nbdinfo", &["--map", &uri]).unwrap();
    assert!(map.contains("67108864    3  hole,zero"), "{map}");
}

/// Copies there and back, with several connections where the tool uses them.
#[test]
fn copies_are_what_was_copied() {
    let listening = Listening::new(Server::of_file(ReactorChoice::Any, DISK_BYTES));
    let uri = listening.uri();
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (source, copy) = (path("source"), path("copy"));
    let mut bytes = vec![0_u8; usize::try_from(DISK_BYTES).unwrap()];
    for (place, byte) in bytes[5 << 20..40 << 20].iter_mut().enumerate() {
        *byte = (place / 7).to_le_bytes()[0];
    }
    std::fs::write(&source, &bytes).unwrap();
    if good("nbdcopy", &[&source, &uri]).is_some() {
        good("nbdcopy", &[&uri, &copy]).unwrap();
        assert!(std::fs::read(&copy).unwrap() == bytes);
        std::fs::remove_file(&copy).unwrap();
    }
    let convert = ["convert", "-n", "-f", "raw", "-O", "raw", &source, &uri];
    if good("qemu-img", &convert).is_some() {
        good("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, &copy]).unwrap();
        assert!(std::fs::read(&copy).unwrap() == bytes);
        let compared = good("qemu-img", &["compare", "-f", "raw", "-F", "raw", &source, &uri]);
        assert!(compared.unwrap().contains("identical"));
        let map = good("qemu-img", &["map", "--output=json", "-f", "raw", &uri]).unwrap();
        assert!(map.contains("\"zero\": true"), "{map}");
    }
}

#[test]
fn qemu_does_everything_it_can() {
    let listening = Listening::new(Server::of_file(ReactorChoice::Any, DISK_BYTES));
    let uri = listening.uri();
    let commands = [
        "write -P 0x11 0 1M",
        "write -f -P 0x22 1M 64k",
        "read -P 0x11 0 1M",
        "read -v 1048000 1000",
        "write -z 4k 8k",
        "read -P 0 4k 8k",
        "write -z -u 1M 64k",
        "read -P 0 1M 64k",
        "discard 0 64M",
        "flush",
        "map",
        "aio_write -P 0x33 2M 3M",
        "aio_flush",
        "read -P 0x33 2M 3M",
    ];
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    arguments.push(&uri);
    let Some(output) = run("qemu-io", &arguments) else { return };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("failed"), "{text}");
}

/// With certificates of a CA that both know.
#[test]
fn tools_come_through_tls() {
    let mut server = Server::of_file(ReactorChoice::Any, DISK_BYTES);
    server.tls = nbd::TlsPolicy::Required;
    let listening = Listening::new(server);
    let (path, certificates) = (listening.path.display(), certificates::directory());
    let uri = format!(
        "nbds+unix:///disk?socket={path}&tls-certificates={certificates}&tls-verify-peer=false"
    );
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (source, copy) = (file("source"), file("copy"));
    let bytes: Vec<u8> = (0_u8..253).cycle().take(20 << 20).collect();
    std::fs::write(&source, &bytes).unwrap();
    if let Some(json) = good("nbdinfo", &["--json", &uri]) {
        assert!(json.contains("\"TLS\": true"), "{json}");
        good("nbdcopy", &[&source, &uri]).unwrap();
        good("nbdcopy", &[&uri, &copy]).unwrap();
        assert!(std::fs::read(&copy).unwrap()[..bytes.len()] == bytes);
        // Without it nothing is told.
        let plain = run("nbdinfo", &[&listening.uri()]).unwrap();
        assert!(!plain.status.success());
    }
    let credentials = format!("tls-creds-x509,id=tls,endpoint=client,dir={certificates}");
    let image = format!(
        "driver=nbd,server.type=unix,server.path={path},export=disk,tls-creds=tls,tls-hostname=localhost"
    );
    let arguments = [
        "--object",
        &credentials,
        "--image-opts",
        "-c",
        "write -P 0x44 3M 5M",
        "-c",
        "read -P 0x44 3M 5M",
        &image,
    ];
    let Some(output) = run("qemu-io", &arguments) else { return };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !text.contains("failed"), "{text} {errors}");
}
