//! A guest that is migrated while it works: from one QEMU into a file, and from there into another QEMU.
//!
//! Where it stands: the migration is a live one (pre-copy), so pages that a device writes meanwhile must be sent again;
//! the file stands for the network. The server sees one client after the other, so one image needs no second server.
//!
//! Invariants: the first QEMU has ended before the second one starts.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use guest::Monitor;
use serde_json::{Value, json};

use super::{Console, Equipment, Guest, Qemu, kernel};
use crate::deadline::{Deadline, poll_until};
use crate::process::Bench;

/// What the guest prints when it wants to be migrated.
pub const MIGRATE_NOW: &str = "@@migrate";
/// Bytes per second; a guest of some 200 MiB takes a few seconds, in which it goes on working.
const BANDWIDTH_MAX: u64 = 40 << 20;

impl Guest {
    /// Boots the guest, migrates it when it prints `MIGRATE_NOW`, waits until it has powered off, and returns its
    /// console, of both QEMUs.
    pub fn run_migrated(&self, bench: &Bench, limit: Duration) -> Result<Console> {
        let deadline = Deadline::after(limit);
        let kernel = kernel()?;
        let equipment = Equipment::default();
        let initramfs = self.initramfs(&equipment, &kernel, bench)?;
        let (control, state) = (bench.path("qmp.sock"), bench.text("state"));
        let mut arguments = self.arguments(&equipment, &kernel, &initramfs)?;
        arguments.last_mut().context("the kernel's words")?.push_str(super::PAGES_AS_THEY_ARE);
        let with = |more: &[String]| [arguments.as_slice(), more].concat();
        let listen = format!("unix:{},server=on,wait=off", control.display());
        let mut source = Qemu::start(&with(&["-qmp".to_owned(), listen]))?;
        poll_until("the guest to ask for its migration", deadline.remaining(), || {
            source.must_run()?;
            Ok(source.stdout.text().contains(MIGRATE_NOW).then_some(()))
        })
        .with_context(|| format!("console: {}", Console::new(&source.stdout.text()).tail()))?;
        let mut monitor = Monitor::connect(&control)?;
        migrate(&mut monitor, &state, deadline)
            .with_context(|| format!("QEMU says: {}", source.stderr.text()))?;
        monitor.command("quit", Value::Null)?;
        let first = source.end(deadline.remaining())?;
        let incoming = ["-incoming".to_owned(), format!("file:{state}")];
        let second = Qemu::start(&with(&incoming))?.end(deadline.remaining())?;
        Ok(Console::new(&[first, second].concat()))
    }
}

fn migrate(monitor: &mut Monitor, state: &str, deadline: Deadline) -> Result<()> {
    monitor.command("migrate-set-parameters", json!({"max-bandwidth": BANDWIDTH_MAX}))?;
    monitor.command("migrate", json!({"uri": format!("file:{state}")}))?;
    poll_until("the migration", deadline.remaining(), || {
        let answer = monitor.command("query-migrate", Value::Null)?;
        if answer["status"] == "failed" {
            bail!("it failed: {answer}");
        }
        Ok((answer["status"] == "completed").then_some(()))
    })
}
