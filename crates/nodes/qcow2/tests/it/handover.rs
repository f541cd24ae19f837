//! An image that another process goes on with while it is in use: two nodes on two descriptions play the two
//! processes.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use qcow2::{ImageState, OverlapCheck};

use crate::node::{Guest, Image, sentence};
use crate::qemu;

const CLUSTER: u64 = 64 << 10;

/// The disk after some work: cluster i holds this, 0 where it was discarded.
fn content(cluster: u64) -> u8 {
    if cluster % 3 == 1 { 0 } else { u8::try_from(cluster + 1).expect("few clusters") }
}

/// A guest that has written, and given some clusters back that are not free yet.
fn work(guest: &mut Guest) -> Result<()> {
    for cluster in 0..40 {
        let byte = u8::try_from(cluster + 1)?;
        guest.write(cluster * CLUSTER, &vec![byte; usize::try_from(CLUSTER)?])?;
    }
    for cluster in (0..40).filter(|cluster| content(*cluster) == 0) {
        guest.discard(cluster * CLUSTER, usize::try_from(CLUSTER)?)?;
    }
    Ok(())
}

fn verify(guest: &mut Guest) -> Result<()> {
    for cluster in 0..40 {
        let found = guest.read(cluster * CLUSTER, 4096)?.to_vec();
        ensure!(found == vec![content(cluster); 4096], "cluster {cluster} holds {}", found[0]);
    }
    Ok(())
}

/// The image that the old process uses, and what it says of it.
struct Old {
    image: Image,
    guest: Guest,
    state: ImageState,
}

fn old(path: &Path) -> Result<Old> {
    let image = Image::open(path, OverlapCheck::Cached)?;
    let mut guest = Guest::of(&image)?;
    work(&mut guest)?;
    let state = image.node.state(Duration::from_secs(10))?.expect("it is in use");
    ensure!(!state.reserved.is_empty() && !state.freed.is_empty(), "{state:?}");
    ensure!(!state.tables_durable, "nothing was flushed");
    Ok(Old { image, guest, state })
}

/// The image as the new process has it, up to where it could go on.
fn new(old: &Old, path: &Path, state: ImageState) -> Result<(Image, Guest)> {
    let image = Image::open(path, OverlapCheck::Cached)?;
    image.file.inherit(old.image.file.as_fd(), old.image.file.locks())?;
    image.node.inherit(state);
    let guest = Guest::of(&image)?;
    Ok((image, guest))
}

fn with_image(test: impl Fn(&Path, &Path) -> Result<()>) {
    if qemu::is_missing() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    qemu::succeeds(directory.path(), &["qemu-img", "create", "-q", "-f", "qcow2", "i", "4M"])
        .unwrap();
    test(directory.path(), &directory.path().join("i")).unwrap();
}

#[test]
fn another_process_goes_on_with_an_image_and_nothing_leaks() {
    with_image(|directory, path| {
        let old = old(path)?;
        let before = std::fs::read(path)?;
        let (image, mut guest) = new(&old, path, old.state.clone())?;
        ensure!(std::fs::read(path)? == before, "the new process has written before its time");
        old.image.node.leave();
        old.image.file.leave();
        image.file.own();
        image.node.own();
        drop(old);
        verify(&mut guest)?;
        guest.write(40 * CLUSTER, &[77; 4096])?;
        guest.flush()?;
        verify(&mut guest)?;
        drop((guest, image));
        let wrong = qemu::wrong(directory, "i")?;
        ensure!(wrong.is_empty(), "{wrong}");
        let command = format!("read -P 77 {} 4k", 40 * CLUSTER);
        let said =
            qemu::succeeds(directory, &["qemu-io", "-f", "qcow2", "-r", "-c", &command, "i"])?;
        ensure!(!said.contains("failed"), "{said}");
        Ok(())
    });
}

#[test]
fn the_old_process_goes_on_when_the_new_one_does_not() {
    with_image(|directory, path| {
        let mut old = old(path)?;
        let before = std::fs::read(path)?;
        let (image, guest) = new(&old, path, old.state.clone())?;
        // It ends before it owns anything.
        drop((guest, image));
        ensure!(std::fs::read(path)? == before, "the new process has written before its time");
        let third = Image::open(path, OverlapCheck::Cached)?;
        let error = Guest::of(&third).expect_err("the lock has lapsed").to_string();
        ensure!(error.contains("lock"), "{error}");
        verify(&mut old.guest)?;
        old.guest.write(40 * CLUSTER, &[78; 4096])?;
        old.guest.flush()?;
        drop(old);
        let wrong = qemu::wrong(directory, "i")?;
        ensure!(wrong.is_empty(), "{wrong}");
        Ok(())
    });
}

/// What an image is opened for otherwise writes to it, so the comparison above can fail; and on a file of another
/// process it is refused.
#[test]
fn an_image_of_another_process_is_not_made_writable() {
    with_image(|_, path| {
        let before = std::fs::read(path)?;
        drop(Guest::open(path)?);
        // A version 3 header says who has changed the image last; make it say something.
        let marked = |at: usize| {
            let mut bytes = before.clone();
            bytes[at] |= 4;
            bytes
        };
        std::fs::write(path, marked(95))?;
        drop(Guest::open(path)?);
        ensure!(std::fs::read(path)? != marked(95), "opening an image does not write");
        std::fs::write(path, marked(95))?;
        let old = Image::open(path, OverlapCheck::Cached)?;
        let image = Image::open(path, OverlapCheck::Cached)?;
        image.file.inherit(old.file.as_fd(), old.file.locks())?;
        let refused = Guest::of(&image);
        ensure!(refused.is_err(), "it was claimed without a word of its owner");
        ensure!(std::fs::read(path)? == marked(95), "and was written");
        Ok(())
    });
}

#[test]
fn what_an_image_cannot_have_is_refused() {
    with_image(|_, path| {
        let old = old(path)?;
        for (clusters, what) in [(0..1, "metadata"), (5..5, "nothing"), (1 << 60..1 << 61, "far")] {
            let state = ImageState { reserved: vec![clusters.clone()], ..ImageState::default() };
            let error = new(&old, path, state).err().map(|error| sentence(error.as_ref()));
            let error = error.unwrap_or_default();
            ensure!(error.contains("taken ahead"), "{what}: {error}");
            let state = ImageState { freed: vec![clusters], ..ImageState::default() };
            let error = new(&old, path, state).err().map(|error| sentence(error.as_ref()));
            ensure!(error.unwrap_or_default().contains("freed"), "{what}");
        }
        Ok(())
    });
}
