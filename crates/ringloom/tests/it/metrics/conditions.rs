//! What no request tells, and is said and shown all the same: a file that has another size, one that is gone, a queue that
//! gets no answer.

use testkit::client::{Request, Segment};
use testkit::process::Program;

use super::*;

const DIFFERENCE: &str = "ringloom_export_size_difference_bytes{export=\"e0\"}";

#[test]
fn a_raw_file_that_changes_its_size_is_told_and_one_that_goes_too() {
    let bench = Bench::new().expect("a directory");
    with(&ringloom(), |_| {
        let (server, socket) = (start(&bench, &[])?, bench.path("m.sock"));
        let disk = disk(&bench);
        let client = write(&disk, 1)?;
        let image = std::fs::File::options().write(true).open(disk.image())?;
        image.set_len(3 << 20)?;
        wait_for(&socket, DIFFERENCE, f64::from(2 << 20))?;
        let path = disk.image().display().to_string();
        let grown = format!(
            "export e0: {path} has grown from 1048576 to 3145728 bytes, and its client has not been told"
        );
        server.wait_for_log(&grown, LIMIT)?;
        // As it is told.
        let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
        let found = qmp.execute("query-ringloom-storage", &json!({}))?;
        let expected = json!([{"export": "e0", "removed": false, "size-difference": 2 << 20}]);
        ensure!(found == expected, "{found}");
        qmp.execute("block_resize", &json!({"node-name": "file-e0", "size": 3 << 20}))?;
        wait_for(&socket, DIFFERENCE, 0.0)?;
        image.set_len(1 << 20)?;
        let text = wait_for(&socket, DIFFERENCE, -f64::from(2 << 20))?;
        let size = "ringloom_export_size_bytes{export=\"e0\"}";
        ensure!(value(&text, size) == Some(f64::from(3 << 20)), "{text}");
        server.wait_for_log("has shrunk from 3145728 to 1048576 bytes below its disk", LIMIT)?;
        image.set_len(3 << 20)?;
        wait_for(&socket, DIFFERENCE, 0.0)?;
        server.wait_for_log("is as large as its disk again", LIMIT)?;
        let removed = "ringloom_export_image_removed{export=\"e0\"}";
        ensure!(value(&scrape(&socket)?, removed) == Some(0.0), "not there yet");
        // Another one in its place, itself again, and gone.
        let other = bench.path("other.img");
        std::fs::rename(disk.image(), &other)?;
        std::fs::copy(&other, disk.image())?;
        wait_for(&socket, removed, 1.0)?;
        server.wait_for_log(&format!("export e0: {path} was renamed or replaced"), LIMIT)?;
        std::fs::rename(&other, disk.image())?;
        wait_for(&socket, removed, 0.0)?;
        server.wait_for_log("export e0: its files are where they were again", LIMIT)?;
        std::fs::remove_file(disk.image())?;
        wait_for(&socket, removed, 1.0)?;
        server.wait_for_log(&format!("export e0: {path} was removed or replaced"), LIMIT)?;
        let told = server.log().matches("its client has not been told").count();
        ensure!(told == 1, "said {told} times: {}", server.log());
        drop(client);
        stop(server, &[&socket]).map(drop)
    });
}

