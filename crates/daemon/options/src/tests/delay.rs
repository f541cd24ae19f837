//! `driver=delay` and the latency of `null-co`.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use layers::{DelayOrder, Distribution, Histogram, Latency, UniformLatency};

use super::{node, own, refuse};

fn latency(ns: u64) -> Latency {
    Latency::from_ns(ns).unwrap()
}

fn fixed(ns: u64) -> Distribution {
    Distribution::Fixed(latency(ns))
}

/// What a node says that has these delays.
fn said([read, write, flush]: [Distribution; 3], order: DelayOrder, seed: u64) -> String {
    let ordered = if order == DelayOrder::AsBegun { "on" } else { "off" };
    format!("delay read={read:?} write={write:?} flush={flush:?} ordered={ordered} seed={seed}")
}

#[track_caller]
fn check(argument: &str, delays: [Distribution; 3], order: DelayOrder, seed: u64) {
    let argument = format!("delay,node-name=d,file=n{argument}");
    assert_eq!(own(&node(&argument)), said(delays, order, seed), "{argument}");
}

fn file(content: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content).unwrap();
    file
}

#[test]
fn every_distribution_can_be_said_for_every_kind_of_request() {
    let (any, none) = (DelayOrder::Any, || fixed(0));
    check("", [none(), none(), none()], any, 0);
    check(",latency-ns=5", [fixed(5), fixed(5), fixed(5)], any, 0);
    check(",latency-ns=5,write.latency-ns=7", [fixed(5), fixed(7), fixed(5)], any, 0);
    check(",flush.distribution=fixed,flush.latency-ns=9", [none(), none(), fixed(9)], any, 0);
    check(",ordered=on,seed=0x10", [none(), none(), none()], DelayOrder::AsBegun, 16);
    let uniform = Distribution::Uniform(UniformLatency::new(latency(3), latency(8)).unwrap());
    let uniform_said = ",read.distribution=uniform,read.min-ns=3,read.max-ns=8";
    check(uniform_said, [uniform, none(), none()], any, 0);
    let normal = Distribution::Normal { mean: latency(100), deviation: latency(20) };
    let normal_said = ",write.distribution=normal,write.mean-ns=100,write.stddev-ns=20";
    check(normal_said, [none(), normal, none()], any, 0);
    let exponential = Distribution::Exponential { mean: latency(100) };
    let exponential_said = ",flush.distribution=exponential,flush.mean-ns=100";
    check(exponential_said, [none(), none(), exponential], any, 0);
    let (content, file) = (b"100 3\n200 1\n", file(b"100 3\n200 1\n"));
    let histogram = Distribution::Histogram(Arc::new(Histogram::parse(content).unwrap()));
    let path = file.path().display();
    let histogram_said = format!(",read.distribution=histogram,read.filename={path}");
    check(&histogram_said, [histogram, none(), none()], any, 0);
}

#[test]
fn json_and_nodes_written_in_place_say_the_same() {
    let json = r#"{"driver": "delay", "node-name": "d", "file": {"driver": "null-co"},
        "latency-ns": 5, "read": {"distribution": "exponential", "mean-ns": 7}, "ordered": true}"#;
    let read = Distribution::Exponential { mean: latency(7) };
    assert_eq!(own(&node(json)), said([read, fixed(5), fixed(5)], DelayOrder::AsBegun, 0));
}

#[test]
fn null_takes_its_latency() {
    let slow = node("null-co,node-name=slow,latency-ns=100000");
    assert_eq!(own(&slow), "null-co size=1073741824 read-zeroes=off latency-ns=100000");
    let refuse = |value: &str, expected: &str| {
        refuse("--blockdev", &format!("null-co,node-name=slow,latency-ns={value}"), expected);
    };
    refuse("9223372036854775808", "parameter 'latency-ns' expects at most 2^63 - 1");
    refuse("-1", "parameter 'latency-ns' expects a whole number without unit");
    refuse("1ms", "parameter 'latency-ns' expects a whole number without unit");
}

