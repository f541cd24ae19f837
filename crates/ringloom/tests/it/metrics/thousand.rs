//! A daemon with many queues: how long a scrape takes. A thousand of them, and the time that counts, are for a build that is
//! optimized: `RINGLOOM_METRICS_QUEUES=1000 cargo test --release -p ringloom --test it -- metrics::thousand --nocapture`.

use testkit::deadline::Deadline;

use super::*;

/// How long a scrape of a thousand queues may take.
const SCRAPE_MAX: Duration = Duration::from_millis(20);

/// How often it is scraped: the shortest time counts, since the machine does other things, too.
const SCRAPES: u32 = 20;

/// The queues of a disk.
const QUEUES: usize = 4;

#[test]
#[expect(clippy::print_stdout, reason = "what is measured is for whoever reads the output")]
fn a_scrape_of_many_queues_is_soon_over() {
    let queues = std::env::var("RINGLOOM_METRICS_QUEUES").ok();
    let queues: usize = queues.map_or(40, |text| text.parse().expect("a number of queues"));
    let bench = Bench::new().expect("a directory");
    with(&ringloom(), |program| {
        let disks = queues.div_ceil(QUEUES);
        let mut line = metrics(&bench);
        line.extend(["--object".to_owned(), "iothread,id=t0".to_owned()]);
        for number in 0..disks {
            line.extend([
                "--blockdev".to_owned(),
                format!("null-co,node-name=n{number},size=1048576"),
            ]);
            let socket = bench.text(&format!("{number}"));
            line.extend(["--export".to_owned(), format!(
                "vhost-user-blk,id=e{number},node-name=n{number},writable=on,iothread=t0,num-queues={QUEUES},\
                 addr.type=unix,addr.path={socket}"
            )]);
        }
        let last = bench.path(&format!("{}", disks - 1));
        let server = program.start(&line, &[last.clone(), bench.path("m.sock")])?;
        let shape = Shape { queues: QUEUES, ..Shape::small() };
        let connect = |number: usize| Client::connect(&bench.path(&number.to_string()), shape);
        let mut clients = (0..disks).map(connect).collect::<Result<Vec<_>>>()?;
        for client in &mut clients {
            client.write(0, &[1; 512], 0)?;
        }
        let served = format!("ringloom_export_queues{{export=\"e{}\"}}", disks - 1);
        let text = wait_for(&bench.path("m.sock"), &served, QUEUES as f64)?;
        let shown =
            text.lines().filter(|line| line.starts_with("ringloom_queue_in_flight{")).count();
        ensure!(shown == disks * QUEUES, "{shown} queues of {}", disks * QUEUES);
        let mut soonest = Duration::MAX;
        for _ in 0..SCRAPES {
            let clock = Deadline::after(LIMIT);
            scrape(&bench.path("m.sock"))?;
            soonest = soonest.min(clock.elapsed());
        }
        println!("{shown} queues, {} bytes: {soonest:?}", text.len());
        // A build for tests takes many times as long.
        let slower = if cfg!(debug_assertions) { 10 } else { 1 };
        ensure!(soonest < SCRAPE_MAX * slower, "a scrape takes {soonest:?}");
        drop(clients);
        stop(server, &[&last]).map(drop)
    });
}
