//! What the report says around its tables: what bends the numbers, what failed, what was left out. Pure functions.

use findings::drift::Flag;
use findings::settling;
use findings::spread::{Spread, spreads};
use plan::cell::Cell;
use plan::runs::Purpose;
use plan::units::counted;
use records::results::{Failure, Header, Programs, Run};

use super::{Findings, least, steadiness};

/// Runs that are named one by one; --sentinel decides how many can be in doubt.
const NAMED_MAX: usize = 5;
/// Less of the measured time than this is not at once.
const TOGETHER: f64 = 0.97;

/// What bends the numbers, what failed and what was left out, a sentence each; `drift` is what is flagged of these runs.
pub(super) fn sentences(findings: &Findings<'_>, drift: &[Flag]) -> Vec<String> {
    let mut sentences = bending(findings, drift);
    sentences.extend(least::sentence(findings));
    sentences.extend(failed(findings));
    sentences.extend(crashed(findings.runs));
    sentences.extend(findings.pruned.iter().map(|what| format!("Left out: {what}.")));
    sentences.extend(skipped(findings.skipped));
    sentences
}

/// What bends the numbers alone.
pub(super) fn bending(findings: &Findings<'_>, drift: &[Flag]) -> Vec<String> {
    let header = findings.header;
    let mut sentences: Vec<String> = Vec::new();
    sentences.extend(emulated(findings));
    sentences.extend(busy(header));
    sentences.extend(in_doubt(findings.runs, drift));
    sentences.extend(apart(findings.runs));
    sentences.extend(steadiness::sentences(findings.runs, header));
    sentences.extend(spread(findings.runs));
    sentences.extend(settling::sentences(findings.runs));
    sentences.extend(findings.notes.iter().map(|note| format!("Note: {note}.")));
    sentences.extend(warnings(header, findings.notes));
    sentences
}

/// Only if such a guest was measured.
fn emulated(findings: &Findings<'_>) -> Option<String> {
    let Programs { accelerator, emulated_because, .. } = &findings.header.programs;
    if !findings.runs.iter().any(|run| run.emulated) {
        return None;
    }
    let how: Vec<&str> =
        [accelerator, emulated_because].into_iter().flatten().map(String::as_str).collect();
    let how = if how.is_empty() { String::new() } else { format!(" ({})", how.join(": ")) };
    let others = if findings.header.cluster.is_some() { "the pods" } else { "the host" };
    Some(format!(
        "The CPUs of the guests were emulated{how}: their figures do not compare with those of \
         {others}."
    ))
}

/// Whether others used the host when it began.
fn busy(header: &Header) -> Option<String> {
    let sentence = header.load_before.as_ref()?.sentence()?;
    Some(format!("Warning: {sentence}."))
}

/// What of the host bends the numbers, unless a note says it already.
fn warnings(header: &Header, notes: &[String]) -> Vec<String> {
    if header.cluster.is_some() {
        // Of the host that the command ran on nothing matters.
        return Vec::new();
    }
    let mut warnings = header.environment.warnings();
    warnings.retain(|warning| !notes.contains(warning));
    warnings.iter().map(|warning| format!("Note: {warning}.")).collect()
}

/// Guests that were to run at once and did so for a part of the time only.
fn apart(runs: &[Run]) -> Option<String> {
    let shares = runs.iter().filter_map(Run::together).filter(|share| *share < TOGETHER);
    let (count, least) =
        shares.fold((0, 1.0_f64), |(count, least), share| (count + 1, least.min(share)));
    (count > 0).then(|| {
        let percent = least * 100.0;
        format!(
            "Warning: in {} the guests ran at once only for a part of the measured time (least: \
             {percent:.0} %), so their sum is too high; a longer --runtime and --ramp help.",
            counted(count, "run")
        )
    })
}

