//! A whole run: every row, in alternating pairs, saved after each row.
#![expect(clippy::print_stdout, reason = "tables are for the terminal")]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use load::Timing;
use load::host::Method;

use crate::args::Args;
use crate::cpus::ProcessCpus;
use crate::disks::{Disks, raw_of};
use crate::images::Image;
use crate::machine::{Machine, version};
use crate::measure::{Counting, Values, serve, timing};
use crate::refill::connections;
use crate::refill::{Company, Fairness, Layer, Recording};
use crate::results::{Contender, HostChoice, Results, RowResult, Sample, Settings};
use crate::rows::{self, Client, Disk, Kind, Load, Row};
use crate::server::{Iothreads, Program, Service};
use crate::{compare, host, refill, render, special};

/// Idle servers are quiet for seconds, and memory hardly varies: fewer repeats suffice.
const SPECIAL_PAIRS_MAX: u32 = 2;
/// What grows on a tmpfs takes memory: at 100 000 clusters of 64 KiB per second 3 GiB.
const GROWING_TIME_MAX: Duration = Duration::from_millis(500);
const CALLS_TIME_MAX: Duration = Duration::from_millis(200);
/// Until `iothread=auto` has tried one iothread against two.
const PLACEMENT_TIME: Duration = Duration::from_secs(3);

/// Does what the command line says.
///
/// # Errors
/// If a row cannot be measured; what was measured before is saved.
pub fn main(args: &Args) -> Result<()> {
    if let [before, after] = args.compare.as_slice() {
        let (before, after) = (Results::load(before)?, Results::load(after)?);
        print!("{}", compare::text(&before, &after));
        return Ok(());
    }
    if let Some(requests) = args.profile {
        let (answered, elapsed) = refill::profile(requests)?;
        println!("{answered} requests in {:.3} s", elapsed.as_secs_f64());
        return Ok(());
    }
    let rows = chosen_rows(args)?;
    if args.list {
        rows.iter().for_each(|row| println!("{:44} {}", row.name, row.wanted));
        return Ok(());
    }
    measure_all(args, &rows)
}

fn chosen_rows(args: &Args) -> Result<Vec<Row>> {
    if !args.rows.is_empty() {
        return rows::chosen(rows::full(), &args.rows).map_err(|problem| anyhow!(problem));
    }
    Ok(if args.full { rows::full() } else { rows::quick() })
}

fn measure_all(args: &Args, rows: &[Row]) -> Result<()> {
    ensure!(args.pairs > 0, "--pairs 0: at least one");
    // Before this process keeps to the client's CPUs.
    let machine = Machine::read();
    let mut bench = Bench::new(args)?;
    let versions = vec![version(&args.ringloom)?, version(&args.qsd)?];
    let settings = Settings {
        pairs: args.pairs,
        sample_s: args.seconds,
        server_cpus: bench.cpus.server.clone(),
        client_cpus: bench.cpus.client.clone(),
        seed: rows::SEED,
    };
    let mut results = Results::new(machine, versions, settings);
    print!("{}", render::head(&results));
    for row in rows {
        let measured = bench.row(row).with_context(|| format!("row {}", row.name))?;
        print!("{}", render::row(&measured));
        results.rows.push(measured);
        save(&results, args.out.as_deref())?;
    }
    print!("\n{}", render::markdown(&results));
    if let Some(path) = &args.out {
        println!("\nsaved: {}", path.display());
    }
    Ok(())
}

fn save(results: &Results, path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("make {}", directory.display()))?;
    }
    results.save(path)
}

/// A server of a row.
struct Entrant {
    contender: Contender,
    program: Program,
    disk: Disk,
    iothreads: Iothreads,
}

struct Bench {
    cpus: ProcessCpus,
    disks: Disks,
    programs: [(Contender, Program); 2],
    pairs: u32,
    runtime: Duration,
}