/// Requests of 64 KiB count as 64, and one passes in a second. What is said after half a minute is waited for by hand only:
/// `RINGLOOM_LONG_STALL=1`.
#[test]
fn a_queue_without_an_answer_is_shown_and_told() {
    let is_long = std::env::var_os("RINGLOOM_LONG_STALL").is_some();
    let bench = Bench::new().expect("a directory");
    with(&ringloom(), |_| {
        let more = [
            "--object",
            "throttle-group,id=g,limits.iops-total=1,limits.iops-size=1024",
            "--blockdev",
            "throttle,node-name=slow,throttle-group=g,file.driver=null-co,file.size=1048576",
            "--export",
            &format!(
                "vhost-user-blk,id=e1,node-name=slow,writable=on,addr.type=unix,addr.path={}",
                bench.text("e1.sock")
            ),
        ];
        let (server, socket) = (start(&bench, &more)?, bench.path("m.sock"));
        let mut client = Client::connect(&bench.path("e1.sock"), Shape::small())?;
        for token in 0..2 {
            let segments = vec![Segment { offset: 0, length: 65536 }];
            client.submit(0, &Request::Read { offset: 0, segments }, token)?;
        }
        client.kick(0)?;
        let line = "ringloom_queue_stalled_seconds{export=\"e1\",queue=\"0\"}";
        let least = if is_long { 30.0 } else { 2.0 };
        let text = poll_until("a stall", 3 * LIMIT, || {
            let text = scrape(&socket)?;
            Ok(value(&text, line).is_some_and(|stalled| stalled >= least).then_some(text))
        })?;
        ensure!(
            value(&text, "ringloom_queue_in_flight{export=\"e1\",queue=\"0\"}") >= Some(1.0),
            "{text}"
        );
        // Requests that are open count before they are answered.
        let open = "ringloom_queue_open_seconds_total{export=\"e1\",queue=\"0\"}";
        poll_until("the time of open requests", LIMIT, || {
            Ok(value(&scrape(&socket)?, open).is_some_and(|it| it >= 2.0).then_some(()))
        })?;
        if is_long {
            let said = "got no answer for 30 s: storage does not answer, or a limit holds them";
            server.wait_for_log(said, LIMIT)?;
            ensure!(server.log().matches("got no answer").count() == 1, "{}", server.log());
            ensure!(
                server.log().contains("WARN export e1: queue 0 on main has"),
                "{}",
                server.log()
            );
            server.wait_for_log("export e1: queue 0 goes on, after ", 3 * LIMIT)?;
        }
        drop(client);
        stop(server, &[&socket]).map(drop)
    });
}

/// Has a thread of a process wait for so long before its next calls that may sleep.
fn hold_up(server: &Server, thread: &str, time: Duration) -> Result<Program> {
    let tasks = format!("/proc/{}/task", server.pid());
    let mut found = None;
    for task in std::fs::read_dir(&tasks)? {
        let task = task?;
        if std::fs::read_to_string(task.path().join("comm"))?.trim() == thread {
            found = Some(task.file_name().to_string_lossy().into_owned());
        }
    }
    let task = found.with_context(|| format!("no thread is called {thread}"))?;
    let calls = "io_uring_enter,epoll_wait,epoll_pwait,epoll_pwait2";
    let inject = format!("inject={calls}:delay_enter={}:when=1", time.as_micros());
    let words =
        ["-qq", "-o", "/dev/null", "-p", &task, "-e", &format!("trace={calls}"), "-e", &inject];
    let strace = Program::named("strace", "strace", &words);
    ensure!(strace.missing().is_none(), "strace is not installed");
    Ok(strace)
}

