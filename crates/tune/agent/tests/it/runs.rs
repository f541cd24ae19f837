//! Runs of real fio.

use std::path::Path;
use std::time::{Duration, SystemTime};

use agent::{AgentError, Client, DiskKind, DiskRequest, Ended, JOB, Start, Token};
use load::fio::{command, parse_report};
use rustix::process::{Pid, test_kill_process};

use crate::support::{greet, listening, nothing_ends_it, piped, service};

fn job(file: &Path, seconds: u32) -> String {
    format!(
        "[global]\nioengine=psync\nthread=1\ntime_based=1\nruntime={seconds}\nbs=4096\nrw=randread\n\
         lat_percentiles=1\nclat_percentiles=0\ngroup_reporting=1\n[disk]\nfilename={}\nrate_iops=200\n",
        file.display()
    )
}

fn client() -> (std::thread::JoinHandle<Result<(), AgentError>>, Client) {
    let (agent, tells, asks) = piped(service(None));
    let client = Client::greet(Box::new(tells), Box::new(asks), None, &mut nothing_ends_it);
    (agent, client.expect("it answers"))
}

/// Waits for the end of fio, with what it printed until then.
fn end(client: &mut Client) -> (Vec<u8>, Result<Ended, AgentError>) {
    let mut printed = Vec::new();
    loop {
        printed.extend(client.printed().expect("it is connected"));
        if let Some(ended) = client.poll().transpose() {
            return (printed, ended);
        }
        // The agent says when something comes; asking it for its meters waits without sleeping.
        client.meters(&mut nothing_ends_it).expect("meters are told while fio runs");
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a start is a time of the wall clock, as the tuner reads it"
)]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

fn small_file(client: &mut Client, directory: &Path) -> agent::Disk {
    let path = directory.to_str().expect("a plain name").to_owned();
    let request = DiskRequest::Directory { path, bytes: 3 << 20 };
    client.disk(&request, &mut |_| {}, &mut nothing_ends_it).expect("it is made")
}

#[test]
fn fio_runs_on_a_file_that_the_agent_has_made() {
    let directory = tempfile::tempdir().expect("a directory");
    let (agent, mut client) = client();
    let facts = client.facts().clone();
    assert!(facts.fio.as_deref().is_some_and(|it| it.starts_with("fio-")), "{facts:?}");
    let offset = client.offset();
    assert!(offset.offset_ns.unsigned_abs() <= offset.error_ns + 50_000_000, "{offset:?}");

    let disk = small_file(&mut client, directory.path());
    assert_eq!((disk.kind, disk.bytes, disk.writable), (DiskKind::File, 3 << 20, true));
    let bytes = std::fs::read(&disk.path).expect("it is there");
    assert_eq!(bytes.len(), 3 << 20);
    assert!(bytes.chunks(4096).all(|it| it.iter().any(|it| *it != 0)), "all of it was written");
    let before = std::fs::metadata(&disk.path).expect("it is there");
    let again = small_file(&mut client, directory.path());
    let after = std::fs::metadata(&disk.path).expect("it is there");
    assert_eq!(again, disk);
    assert_eq!(before.modified().ok(), after.modified().ok(), "it was full already");

    client.put(&job(Path::new(&disk.path), 2));
    let start = wall_clock() + Duration::from_millis(300);
    client.start(&command(JOB, None, true), Start::At(start)).expect("it starts");
    let (printed, ended) = end(&mut client);
    let ended = ended.expect("it ran");
    assert_eq!(ended.failed, None, "{}", ended.output);
    assert!(ended.started >= start - Duration::from_millis(50), "{ended:?}");
    assert!(ended.output.as_bytes().ends_with(&printed) && !printed.is_empty());
    let report = parse_report(&ended.output).expect("a report");
    assert!(report.sample.operations > 0);
    drop(client);
    agent.join().expect("no panic").expect("the client left in order");
}

