//! Tests of lists of CPUs, and of real threads bound to them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use load::procfs::field;

use super::*;

fn list(text: &str) -> CpuList {
    text.parse().unwrap()
}

#[test]
fn lists_are_read_and_printed() {
    for (text, printed) in [
        ("0", "0"),
        ("0-3,8", "0-3,8"),
        ("8,0-3", "0-3,8"),
        ("3,2,1,1-2", "1-3"),
        ("0,2,4", "0,2,4"),
        ("5-5", "5"),
        ("1022-1023", "1022-1023"),
    ] {
        assert_eq!(list(text).to_string(), printed, "{text}");
        let json = serde_json::to_string(&list(text)).unwrap();
        assert_eq!(json, format!("\"{printed}\""));
        assert_eq!(serde_json::from_str::<CpuList>(&json).unwrap(), list(text));
    }
}

#[test]
fn other_lists_are_refused() {
    for text in [
        "", ",", "0,", "a", "-1", "+1", "1-", "-", "3-1", "0-1-2", "0 1", "1024", "0-65535",
        "70000",
    ] {
        let error = text.parse::<CpuList>().unwrap_err().to_string();
        assert!(error.contains("such as 0-3,8") && error.contains(text), "{error}");
    }
    assert!(serde_json::from_str::<CpuList>("\"x\"").is_err());
}

#[test]
fn cpus_must_exist_and_be_allowed() {
    let (online, allowed) = (list("0-3"), list("1-2"));
    assert!(list("1,2").check(&online, &allowed).is_ok());
    let refuse = |text| format!("{:#}", list(text).check(&online, &allowed).unwrap_err());
    let message = refuse("1-5");
    assert!(message.contains("CPU 4 of the list 1-5 does not exist"), "{message}");
    assert!(message.contains("there are 0-3"), "{message}");
    let message = refuse("0-1");
    assert!(message.contains("CPU 0 of the list 0-1 is not allowed"), "{message}");
    assert!(message.contains("may use 1-2"), "{message}");
}

#[test]
fn threads_take_cpus_in_turn() {
    let cpus = list("2,5");
    let turns: Vec<_> = in_turn(&[10, 11, 12], &cpus).collect();
    assert_eq!(turns, [(10, list("2")), (11, list("5")), (12, list("2"))]);
}

#[test]
fn a_numa_node_has_its_cpus_or_a_reason() {
    let nodes = tempfile::tempdir().unwrap();
    for (node, cpus) in [("node0", "0-1\n"), ("node2", "\n")] {
        fs::create_dir(nodes.path().join(node)).unwrap();
        fs::write(nodes.path().join(node).join("cpulist"), cpus).unwrap();
    }
    fs::write(nodes.path().join("online"), "0,2\n").unwrap();
    let node = |number| CpuList::of_node_below(nodes.path(), number);
    assert_eq!(node(0).unwrap(), list("0-1"));
    assert!(node(2).unwrap_err().to_string().contains("memory only"));
    let message = node(1).unwrap_err().to_string();
    assert_eq!(message, "NUMA node 1 does not exist: this host has 0,2");
}

#[test]
fn this_machine_has_cpus() {
    let (online, allowed) = (CpuList::online().unwrap(), CpuList::allowed(None).unwrap());
    assert!(allowed.check(&online, &allowed).is_ok());
    assert!(online.count() >= allowed.count());
}

#[test]
fn a_thread_that_is_gone_cannot_be_pinned() {
    let allowed = CpuList::allowed(None).unwrap();
    for (tid, reason) in [(0, "no id"), (u32::MAX, "no id"), (i32::MAX.unsigned_abs(), "bind")] {
        let message = format!("{:#}", pin(tid, &allowed).unwrap_err());
        assert!(message.contains(reason) && message.contains(&tid.to_string()), "{message}");
    }
}

/// A process with iothreads, killed by its own id on every way out.
struct StorageDaemon(Child);

impl Drop for StorageDaemon {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

impl StorageDaemon {
    const IOTHREADS: usize = 3;

    /// `None`, with a line saying so, if the program is missing.
    #[expect(clippy::print_stderr, reason = "a skipped test says so")]
    fn start() -> Option<Self> {
        let mut command = Command::new("qemu-storage-daemon");
        for number in 0..Self::IOTHREADS {
            command.args(["--object", &format!("iothread,id=t{number}")]);
        }
        command.args(["--chardev", "stdio,id=qmp", "--monitor", "chardev=qmp"]);
        match command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() {
            Ok(child) => Some(Self(child)),
            Err(error) => {
                eprintln!("skipped: qemu-storage-daemon: {error}");
                None
            }
        }
    }

    /// The ids of its threads but the first: the iothreads and what else it has started.
    fn threads(&mut self) -> Vec<u32> {
        // It says who it is when all objects are made.
        let mut output = BufReader::new(self.0.stdout.take().unwrap());
        let mut greeting = String::new();
        output.read_line(&mut greeting).unwrap();
        assert!(greeting.contains("QMP"), "{greeting}");
        self.0.stdout = Some(output.into_inner());
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        let ids = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap());
        ids.filter(|&tid| tid != self.0.id()).collect()
    }
}

#[test]
fn threads_of_another_process_are_pinned() {
    let Some(mut daemon) = StorageDaemon::start() else { return };
    let pid = daemon.0.id();
    let threads = daemon.threads();
    assert!(threads.len() >= StorageDaemon::IOTHREADS, "{threads:?}");
    let cpus = CpuList::allowed(None).unwrap();
    pin_each(&threads, &cpus).unwrap();
    let allowed = |tid: u32| {
        let status = format!("/proc/{pid}/task/{tid}/status");
        list(&field(&status, "Cpus_allowed_list").unwrap())
    };
    for (&tid, cpu) in threads.iter().zip(cpus.iter().cycle()) {
        assert_eq!(allowed(tid), list(&cpu.to_string()));
    }
    assert_eq!(allowed(pid), cpus);
    pin(threads[0], &cpus).unwrap();
    assert_eq!(allowed(threads[0]), cpus);
}
