//! Backups whose target hangs: guests wait no longer than they are told to, or until the job is given up.

use rustix::process::Signal;
use testkit::deadline::Deadline;

use super::*;

/// A target in memory as node `a-copy`, which hangs on command.
fn add_target(place: &mut Place) -> Result<Server> {
    let (path, socket) = (place.bench.text("kit.sock"), place.bench.path("kit.sock"));
    if socket.exists() {
        std::fs::remove_file(&socket)?;
    }
    let options = ["-f", "--exit-with-parent", "-U", &path];
    let words = ["memory", &BYTES.to_string()].map(str::to_owned);
    let kit = Program::named("nbdkit", "nbdkit", &options).start(&words, &[socket])?;
    let server = json!({"type": "unix", "path": path});
    let node = json!({"driver": "nbd", "node-name": "a-copy", "server": server});
    place.qmp.execute("blockdev-add", &node)?;
    Ok(kit)
}

/// For how long a write took, and whether it went well.
fn timed(client: &mut Client, at: u64) -> (Duration, Result<()>) {
    let clock = Deadline::after(LIMIT);
    let result = client.write(at, &stamp(at / 65536 + 1), 0);
    (clock.elapsed(), result)
}

fn status(place: &mut Place) -> Result<Value> {
    let jobs = place.qmp.execute("query-jobs", &json!({}))?;
    Ok(jobs[0]["status"].clone())
}

/// What is in flight ends, and so does the job.
fn wake(place: &mut Place, kit: &Server, end: &str) -> Result<Value> {
    ensure!(status(place)? == "aborting", "a job with requests in flight has ended");
    kit.signal(Signal::CONT)?;
    let told = place.event(end, "a")?;
    ensure!(place.qmp.execute("query-jobs", &json!({}))? == json!([]), "its job is left");
    place.del("a-copy")?;
    Ok(told)
}

fn hangs(program: &Program) -> Result<()> {
    let mut place = Place::new(program)?;
    let mut client = Client::connect(&place.bench.path("a2.sock"), Shape::small())?;
    let soon = Duration::from_millis(900);
    // What becomes of a guest's write, and of the job.
    let mut kit = add_target(&mut place)?;
    let told = json!({"speed": 65536, "cbw-timeout": 1});
    place.qmp.execute("blockdev-backup", &backup("a", &told))?;
    kit.freeze()?;
    let (time, result) = timed(&mut client, 20 << 16);
    ensure!(result.is_err() && time >= soon, "{time:?}, {result:?}");
    ensure!(time < LIMIT / 6 && status(&mut place)? == "running", "{time:?}");
    place.qmp.execute("block-job-cancel", &json!({"device": "a"}))?;
    let (time, result) = timed(&mut client, 21 << 16);
    ensure!(result.is_ok() && time < LIMIT / 6, "{time:?}, {result:?}");
    wake(&mut place, &kit, "BLOCK_JOB_CANCELLED")?;
    kit.kill()?;

    let mut kit = add_target(&mut place)?;
    let told = json!({"speed": 65536, "cbw-timeout": 1, "on-cbw-error": "break-snapshot"});
    place.qmp.execute("blockdev-backup", &backup("a", &told))?;
    kit.freeze()?;
    let (time, result) = timed(&mut client, 20 << 16);
    ensure!(result.is_ok() && time >= soon && time < LIMIT / 6, "{time:?}, {result:?}");
    let (time, result) = timed(&mut client, 22 << 16);
    ensure!(result.is_ok() && time < soon, "{time:?}, {result:?}");
    poll_until("the end of the job", LIMIT, || {
        Ok((status(&mut place)? == "aborting").then_some(()))
    })?;
    let told = wake(&mut place, &kit, "BLOCK_JOB_COMPLETED")?;
    ensure!(told["error"].is_string(), "{told}");
    kit.kill()?;

    // Without a limit a guest waits until somebody gives the job up.
    let mut kit = add_target(&mut place)?;
    place.qmp.execute("blockdev-backup", &backup("a", &json!({"speed": 65536})))?;
    kit.freeze()?;
    let (time, result) = std::thread::scope(|scope| -> Result<_> {
        let guest = scope.spawn(|| timed(&mut client, 20 << 16));
        std::thread::park_timeout(soon);
        place.qmp.execute("block-job-cancel", &json!({"device": "a"}))?;
        Ok(guest.join().expect("it does not panic"))
    })?;
    ensure!(result.is_ok() && time >= soon / 2, "{time:?}, {result:?}");
    wake(&mut place, &kit, "BLOCK_JOB_CANCELLED")?;
    kit.kill()?;
    drop(client);
    let written = place.content("a")?;
    for at in [20, 21, 22] {
        let start = at << 16;
        ensure!(written[start..start + SECTOR] == stamp(at as u64 + 1), "write {at} is lost");
    }
    place.end()
}

#[test]
fn guests_do_not_wait_for_ever_for_a_target_that_hangs() {
    with(&ringloom(), hangs);
}