/// The thread is held up by its tracer, as by a system call that does not return.
#[test]
fn an_iothread_that_stands_still_is_shown_while_a_move_waits_for_it() {
    const STILL: Duration = Duration::from_secs(12);
    let bench = Bench::new().expect("a directory");
    with(&ringloom(), |_| {
        let other = [
            "--chardev",
            &format!("socket,id=top,path={},server=on,wait=off", bench.text("top.sock")),
        ];
        let (server, socket) = (
            start(&bench, &[&other[..], &["--monitor", "chardev=top,readonly=on"]].concat())?,
            bench.path("m.sock"),
        );
        let client = write(&disk(&bench), 4)?;
        let stalled = "ringloom_iothread_stalled_seconds{iothread=\"t0\"}";
        ensure!(value(&scrape(&socket)?, stalled).is_some_and(|it| it < 1.0), "it stands still");
        let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
        let mut held = hold_up(&server, "IO t0", STILL)?.spawn(&[])?;
        let text = poll_until("t0 to stand still", LIMIT, || {
            let text = scrape(&socket)?;
            Ok(value(&text, stalled).is_some_and(|it| it >= 1.0).then_some(text))
        })?;
        let healthy = "ringloom_iothread_stalled_seconds{iothread=\"t1\"}";
        ensure!(value(&text, healthy).is_some_and(|it| it < 1.0), "{text}");
        let iothreads = QmpClient::connect(&bench.path("top.sock"))?
            .execute("query-ringloom-iothreads", &json!({}))?;
        ensure!(iothreads[0]["stalled-ns"].as_u64() > Some(1_000_000_000), "{iothreads}");
        std::thread::scope(|scope| -> Result<()> {
            let to = json!({"export": "e0", "queue": 0, "iothread": "t1"});
            let moving = scope.spawn(move || qmp.execute("ringloom-move-queue", &to));
            let age = "ringloom_control_age_seconds";
            let text = poll_until("the first thread to wait", LIMIT, || {
                let text = scrape(&socket)?;
                Ok(value(&text, age).is_some_and(|it| it >= 0.5).then_some(text))
            })?;
            ensure!(!moving.is_finished(), "nothing was tried");
            ensure!(value(&text, stalled).is_some_and(|it| it >= 1.0), "{text}");
            ensure!(value(&text, WRITES) == Some(4.0), "{text}");
            moving.join().expect("it panics only with this test")?;
            Ok(())
        })?;
        server.wait_for_log("iothread t0 has not turned for ", LIMIT)?;
        server.wait_for_log("iothread t0 turns again after ", LIMIT)?;
        wait_for(&socket, "ringloom_queue_info{export=\"e0\",queue=\"0\",iothread=\"t1\"}", 1.0)?;
        held.kill()?;
        drop(client);
        stop(server, &[&socket]).map(drop)
    });
}

/// A disk of a server that is killed under its client, and comes back.
#[test]
fn a_server_that_is_lost_is_shown_until_it_is_back() {
    let bench = Bench::new().expect("a directory");
    with(&ringloom(), |_| {
        let far = bench.path("far.sock");
        let serve = || {
            let words = ["-f", "--exit-with-parent", "-U", &bench.text("far.sock"), "memory", "1M"];
            Program::named("nbdkit", "nbdkit", &words).start(&[], std::slice::from_ref(&far))
        };
        let mut kit = serve()?;
        let node = format!(
            "nbd,node-name=far,reconnect-delay=60,server.type=unix,server.path={}",
            far.display()
        );
        let export = format!(
            "vhost-user-blk,id=e1,node-name=far,writable=on,addr.type=unix,addr.path={}",
            bench.text("e1.sock")
        );
        let more = ["--blockdev", &node, "--export", &export];
        let (server, socket) = (start(&bench, &more)?, bench.path("m.sock"));
        let mut client = Client::connect(&bench.path("e1.sock"), Shape::small())?;
        client.write(0, &[0x21; 4096], 0)?;
        let line = "ringloom_nbd_node_disconnected_seconds{node=\"far\"}";
        ensure!(value(&scrape(&socket)?, line) == Some(0.0), "it is connected");
        kit.kill()?;
        std::fs::remove_file(&far)?;
        poll_until("the loss of the server", LIMIT, || {
            Ok(value(&scrape(&socket)?, line).is_some_and(|it| it >= 2.0).then_some(()))
        })?;
        let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
        let nodes = qmp.execute("query-ringloom-nbd-nodes", &json!({}))?;
        ensure!(nodes[0]["node-name"] == "far", "{nodes}");
        ensure!(nodes[0]["server"].as_str().is_some_and(|it| it.contains("far.sock")), "{nodes}");
        ensure!(nodes[0]["disconnected-ns"].as_u64() >= Some(2_000_000_000), "{nodes}");
        let mut kit = serve()?;
        wait_for(&socket, line, 0.0)?;
        drop(client);
        let log = stop(server, &[&socket])?;
        ensure!(log.contains("connected again"), "{log}");
        kit.kill()
    });
}