#[test]
fn what_cannot_be_done_is_said_and_nothing_is_lost() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_agent, mut client) = client();
    let mut ask = |request: DiskRequest| {
        let answer = client.disk(&request, &mut |_| {}, &mut nothing_ends_it);
        answer.expect_err("refused").to_string()
    };
    let path = directory.path().to_str().expect("a plain name").to_owned();
    let device = |path: &str| DiskRequest::Device { path: path.to_owned() };
    assert!(ask(device("/nonexistent")).contains("/nonexistent: No such file"));
    assert!(ask(device(&path)).contains("neither a file nor a block device"));
    let sized = |bytes| DiskRequest::Directory { path: path.clone(), bytes };
    assert!(ask(sized(1000)).contains("no multiple of 4096"));
    assert!(ask(sized(1 << 60)).contains("do not fit"));

    let start = |client: &mut Client, start| client.start(&command(JOB, None, false), start);
    client.put("[global]\nrw=nonsense\n[disk]\n");
    start(&mut client, Start::Now).expect("it is sent");
    let ended = end(&mut client).1.expect("fio itself ran");
    assert!(ended.failed.is_some() && ended.output.contains("nonsense"), "{ended:?}");
    start(&mut client, Start::At(SystemTime::UNIX_EPOCH)).expect("it is sent");
    let late = end(&mut client).1.expect_err("that time is past").to_string();
    assert!(late.contains("ago"), "{late}");
    client.meters(&mut nothing_ends_it).expect("it goes on");
}

/// The processes whose working directory has a file of this process's test.
fn fios_on(file: &Path) -> Vec<Pid> {
    let mark = file.to_str().expect("a plain name");
    let processes = std::fs::read_dir("/proc").expect("proc").flatten();
    let pids = processes.filter_map(|it| it.file_name().to_str()?.parse::<i32>().ok());
    let has_it = |pid: &i32| {
        let job = std::fs::read_to_string(format!("/proc/{pid}/cwd/{JOB}"));
        job.is_ok_and(|it| it.contains(mark))
    };
    pids.filter(has_it).filter_map(Pid::from_raw).collect()
}

fn start_and_find(client: &mut Client, file: &Path) -> Pid {
    client.put(&job(file, 600));
    client.start(&command(JOB, None, true), Start::Now).expect("it is sent");
    loop {
        client.meters(&mut nothing_ends_it).expect("it is connected");
        assert!(client.poll().expect("it is connected").is_none(), "it runs for ten minutes");
        if let [pid] = fios_on(file)[..] {
            return pid;
        }
    }
}

#[track_caller]
fn is_gone(pid: Pid) {
    assert!(test_kill_process(pid).is_err(), "fio {pid:?} is still there");
}

#[test]
fn no_fio_outlives_its_client() {
    let directory = tempfile::tempdir().expect("a directory");
    let (agent, mut one) = client();
    let disk = small_file(&mut one, directory.path());
    let file = Path::new(&disk.path);
    let pid = start_and_find(&mut one, file);
    let busy = one.start(&command(JOB, None, true), Start::Now).expect_err("one at a time");
    assert!(busy.to_string().contains("under way"), "{busy}");
    one.stop(&mut nothing_ends_it).expect("it stops");
    is_gone(pid);
    let pid = start_and_find(&mut one, file);
    drop(one);
    agent.join().expect("no panic").expect("the client left");
    is_gone(pid);

    let token = Token::random().expect("random bytes");
    let address = listening(&token);
    let mut two = greet(address, Some(&token)).expect("it answers");
    let pid = start_and_find(&mut two, file);
    let second = greet(address, Some(&token)).expect_err("one client at a time");
    assert!(second.to_string().contains("another client is connected"), "{second}");
    drop(two);
    let mut three = loop {
        // The agent is free again once the fio of its client is gone.
        if let Ok(client) = greet(address, Some(&token)) {
            break client;
        }
    };
    is_gone(pid);
    three.meters(&mut nothing_ends_it).expect("it answers");
}

#[test]
fn a_wait_that_is_ended_ends_what_is_under_way() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_agent, mut client) = client();
    let disk = small_file(&mut client, directory.path());
    let path = directory.path().join("other");
    std::fs::create_dir(&path).expect("a directory");
    let path = path.to_str().expect("a plain name").to_owned();
    let mut looks = 0;
    let mut check = || {
        looks += 1;
        if looks > 1 { Err("enough".into()) } else { Ok(()) }
    };
    let request = DiskRequest::Directory { path, bytes: 4 << 30 };
    match client.disk(&request, &mut |_| {}, &mut check) {
        Err(AgentError::Ended(why)) => assert_eq!(why.to_string(), "enough"),
        other => panic!("{other:?}"),
    }
    let filled = client.fill(&disk.path, &mut |_| {}, &mut nothing_ends_it);
    assert_eq!(filled.expect("it goes on"), disk.bytes);
}
