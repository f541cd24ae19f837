//! The cache mode of a driver whose server is killed and started again. Front ends do not say it again (QEMU does not).

use anyhow::ensure;

use super::modes::{UNCHANGED, change, check_write_through, stable};
use super::{Bed, on_all, switch, writeback};

#[test]
fn write_through_that_the_driver_chose_survives_a_kill_with_an_in_flight_region() {
    on_all(|rig| {
        let mut bed = Bed::new(rig, "")?;
        let mut device = bed.tracked_driver()?;
        ensure!(writeback(&device)? == 1, "not in write-back");
        switch(&device, 0)?;
        check_write_through(rig, &bed, &mut device)?;
        for kill in 1..=2 {
            bed.restart()?;
            device.reconnect(&bed.socket)?;
            ensure!(writeback(&device)? == 0, "not in write-through after {kill} kills");
            check_write_through(rig, &bed, &mut device)?;
        }
        Ok(())
    });
}

#[test]
fn write_back_that_the_driver_chose_again_survives_a_kill() {
    on_all(|rig| {
        let mut bed = Bed::new(rig, "")?;
        let mut device = bed.tracked_driver()?;
        switch(&device, 0)?;
        switch(&device, 1)?;
        // What comes after the answer is noted before the next one.
        ensure!(writeback(&device)? == 1, "not in write-back");
        bed.restart()?;
        device.reconnect(&bed.socket)?;
        ensure!(writeback(&device)? == 1, "in write-through though the driver has left it");
        let found = change(&bed, &mut device)?;
        ensure!(found == UNCHANGED, "a power cut before the flush leaves {found:?}");
        ensure!(stable(&bed.disk) == (0, 0), "something was made durable");
        Ok(())
    });
}

/// The operator's word counts, whatever the driver had chosen.
#[test]
fn a_server_that_begins_in_write_through_stays_there() {
    on_all(|rig| {
        let mut bed = Bed::new(rig, ",writethrough=on")?;
        let mut device = bed.tracked_driver()?;
        switch(&device, 1)?;
        ensure!(writeback(&device)? == 1, "not in write-back");
        bed.restart()?;
        device.reconnect(&bed.socket)?;
        ensure!(writeback(&device)? == 0, "weaker than the server was told");
        check_write_through(rig, &bed, &mut device)
    });
}

/// What docs/options.md says of such a front end.
#[test]
fn without_an_in_flight_region_a_restart_begins_with_the_option() {
    on_all(|rig| {
        let mut bed = Bed::new(rig, "")?;
        let mut device = bed.driver()?;
        switch(&device, 0)?;
        bed.restart()?;
        device.reconnect(&bed.socket)?;
        ensure!(writeback(&device)? == 1, "the mode came from nowhere");
        Ok(())
    });
}
