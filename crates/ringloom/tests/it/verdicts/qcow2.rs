//! Which qcow2 images are served, and how they may stand on each other.

use std::fs;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use testkit::process::{Bench, Program};

use super::{IMAGE_BYTES, Refused, Served, Verdict, image, is_ours, judged, ringloom, with};
use crate::support::qemu_img;

/// Where the header has its fields (QEMU's docs/interop/qcow2.rst).
const CLUSTER_BITS: u64 = 20;
const INCOMPATIBLE: u64 = 72;

/// The images, in the directory where the servers run: `a`, `b` on `a`, `c` on a raw one, `d` on `b`,
/// `gone` on one that is not there, `outer` with the bytes of `a` inside, and some that cannot be served.
fn make_images(bench: &Bench) -> Result<()> {
    image::create_filled(&bench.path("disk.img"), IMAGE_BYTES, 0x67)?;
    let create = |line: &str| qemu_img(bench, &format!("create -q -f qcow2 {line}")).map(drop);
    create("a.qcow2 1M")?;
    create("-o compat=0.10 old.qcow2 1M")?;
    create("-b a.qcow2 -F qcow2 b.qcow2")?;
    create("-b disk.img -F raw c.qcow2")?;
    create("-b b.qcow2 -F qcow2 d.qcow2")?;
    create("-u -b nosuch.qcow2 -F qcow2 gone.qcow2 1M")?;
    create("outer.qcow2 8M")?;
    qemu_img(bench, "convert -n -f raw -O qcow2 a.qcow2 outer.qcow2")?;
    for (name, place, bytes) in [
        ("odd", CLUSTER_BITS, [0, 0, 0, 3].as_slice()),
        ("unknown", INCOMPATIBLE, &[0x80, 0, 0, 0, 0, 0, 0, 0]),
        ("marked", INCOMPATIBLE, &[0, 0, 0, 0, 0, 0, 0, 2]),
    ] {
        let path = bench.path(&format!("{name}.qcow2"));
        fs::copy(bench.path("a.qcow2"), &path).context("copy an image")?;
        let file = fs::OpenOptions::new().write(true).open(&path).context("open an image")?;
        file.write_all_at(bytes, place).context("spoil an image")?;
    }
    Ok(())
}

/// One line for both: `NODE=IMAGE` is a qcow2 node in that image, with more keys behind a comma. What
/// images name may be opened; ringloom has to be told so.
#[track_caller]
fn check(line: &str, verdict: Verdict) {
    for program in [Program::qemu_storage_daemon(), ringloom()] {
        with(&program, |program| {
            let bench = Bench::new()?;
            make_images(&bench)?;
            if line.contains("locked") {
                let luks = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10";
                let words = "create -q -f qcow2 --object secret,id=s,data=geheim";
                qemu_img(&bench, &format!("{words} -o {luks} locked.qcow2 1M"))?;
            }
            let ours = if is_ours(program) { &["--named-files", "on"][..] } else { &[] };
            let program = program.clone().in_directory(bench.path(""));
            judged(&program, &bench, &written_out(line), ours, verdict)
                .with_context(|| line.to_owned())
        });
    }
}