/// What the same run differs by when it is repeated.
fn spread(runs: &[Run]) -> Option<String> {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let each = spreads(runs).into_iter().map(|Spread { contender, within, between }| {
        format!("{contender} {} and {}", percent(within), percent(between))
    });
    let each: Vec<String> = each.collect();
    (!each.is_empty()).then(|| {
        format!(
            "The same run again differs (standard deviation) within a repeat, and on top of that from repeat to repeat, by: \
             {}. Before each repeat guests are booted and scratch files filled anew, so intervals contain both.",
            each.join("; ")
        )
    })
}

/// Where the sentinel changed, and which runs are in doubt by that.
fn in_doubt(runs: &[Run], drift: &[Flag]) -> Vec<String> {
    let others = || runs.iter().filter(|run| run.key.purpose != Purpose::Sentinel);
    let warning = |flag: &Flag| {
        let covered = others().filter(|run| flag.covers(run.started_unix_s));
        let names: Vec<String> = covered.map(|run| run.key.to_string()).collect();
        format!("Warning: {}{}.", flag.sentence(), doubt(&names))
    };
    drift.iter().map(warning).collect()
}

/// `; 20 runs of that time are in doubt: a ×3; b; c; and 4 more`.
fn doubt(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let runs = counted(names.len(), "run");
    let are = if names.len() == 1 { "is" } else { "are" };
    format!("; {runs} of that time {are} in doubt: {}", named(names))
}

/// `a ×3; b; c; and 4 more`: each name once with how often it is there, the first ones.
pub(super) fn named(names: &[String]) -> String {
    let mut found: Vec<(&str, usize)> = Vec::new();
    for name in names {
        match found.iter_mut().find(|(other, _)| *other == name.as_str()) {
            Some((_, times)) => *times += 1,
            None => found.push((name.as_str(), 1)),
        }
    }
    let in_words = |(name, times): &(&str, usize)| match times {
        1 => (*name).to_owned(),
        times => format!("{name} ×{times}"),
    };
    let mut words: Vec<String> = found.iter().take(NAMED_MAX).map(in_words).collect();
    let others: usize = found.iter().skip(NAMED_MAX).map(|(_, times)| times).sum();
    if others > 0 {
        words.push(format!("and {others} more"));
    }
    words.join("; ")
}

/// How many runs failed, and each with the first line of its error, which names the run.
fn failed(findings: &Findings<'_>) -> Vec<String> {
    let Findings { header, failures, runs, .. } = *findings;
    if failures.is_empty() {
        return Vec::new();
    }
    let all = counted(failures.len() + runs.len(), "run");
    // Without a header nothing can go on.
    let again = if header.is_unknown() { "" } else { ": --resume tries them again" };
    let title = format!("{} of {all} failed{again}.", failures.len());
    std::iter::once(title).chain(failures.iter().map(error)).collect()
}

/// How often the daemon that is compared with crashed when its run was over, and after which runs.
fn crashed(runs: &[Run]) -> Option<String> {
    let each = || runs.iter().flat_map(|run| run.crashes.iter().map(move |how| (run, how)));
    let ways: Vec<String> = each().map(|(_, how)| how.clone()).collect();
    let runs: Vec<String> = each().map(|(run, _)| run.key.to_string()).collect();
    let times = counted(ways.len(), "time");
    (!ways.is_empty()).then(|| {
        format!(
            "Warning: qemu-storage-daemon crashed {times} ({}) when it was stopped after a run, which counts all the \
             same: {}.",
            named(&ways),
            named(&runs)
        )
    })
}

fn error(failure: &Failure) -> String {
    let first = failure.error.lines().next().unwrap_or_default();
    format!("Failed: {}", first.trim_end_matches(':'))
}

fn skipped(cells: &[Cell]) -> Option<String> {
    let names: Vec<_> = cells.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    (!cells.is_empty()).then(|| format!("Skipped, they write (--destructive allows it): {names}."))
}

