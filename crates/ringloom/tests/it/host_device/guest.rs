//! A Linux guest under QEMU whose disk grows while it runs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::RingLayout;
use testkit::guest::{self, Equipment, Guest};
use testkit::report::skipped;

use super::{Bed, RIGS, on};
use crate::support::stop;

const MIB: usize = 1 << 20;
const READY: &str = "the guest knows its disk";

/// Some seconds under TCG; the rest is for a loaded machine.
const GUEST_LIMIT: Duration = Duration::from_secs(240);

/// Waits for the new size, uses the new end, and says what it found.
fn script() -> String {
    format!(
        "section before cat /sys/block/vda/size\n\
         section discard cat /sys/block/vda/queue/discard_granularity\n\
         echo '{READY}' > /dev/console\n\
         rounds=0\n\
         while [ $(cat /sys/block/vda/size) = 8192 ] && [ $rounds -lt 600 ]; do\n\
           sleep 0.1; rounds=$((rounds + 1))\n\
         done\n\
         section after cat /sys/block/vda/size\n\
         head -c 65536 /dev/zero | tr '\\000' 'g' > /tmp/known\n\
         section write dd if=/tmp/known of=/dev/vda bs=64k seek=111 conv=fsync\n\
         echo 3 > /proc/sys/vm/drop_caches\n\
         dd if=/dev/vda of=/tmp/found bs=64k skip=111 count=1\n\
         section compare cmp /tmp/known /tmp/found"
    )
}

#[test]
fn a_guest_sees_its_disk_grow_and_uses_it_without_a_restart() {
    if let Some(reason) = guest::missing() {
        return skipped(&reason);
    }
    on(&RIGS[..1], |rig| -> Result<()> {
        let bed = Bed::new(rig, &vec![0; 4 * MIB], ",discard=unmap")?;
        let disks = vec![bed.socket.clone()];
        let guest = Guest { disks, queues: 2, layout: RingLayout::Split, script: script() };
        let running = guest.boot_with(&Equipment::bare(), &bed.bench)?;
        running.wait_for(READY, GUEST_LIMIT)?;
        bed.device.resize(&bed.image, 8 << 20)?;
        let console = running
            .wait(GUEST_LIMIT)
            .with_context(|| format!("log of the server: {}", bed.server.log()))?;
        ensure!(console.success("before")? == "8192", "before: {}", console.tail());
        ensure!(console.success("after")? == "16384", "after: {}", console.tail());
        for step in ["write", "compare"] {
            console.success(step)?;
        }
        let granularity = console.success("discard")?;
        ensure!(granularity == "4096", "the guest discards in units of {granularity} bytes");
        let found = bed.as_the_host_sees_it()?;
        let expected = 111 << 16..112 << 16;
        ensure!(found.len() == 8 * MIB, "{} bytes", found.len());
        ensure!(found[expected].iter().all(|byte| *byte == b'g'), "what the guest wrote");
        stop(bed.server, &[&bed.socket]).map(drop)
    });
}
