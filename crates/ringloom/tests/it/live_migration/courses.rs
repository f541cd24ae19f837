//! Migrations that do not go as planned: the guest goes on where it is, and one daemon has the image.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use testkit::client::RingLayout;
use testkit::guest::{Course, Half, Origin, witness};
use testkit::process::{Program, START_LIMIT};
use testkit::report::skipped;

use super::{Place, QUEUES, Site, with_guests};

const TOOL: &str = "qemu-io";
/// Longer than a daemon waits for a lock.
const GIVE_UP_LIMIT: Duration = Duration::from_secs(60);

/// Whether nobody has the image.
fn is_free(place: &Place) -> Result<bool> {
    let write = format!("write {} 4k", witness::SPARE);
    let image = place.image().display().to_string();
    let words = ["-f", "raw", "-c", &write, &image].map(str::to_owned);
    let exit = Program::named(TOOL, TOOL, &[]).refusal(&words, START_LIMIT)?;
    if exit.status.success() {
        return Ok(true);
    }
    ensure!(exit.stderr.contains("Failed to get \"write\" lock"), "{exit:?}");
    Ok(false)
}

/// A guest that works, its daemon, and the daemon that it is to go to.
struct Scene {
    place: Place,
    origin: Origin,
    here: Site,
    there: Site,
    half: Half,
}

impl Scene {
    /// `active` is that of the daemon where the guest begins.
    fn new(program: &Program, layout: RingLayout, active: &str) -> Result<Self> {
        let place = Place::new(",cache.direct=on")?;
        let origin = Origin::new(QUEUES, layout)?;
        let here = place.serve(program, "a", active)?;
        let there = place.serve(program, "b", "off")?;
        let mut half = origin.boot("first", &here.socket)?;
        half.works()?;
        Ok(Self { place, origin, here, there, half })
    }

    /// After a migration that failed: the guest works where it was, which has the image; and another
    /// migration to the same daemon succeeds.
    fn goes_on(self) -> Result<()> {
        let Self { place, origin, here, there, mut half } = self;
        half.works()?;
        ensure!(!is_free(&place)?, "a guest works on an image that is not locked");
        let mut next = origin.expect("last", &there.socket)?;
        half.begin(&next, Course::Whole)?;
        half.comes_to("completed")?;
        half.quit()?;
        next.works()?;
        place.finish(next, [here, there])
    }
}

#[track_caller]
fn with_tool(behaviour: impl FnOnce(&Program) -> Result<()>) {
    match Program::named(TOOL, TOOL, &[]).missing() {
        Some(reason) => skipped(&reason),
        None => with_guests(behaviour),
    }
}

#[test]
fn a_migration_that_is_cancelled_on_its_way_leaves_the_guest_as_it_was() {
    with_tool(|program| {
        let mut scene = Scene::new(program, RingLayout::Split, "off")?;
        let next = scene.origin.expect("vain", &scene.there.socket)?;
        scene.half.begin(&next, Course::Endless)?;
        scene.half.comes_to("active")?;
        scene.half.works()?;
        scene.half.cancel()?;
        scene.half.comes_to("cancelled")?;
        drop(next);
        scene.goes_on()
    });
}

#[test]
fn a_migration_that_is_cancelled_when_the_guest_has_stopped_brings_the_image_back() {
    with_tool(|program| {
        let mut scene = Scene::new(program, RingLayout::Packed, "off")?;
        let next = scene.origin.expect("vain", &scene.there.socket)?;
        scene.half.begin(&next, Course::Pausing)?;
        scene.half.comes_to("pre-switchover")?;
        ensure!(is_free(&scene.place)?, "a daemon without rings has the image");
        scene.half.cancel()?;
        scene.half.comes_to("cancelled")?;
        drop(next);
        scene.goes_on()
    });
}

#[test]
fn a_destination_that_dies_at_the_last_moment_leaves_the_guest_to_its_source() {
    with_tool(|program| {
        let mut scene = Scene::new(program, RingLayout::Split, "off")?;
        let next = scene.origin.expect("vain", &scene.there.socket)?;
        scene.half.begin(&next, Course::Pausing)?;
        scene.half.comes_to("pre-switchover")?;
        drop(next);
        scene.half.switch_over()?;
        scene.half.comes_to("failed")?;
        scene.goes_on()
    });
}

/// `active=on` at the source: its daemon has the image until it ends, and the guest waits for that.
#[test]
fn a_guest_waits_until_its_old_daemon_has_let_go_of_the_image() {
    with_tool(|program| {
        let scene = Scene::new(program, RingLayout::Packed, "on")?;
        let Scene { place, origin, here, there, mut half } = scene;
        let mut next = origin.expect("next", &there.socket)?;
        half.begin(&next, Course::Whole)?;
        half.comes_to("completed")?;
        half.quit()?;
        there.says("trying for up to 30 s")?;
        here.stop()?;
        there.says("has the lock after")?;
        next.works()?;
        place.finish(next, [there])
    });
}

#[test]
fn a_guest_whose_new_daemon_does_not_get_the_image_can_go_on_where_it_was() {
    with_tool(|program| {
        let mut scene = Scene::new(program, RingLayout::Split, "on")?;
        let next = scene.origin.expect("vain", &scene.there.socket)?;
        scene.half.begin(&next, Course::Whole)?;
        scene.half.comes_to("completed")?;
        scene.there.server.wait_for_log("gave up after 30 s", GIVE_UP_LIMIT)?;
        drop(next);
        scene.half.go_on()?;
        scene.half.works()?;
        let Scene { place, here, there, half, .. } = scene;
        let log = there.stop()?;
        if !log.contains("Failed to get \"write\" lock") {
            bail!("it does not say why: {log}");
        }
        place.finish(half, [here])
    });
}

/// QEMU connects anew when the daemon has given up, and finds the image free at last.
#[test]
fn a_guest_gets_its_disk_when_the_image_is_free_after_all() {
    with_tool(|program| {
        let scene = Scene::new(program, RingLayout::Packed, "on")?;
        let Scene { place, origin, here, there, mut half } = scene;
        let mut next = origin.expect("next", &there.socket)?;
        half.begin(&next, Course::Whole)?;
        half.comes_to("completed")?;
        half.quit()?;
        there.server.wait_for_log("gave up after 30 s", GIVE_UP_LIMIT)?;
        here.stop()?;
        next.works()?;
        place.finish(next, [there])
    });
}