#[cfg(test)]
mod tests {
    use findings::drift::flagged;
    use plan::contender::{Contender, Iothreads, Subject};
    use plan::testing::{cell, client};
    use records::host_load::{HostLoad, User};
    use records::testing::{header, run};

    use super::*;
    use crate::Style;
    use crate::tests::findings;
    use crate::text::headed;

    fn rendered(style: Style, findings: &Findings<'_>) -> String {
        headed(style, "Notes", &sentences(findings, &flagged(findings.runs)))
    }

    #[test]
    fn what_bends_the_numbers_is_told() {
        let mut header = header("--repeats 3");
        header.programs.accelerator = Some("tcg".to_owned());
        header.programs.emulated_because = Some("a guest with KVM hung".to_owned());
        let cell = cell("randread", 4096, 2, 16);
        let mut guest = run(cell, Contender::new(Subject::VmQemu, Iothreads::new(1)), 0, 5);
        guest.emulated = true;
        let failed = |contender, error: &str| {
            let key = run(cell, contender, 0, 5).key;
            let error = anyhow::anyhow!("{error}").context(format!("{cell}, {contender}"));
            Failure::new(key, &error)
        };
        let failures = [
            failed(client(1), "the daemon ended early:\nno such disk"),
            failed(client(2), "no memory"),
        ];
        let runs = [guest];
        let notes = ["tmpfs is memory".to_owned()];
        let pruned = ["client with 8 iothreads: it has 4 queues".to_owned()];
        let findings = Findings {
            failures: &failures,
            notes: &notes,
            pruned: &pruned,
            skipped: &[cell],
            ..findings(&header, &runs)
        };
        let expected = "
The CPUs of the guests were emulated (tcg: a guest with KVM hung): their figures
  do not compare with those of the host.
Note: tmpfs is memory.
2 of 3 runs failed: --resume tries them again.
Failed: randread 4k jobs=2 iodepth=16, client 1: the daemon ended early
Failed: randread 4k jobs=2 iodepth=16, client 2: no memory
Left out: client with 8 iothreads: it has 4 queues.
Skipped, they write (--destructive allows it): randread 4k jobs=2 iodepth=16.
";
        assert_eq!(rendered(Style::Plain, &findings), expected);
        let markdown = rendered(Style::Markdown, &findings);
        assert!(markdown.starts_with("\n## Notes\n\n- The CPUs of the guests"), "{markdown}");
        assert!(markdown.contains("\n- Note: tmpfs is memory.\n"), "{markdown}");
    }

    #[test]
    fn nobody_is_told_to_go_on_without_a_header() {
        let mut header = header("--repeats 3");
        let key = run(cell("read", 4096, 1, 1), client(1), 0, 5).key;
        let failures = [Failure::new(key, &anyhow::anyhow!("it hangs"))];
        let told = |header: &Header| {
            sentences(&Findings { failures: &failures, ..findings(header, &[]) }, &[])[0].clone()
        };
        assert_eq!(told(&header), "1 of 1 run failed: --resume tries them again.");
        header.ringloom.clear();
        assert_eq!(told(&header), "1 of 1 run failed.");
    }

    #[test]
    fn crashes_after_runs_are_told() {
        let cell = cell("randread", 4096, 2, 16);
        let mut runs = [0, 1, 2].map(|count| run(cell, client(count), 0, 5));
        for run in &mut runs[1..] {
            run.crashes = vec!["signal: 11 (SIGSEGV)".to_owned()];
        }
        let expected = "
Warning: qemu-storage-daemon crashed 2 times (signal: 11 (SIGSEGV) ×2) when it
  was stopped after a run, which counts all the same: randread 4k jobs=2
  iodepth=16, client 1; randread 4k jobs=2 iodepth=16, client 2.
";
        assert_eq!(rendered(Style::Plain, &findings(&header("--repeats 3"), &runs)), expected);
    }

