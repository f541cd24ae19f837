//! What images hold, what is said of them, and what is refused.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::ceph::Cluster;
use testkit::client::{Client, Shape};
use testkit::deadline::poll_until;
use testkit::image;
use testkit::model::{self, DiskModel, Plan};
use testkit::process::{Bench, Program};
use testkit::qmp::QmpClient;
use testkit::report::skipped;

use super::{MIB, line, node, qemu_io, serve, with_cluster};
use crate::control::{monitor, monitor_socket};
use crate::nbd::{outcome, socket, start, tool, uri};
use crate::support::{qemu_img, stop};

/// All operations; rbd's own tool finds their bytes, and objects that nobody wrote are told as zeroes.
fn bytes_are_where_rbd_finds_them(program: &Program, cluster: &Cluster) -> Result<()> {
    let bench = Bench::new()?;
    cluster.create("bytes", 64)?;
    let ours = serve(program, cluster, &bench, "bytes")?;
    let commands = [
        "write -P 5 0 1M",
        "write -P 6 12M 9M",
        "write -f -P 7 512 512",
        "read -P 5 0 512",
        "read -P 7 512 512",
        "read -P 6 12M 9M",
        "write -z 64k 64k",
        "write -z -u 128k 64k",
        "read -P 0 64k 128k",
        "discard 16M 4M",
        "read -P 0 32M 4M",
        "flush",
    ];
    let said = qemu_io(&bench, &commands)?;
    ensure!(!said.contains("fail") && !said.contains("rror"), "{said}");
    let map = tool("nbdinfo", &["--map", &uri(&bench, "x")])?;
    let lines: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    let expected = [
        ["0", "4194304", "0", "data"],
        ["4194304", "8388608", "3", "hole,zero"],
        ["12582912", "4194304", "0", "data"],
        ["16777216", "4194304", "3", "hole,zero"],
        ["20971520", "4194304", "0", "data"],
        ["25165824", "41943040", "3", "hole,zero"],
    ];
    ensure!(lines == expected.map(|words| words.to_vec()), "{map}");
    stop(ours, &[&socket(&bench)])?;
    let mut bytes = vec![0; 64 << 20];
    bytes[..1 << 20].fill(5);
    bytes[512..1024].fill(7);
    bytes[64 << 10..192 << 10].fill(0);
    bytes[12 << 20..21 << 20].fill(6);
    bytes[16 << 20..20 << 20].fill(0);
    ensure!(cluster.export("bytes")? == bytes, "rbd exports other bytes");
    // Nobody has the lock any more.
    let locks = cluster.rbd(&["lock", "list", "bytes"])?;
    ensure!(locks.trim().is_empty(), "{locks}");
    Ok(())
}

/// Random requests on four queues and two iothreads, every byte compared.
fn random_requests(program: &Program, cluster: &Cluster) -> Result<()> {
    let bench = Bench::new()?;
    let plan = Plan { seed: 0x5bd, operations: 3000, depth: 16, block_bytes: 512 };
    let path = bench.text("a.img");
    let bytes = image::create_filled(&bench.path("a.img"), 32 << 20, plan.seed)?;
    cluster.rbd(&["import", "--no-progress", &path, "random"])?;
    let mut words =
        ["--object", "iothread,id=t0", "--object", "iothread,id=t1"].map(str::to_owned).to_vec();
    words.extend(node(cluster, "random", ""));
    let socket = bench.path("vub.sock");
    let export =
        format!("vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={}", socket.display());
    let own = "writable=on,num-queues=4,iothread.0=t0,iothread.1=t1";
    words.extend(["--export".to_owned(), format!("{export},{own}")]);
    let ours = program.start(&words, std::slice::from_ref(&socket))?;
    let memory_bytes = plan.memory_bytes(4);
    let shape = Shape { queues: 4, queue_size: 256, memory_bytes, ..Shape::small() };
    let mut client = Client::connect(&socket, shape)?;
    let mut model = DiskModel::new(bytes);
    let summary = model::run(&mut client, &mut model, &plan).with_context(|| ours.log())?;
    ensure!(summary.discards > 0 && summary.write_zeroes > 0, "{summary:?}");
    model::verify_through(&mut client, &model)?;
    client.flush()?;
    drop(client);
    stop(ours, &[&socket])?;
    std::fs::write(&path, cluster.export("random")?)?;
    model.check_image(&bench.path("a.img"))
}

