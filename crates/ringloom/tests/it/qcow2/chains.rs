//! Images that stand on others: read through all of them, written only on top.

use std::time::Duration;

use super::*;

/// `base`, `one`, `two`, `top`, each on the one before and of another size; each has some content of its
/// own. The first is raw.
fn make_chain(bench: &Bench) -> Result<()> {
    testkit::image::create_filled(&bench.path("base"), 12 * MIB, 0x81)?;
    let images = [
        ("one", "base", "raw", "8M", "write -P 0x11 1M 2500k"),
        ("two", "one", "qcow2", "20M", "write -P 0x22 3000k 6M"),
        ("top", "two", "qcow2", "16M", "write -P 0x33 7M 100k"),
    ];
    for (image, backing, format, size, write) in images {
        qemu_img(bench, &format!("create -q -f qcow2 -b {backing} -F {format} {image} {size}"))?;
        qemu_io(bench, &["-f", "qcow2", "-c", write, image])?;
    }
    qemu_io(bench, &["-f", "qcow2", "-c", "write -z 4M 1M", "top"]).map(drop)
}

const LINE: &str = "file.driver=file,file.filename=top,discard=unmap,\
    backing.driver=qcow2,backing.file.driver=file,backing.file.filename=two,\
    backing.backing.driver=qcow2,backing.backing.file.driver=file,\
    backing.backing.file.filename=one,backing.backing.backing.driver=raw,\
    backing.backing.backing.file.driver=file,backing.backing.backing.file.filename=base";

const NAMED: &str = "file.driver=file,file.filename=top,discard=unmap,cache.direct=on";

fn check(node: &str, more: &[&str], seed: u64) {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        make_chain(&bench)?;
        let read = |name: &str| std::fs::read(bench.path(name)).with_context(|| name.to_owned());
        let before = [read("base")?, read("one")?, read("two")?];
        let mut model = DiskModel::new(content(&bench, "top")?);
        let server = serve_with(program, &bench, node, "on", more)?;
        work(&bench, &mut model, &plan(seed, 4000)).with_context(|| server.log())?;
        stop(server, &[&bench.path("s")])?;
        check_image(&bench, "top", &model)?;
        ensure!(before == [read("base")?, read("one")?, read("two")?], "written below the top");
        Ok(())
    });
}

#[test]
fn chains_of_all_lengths_never_return_a_wrong_byte() {
    check(LINE, &[], 0x200);
    check(NAMED, &["--named-files", "on"], 0x210);
    check(NAMED, &["--named-files", ".", "--sandbox", "on"], 0x220);
}

/// Each of the two formats is told of each request, and may hold it again.
#[test]
fn an_image_inside_an_image_never_returns_a_wrong_byte() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        qemu_img(&bench, "create -q -f qcow2 -o cluster_size=16k inner 24M")?;
        qemu_io(&bench, &["-f", "qcow2", "-c", "write -P 0x44 1M 5M", "inner"])?;
        qemu_img(&bench, "create -q -f qcow2 outer 64M")?;
        qemu_img(&bench, "convert -n -f raw -O qcow2 inner outer")?;
        let mut model = DiskModel::new(content(&bench, "inner")?);
        let outer = "file.driver=qcow2,file.file.driver=file,file.file.filename=outer";
        let node = format!("{outer},discard=unmap,file.discard=unmap");
        // Opened again, it is what it was when it was closed.
        for (seed, more) in [(0x230, &[][..]), (0x231, &["--sandbox", "on"])] {
            let server = serve_with(program, &bench, &node, "on", more)?;
            work(&bench, &mut model, &plan(seed, 2000)).with_context(|| server.log())?;
            stop(server, &[&bench.path("s")])?;
            qemu_img(&bench, "check -q -f qcow2 outer")?;
            qemu_img(&bench, &format!("check -q --image-opts driver=qcow2,{outer}"))?;
            qemu_img(&bench, &format!("convert --image-opts -O raw driver=qcow2,{outer} found"))?;
            model.check_image(&bench.path("found"))?;
        }
        Ok(())
    });
}