    #[test]
    fn a_busy_host_and_what_bends_its_figures_are_told() {
        let mut header = header("--repeats 3");
        header.environment.cpu.smt = Some(true);
        (header.environment.cpu.threads, header.environment.cpu.cores) = (Some(8), Some(4));
        let user = |comm: &str, cpus| User { pid: 1, comm: comm.to_owned(), cpus };
        header.load_before = Some(HostLoad {
            load_average: None,
            cpus_in_use: Some(1.3),
            of: Some(2),
            users: vec![user("cargo", 0.8), user("rustc", 0.5)],
        });
        let runs = [run(cell("read", 4096, 1, 1), Contender::HOST, 0, 5)];
        let findings = findings(&header, &runs);
        let expected = "
Warning: the host is busy: 1.3 of 2 CPUs are used before the start (cargo 0.8,
  rustc 0.5); figures will be lower and noisier.
Note: SMT is on: 8 CPUs are 4 cores, and two busy CPUs of a core are slower than
  two cores.
";
        assert_eq!(rendered(Style::Plain, &findings), expected);
        let notes = header.environment.warnings();
        let twice = rendered(Style::Plain, &Findings { notes: &notes, ..findings });
        assert_eq!(twice, expected, "what a note says is not said again");
    }

    /// A sentinel of each time with its IOPS, 14:00 and some minutes.
    fn sentinels(figures: &[(u64, u64)]) -> Vec<Run> {
        let sentinel = |(step, &(minute, iops)): (u32, &(u64, u64))| {
            let mut run = run(cell("read", 4096, 1, 1), Contender::HOST, 0, iops);
            (run.key.purpose, run.key.step) = (Purpose::Sentinel, step);
            run.started_unix_s = 1_795_356_000 + 60 * minute;
            run
        };
        (0..).zip(figures).map(sentinel).collect()
    }

    #[test]
    fn a_sentinel_that_falls_names_the_runs_in_doubt() {
        let mut runs = sentinels(&[(0, 1000), (2, 1010), (40, 890)]);
        for (minute, contender) in [(1, client(0)), (20, client(1)), (30, client(2))] {
            let mut run = run(cell("randread", 4096, 2, 16), contender, 0, 5);
            run.started_unix_s = 1_795_356_000 + 60 * minute;
            runs.push(run);
        }
        let expected = "
Warning: the sentinel fell by 12 % between 14:02 and 14:40 (UTC); 2 runs of that
  time are in doubt: randread 4k jobs=2 iodepth=16, client 1; randread 4k jobs=2
  iodepth=16, client 2.
";
        assert_eq!(rendered(Style::Plain, &findings(&header("--repeats 3"), &runs)), expected);
    }

    #[test]
    fn a_steady_sentinel_is_not_mentioned() {
        let runs = sentinels(&[(0, 1000), (2, 1010), (40, 990)]);
        assert_eq!(rendered(Style::Plain, &findings(&header("--repeats 3"), &runs)), "");
    }

    #[test]
    fn of_many_runs_in_doubt_some_are_named() {
        let names = |names: &str| names.chars().map(String::from).collect::<Vec<_>>();
        assert_eq!(doubt(&[]), "");
        assert_eq!(doubt(&names("x")), "; 1 run of that time is in doubt: x");
        assert_eq!(
            doubt(&names("xyxzvwx")),
            "; 7 runs of that time are in doubt: x ×3; y; z; v; w"
        );
        assert_eq!(
            doubt(&names("abcdefxaggf")),
            "; 11 runs of that time are in doubt: a ×2; b; c; d; e; and 5 more"
        );
    }

    #[test]
    fn where_nothing_is_to_be_told_nothing_is() {
        let mut header = header("--repeats 3");
        header.programs.emulated_because = Some("KVM is not there".to_owned());
        let runs = [run(cell("read", 4096, 1, 1), Contender::HOST, 0, 5)];
        for style in [Style::Plain, Style::Markdown] {
            assert_eq!(rendered(style, &findings(&header, &runs)), "");
        }
    }
}
