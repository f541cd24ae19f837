//! The hysteresis probe and the curve, where it is known what must come out: a fixed delay allows only so many requests.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::report::note;

use super::{
    Rig, check_sound, contender, emulated, iops, mean_latency_s, number, with_guest, with_rig,
};

/// How far a figure may be from what was expected.
const TOLERANCE: f64 = 0.1;
const DELAY_S: f64 = 0.002;

fn is_near(value: f64, expected: f64) -> bool {
    (value / expected - 1.0).abs() <= TOLERANCE
}

/// IOPS of one step of the probe, of all repeats.
fn step(lines: &[Value], contender_name: &str, step: u32) -> Result<Vec<f64>> {
    let is_it = |line: &&Value| contender(line) == contender_name && line["step"] == step;
    let figures = lines.iter().filter(is_it).map(iops).collect::<Result<Vec<_>>>()?;
    ensure!(!figures.is_empty(), "no step {step} of {contender_name}");
    Ok(figures)
}

fn median(mut figures: Vec<f64>) -> Result<f64> {
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().context("a figure")
}

/// Little's law, and that low, high and low again are what so many requests in flight allow.
fn check(rig: &Rig, contender_name: &str, levels: [f64; 2]) -> Result<()> {
    let lines = rig.lines()?;
    check_sound(&lines)?;
    for line in &lines {
        let in_flight = number(line, "jobs")? * number(line, "iodepth")?;
        let expected = in_flight / mean_latency_s(line)?;
        let found = iops(line)?;
        ensure!(is_near(found, expected), "{found} IOPS, {in_flight} in flight: {expected}");
        ensure!(mean_latency_s(line)? > DELAY_S, "faster than the delay: {line}");
    }
    let [low, high, again] = [0, 1, 2].map(|it| step(&lines, contender_name, it));
    let (low, high, again) = (low?, median(high?)?, median(again?)?);
    note(&format!("{contender_name}: low {low:?}, high {high}, low again {again}"));
    let limits = low
        .iter()
        .fold((f64::INFINITY, 0.0_f64), |(least, most), &it| (least.min(it), most.max(it)));
    let is_back = (limits.0 * (1.0 - TOLERANCE)..=limits.1 * (1.0 + TOLERANCE)).contains(&again);
    ensure!(is_back, "low {low:?}, low again {again}");
    let low = median(low)?;
    let [few, many] = levels;
    // A machine that is too busy for the many is too slow for both alike.
    let is_exact = is_near(low, few / DELAY_S) && is_near(high, many / DELAY_S);
    ensure!(is_exact || is_near(high / low, many / few), "low {low}, high {high}");
    Ok(())
}

/// About 5 s.
#[test]
fn the_client_on_a_slow_disk_does_what_the_delay_allows() {
    with_rig(|rig| {
        let line = "--subject client --jobs 4,40 --iodepth 1 --probe hysteresis --delay 2ms \
                    --size 16M --repeats 3 --runtime 0.5 --ramp 0.2 --seed 3";
        let ran = rig.measure(line)?;
        ensure!(ran.stdout.contains("low again"), "{}", ran.stdout);
        check(rig, "client none", [4.0, 40.0])
    });
}

/// About 20 s.
#[test]
fn a_guest_on_a_slow_disk_does_what_the_delay_allows() {
    with_guest(|rig| {
        let line = "--subject vm:ringloom --jobs 2,16 --iodepth 1 --probe hysteresis --delay 20ms \
                    --size 16M --repeats 1 --runtime 1 --ramp 0.5 --seed 3";
        rig.measure(&format!("{line} {}", emulated()))?;
        check(rig, "vm:ringloom none", [2.0, 16.0])
    });
}

/// About 15 s.
#[test]
fn a_curve_has_the_latency_at_shares_of_the_maximum() {
    with_rig(|rig| {
        let line =
            "--curve --subject host --size 16M --repeats 3 --runtime 0.7 --ramp 0.2 --seed 4";
        rig.measure(line)?;
        let lines = rig.lines()?;
        check_sound(&lines)?;
        for percent in [50, 70, 90] {
            let is_it = |line: &&Value| line["step"] == percent;
            let share = |line: &Value| Ok(iops(line)? / number(line, "rate_iops")?);
            let shares = lines.iter().filter(is_it).map(share).collect::<Result<Vec<f64>>>()?;
            ensure!(shares.len() == 3, "{percent} %: {shares:?}");
            note(&format!("{percent} %: {shares:?} of the rate"));
            let middle = median(shares)?;
            ensure!((middle - 1.0).abs() <= 0.05, "{percent} %: {middle} of the rate");
        }
        let maximum = lines.iter().filter(|it| it["step"] == 100);
        ensure!(maximum.count() == 3, "{lines:?}");
        Ok(())
    });
}
