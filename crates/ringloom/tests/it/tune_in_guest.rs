//! `ringloom tune` on a kernel with device-mapper, that of a guest: stripes and delays that every subject sees.
//!
//! Where it stands: the machine that runs the tests may have no device-mapper; there ringloom makes the layers itself.
//! Limits: one guest is booted for all of it, since each boot costs seconds.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::client::RingLayout;
use testkit::deadline::Deadline;
use testkit::guest::{Console, Equipment, Guest};
use testkit::process::Bench;
use testkit::report::{note, skipped};

const RINGLOOM: &str = env!("CARGO_BIN_EXE_ringloom");
/// About 50 s under TCG on two cores; the rest is for a loaded machine.
const GUEST_LIMIT: Duration = Duration::from_secs(300);
/// Of the clock of the guest's kernel.
const TICK_MS: f64 = 4.0;
/// So long that neither ticks nor the emulation of the guest matter.
const DELAY_MS: f64 = 100.0;
/// Jobs with one request in flight each.
const PHASES: [(&str, f64); 3] = [("low", 4.0), ("high", 40.0), ("low again", 4.0)];

fn equipment() -> Equipment {
    Equipment {
        programs: &["fio", "losetup", "dmsetup", RINGLOOM],
        modules: &["loop", "dm_mod", "dm_delay"],
        memory_mib: 1400,
        ..Equipment::default()
    }
}

/// Measures on a delay and on stripes, and interrupts both while they are made and while they are measured.
fn script() -> String {
    let brief = "--op randread --bs 4k --iodepth 1 --repeats 1 --ramp 0.5 --size 16M --seed 1";
    let both = "--subject host --load fio --jobs 2 --stripe 4x64k --delay 2ms";
    format!(
        "export PATH=/usr/sbin:/sbin:/usr/bin:/bin
mkdir /results /scratch
mount -t tmpfs -o size=400M scratch /scratch
cd /scratch
left() {{
    dmsetup ls
    # By its path, or the shell takes that of busybox.
    $(which losetup) --all
    ! grep /scratch/ /proc/mounts
    ls /scratch
    ! pidof ringloom fio
}}
begin() {{
    what=$1; shift
    {RINGLOOM} tune \"$@\" {brief} --out /results/$what > /results/$what.log 2>&1 &
    pid=$!
}}
end() {{
    status=0; wait $pid || status=$?
    section $what-log cat /results/$what.log
    section $what-status echo $status
    section $what-left left
}}
measured() {{
    begin \"$@\"
    end
    section $what-results cat /results/$what/results.jsonl
}}
# Interrupts the command as soon as the function of its name says so.
interrupted() {{
    begin $1 {both}
    until $1 || ! kill -0 $pid; do usleep 20000; done
    kill -INT $pid || true
    end
}}
making() {{ dmsetup ls | grep -q striped; }}
measuring() {{ pidof fio > /dev/null; }}
measured delay probe --subject host --load fio --delay {DELAY_MS}ms --jobs 4,40 --runtime 3
measured stripes --subject host,client --iothreads 1 --stripe 4x64k --delay 0,2ms --jobs 2 --runtime 1
section daemon cat /results/stripes/daemon.log
interrupted making
interrupted measuring
"
    )
}

/// The lines of a section that must have ended well, without the header.
fn runs(console: &Console, name: &str) -> Result<Vec<Value>> {
    let text = console.success(&format!("{name}-results"))?;
    let line = |it: &str| serde_json::from_str(it).with_context(|| format!("{name}: {it}"));
    text.lines().skip(1).map(line).collect()
}

fn iops(run: &Value) -> Result<f64> {
    let number = |key: &str| run[key].as_f64().with_context(|| format!("{key} in {run}"));
    Ok(number("operations")? / number("elapsed_ns")? * 1e9)
}

fn mean_ms(run: &Value) -> Result<f64> {
    let buckets: Vec<(f64, f64)> = serde_json::from_value(run["latency_ns"].clone())
        .with_context(|| format!("the histogram of {run}"))?;
    let requests: f64 = buckets.iter().map(|(_, requests)| requests).sum();
    Ok(buckets.iter().map(|(latency, requests)| latency * requests).sum::<f64>() / requests / 1e6)
}