/// A base that a node could write to, as after a snapshot of a running guest.
#[test]
fn what_a_writable_base_has_shines_through() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        make_chain(&bench)?;
        let mut model = DiskModel::new(content(&bench, "top")?);
        let node = |name: &str, backing: &str| {
            format!("qcow2,node-name={name},file.driver=file,file.filename={name},{backing}")
        };
        let raw = "backing.driver=raw,backing.file.driver=file,backing.file.filename=base";
        let nodes = [node("one", raw), node("two", "backing=one"), node("top", "backing=two")];
        let export = format!(
            "vhost-user-blk,id=e,node-name=top,writable=on,num-queues={QUEUES},addr.type=unix,addr.path={}",
            bench.text("s")
        );
        let mut words: Vec<String> =
            nodes.into_iter().flat_map(|node| ["--blockdev".to_owned(), node]).collect();
        words.extend(["--export".to_owned(), export]);
        let server = program
            .clone()
            .in_directory(bench.path(""))
            .start(&words, &[PathBuf::from(bench.text("s"))])?;
        work(&bench, &mut model, &plan(0x240, 4000)).with_context(|| server.log())?;
        stop(server, &[&bench.path("s")])?;
        check_image(&bench, "top", &model)
    });
}

#[test]
fn without_its_backing_an_image_shows_what_it_has_itself() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        make_chain(&bench)?;
        let server = serve(program, &bench, &format!("{NAMED},backing=null"), "off")?;
        let mut client = Client::connect(&bench.path("s"), Shape::small())?;
        let mut expected = vec![0; 16 * MIB];
        expected[7 * MIB..][..100 << 10].fill(0x33);
        // The rest of the clusters that were written in part came from below.
        let (first, last) = (7 * MIB, 7 * MIB + (100 << 10));
        ensure!(client.read(first as u64, last - first, 0)? == expected[first..last], "its own");
        ensure!(client.read(0, 1 << 20, 0)? == expected[..1 << 20], "from below");
        drop(client);
        stop(server, &[&bench.path("s")]).map(drop)
    });
}

/// Two daemons have overlays of one base; nobody writes to it, or to an overlay.
#[test]
fn a_base_is_shared_and_nobody_writes_to_it() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        make_chain(&bench)?;
        qemu_img(&bench, "create -q -f qcow2 -b two -F qcow2 other")?;
        let first = serve_with(program, &bench, NAMED, "on", &["--named-files=on"])?;
        let node = NAMED.replace("filename=top", "filename=other");
        let second = serve_at(program, &bench, "t", &node, "on", &["--named-files=on"])?;
        for (format, image) in [
            ("raw", "base"),
            ("qcow2", "one"),
            ("qcow2", "two"),
            ("qcow2", "top"),
            ("qcow2", "other"),
        ] {
            let written = qemu_io(&bench, &["-f", format, "-c", "write 0 4k", image]);
            let said =
                format!("{:#}", written.err().with_context(|| format!("{image} is written"))?);
            ensure!(said.contains("lock"), "{image}: {said}");
        }
        // Who only reads is let in where it bears a writer, or there is none.
        qemu_io(&bench, &["-r", "-f", "raw", "-c", "read 0 4k", "base"])?;
        qemu_io(&bench, &["-r", "-f", "qcow2", "-c", "read 0 4k", "two"])?;
        stop(second, &[&bench.path("t")])?;
        stop(first, &[&bench.path("s")]).map(drop)
    });
}

/// A daemon that starts while the base is written waits, and gives up.
#[test]
fn a_base_that_somebody_writes_is_waited_for() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        make_chain(&bench)?;
        let mut writer = Program::named("qemu-io", "qemu-io", &[])
            .in_directory(bench.path(""))
            .spawn(&["-f", "raw", "-c", "sleep 3000", "base"].map(str::to_owned))?;
        // The permission to write, as QEMU locks it.
        wait_for_lock(&bench.path("base"), 101, Duration::from_secs(10))?;
        let server = serve_with(program, &bench, NAMED, "on", &["--named-files=on"])?;
        // It was written before the socket, but may be read after it.
        server.wait_for_log("has the lock after", START_LIMIT).context("no wait")?;
        writer.wait(Duration::from_secs(10))?;
        stop(server, &[&bench.path("s")]).map(drop)
    });
}
