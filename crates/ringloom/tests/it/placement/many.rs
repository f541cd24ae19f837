//! Many disks on one pool of iothreads, and a guest that plays with the trials of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use testkit::deadline::Deadline;
use testkit::report::note;

use super::*;

/// Disks of four queues each.
const DISKS: usize = 12;
/// How long their guests work.
const WORK: Duration = Duration::from_secs(2);

/// A daemon with so many disks on a pool, images and sockets by number.
pub(super) fn serve_many(
    program: &Program,
    bench: &Bench,
    disks: usize,
    max: u16,
) -> Result<Server> {
    let mut line = vec!["--object".to_owned(), format!("iothread-pool,id=p,max={max}")];
    let sockets: Vec<_> = (0..disks).map(|disk| bench.path(&format!("s{disk}"))).collect();
    for (disk, socket) in sockets.iter().enumerate() {
        let image = bench.text(&format!("d{disk}.img"));
        image::create_sparse(image.as_ref(), Survivor::disk_bytes(QUEUES))?;
        line.extend(["--blockdev".to_owned(), format!("file,node-name=n{disk},filename={image}")]);
        line.extend([
            "--export".to_owned(),
            format!(
                "vhost-user-blk,id=e{disk},node-name=n{disk},writable=on,num-queues={QUEUES},\
                 addr.type=unix,addr.path={},iothread=p",
                socket.display()
            ),
        ]);
    }
    program.start(&line, &sockets)
}

/// Lets so much time pass.
fn pause(time: Duration) {
    let (_sender, receiver) = mpsc::channel::<()>();
    receiver.recv_timeout(time).expect_err("nobody sends");
}

/// All disks at work, some of them in bursts; each image must hold what was completed.
pub(super) fn many_disks(program: &Program) -> Result<String> {
    let bench = Bench::new()?;
    let server = serve_many(program, &bench, DISKS, 3)?;
    let one = |disk: usize| -> Result<Vec<u8>> {
        let socket = bench.path(&format!("s{disk}"));
        let layout = if disk.is_multiple_of(2) { RingLayout::Split } else { RingLayout::Packed };
        let mut client = Survivor::connect(&socket, layout, QUEUES)?;
        let mut rng = Rng::new(disk as u64);
        let end = Deadline::after(WORK);
        while !end.has_passed() {
            work(&mut client, &mut rng, Duration::from_millis(20))?;
            if !disk.is_multiple_of(3) {
                client.drain()?;
                pause(Duration::from_millis(30 * (disk % 3) as u64));
            }
        }
        client.drain()?;
        Ok(client.expected())
    };
    let expected: Vec<Result<Vec<u8>>> = std::thread::scope(|scope| {
        let guests: Vec<_> = (0..DISKS).map(|disk| scope.spawn(move || one(disk))).collect();
        guests.into_iter().map(|it| it.join().expect("a guest does not panic")).collect()
    });
    server.signal(Signal::USR1)?;
    server.wait_for_log("of 3 iothreads run", LIMIT)?;
    let sockets: Vec<_> = (0..DISKS).map(|disk| bench.path(&format!("s{disk}"))).collect();
    let log = stop(server, &sockets.iter().map(|it| &**it).collect::<Vec<_>>())?;
    for (disk, expected) in expected.into_iter().enumerate() {
        let expected = expected.with_context(|| format!("disk {disk}: {log}"))?;
        let found = std::fs::read(bench.path(&format!("d{disk}.img"))).context("read the image")?;
        ensure!(found == expected, "image {disk} does not hold the completed writes: {log}");
    }
    // All tests of a host share the contexts of Linux AIO.
    let is_odd = |line: &&str| line.contains("WARN") && !line.contains("no Linux AIO");
    let odd = log.lines().find(|line| is_odd(line) || line.contains("ERROR"));
    ensure!(odd.is_none(), "{}: {log}", odd.unwrap_or_default());
    Ok(log)
}

#[test]
fn twelve_disks_of_four_queues_share_a_pool_and_lose_nothing() {
    with(&ringloom(), |program| {
        let log = many_disks(program)?;
        for disk in 0..DISKS {
            ensure!(log.contains(&format!("export e{disk}: placed on ")), "disk {disk}: {log}");
        }
        Ok(())
    });
}

/// How often a phase of each kind is measured at most.
const TRIES: usize = 8;
const PHASE: Duration = Duration::from_millis(600);
/// The length of the windows that trials compare.
const WINDOW: Duration = Duration::from_millis(50);

/// Requests that a guest completes in a phase.
fn completed(client: &mut Survivor, rng: &mut Rng) -> Result<usize> {
    let end = Deadline::after(PHASE);
    let mut count = 0;
    while !end.has_passed() {
        client.submit(rng)?;
        match client.collect()? {
            Collected::Requests(requests) => count += requests,
            Collected::Gone => anyhow::bail!("the server has hung up"),
        }
    }
    Ok(count)
}

/// Works and rests by turns: as long as the windows of trials, so that one placement looks good and the other one bad,
/// or with the same load in turns that are too short to be seen.
fn play(socket: &std::path::Path, is_gaming: &AtomicBool, is_over: &AtomicBool) -> Result<()> {
    let mut client = Survivor::connect(socket, RingLayout::Split, QUEUES)?;
    let mut rng = Rng::new(11);
    while !is_over.load(Ordering::Relaxed) {
        let turn = if is_gaming.load(Ordering::Relaxed) { WINDOW } else { WINDOW / 20 };
        work(&mut client, &mut rng, turn)?;
        client.drain()?;
        pause(turn);
    }
    client.drain()
}

#[test]
fn a_guest_that_plays_with_trials_takes_nothing_from_its_neighbour() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let server = serve_many(program, &bench, 2, 2)?;
        let (is_gaming, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut neighbour = Survivor::connect(&bench.path("s0"), RingLayout::Split, QUEUES)?;
        let mut rng = Rng::new(10);
        let socket = bench.path("s1");
        let (played, measured) = std::thread::scope(|scope| {
            let player = scope.spawn(|| play(&socket, &is_gaming, &is_over));
            let mut phase = |gaming: bool| {
                is_gaming.store(gaming, Ordering::Relaxed);
                completed(&mut neighbour, &mut rng).map(|count| count as f64)
            };
            let measured = (0..TRIES).try_fold(Vec::new(), |mut ratios: Vec<f64>, _| {
                // The noise of a busy machine goes both ways; what a player takes stays taken.
                if ratios.last().is_none_or(|ratio| *ratio < 0.8) {
                    let (honest, gamed) = (phase(false)?, phase(true)? + phase(true)?);
                    ratios.push(gamed / (honest + phase(false)?));
                }
                Ok::<_, anyhow::Error>(ratios)
            });
            is_over.store(true, Ordering::Relaxed);
            (player.join().expect("a guest does not panic"), measured)
        });
        played?;
        let ratios = measured?;
        note(&format!(
            "the neighbour's rate beside a player, of that beside an honest guest: {ratios:.2?}"
        ));
        ensure!(ratios.last().is_some_and(|it| *it >= 0.8), "{ratios:.2?}: {}", server.log());
        neighbour.drain()?;
        drop(neighbour);
        stop(server, &[&bench.path("s0"), &bench.path("s1")]).map(drop)
    });
}
