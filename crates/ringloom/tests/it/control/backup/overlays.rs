//! Jobs whose target is made as an overlay on their source (`sync=none` of `drive-backup` and `drive-mirror`).

use testkit::rng::Rng;

use super::*;

/// A disk of random bytes with a guest, and what it holds.
struct Written {
    place: Place,
    guest: Client,
    disk: Vec<u8>,
    rng: Rng,
}

impl Written {
    fn new(program: &Program, seed: u64) -> Result<Self> {
        let mut place = Place::new(program)?;
        let mut rng = Rng::new(seed);
        let mut guest = Client::connect(&place.bench.path("a2.sock"), Shape::small())?;
        let mut disk = place.content("a")?;
        for (number, part) in (0_u64..).zip(disk.chunks_mut(65536)) {
            // Zeroes here and there.
            if number % 5 != 4 {
                rng.fill(part);
                guest.write(number << 16, part, 0)?;
            }
        }
        place.qmp.events.clear();
        Ok(Self { place, guest, disk, rng })
    }

    /// Writes parts of clusters and more, here and there, in the guest and in what is known of its disk.
    fn write(&mut self, times: usize) -> Result<()> {
        for round in 0..times {
            let count = 512 << self.rng.below(8);
            let at = self.rng.below((BYTES - count) / 512 + 1) * 512;
            let place = usize::try_from(at)?..usize::try_from(at + count)?;
            let part = &mut self.disk[place];
            if round % 4 == 3 {
                part.fill(0);
            } else {
                self.rng.fill(part);
            }
            self.guest.write(at, part, 0)?;
        }
        Ok(())
    }

    /// What qemu-img finds in an image.
    fn flat(&self, name: &str) -> Result<Vec<u8>> {
        qemu_img(&self.place.bench, &format!("convert -U -f qcow2 -O raw {name} flat"))?;
        Ok(std::fs::read(self.place.bench.path("flat"))?)
    }
}

/// A backup keeps what is written over; what is not shows the disk.
fn backup_of_nothing(program: &Program) -> Result<()> {
    let mut written = Written::new(program, 0x0b4c)?;
    let target = written.place.bench.text("kept");
    let mut job = json!({
        "job-id": "j", "device": "a", "target": target, "sync": "none", "format": "qcow2",
    });
    for mode in ["absolute-paths", "existing"] {
        job["mode"] = mode.into();
        if mode == "existing" {
            let create = format!("create -q -f qcow2 -b a.img -F raw kept {BYTES}");
            qemu_img(&written.place.bench, &create)?;
        }
        let instant = written.disk.clone();
        written.place.qmp.execute("drive-backup", &job)?;
        written.write(40)?;
        // What it shows while it is written is right for the job alone.
        let nodes = written.place.qmp.execute("query-named-block-nodes", &json!({"flat": true}))?;
        let mut nodes = nodes.as_array().into_iter().flatten();
        let node =
            nodes.find(|it| it["node-name"].as_str().is_some_and(|it| it.starts_with("target")));
        let name = node.context("its node")?["node-name"].clone();
        let export = json!({"type": "nbd", "id": "x", "node-name": name, "name": "x"});
        let (_, desc) = written.place.qmp.refused("block-export-add", &export)?;
        ensure!(desc.contains("conflict"), "{desc}");
        written.place.qmp.execute("block-job-cancel", &json!({"device": "j"}))?;
        written.place.event("BLOCK_JOB_CANCELLED", "j")?;
        ensure!(written.flat("kept")? == instant, "{mode}: it is not the disk of the instant");
        ensure!(written.place.content("a")? == written.disk, "{mode}: the guest's disk");
        qemu_img(&written.place.bench, "check -q -U kept")?;
        written.write(10)?;
    }
    drop(written.guest);
    written.place.end()
}

#[test]
fn a_backup_of_what_is_written_over_is_an_overlay_on_the_disk() {
    with(&ringloom(), backup_of_nothing);
}

/// A mirror has only what is written since, and its guests go on there.
fn mirror_of_nothing(program: &Program) -> Result<()> {
    for (number, mode) in ["background", "write-blocking"].into_iter().enumerate() {
        let mut written = Written::new(program, number as u64)?;
        let target = written.place.bench.text("new");
        let job = json!({
            "job-id": "j", "device": "a", "target": target, "sync": "none", "format": "qcow2",
            "node-name": "new", "copy-mode": mode, "ringloom-volatile": true, "granularity": 4096,
        });
        written.place.qmp.execute("drive-mirror", &job)?;
        written.place.qmp.event("BLOCK_JOB_READY")?;
        written.write(60)?;
        written.place.qmp.execute("job-complete", &json!({"id": "j"}))?;
        let end = written.place.event("BLOCK_JOB_COMPLETED", "j")?;
        ensure!(end["error"].is_null(), "{mode}: {end}");
        let before = written.place.content("a")?;
        ensure!(before == written.disk, "{mode}: the source was written to up to then");
        written.write(40)?;
        written.guest.flush()?;
        ensure!(written.place.content("a")? == before, "{mode}: a backing file has changed");
        let map = qemu_img(&written.place.bench, "map -U --output=json new")?;
        let map: Value = serde_json::from_str(&map)?;
        let below = map.as_array().into_iter().flatten().any(|run| run["depth"] == 1);
        ensure!(below, "{mode}: all of it was copied: {map}");
        ensure!(written.flat("new")? == written.disk, "{mode}: guests find something else");
        let Written { place, guest, .. } = written;
        drop(guest);
        place.end()?;
    }
    Ok(())
}

#[test]
fn a_mirror_of_what_is_written_is_an_overlay_on_the_disk() {
    with(&ringloom(), mirror_of_nothing);
}
