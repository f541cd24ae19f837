//! Claims that are file systems: pods and virtual machines are measured on the same file.

use anyhow::{Context, Result, ensure};
use fake_cluster::Fake;

use super::super::{OUT, Rig, check_sound, contender, with_rig};
use super::{check_nothing_left, line};

/// 80 % of a claim of 64 MiB.
const FILE_BYTES: u64 = 51 << 20;

/// The job with these changes on a claim that is this directory.
fn with_directory(rig: &Rig, fake: &Fake, changes: &[(&str, &str)]) -> Result<String> {
    let line = line(rig, fake, &[changes, &[("Mode: Block", "Mode: Filesystem")]].concat())?;
    std::fs::remove_file(rig.path("disk")).context("nobody has a device")?;
    let directory = rig.path("claim");
    std::fs::create_dir(&directory)?;
    let mut state = fake.state();
    (state.disk, state.directory) = (None, Some(directory));
    Ok(line)
}

#[test]
fn pods_and_machines_have_the_same_file_as_their_disk() {
    with_rig(|rig| {
        let fake = Fake::with_pods();
        fake.state().has_kubevirt = true;
        let changes = [
            ("{agent: a:1}", "{agent: a:1, guest: g:1}"),
            // Machines alone: their file is laid by pods all the same.
            ("[pod]", "[vm]"),
            ("[1, 2]", "[1]"),
            ("rounds: 2", "rounds: 1"),
        ];
        let line = with_directory(rig, &fake, &changes)?;
        let ran = rig.run(&line)?;
        ensure!(ran.status.success(), "{ran:?}");
        let image = rig.path("claim").join("disk.img");
        let bytes = std::fs::metadata(&image).context("the machines' disk")?.len();
        ensure!(bytes == FILE_BYTES, "{bytes} bytes");
        std::fs::remove_dir_all(rig.path("claim"))?;
        check_nothing_left(rig, &fake, &[OUT])?;
        let lines = rig.lines()?;
        check_sound(&lines)?;
        ensure!(lines.iter().all(|it| contender(it) == "vm:kubevirt none"), "{lines:?}");
        let job = std::fs::read_dir(rig.path(OUT).join("jobs"))?.next().context("a job")??;
        let job = std::fs::read_to_string(job.path())?;
        ensure!(job.contains(&format!("size={FILE_BYTES}")), "all of it is measured: {job}");
        Ok(())
    });
}