fn written_out(line: &str) -> String {
    let word = |word: &str| match word.split_once('=') {
        Some((node, image)) if !node.contains([',', '>', '{']) => {
            let (image, more) = image.split_once(',').unwrap_or((image, ""));
            let comma = if more.is_empty() { "" } else { "," };
            format!(
                "qcow2,node-name={node},file.driver=file,file.filename={image}.qcow2{comma}{more}"
            )
        }
        _ => word.to_owned(),
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn images_are_served_and_what_is_none_is_refused() {
    check("n=a n>>0", Served(1));
    check("n=old n>>0", Served(1));
    check("n=a,read-only=on n>0", Served(1));
    check("n=a,read-only=on n>>0", Refused(&["'n'", "read-only"]));
    check("n=a,discard=unmap,cache.no-flush=on n>>0", Served(1));
    check("n=odd n>0", Refused(&["node n", "cluster_bits is 3"]));
    check("n=unknown,read-only=on n>0", Refused(&["node n", "unknown incompatible features"]));
    check("n=locked n>>0", Refused(&["node n", "encrypted (LUKS)"]));
    check("n=nosuch n>0", Refused(&["nosuch.qcow2", "No such file"]));
    let raw = "qcow2,node-name=n,file.driver=file,file.filename=disk.img n>0";
    check(raw, Refused(&["node n", "not a qcow2 image"]));
    check(
        "qcow2,node-name=n,file.driver=null-co,file.read-zeroes=on n>0",
        Refused(&["not a qcow2"]),
    );
    check("qcow2,node-name=n n>0", Refused(&["'file' is missing"]));
}

#[test]
fn an_image_that_is_marked_corrupt_is_only_read() {
    check("n=marked n>>0", Refused(&["node n", "corrupt"]));
    check("n=marked n>0", Refused(&["node n", "corrupt"]));
    check("n=marked,read-only=on n>0", Served(1));
}

#[test]
fn sizes_of_caches_are_judged_alike() {
    for sizes in [
        "l2-cache-size=0",
        "l2-cache-size=1048576",
        "refcount-cache-size=1048576",
        "cache-size=0",
        "cache-size=1048576,l2-cache-size=65536",
        "overlap-check=none",
        "overlap-check.template=all",
        "cache-size=1048576,refcount-cache-size=1048576",
        "l2-cache-size=9223372036854775807",
    ] {
        check(&format!("n=a,{sizes} n>>0"), Served(1));
    }
    for (sizes, named) in [
        ("l2-cache-size=1M", &["'l2-cache-size'"][..]),
        ("l2-cache-size=-1", &["'l2-cache-size'"]),
        ("cache-size=9223372036854775808", &["'cache-size'"]),
        ("cache-size=1,l2-cache-size=2", &["l2-cache-size may not exceed cache-size"]),
        ("cache-size=1,refcount-cache-size=2", &["refcount-cache-size may not exceed cache-size"]),
        ("cache-size=3,l2-cache-size=1,refcount-cache-size=1", &["at the same time"]),
        ("refcount-cache-size=9223372036854775807", &["node n", "Refcount cache size too big"]),
        ("l2-cash-size=1", &["l2-cash-size", "l2-cache-size"]),
    ] {
        check(&format!("n=a,{sizes} n>>0"), Refused(named));
    }
}

#[test]
fn what_is_below_an_image_is_what_the_line_says_or_else_the_image() {
    check("n=b n>>0", Served(1));
    check("n=c n>>0", Served(1));
    check("n=d n>>0", Served(1));
    check("n=gone n>0", Refused(&["backing file 'nosuch.qcow2'", "No such file"]));
    check("n=gone,backing= n>>0", Served(1));
    let json = r#"{"driver":"qcow2","node-name":"n","backing":null,"file":"f"}"#;
    check(&format!("file,node-name=f,filename=gone.qcow2 {json} n>0"), Served(1));
    check("m=a,read-only=on n=gone,backing=m n>>0 m>1", Served(2));
    check("n=gone,backing=nosuch n>>0", Refused(&["'nosuch'"]));
    check("n=a,backing.driver=null-co n>>0", Served(1));
    check("n=a,backing=n n>>0", Refused(&["n -> n"]));
    check("n=gone,backing=m m=a n>>0", Refused(&["'m'", "only after its use"]));
}

#[test]
fn an_image_may_be_in_an_image() {
    let outer = "file.driver=qcow2,file.file.driver=file,file.file.filename=outer.qcow2";
    check(&format!("qcow2,node-name=n,{outer} n>>0"), Served(1));
    check(&format!("qcow2,node-name=n,read-only=on,{outer} n>0"), Served(1));
    let below = "file.file.driver=qcow2,file.file.file.driver=file";
    let raw = format!("file.driver=raw,{below},file.file.file.filename=outer.qcow2");
    check(&format!("qcow2,node-name=n,{raw} n>>0"), Served(1));
    check("m=outer qcow2,node-name=n,file=m n>>0", Served(1));
    check("m=outer raw,node-name=r,file=m qcow2,node-name=n,file=r n>>0", Served(1));
    // Its own header is there, but no image inside.
    check("m=a qcow2,node-name=n,file=m n>>0", Refused(&["not a qcow2 image"]));
}

#[test]
fn what_an_image_is_in_nobody_else_writes() {
    let file = "file,node-name=f,filename=a.qcow2";
    let image = "qcow2,node-name=n,file=f";
    check(&format!("{file} {image} n>>0 n>>1"), Served(2));
    let conflict = Refused(&["Permission conflict on node 'f'", "'write'", "node 'n'", "'file'"]);
    check(&format!("{file} {image} f>>0"), conflict);
    check(&format!("{file} {image},read-only=on n>0 f>>1"), conflict);
    check(&format!("{file} {image} qcow2,node-name=m,file=f"), Refused(&["on node 'f'", "'m'"]));
    check(&format!("{file},read-only=on {image} n>0"), Refused(&["'f' is read-only"]));
    check(&format!("{file},read-only=on {image},read-only=on n>0"), Served(1));
    check(&format!("{file},auto-read-only=on {image} n>>0"), Served(1));
    check(&format!("{file},active=off {image} n>>0"), Refused(&["'f'", "'n'", "file"]));
}