/// A qcow2 image in an image, below a throttle; QEMU finds it sound.
fn formats_and_layers_stand_on_it(program: &Program, cluster: &Cluster) -> Result<()> {
    let bench = Bench::new()?;
    qemu_img(&bench, "create -q -f qcow2 a.qcow2 64M")?;
    std::fs::File::options().write(true).open(bench.path("a.qcow2"))?.set_len(80 * MIB)?;
    cluster.rbd(&["import", "--no-progress", &bench.text("a.qcow2"), "format"])?;
    let conf = cluster.conf();
    let image = format!(
        "file.file.driver=rbd,file.file.pool=rbd,file.file.image=format,file.file.conf={}",
        conf.display()
    );
    let node = [
        "--object".to_owned(),
        "throttle-group,id=g,x-iops-total=100000".to_owned(),
        "--blockdev".to_owned(),
        format!("throttle,node-name=n,throttle-group=g,file.driver=qcow2,discard=unmap,{image}"),
    ];
    let ours = start(program, &bench, &line(&bench, &node, ",writable=on"))?;
    let commands =
        ["write -P 5 0 1M", "write -P 6 30M 9M", "read -P 0 1M 1M", "discard 0 64k", "flush"];
    let said = qemu_io(&bench, &commands)?;
    ensure!(!said.contains("fail") && !said.contains("rror"), "{said}");
    stop(ours, &[&socket(&bench)])?;
    std::fs::write(bench.path("b.qcow2"), cluster.export("format")?)?;
    let checked = qemu_img(&bench, "check -f qcow2 b.qcow2")?;
    ensure!(checked.contains("No errors"), "{checked}");
    let image = bench.text("b.qcow2");
    let read = ["-f", "qcow2", "-c", "read -P 5 64k 960k", "-c", "read -P 6 30M 9M", &image];
    let said = tool("qemu-io", &read)?;
    ensure!(!said.contains("verification failed"), "{said}");
    Ok(())
}

/// Into an image and out of it again.
fn disks_are_converted(program: &Program, cluster: &Cluster) -> Result<()> {
    let _same_binary = program;
    let bench = Bench::new()?;
    let bytes = image::create_filled(&bench.path("a.img"), 20 << 20, 11)?;
    cluster.create("converted", 20)?;
    let conf = cluster.conf();
    let image = format!(
        "{{\"driver\":\"rbd\",\"pool\":\"rbd\",\"image\":\"converted\",\"conf\":\"{}\"}}",
        conf.display()
    );
    let ringloom = env!("CARGO_BIN_EXE_ringloom");
    tool(ringloom, &["convert", "-n", "-f", "raw", &bench.text("a.img"), &image])?;
    ensure!(cluster.export("converted")? == bytes, "the image has other bytes");
    let target = bench.text("b.img");
    tool(ringloom, &["convert", "-O", "raw", &image, &target])?;
    ensure!(std::fs::read(&target)? == bytes, "the copy has other bytes");
    Ok(())
}