impl Bench {
    fn new(args: &Args) -> Result<Self> {
        let cpus = ProcessCpus::split(args.server_cpus.as_deref(), args.client_cpus.as_deref())?;
        cpus.be_client()?;
        let programs = [
            (Contender::Ringloom, Program::Ringloom(args.ringloom.clone())),
            (Contender::Qsd, Program::Qsd(args.qsd.clone())),
        ];
        let (disks, pairs, runtime) =
            (Disks::new(&args.work, args.ceph_conf.as_deref()), args.pairs, args.sample()?);
        Ok(Self { cpus, disks, programs, pairs, runtime })
    }

    fn row(&mut self, row: &Row) -> Result<RowResult> {
        let (name, wanted) = (row.name.clone(), row.wanted.to_owned());
        let mut result = RowResult { name, wanted, host: None, samples: Vec::new() };
        match row.kind {
            Kind::Load(load) => self.load_row(&load, &mut result)?,
            Kind::Auto(load) => self.auto_row(&load, &mut result)?,
            Kind::Refill(disk) => self.refill_row(disk, &mut result)?,
            Kind::Layer(layer) => self.layer_row(layer, &mut result)?,
            Kind::Bitmap { disk, rings } => self.bitmap_row(disk, rings, &mut result)?,
            Kind::SharedLayer(layer) => self.shared_layer_row(layer, &mut result)?,
            Kind::Fairness(fairness) => self.fairness_row(fairness, &mut result)?,
            Kind::Opening(image) => self.opening_row(image, &mut result)?,
            Kind::Idle => {
                let cpus = &self.cpus;
                self.special_row(&mut result, |program| special::idle(program, cpus))?;
            }
            Kind::Nbd(disk) => self.nbd_row(disk, &mut result)?,
            Kind::Connections(connections) => self.connections_row(connections, &mut result)?,
            Kind::Moves(rings) => self.moves_row(rings, &mut result)?,
            Kind::AfterOthers => {
                let cpus = &self.cpus;
                self.special_row(&mut result, |program| special::after_others(program, cpus))?;
            }
            Kind::Memory => {
                let (cpus, runtime) = (&self.cpus, self.runtime);
                self.special_row(&mut result, |program| special::memory(program, cpus, runtime))?;
            }
        }
        Ok(result)
    }

    fn load_row(&mut self, load: &Load, result: &mut RowResult) -> Result<()> {
        self.disks.make(load.disk)?;
        let host = self.choose_host(load)?;
        if load.client == Client::Polling {
            add(result, 0, Contender::Ceiling, special::ceiling(load, self.runtime)?);
        }
        let mut entrants = self.entrants(load.disk);
        for pair in 0..self.pairs {
            for entrant in &entrants {
                let values = self.serve(entrant, load, self.runtime, Counting::CpuTime)?;
                add(result, pair, entrant.contender, values);
            }
            if let (Some((method, _)), Some(file)) = (&host, self.disks.file(load.disk)) {
                let values = host::measure(file, *method, load, self.runtime)?;
                add(result, pair, Contender::Host, values);
            }
            if let (Disk::ClusterImage, Some(image)) = (load.disk, self.disks.rbd()) {
                let values = image.fio(load, self.runtime, &self.cpus)?;
                add(result, pair, Contender::Host, values);
            }
            // Who is first changes, so that neither always follows the other.
            entrants.reverse();
        }
        let short = self.runtime.min(CALLS_TIME_MAX);
        for entrant in &entrants {
            let values = self.serve(entrant, load, short, Counting::SystemCalls)?;
            add(result, self.pairs, entrant.contender, values);
        }
        result.host = host.map(|(_, choice)| choice);
        Ok(())
    }

    /// How the bare host does the same, where it is compared with.
    fn choose_host(&self, load: &Load) -> Result<Option<(Method, HostChoice)>> {
        // Arrivals are about the cost of a server; a host has none. Images are compared with raw files.
        let is_comparable = matches!(load.disk, Disk::Tmpfs | Disk::Work)
            && !matches!(load.client, Client::Arrivals { .. });
        let file = self.disks.file(load.disk).filter(|_| is_comparable);
        file.map(|file| host::best(file, load, self.runtime)).transpose()
    }

