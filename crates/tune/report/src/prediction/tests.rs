//! What `--predict` is answered with, and what it is refused with.

use plan::testing::settings;
use plan::testing::{cell, client};
use records::results::Header;
use records::testing::{header, run};

use super::*;
use crate::render_for_tests;

/// IOPS of the host and of none, 1, 2, 3 and 4 iothreads for 8 jobs: threads that do 150,000 each, and a disk that does 320,000.
const RISES: [u64; 6] = [320_000, 80_000, 150_000, 260_000, 302_000, 310_000];

fn wide(line: &str) -> Header {
    let mut header = header(line);
    header.machine.cores = 64;
    header
}

fn runs(iops: [u64; 6]) -> Vec<Run> {
    let cell = cell("randread", 4096, 8, 16);
    let contenders = [Contender::HOST, client(0), client(1), client(2), client(3), client(4)];
    let one = |repeat: u16, (contender, iops): (Contender, u64)| Run {
        queues: 8,
        ..run(cell, contender, repeat, iops + 100 * u64::from(repeat))
    };
    let block = |repeat| contenders.into_iter().zip(iops).map(move |it| one(repeat, it));
    (0..6).flat_map(block).collect()
}

/// The lines of the section, of a plain report.
#[track_caller]
fn section(header: &Header, runs: &[Run]) -> String {
    let [text, ..] = render_for_tests(header, runs);
    let (_, section) = text.split_once("\nPrediction\n").expect("a section of that name");
    let section = section.split("\n\n").next().unwrap();
    section.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn check(line: &str, runs: &[Run], parts: &[&str]) {
    let text = section(&wide(line), runs);
    for part in parts {
        assert!(text.contains(part), "'{part}' is missing in: {text}");
    }
}

#[test]
fn more_iothreads_are_a_range_that_holds() {
    let runs = runs(RISES);
    let who = "client, randread 4k, 8 jobs × iodepth 16: 8 iothreads:";
    let rests = "for the same load on the same disk, with a core for each thread; such ranges are right in 9 of 10 cases.";
    check(
        "--predict 8",
        &runs,
        &[who, " IOPS, −8 % to +12 % over 4 iothreads as measured; n90 3; ", rests],
    );
}

#[test]
fn what_leaves_the_load_or_the_cores_is_assumed() {
    let runs = runs(RISES);
    let assumed = "if the storage keeps pace and no other bottleneck appears.";
    check("--predict jobs=32", &runs, &["32 jobs with 4 iothreads:", assumed]);
    check("--predict iodepth=64", &runs, &["iodepth 64 with 4 iothreads:", assumed]);
    check("--predict cores=128", &runs, &["if the machine has 128 cores, the storage keeps"]);
    let mut few = wide("--predict 8");
    few.machine.cores = 12;
    let text = section(&few, &runs);
    assert!(text.contains("if the machine has 16 cores, the storage keeps pace"), "{text}");
}

#[test]
fn what_cannot_be_known_is_not_predicted() {
    let told = "8 iothreads: nothing is predicted, because ";
    let without_host: Vec<Run> =
        runs(RISES).into_iter().filter(|run| run.key.contender != Contender::HOST).collect();
    check("--predict 8", &without_host, &[told, "the bare host was not measured"]);
    let two = |run: &Run| run.key.contender.number() <= Some(Iothreads::new(2));
    let few: Vec<Run> = runs(RISES).into_iter().filter(two).collect();
    check("--predict 8", &few, &[told, "only 2 numbers were measured: it takes 3 or more"]);
    let saw = runs([600_000, 80_000, 100_000, 300_000, 120_000, 350_000]);
    check("--predict 8", &saw, &[told, " % off from what threads with queues would reach"]);
    let mut emulated = runs(RISES);
    emulated.iter_mut().for_each(|run| run.emulated = true);
    check("--predict 8", &emulated, &[told, "the guest's CPUs were emulated"]);
}

#[test]
fn a_prediction_is_no_row_and_configures_nothing() {
    let runs = runs(RISES);
    let [text, markdown, html, json] = render_for_tests(&wide("--predict 8,jobs=32"), &runs);
    let without = render_for_tests(&wide(""), &runs);
    let (before, after) = text.split_once("\nPrediction\n").unwrap();
    assert!(without[0].starts_with(before), "the tables are the same");
    let rest = after.split_once("\n\n").unwrap().1;
    assert!(without[0].ends_with(rest), "so are notes, answer and configuration");
    assert!(markdown.contains("\n## Prediction\n\n- client, randread 4k"), "{markdown}");
    assert!(
        html.contains("<section id=\"prediction\">") && !without[2].contains("id=\"prediction\"")
    );
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let [first, second] = &json["predictions"].as_array().unwrap()[..] else { panic!("{json}") };
    let (low, high) = (first["iops_low"].as_f64().unwrap(), first["iops_high"].as_f64().unwrap());
    assert!(low > 270_000.0 && high < 360_000.0 && high / low < 1.22, "{low} to {high}");
    assert_eq!([&first["step"], &second["step"]], ["iothreads=8", "jobs=32"]);
    assert_eq!(json["rows"].as_array().unwrap().len(), 6);
}

#[test]
fn steps_name_what_there_is_and_its_bounds() {
    for (text, stored) in [
        ("16", "iothreads=16"),
        ("cores=32", "cores=32"),
        ("jobs=1024", "jobs=1024"),
        ("iodepth=256", "iodepth=256"),
    ] {
        assert_eq!(text.parse::<Step>().unwrap().to_string(), stored);
    }
    for (text, part) in [
        ("0", "iothreads may be 1 to 256, and more than is measured"),
        ("257", "iothreads may be 1 to 256"),
        ("cores=0", "cores may be 1 to 4096"),
        ("jobs=1025", "jobs may be 1 to 1024"),
        ("iodepth=x", "iodepth may be 1 to 256"),
        ("disks=2", "write a number of iothreads, or iothreads=, cores=, jobs= or iodepth="),
        ("", "iothreads may be"),
    ] {
        let error = text.parse::<Step>().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn what_is_measured_anyway_is_refused() {
    for (line, refused) in [
        ("--predict 8", None),
        (
            "--predict 4",
            Some("--predict iothreads=4: up to 4 iothreads are measured anyway: write 5 to 256"),
        ),
        ("--predict 3", Some("write 5 to 256")),
        (
            "--predict cores=4",
            Some("--predict cores=4: up to 4 cores are measured anyway: write 5 to 4096"),
        ),
        (
            "--predict 9,jobs=2",
            Some("--predict jobs=2: up to 4 jobs are measured anyway: write 5 to 1024"),
        ),
        ("--predict iodepth=16", Some("an iodepth of up to 16")),
        (
            "--iothreads 256 --predict 256",
            Some("up to 256 iothreads are measured, and no more can be predicted"),
        ),
    ] {
        let told = Step::check_all(&settings(line, 4), 4).err().map(|error| error.to_string());
        assert_eq!(told.is_some(), refused.is_some(), "{line}: {told:?}");
        assert!(told.zip(refused).is_none_or(|(told, part)| told.contains(part)), "{line}");
    }
}
