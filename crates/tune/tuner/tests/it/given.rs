//! What a user may expect of `ringloom tune --guest ssh://…`. The guest is this host, behind a server of our own.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::process::{Bed, Ran};
use crate::ssh_server::{SshServer, path_without_fio};
use crate::tune::{skip, wait_until};

const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
const QUICK: &str = "--daemon /bin/true --subject vm:given --jobs 1 --iodepth 4 --bs 4k --ramp 0 \
                     --seed 5 --out out";

/// A bed and a server, if there are fio and OpenSSH here.
fn guest() -> Option<(Bed, SshServer)> {
    if let Err(error) = load::fio::program() {
        skip(&error.to_string());
        return None;
    }
    let bed = Bed::new();
    let server = SshServer::start(&bed, PATH)?;
    Some((bed, server))
}

/// With the engine that this host allows.
fn line(server: &SshServer, disk: &Path) -> String {
    let engine = if load::host::available().is_ok() { "io_uring" } else { "libaio" };
    format!("{QUICK} --engine {engine} {} {}", server.guest(disk), server.config())
}

#[test]
fn the_disk_of_a_guest_is_measured_beside_one_of_the_host() {
    let Some((bed, server)) = guest() else { return };
    let disk = bed.disk(8);
    let options = line(&server, &disk).replace("vm:given", "host,vm:given")
        + " --size 8M --op randread,randwrite --destructive --verify --runtime 2 --repeats 1 --interval";
    let ran = bed.run(&options).expect_success();
    assert!(ran.stderr.contains("Your guest: "), "{}", ran.stderr);
    let lines = bed.results("out");
    assert_eq!(lines.len(), 5);
    let given = &lines[0]["given"];
    assert_eq!(given["disk"]["path"], disk.to_str().unwrap());
    assert_eq!(given["disk"]["bytes"], 8 << 20);
    assert!(given["kernel"].as_str().unwrap().starts_with("Linux "), "{given}");
    assert!(given["cpus"].as_u64() > Some(0) && given["fio"].is_string(), "{given}");
    for run in lines[1..].iter().filter(|run| run["subject"] == "vm:given") {
        assert!(run["load"].as_str().unwrap().starts_with("fio-"), "{run}");
        let per_second = run["per_second"].as_array().unwrap();
        let sum: u64 = per_second.iter().map(|it| it[1].as_u64().unwrap()).sum();
        assert_eq!(run["operations"], sum, "{run}");
        assert!((1..=3).contains(&per_second.len()), "{per_second:?}");
        let latencies = run["latency_ns"].as_array().unwrap();
        let counted: u64 = latencies.iter().map(|pair| pair[1].as_u64().unwrap()).sum();
        assert_eq!(run["operations"], counted, "{run}");
        assert_eq!(run["verified_bytes"].is_u64(), run["op"] == "randwrite", "{run}");
        let job = bed.path().join("out").join(run["job_files"][0].as_str().unwrap());
        let job = std::fs::read_to_string(job).unwrap();
        assert!(job.contains(&format!("filename={}", disk.display())), "{job}");
    }
    assert!(ran.stderr.contains(" avg_2-"), "{}", ran.stderr);
    assert!(ran.stdout.contains("\n  vm:given "), "{}", ran.stdout);
    assert_ne!(std::fs::read(&disk).unwrap(), vec![0x5a; 8 << 20], "it was written");
    assert!(server.is_clean());
}