    /// Who serves a disk: the programs, and ringloom on a raw file beside an image.
    fn entrants(&self, disk: Disk) -> Vec<Entrant> {
        let [ringloom, qsd] = self.programs.clone();
        let iothreads = Iothreads::Fixed(1);
        let of = |(contender, program), disk| Entrant { contender, program, disk, iothreads };
        let raw = match disk {
            Disk::Image(image) => Some(raw_of(image)),
            Disk::Null
            | Disk::Tmpfs
            | Disk::Work
            | Disk::Sparse { .. }
            | Disk::RemoteImage
            | Disk::ClusterImage => None,
        };
        let raw = raw.map(|raw| of((Contender::Raw, ringloom.1.clone()), raw));
        // Where the disk is the limit, an iothread must cost little.
        let none = (disk == Disk::Work).then(|| Entrant {
            iothreads: Iothreads::Fixed(0),
            ..of((Contender::WithoutIothread, ringloom.1.clone()), disk)
        });
        let both = [of(ringloom, disk), of(qsd, disk)];
        both.into_iter().chain(raw).chain(none).collect()
    }

    fn serve(
        &mut self,
        entrant: &Entrant,
        load: &Load,
        runtime: Duration,
        counting: Counting,
    ) -> Result<Values> {
        let disk = entrant.disk;
        let mut runtime = runtime;
        if disk.is_sparse() && load.operation.writes() {
            self.disks.renew(disk)?;
            runtime = runtime.min(GROWING_TIME_MAX);
        }
        let file = self.disks.file(disk);
        let service =
            Service { file, exports: 1, queues: load.rings, iothreads: entrant.iothreads };
        serve(&entrant.program, &service, load, &self.cpus, timing(runtime), counting)
    }

    /// Where there are two CPUs for server and client, two iothreads may help or not.
    fn auto_row(&mut self, load: &Load, result: &mut RowResult) -> Result<()> {
        self.disks.make(load.disk)?;
        let (program, file) = (&self.programs[0].1, self.disks.file(load.disk));
        let cpus = self.cpus.shared();
        let timing = Timing { ramp: PLACEMENT_TIME, runtime: self.runtime };
        let mut order = [
            (Contender::Auto, Iothreads::Auto),
            (Contender::OneThread, Iothreads::Fixed(1)),
            (Contender::TwoThreads, Iothreads::Fixed(2)),
        ];
        for pair in 0..self.pairs {
            for (contender, iothreads) in order {
                let service = Service { file, exports: 1, queues: load.rings, iothreads };
                let values = cpus.on_all(|| {
                    serve(program, &service, load, &cpus, timing, Counting::CpuTime)
                })??;
                add(result, pair, contender, values);
            }
            order.reverse();
        }
        self.cpus.be_client()
    }

    fn opening_row(&mut self, image: Image, result: &mut RowResult) -> Result<()> {
        self.disks.make(Disk::Image(image))?;
        let file = self.disks.file(Disk::Image(image));
        let mut order: Vec<_> = self.programs.iter().collect();
        for pair in 0..self.pairs {
            for (contender, program) in &order {
                add(result, pair, *contender, special::opening(program, file, &self.cpus)?);
            }
            order.reverse();
        }
        Ok(())
    }

    fn refill_row(&mut self, disk: Disk, result: &mut RowResult) -> Result<()> {
        self.disks.make(disk)?;
        for pair in 0..self.pairs {
            for (contender, threads, rings) in [
                (Contender::OneThread, 1, 1),
                (Contender::TwoThreads, 2, 1),
                (Contender::TwoRings, 1, 2),
            ] {
                let (file, runtime) = (self.disks.file(disk), self.runtime);
                let measure = || refill::measure(threads, rings, file, runtime);
                let values = self.cpus.on_all(measure)??;
                add(result, pair, contender, values);
            }
        }
        Ok(())
    }