/// Snapshots are read; a size that changes is seen; images beside each other have name spaces.
fn snapshots_sizes_and_name_spaces(program: &Program, cluster: &Cluster) -> Result<()> {
    let bench = Bench::new()?;
    cluster.rbd(&["namespace", "create", "rbd/apart"])?;
    cluster.create("rbd/apart/changing", 16)?;
    let apart = ",namespace=apart";
    let words = line(&bench, &node(cluster, "changing", apart), ",writable=on");
    let ours = start(program, &bench, &words)?;
    qemu_io(&bench, &["write -P 5 0 1M", "flush"])?;
    cluster.rbd(&["snap", "create", "--no-progress", "rbd/apart/changing@then"])?;
    qemu_io(&bench, &["write -P 6 0 1M", "flush"])?;
    cluster.rbd(&["resize", "--no-progress", "--size", "24M", "rbd/apart/changing"])?;
    let grown = format!("the image has now {} bytes, and had {}", 24 * MIB, 16 * MIB);
    ours.wait_for_log(&grown, Duration::from_secs(30))?;
    let size = poll_until("the size of the export", Duration::from_secs(30), || {
        let size = tool("nbdinfo", &["--size", &uri(&bench, "x")])?;
        Ok((size.trim() == (24 * MIB).to_string()).then_some(()))
    });
    size.with_context(|| ours.log())?;
    qemu_io(&bench, &["write -P 7 20M 4M", "read -P 7 20M 4M"])?;
    let other = Bench::new()?;
    let snapshot = node(cluster, "changing", &format!("{apart},snapshot=then,read-only=on"));
    let theirs = start(program, &other, &line(&other, &snapshot, ""))?;
    let uri = uri(&other, "x");
    let said = tool("qemu-io", &["-r", "-f", "raw", "-c", "read -P 5 0 1M", &uri])?;
    ensure!(!said.contains("verification failed"), "{said}");
    ensure!(tool("nbdinfo", &["--size", &uri])?.trim() == (16 * MIB).to_string(), "the size then");
    stop(theirs, &[&socket(&other)])?;
    stop(ours, &[&socket(&bench)]).map(drop)
}

/// What a monitor says that nodes show: of images and what stands on them, the options by which QEMU names them.
fn names_of(program: &Program, cluster: &Cluster) -> Result<BTreeMap<String, Value>> {
    let bench = Bench::new()?;
    let image = |then: &str| {
        let conf = cluster.conf();
        format!("{then}pool=rbd,{then}image=named,{then}conf={}", conf.display())
    };
    let mut words = monitor(&bench);
    if program.name() != "ringloom" {
        words.truncate(4);
    }
    let all = [
        format!("--blockdev rbd,node-name=i,{},read-only=on,discard=unmap", image("")),
        format!("--blockdev rbd,node-name=s,{},snapshot=then,user=admin,read-only=on", image("")),
        format!("--blockdev raw,node-name=r,file.driver=rbd,{},read-only=on", image("file.")),
        "--object throttle-group,id=g,x-iops-total=1000".to_owned(),
        "--blockdev throttle,node-name=t,throttle-group=g,file=i,read-only=on".to_owned(),
    ];
    words.extend(all.iter().flat_map(|line| line.split(' ')).map(str::to_owned));
    let server = program.start(&words, &[monitor_socket(&bench)])?;
    let mut client = QmpClient::connect(&monitor_socket(&bench))?;
    let nodes = client.execute("query-named-block-nodes", &json!({"flat": true}));
    let nodes = nodes.with_context(|| format!("{}: {}", program.name(), server.log()))?;
    let mut names = BTreeMap::new();
    for node in nodes.as_array().context("a list")? {
        let name = node["node-name"].as_str().context("a name")?;
        let file = node["file"].as_str().context("a file")?;
        let image = node["image"]["filename"].as_str();
        ensure!(image == Some(file), "{node}");
        let options = file.strip_prefix("json:").with_context(|| file.to_owned())?;
        names.insert(name.to_owned(), serde_json::from_str(options)?);
    }
    drop(client);
    stop(server, &[]).map(|_| names)
}

/// Nodes are called as by qemu-storage-daemon.
fn named_as_by_qemu(program: &Program, cluster: &Cluster) -> Result<()> {
    cluster.create("named", 8)?;
    cluster.rbd(&["snap", "create", "--no-progress", "named@then"])?;
    let ours = names_of(program, cluster)?;
    let peer = Program::qemu_storage_daemon();
    if let Some(reason) = peer.missing() {
        skipped(&reason);
        return Ok(());
    }
    // It ends where the cluster goes away while it starts.
    let calm = cluster.outage();
    let theirs = names_of(&peer, cluster)?;
    drop(calm);
    for name in ["i", "s", "r", "t"] {
        let (ours, theirs) = (ours.get(name), theirs.get(name));
        ensure!(ours.is_some() && ours == theirs, "{name}: {ours:?}, QEMU: {theirs:?}");
    }
    Ok(())
}