#[test]
fn a_guest_alone_needs_no_disk_here_and_keeps_its_data() {
    let Some((bed, server)) = guest() else { return };
    let disk = bed.disk(4);
    let options = line(&server, &disk) + " --op randread,randwrite --runtime 1 --repeats 1";
    let ran = bed.run(&options).expect_success();
    assert!(ran.stderr.contains("Skipped: randwrite 4k"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("filling"), "{}", ran.stderr);
    let lines = bed.results("out");
    assert_eq!((lines.len(), &lines[0]["disk"]["origin"]), (2, &"guest".into()));
    assert_eq!(std::fs::read(&disk).unwrap(), vec![0x5a; 4 << 20]);
}

#[test]
fn who_cannot_log_in_is_told_what_to_do() {
    let Some((bed, server)) = guest() else { return };
    let (disk, port) = (bed.disk(1), server.port());
    let with = |config: &str| format!("{QUICK} {} {config}", server.guest(&disk));
    let by_hand = format!("-p {port} 127.0.0.1");
    let config = server.config_with("ssh/known\n", "ssh/nothing\n");
    bed.run(&with(&config)).expect_refusal(&["the host key of", "is not known", &by_hand]);
    let config = server.config_with("ssh/user\n", "ssh/stranger\n");
    let refused = bed.run(&with(&config));
    refused.expect_refusal(&["refuses the login", "passwords are not typed", &by_hand]);
    let nobody = with(&server.config()).replace(&port.to_string(), "1");
    bed.run(&nobody).expect_refusal(&["cannot be reached", "Connection refused"]);
    let config = server.config_with("IdentitiesOnly", "NoSuchOption");
    bed.run(&with(&config)).expect_refusal(&["cannot be reached", "bad configuration options"]);
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_runs() {
    let Some((bed, server)) = guest() else { return };
    let disk = bed.disk(4);
    let here = bed.path();
    bed.run(&line(&server, &here.join("no"))).expect_refusal(&["no such device or file"]);
    bed.run(&line(&server, here)).expect_refusal(&["is a directory"]);
    bed.run(&line(&server, Path::new("/dev/null"))).expect_refusal(&["neither a file nor"]);
    let given = line(&server, &disk);
    bed.run(&format!("{given} --op write")).expect_refusal(&["all cells write: allow that with"]);
    let path = format!("{given} {}", disk.display());
    bed.run(&path).expect_refusal(&["vm:given measures the disk that --guest names"]);
    bed.run("--daemon /bin/true --destructive").expect_refusal(&["PATH or the disk of --guest"]);
    bed.run(&format!("{QUICK} --guest vm1:/dev/vdb")).expect_refusal(&["begin with ssh://"]);
    assert!(!here.join("out").exists() && server.is_clean());
}

#[test]
fn a_guest_without_a_fio_that_is_new_enough_is_refused() {
    let bed = Bed::new();
    let path = path_without_fio(&bed);
    let Some(server) = SshServer::start(&bed, path.to_str().unwrap()) else { return };
    let given = line(&server, &bed.disk(1));
    bed.run(&given).expect_refusal(&["fio is not installed in guest 127.0.0.1", "install"]);
    let fio = path.join("fio");
    std::fs::write(&fio, "#!/bin/sh\necho fio-2.19\n").unwrap();
    std::fs::set_permissions(&fio, PermissionsExt::from_mode(0o755)).unwrap();
    bed.run(&given).expect_refusal(&["is fio 2.19, which is too old", "3.18 is the oldest"]);
}

/// A loop device of this host, detached at the end.
struct Loop(String);

impl Loop {
    fn attach(file: &Path) -> Option<Self> {
        if !geteuid().is_root() {
            skip("loop devices need root");
            return None;
        }
        let output = Command::new("losetup").args(["-f", "--show"]).arg(file).output().unwrap();
        if !output.status.success() {
            skip(&format!("no loop device: {}", String::from_utf8_lossy(&output.stderr)));
            return None;
        }
        Some(Self(String::from_utf8(output.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        assert!(Command::new("losetup").args(["-d", &self.0]).status().unwrap().success());
    }
}

/// A mount of this host, undone at the end.
struct Mount(PathBuf);

impl Mount {
    fn new(device: &str, at: PathBuf) -> Self {
        assert!(Command::new("mkfs.ext4").args(["-q", device]).status().unwrap().success());
        std::fs::create_dir(&at).unwrap();
        assert!(Command::new("mount").arg(device).arg(&at).status().unwrap().success());
        Self(at)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(&self.0).status().unwrap().success());
    }
}

#[test]
fn a_block_device_is_measured_unless_it_is_mounted() {
    let Some((bed, server)) = guest() else { return };
    let file = bed.disk(16);
    let Some(device) = Loop::attach(&file) else { return };
    bed.run(&line(&server, &file)).expect_refusal(&[&device.0, "shows it as a loop device"]);
    let given = line(&server, Path::new(&device.0)) + " --op randread --runtime 1 --repeats 1";
    bed.run(&format!("{given} --destructive")).expect_success();
    let disk = bed.results("out")[0]["given"]["disk"].clone();
    assert_eq!((&disk["kind"], &disk["bytes"]), (&"block device".into(), &(16 << 20).into()));
    let mount = Mount::new(&device.0, bed.path().join("mounted"));
    let expected = format!("is mounted on {}", mount.0.display());
    bed.run(&given.replace("--out out", "--out other")).expect_refusal(&[&expected, "umount"]);
}

#[test]
fn a_connection_that_is_cut_costs_its_run_and_is_opened_again() {
    let Some((bed, server)) = guest() else { return };
    let options = line(&server, &bed.disk(4)) + " --op randread --repeats 2 --runtime 3";
    let child = bed.start(&options);
    wait_until(&|| server.fio().is_some());
    server.cut();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(1), "one run failed: {}", ran.stderr);
    let expected = format!("the connection to guest 127.0.0.1:{} is lost: ", server.port());
    assert!(ran.stderr.contains(&expected), "{}", ran.stderr);
    let kinds: Vec<_> = bed.results("out").iter().map(|line| line["kind"].clone()).collect();
    assert_eq!(kinds, ["header", "failure", "run"], "{}", ran.stderr);
    wait_until(&|| server.is_clean());
}

#[test]
fn an_interrupt_leaves_nothing_in_the_guest_and_a_resumed_run_wants_the_same_one() {
    let Some((bed, server)) = guest() else { return };
    let disk = bed.disk(4);
    let options = line(&server, &disk) + " --op randread --repeats 2 --runtime 2";
    let child = bed.start(&options);
    let results = bed.path().join("out/results.jsonl");
    let one_run = || std::fs::read_to_string(&results).unwrap_or_default().lines().count() == 2;
    wait_until(&|| one_run() && server.fio().is_some());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    assert!(server.is_clean(), "nothing is left when it has ended");
    bed.run(&format!("{options} --resume")).expect_success();
    assert_eq!(bed.results("out").len(), 3);
    std::fs::write(&disk, vec![0x5a; 8 << 20]).unwrap();
    let other = bed.run(&format!("{options} --resume"));
    other.expect_refusal(&["size of the disk of your guest is 8388608, was 4194304"]);
}

#[test]
fn nothing_stays_in_the_guest_after_a_kill() {
    let Some((bed, server)) = guest() else { return };
    let options = line(&server, &bed.disk(4)) + " --op randread --runtime 60";
    let mut child = bed.start(&options);
    wait_until(&|| server.fio().is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until(&|| server.is_clean());
}
