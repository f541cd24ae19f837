//! Tests of the meter on real processes and threads.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;

use load::procfs::field;
use rustix::time::{ClockId, clock_gettime};

use super::*;

/// A shell that is killed by its own id on every way out.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn send(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).unwrap();
    }

    fn wait_line(&mut self) {
        assert!(self.output.read_line(&mut String::new()).unwrap() > 0);
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Burns CPU time when told to, then says so and waits.
const BURN: &str =
    "read x; i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; echo done; read x; exit 0";

fn group(cost: &Cost, name: GroupName) -> &GroupCost {
    cost.groups.iter().find(|group| group.name == name).unwrap()
}

/// User and system time of a process, as the kernel tells it elsewhere.
fn stat_time(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

#[track_caller]
fn check_close(measured: u64, expected: Duration, tolerance: f64, slack: Duration) {
    let (measured, expected) = (measured as f64 / 1e9, expected.as_secs_f64());
    let allowed = expected * tolerance + slack.as_secs_f64();
    assert!((measured - expected).abs() <= allowed, "{measured} s instead of {expected} s");
}

#[test]
fn a_thread_that_burns_200_ms_costs_200_ms() {
    const BURNT: Duration = Duration::from_millis(200);
    let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let (ready, wait_ready) = mpsc::channel();
    let (go, wait_go) = mpsc::channel();
    let burner = move || {
        ready.send(()).unwrap();
        wait_go.recv().unwrap();
        let begun = used();
        while used() - begun < BURNT {
            std::hint::spin_loop();
        }
        ready.send(()).unwrap();
        // Lives until it was sampled.
        let _hung_up = wait_go.recv();
    };
    let thread = std::thread::Builder::new().name("IO burner".to_owned()).spawn(burner).unwrap();
    wait_ready.recv().unwrap();
    let mut meter = Meter::new(vec![Group::new(GroupName::Load, std::process::id())]);
    let open = clock::now();
    meter.close(open);
    go.send(()).unwrap();
    wait_ready.recv().unwrap();
    let close = clock::now();
    meter.close(close);
    drop(go);
    thread.join().unwrap();
    let cost = meter.between(open, close);
    let threads = &group(&cost, GroupName::Load).threads;
    let burner = threads.iter().find(|thread| thread.name == "IO burner").unwrap();
    assert_eq!(burner.role, Role::Iothread);
    check_close(burner.cpu_ns, BURNT, 0.05, Duration::ZERO);
    let host = cost.host.unwrap();
    assert_eq!(host.per_cpu_busy.len(), host.of);
    assert!(host.cpus_in_use > 0.3 && host.cpus_in_use <= host.of as f64, "{host:?}");
    assert!(host.context_switches_per_s > 0.0);
}

#[test]
fn a_process_costs_what_its_stat_says() {
    let mut shell = Shell::start("sh", &["-c", BURN]);
    let mut meter = Meter::new(vec![Group::new(GroupName::Daemon, shell.pid())]);
    let (open, begun) = (clock::now(), stat_time(shell.pid()));
    meter.close(open);
    shell.send("\n");
    shell.wait_line();
    let close = clock::now();
    meter.close(close);
    let expected = stat_time(shell.pid()) - begun;
    let cost = meter.between(open, close);
    let daemon = group(&cost, GroupName::Daemon);
    check_close(daemon.cpu_ns, expected, 0.05, Duration::from_millis(20));
    assert_eq!(daemon.threads.len(), 1);
    assert_eq!((daemon.threads[0].name.as_str(), daemon.threads[0].role), ("sh", Role::Main));
    assert_eq!(u128::from(cost.covered_ns), (close - open).as_nanos());
}

#[test]
fn a_process_that_dies_keeps_what_was_seen() {
    let mut shell = Shell::start("sh", &["-c", BURN]);
    let mut meter = Meter::new(vec![Group::new(GroupName::Qemu, shell.pid())]);
    let open = clock::now();
    meter.close(open);
    shell.send("\n");
    shell.wait_line();
    meter.close(clock::now());
    let seen = stat_time(shell.pid());
    shell.send("\n");
    assert!(shell.child.wait().unwrap().success());
    let close = clock::now();
    meter.close(close);
    let cost = meter.between(open, close);
    check_close(group(&cost, GroupName::Qemu).cpu_ns, seen, 0.05, Duration::from_millis(20));
}

#[test]
fn ping_pong_is_counted_as_voluntary_switches() {
    const ROUNDS: u64 = 100;
    let mut cat = Shell::start("cat", &["-u"]);
    let status = format!("/proc/{}/status", cat.pid());
    let switches = || field(&status, "voluntary_ctxt_switches").unwrap().parse::<u64>().unwrap();
    let mut meter = Meter::new(vec![Group::new(GroupName::Daemon, cat.pid())]);
    let mut rounds = |count| {
        for _ in 0..count {
            cat.send("x");
            cat.output.read_exact(&mut [0]).unwrap();
            // The echo is here; now it goes to sleep, and only then there is more for it to read.
            let state = || field(&status, "State").unwrap();
            while !state().starts_with('S') {
                std::thread::yield_now();
            }
        }
    };
    rounds(1);
    let (open, begun) = (clock::now(), switches());
    meter.close(open);
    rounds(ROUNDS);
    let close = clock::now();
    meter.close(close);
    let counted = group(&meter.between(open, close), GroupName::Daemon).voluntary;
    assert_eq!(counted, switches() - begun);
    assert!(counted >= ROUNDS, "{counted} switches");
}

#[test]
fn what_cannot_be_read_has_no_figure() {
    let own = std::process::id();
    let groups = vec![
        Group::new(GroupName::Qemu, own),
        Group::new(GroupName::Qemu, u32::MAX),
        Group::new(GroupName::Daemon, u32::MAX),
        Group::new(GroupName::Load, own),
    ];
    let mut meter = Meter::new(groups);
    let open = clock::now();
    meter.close(open);
    let close = clock::now();
    meter.close(close);
    let names: Vec<GroupName> =
        meter.between(open, close).groups.iter().map(|group| group.name).collect();
    assert_eq!(names, [GroupName::Load]);
    assert_eq!(meter.between(close, close), Cost::default());
}

#[test]
fn roles_come_from_names_or_the_caller() {
    let group =
        Group::new(GroupName::Qemu, 10).with_roles([(12, Role::Vcpu), (13, Role::Iothread)]);
    for (tid, comm, role) in [
        (10, "qemu-system-x86", Role::Main),
        (11, "CPU 0/KVM", Role::Vcpu),
        (11, "CPU 1/TCG", Role::Vcpu),
        (11, "IO iothread0", Role::Iothread),
        (11, "IO t0", Role::Iothread),
        (11, "IO worker", Role::Worker),
        (11, "IO mon_iothread", Role::Worker),
        (11, "worker", Role::Worker),
        (11, "call_rcu", Role::Worker),
        (11, "iou-wrk-10", Role::Worker),
        (11, "export vda", Role::Worker),
        (12, "worker", Role::Vcpu),
        (13, "", Role::Iothread),
    ] {
        assert_eq!(group.role(tid, comm), role, "{comm}");
    }
}

#[test]
fn a_thread_may_name_itself_after_it_was_first_seen() {
    let (named, wait_named) = mpsc::channel();
    let (go, wait_go) = mpsc::channel();
    let late = move || {
        named.send(()).unwrap();
        wait_go.recv().unwrap();
        rustix::thread::set_name(c"IO late").unwrap();
        named.send(()).unwrap();
        // Lives until it was sampled.
        let _hung_up = wait_go.recv();
    };
    let thread = std::thread::Builder::new().name("early".to_owned()).spawn(late).unwrap();
    wait_named.recv().unwrap();
    let mut meter = Meter::new(vec![Group::new(GroupName::Load, std::process::id())]);
    let open = clock::now();
    meter.close(open);
    go.send(()).unwrap();
    wait_named.recv().unwrap();
    let close = clock::now();
    meter.close(close);
    drop(go);
    thread.join().unwrap();
    let cost = meter.between(open, close);
    let threads = &group(&cost, GroupName::Load).threads;
    let late = threads.iter().find(|thread| thread.name == "IO late").unwrap();
    assert_eq!(late.role, Role::Iothread);
}

fn thread(name: &str, role: Role, cpu_ns: u64) -> ThreadCost {
    ThreadCost { name: name.to_owned(), role, cpu_ns, voluntary: 1, involuntary: 2 }
}

#[test]
fn many_threads_are_merged_but_counted() {
    let workers = (0..200).map(|number| thread("fio", Role::Worker, number));
    let threads = workers.chain([thread("IO t0", Role::Iothread, 0)]).collect();
    let cost = group_cost(GroupName::Load, threads);
    assert_eq!(cost.cpu_ns, (0..200).sum::<u64>());
    assert_eq!((cost.voluntary, cost.involuntary), (201, 402));
    assert_eq!(cost.threads.len(), THREADS_MAX);
    assert_eq!(cost.threads[0], thread("IO t0", Role::Iothread, 0));
    assert_eq!(cost.threads[1].cpu_ns, 199);
    let others = cost.threads.last().unwrap();
    assert_eq!((others.name.as_str(), others.voluntary), ("138 others", 138));
    assert_eq!(cost.threads.iter().map(|thread| thread.cpu_ns).sum::<u64>(), cost.cpu_ns);
}

#[test]
fn the_number_of_samples_is_bounded() {
    let mut meter = Meter::new(Vec::new());
    let start = clock::now();
    for number in 0..u64::try_from(SAMPLES_MAX).unwrap() + 1000 {
        // Without its cost, which would make samples rarer on a slow machine.
        meter.effort = Duration::ZERO;
        meter.sample(start + Duration::from_millis(100 * number));
    }
    assert!(meter.axis.len() <= SAMPLES_MAX && meter.axis.len() > SAMPLES_MAX / 2);
    assert_eq!(meter.axis.len(), meter.host.len());
    assert_eq!(meter.spacing, Duration::from_millis(200));
}

#[test]
fn sampling_rests_in_proportion_to_its_cost() {
    let mut meter = Meter::new(Vec::new());
    let start = clock::now();
    meter.sample(start);
    meter.effort = Duration::from_millis(10);
    meter.sample(start + Duration::from_millis(199));
    assert_eq!(meter.axis.len(), 1);
    meter.sample(start + Duration::from_millis(200));
    assert_eq!(meter.axis.len(), 2);
}

#[test]
fn a_cost_is_recorded_and_read_again() {
    let threads = vec![thread("CPU 0/TCG", Role::Vcpu, 5)];
    let cost = Cost {
        covered_ns: 7,
        host: Some(HostCpu {
            cpus_in_use: 0.5,
            cpus_in_kernel: 0.25,
            of: 2,
            cpus_stolen: 0.0,
            per_cpu_busy: vec![0.5, 0.0],
            context_switches_per_s: 12.5,
        }),
        groups: vec![group_cost(GroupName::Qemu, threads)],
    };
    let text = serde_json::to_string(&cost).unwrap();
    assert!(text.contains(r#""name":"qemu""#) && text.contains(r#""role":"vcpu""#), "{text}");
    assert_eq!(serde_json::from_str::<Cost>(&text).unwrap(), cost);
}