    fn nbd_row(&mut self, disk: Disk, result: &mut RowResult) -> Result<()> {
        self.disks.make(disk)?;
        let file = self.disks.file(disk);
        let mut order: Vec<_> = self.programs.iter().collect();
        for pair in 0..self.pairs {
            for (contender, program) in &order {
                let mut server = program.start_nbd(file, &self.cpus)?;
                server.wait_until_it_accepts(0)?;
                let values = connections::fio(&server.socket(0), server.pid(), self.runtime)?;
                server.stop()?;
                add(result, pair, *contender, values);
            }
            order.reverse();
        }
        Ok(())
    }

    fn connections_row(&self, connections: u16, result: &mut RowResult) -> Result<()> {
        for pair in 0..self.pairs {
            for (contender, threads) in [(Contender::OneThread, 1), (Contender::TwoThreads, 2)] {
                let measure = || connections::measure(threads, connections.into(), self.runtime);
                add(result, pair, contender, self.cpus.on_all(measure)??);
            }
        }
        Ok(())
    }

    fn layer_row(&self, layer: Layer, result: &mut RowResult) -> Result<()> {
        let mut order = [(Contender::OneThread, Layer::None), (Contender::Layered, layer)];
        for pair in 0..self.pairs {
            for (contender, layer) in order {
                let values = self.cpus.on_all(|| layer.measure(1, self.runtime))??;
                add(result, pair, contender, values);
            }
            order.reverse();
        }
        Ok(())
    }

    fn bitmap_row(&mut self, disk: Disk, rings: u16, result: &mut RowResult) -> Result<()> {
        self.disks.make(disk)?;
        let file = self.disks.file(disk);
        let mut order =
            [(Contender::OneThread, Recording::Off), (Contender::Layered, Recording::On)];
        for pair in 0..self.pairs {
            for (contender, recording) in order {
                let measure = || refill::measure_writes(recording, rings, file, self.runtime);
                add(result, pair, contender, self.cpus.on_all(measure)??);
            }
            order.reverse();
        }
        Ok(())
    }

    fn shared_layer_row(&self, layer: Layer, result: &mut RowResult) -> Result<()> {
        for pair in 0..self.pairs {
            for (contender, threads) in [(Contender::OneThread, 1), (Contender::TwoThreads, 2)] {
                let values = self.cpus.on_all(|| layer.measure(threads, self.runtime))??;
                add(result, pair, contender, values);
            }
        }
        Ok(())
    }

    fn moves_row(&self, rings: u16, result: &mut RowResult) -> Result<()> {
        for pair in 0..self.pairs {
            let values = self.cpus.on_all(|| refill::moves::measure(rings, self.runtime))??;
            add(result, pair, Contender::Moved, values);
        }
        Ok(())
    }

    fn fairness_row(&mut self, fairness: Fairness, result: &mut RowResult) -> Result<()> {
        self.disks.make(fairness.disk)?;
        let file = self.disks.file(fairness.disk);
        let mut order = [Company::Quiet, Company::Both, Company::Saturated];
        for pair in 0..self.pairs {
            for company in order {
                let measured = fairness.measure(company, file, &self.cpus, self.runtime)?;
                measured.into_iter().for_each(|(contender, values)| {
                    add(result, pair, contender, values);
                });
            }
            order.reverse();
        }
        Ok(())
    }

    fn special_row(
        &self,
        result: &mut RowResult,
        measure: impl Fn(&Program) -> Result<Values>,
    ) -> Result<()> {
        for pair in 0..self.pairs.min(SPECIAL_PAIRS_MAX) {
            for (contender, program) in &self.programs {
                add(result, pair, *contender, measure(program)?);
            }
        }
        Ok(())
    }
}

fn add(result: &mut RowResult, pair: u32, contender: Contender, values: Values) {
    result.samples.push(Sample { pair, contender, values });
}
