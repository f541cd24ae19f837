//! Pairs from runs to text, compared with literal text.

use findings::summary::{pairs, summarise};
use plan::contender::{Iothreads, Subject};
use plan::testing::cell;
use plan::variant::Variant;
use records::results::Run;
use records::testing::run;

use super::*;

fn variant(text: &str) -> Variant {
    let mut words = text.split(' ');
    let image = words.next().unwrap().parse().unwrap();
    words.fold(Variant { image, ..Variant::default() }, |it, word| match word {
        "nvme" => Variant { device: "nvme".parse().unwrap(), ..it },
        disks => Variant { disks: disks.parse().unwrap(), ..it },
    })
}

/// Of `randread 4k`, in a repeat in which everything is faster by this factor.
fn served(subject: Subject, iothreads: u16, text: &str, repeat: u16, operations: u64) -> Run {
    let contender = Contender::new(subject, Iothreads::new(iothreads));
    let boot = [80, 100, 90, 130, 70, 110][usize::from(repeat)];
    let mut run = run(cell("randread", 4096, 2, 16), contender, repeat, operations * boot);
    run.key.variant = variant(text);
    run
}

fn text(runs: &[Run]) -> String {
    render(Style::Plain, &pairs(&summarise(runs, 4)))
}

#[test]
fn what_a_boot_does_to_both_cancels() {
    let mut runs = Vec::new();
    for repeat in 0..6 {
        runs.push(served(Subject::VmQemu, 1, "raw", repeat, 200));
        runs.push(served(Subject::VmRingloom, 1, "raw", repeat, 240 + u64::from(repeat)));
        runs.push(served(Subject::VmQemu, 1, "qcow2", repeat, 190));
    }
    let expected = "
vm:ringloom against vm:qemu
  cell                                         IOPS        interval   p99   CPU
  randread 4k jobs=2 iodepth=16, vm:ringloom 1  +21 %  +20 % to +23 %  ±0 %  ±0 %
";
    let found = text(&runs);
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(squeezed(&found).contains(&squeezed(expected)), "{found}");
    let sentence =
        "+21 % IOPS as geometric mean; faster in 1, slower in 0, not told apart in 0 of 1 row.";
    assert!(squeezed(&found).contains(sentence), "{found}");
    let last = last(Style::Markdown, &pairs(&summarise(&runs, 4)));
    assert!(last.contains(&format!("vm:ringloom against vm:qemu: {sentence}")), "{last}");
    assert!(found.contains("qcow2 against raw\n") && found.contains("−5 % to −5 %"), "{found}");
}

#[test]
fn too_few_repeats_are_told() {
    let runs: Vec<Run> = [(Subject::VmQemu, 200), (Subject::VmRingloom, 100)]
        .iter()
        .flat_map(|(subject, rate)| (0..3).map(|repeat| served(*subject, 1, "raw", repeat, *rate)))
        .collect();
    let found = text(&runs);
    assert!(found.contains("(−50 % to −50 %)"), "{found}");
    assert!(found.contains("too few repeats to tell in any of 1 row."), "{found}");
}

#[test]
fn only_what_differs_in_one_choice_is_paired() {
    let names = |texts: &[&str]| {
        let run = |text: &&str| served(Subject::Client, 1, text, 0, 100);
        let runs: Vec<Run> = texts.iter().map(run).collect();
        let pairs = pairs(&summarise(&runs, 4));
        pairs.iter().map(title).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(names(&["raw"]), "");
    assert_eq!(names(&["raw", "qcow2"]), "qcow2 against raw");
    assert_eq!(names(&["raw", "qcow2 nvme"]), "");
    assert_eq!(names(&["raw", "raw 2"]), "", "more disks are another load");
    let all = ["raw", "raw nvme", "qcow2", "qcow2 nvme"];
    assert_eq!(names(&all), "nvme against virtio-blk, qcow2 against raw");
}

#[test]
fn many_cells_are_told_by_their_means_on_a_terminal() {
    let row = |bytes: u16| PairRow {
        cell: cell("randread", 512 * u64::from(bytes), 2, 16),
        variant: Variant::default(),
        contender: Contender::new(Subject::Client, Iothreads::new(1)),
        iops: Estimate::of([1.1]).unwrap(),
        p99: None,
        cpu: None,
    };
    let rows = (1..=25).map(row).collect();
    let pair = Pair { base: "raw".to_owned(), other: "qcow2".to_owned(), rows };
    let plain = render(Style::Plain, std::slice::from_ref(&pair));
    assert!(plain.contains("25 cells, client 1  +10 %"), "{plain}");
    assert!(!plain.contains("randread"), "{plain}");
    assert_eq!(render(Style::Markdown, &[pair]).matches("randread").count(), 25);
}