/// Few requests in flight, many, few again: the delay and Little's law say how many of them are answered.
fn check_delay(console: &Console) -> Result<()> {
    let runs = runs(console, "delay")?;
    ensure!(runs.len() == PHASES.len(), "{} runs: {}", runs.len(), console.tail());
    for (run, (phase, in_flight)) in runs.iter().zip(PHASES) {
        let (iops, mean) = (iops(run)?, mean_ms(run)?);
        let little = in_flight / mean * 1e3;
        note(&format!("{phase}: {iops:.1} IOPS, {mean:.1} ms, {little:.1} by Little's law"));
        let delay = format!("{DELAY_MS}ms");
        ensure!(run["kind"] == "run" && run["subject"] == "host", "{phase}: {run}");
        ensure!(run["delay"] == delay.as_str() && run["jobs"] == in_flight, "{phase}: {run}");
        ensure!(mean > DELAY_MS - TICK_MS, "{phase}: {mean} ms");
        // A load that gets no CPU sends its requests late, and fewer are in flight.
        ensure!(
            (little / 2.0..1.1 * little).contains(&iops),
            "{phase}: {iops} IOPS, {little} by Little's law"
        );
        let ideal = in_flight / DELAY_MS * 1e3;
        ensure!((ideal / 3.0..1.05 * ideal).contains(&iops), "{phase}: {iops} IOPS of {ideal}");
    }
    Ok(())
}

/// Both subjects are measured on what the kernel made.
fn check_stripes(console: &Console) -> Result<()> {
    let log = console.success("stripes-log")?;
    ensure!(log.contains("a delay of 2ms is one of up to 4ms"), "not told of ticks: {log}");
    let runs = runs(console, "stripes")?;
    for subject in ["host", "client"] {
        for (delay, least_ms) in [("0", 0.0), ("2ms", 2.0)] {
            let is_it = |run: &&Value| {
                run["kind"] == "run" && run["subject"] == subject && run["delay"] == delay
            };
            let run = runs.iter().find(is_it);
            let run = run.with_context(|| format!("no {subject}, {delay}: {runs:?}"))?;
            let mean = mean_ms(run)?;
            note(&format!("{subject}, delay {delay}: {:.1} IOPS, {mean:.2} ms", iops(run)?));
            ensure!(run["stripe"] == "4x64k", "{run}");
            ensure!(mean >= least_ms, "{subject}, delay {delay}: {mean} ms");
        }
    }
    let daemon = console.success("daemon")?;
    for device in ["-striped", "-delayed"] {
        let is_it = |line: &str| {
            line.contains("host_device") && line.contains("/dev/mapper/") && line.contains(device)
        };
        ensure!(daemon.lines().any(is_it), "no {device} in: {daemon}");
    }
    Ok(())
}

/// How a command ended; it has left nothing.
fn check_end(console: &Console, name: &str, expected: i32) -> Result<()> {
    let part = |part: &str| console.success(&format!("{name}-{part}"));
    let (log, status, left) = (part("log")?, part("status")?, part("left")?);
    ensure!(status == expected.to_string(), "{name}: status {status}: {log}");
    ensure!(left == "No devices found", "{name} has left {left}");
    Ok(())
}

fn check(equipment: &Equipment) -> Result<()> {
    let bench = Bench::new()?;
    let clock = Deadline::after(GUEST_LIMIT);
    let guest = Guest { disks: Vec::new(), queues: 2, layout: RingLayout::Split, script: script() };
    let console = guest.boot_with(equipment, &bench)?.wait(GUEST_LIMIT)?;
    note(&format!("guest: {:?}", clock.elapsed()));
    for (name, status) in [("delay", 0), ("stripes", 0), ("making", 130), ("measuring", 130)] {
        check_end(&console, name, status)?;
    }
    check_delay(&console)?;
    check_stripes(&console)?;
    console.success("script_status").map(drop)
}

#[test]
fn every_subject_sees_layers_of_the_kernel() {
    let equipment = equipment();
    if let Some(reason) = equipment.missing() {
        return skipped(&reason);
    }
    if let Err(error) = check(&equipment) {
        panic!("{error:#}");
    }
}