#[track_caller]
fn refuse_delay(argument: &str, expected: &str) {
    refuse("--blockdev", &format!("delay,node-name=d,file=n,{argument}"), expected);
}

#[test]
fn wrong_delays_are_named() {
    let hour = "is more than an hour (3600000000000 ns)";
    refuse("--blockdev", "delay,node-name=d", "parameter 'file' is missing");
    refuse_delay(
        "latency-ns=3600000000001",
        &format!("parameter 'latency-ns': 3600000000001 ns {hour}"),
    );
    refuse_delay(
        "read.distribution=exponential,read.mean-ns=3600000000001",
        &format!("parameter 'read.mean-ns': 3600000000001 ns {hour}"),
    );
    refuse_delay(
        "read.latency-ns=1.5",
        "parameter 'read.latency-ns' expects a whole number without unit",
    );
    refuse_delay("write.distribution=fixed", "parameter 'write.latency-ns' is missing");
    refuse_delay(
        "write.distribution=normal,write.mean-ns=5",
        "parameter 'write.stddev-ns' is missing",
    );
    refuse_delay(
        "flush.distribution=uniform,flush.min-ns=5",
        "parameter 'flush.max-ns' is missing",
    );
    refuse_delay(
        "read.distribution=uniform,read.min-ns=5,read.max-ns=4",
        "parameter 'read.min-ns' (5) is above 'read.max-ns' (4)",
    );
    refuse_delay(
        "read.mean-ns=5",
        "unknown option 'read.mean-ns' of distribution=fixed (supported: distribution, latency-ns)",
    );
    refuse_delay(
        "read.distribution=exponential,read.mean-ns=5,read.latency-ns=5",
        "unknown option 'read.latency-ns' of distribution=exponential (supported: distribution, \
         mean-ns)",
    );
    refuse_delay(
        "read.distribution=gaussian,read.mean-ns=5",
        "parameter 'read.distribution' does not accept value 'gaussian' (supported: fixed, uniform, \
         normal, exponential, histogram)",
    );
    refuse_delay(
        "latency-ns=1,read.latency-ns=1,write.latency-ns=1,flush.latency-ns=1",
        "parameter 'latency-ns' has no effect: read, write and flush have their own delays",
    );
    refuse_delay("read=5", "parameter 'read' has no value but keys of its own: read.KEY=VALUE");
    refuse_delay(
        "latency=5",
        "unknown option 'latency' of --blockdev driver=delay; did you mean 'latency-ns'?",
    );
}

#[test]
fn wrong_histograms_are_named() {
    let refuse = |path: &Path, expected: &str| {
        let path = path.display();
        let said = format!("read.distribution=histogram,read.filename={path}");
        refuse_delay(&said, &expected.replace("PATH", &path.to_string()));
    };
    refuse_delay("read.distribution=histogram", "parameter 'read.filename' is missing");
    refuse(
        Path::new("no-such-file"),
        "could not open 'PATH': No such file or directory (os error 2)",
    );
    refuse(Path::new("src"), "could not open 'PATH': is a directory");
    refuse(Path::new("/dev/null"), "'delay' driver requires 'PATH' to be a regular file");
    refuse(file(b"").path(), "histogram 'PATH': it has no line with a count above 0");
    refuse(
        file(b"1 1\nten 1\n").path(),
        "histogram 'PATH': line 2: expected a latency in nanoseconds and a count, not 'ten 1'",
    );
    refuse(
        file(b"3600000000001 1").path(),
        "histogram 'PATH': line 1: latency: 3600000000001 ns is more than an hour (3600000000000 ns)",
    );
    refuse(
        file(&vec![b'#'; Histogram::BYTES_MAX + 1]).path(),
        "histogram 'PATH': more than 1048576 bytes",
    );
}