/// What cannot be served is said, and the daemon does not start.
fn refusals_have_a_sentence(program: &Program, cluster: &Cluster) -> Result<()> {
    let bench = Bench::new()?;
    cluster.create("refused", 8)?;
    cluster.rbd(&["create", "--size", "8M", "--image-feature", "layering", "unlocked"])?;
    let check = |image: &str, more: &str, sentence: &str| -> Result<()> {
        let line = line(&bench, &node(cluster, image, more), ",writable=on");
        let exit = program.refusal(&line, Duration::from_secs(60))?;
        ensure!(!exit.status.success() && exit.stderr.contains(sentence), "{}", exit.stderr);
        Ok(())
    };
    check("missing", "", "image rbd:rbd/missing: rbd_open: No such file or directory")?;
    check("refused", ",snapshot=s", "snapshot=s needs read-only=on")?;
    check("refused", ",namespace=none", "rbd:rbd/none/refused")?;
    check("refused", ",key-secret=k", "'k'")?;
    check("refused", ",encrypt.format=luks", "encrypt")?;
    check("refused", ",auth-client-required=kerberos", "kerberos")?;
    check("refused", ",server.0.host=a,server.0.port=none", "the number of a port")?;
    check("unlocked", "", "rbd feature enable rbd/unlocked exclusive-lock")?;
    cluster.rbd(&["config", "image", "set", "refused", "rbd_cache", "true"])?;
    check("refused", "", "rbd_cache=true, and false is needed")?;
    let words = line(&bench, &node(cluster, "unlocked", ",snapshot=s,read-only=on"), "");
    let exit = program.refusal(&words, Duration::from_secs(60))?;
    ensure!(exit.stderr.contains("image rbd:rbd/unlocked@s"), "{}", exit.stderr);
    // A pool that is not there.
    let mut words = line(&bench, &node(cluster, "refused", ""), "");
    words[3] = words[3].replace("pool=rbd", "pool=none");
    let exit = program.refusal(&words, Duration::from_secs(60))?;
    ensure!(exit.stderr.contains("pool none of the Ceph cluster"), "{}", exit.stderr);
    // An image without a lock can be read.
    let reading = line(&bench, &node(cluster, "unlocked", ",read-only=on"), "");
    let ours = start(program, &bench, &reading)?;
    let written = outcome("qemu-io", &["-f", "raw", "-c", "write 0 512", &uri(&bench, "x")])?;
    ensure!(!written.status.success(), "{written:?}");
    stop(ours, &[&socket(&bench)]).map(drop)
}

#[test]
fn rbd_finds_the_bytes_that_guests_have_written() {
    with_cluster(bytes_are_where_rbd_finds_them);
}

#[test]
fn an_image_of_a_cluster_never_returns_a_wrong_byte() {
    with_cluster(random_requests);
}

#[test]
fn qcow2_and_throttle_stand_on_an_image_of_a_cluster() {
    with_cluster(formats_and_layers_stand_on_it);
}

#[test]
fn disks_are_converted_into_images_of_a_cluster_and_back() {
    with_cluster(disks_are_converted);
}

#[test]
fn a_cluster_has_snapshots_sizes_that_change_and_name_spaces() {
    with_cluster(snapshots_sizes_and_name_spaces);
}

#[test]
fn an_image_of_a_cluster_is_named_as_by_qemu() {
    with_cluster(named_as_by_qemu);
}

#[test]
fn images_of_a_cluster_that_cannot_be_served_are_refused_with_a_sentence() {
    with_cluster(refusals_have_a_sentence);
}
