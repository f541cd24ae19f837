//! Two runs side by side as text and Markdown. Pure functions.
//!
//! Not here: which rows changed (`findings::compare`).

use std::collections::HashSet;

use findings::answer::{Answer, threads};
use findings::compare::{
    ChangeVerdict, ComparedCell, ComparedRow, Comparison, EQUAL_WITHIN, REPEATS_MIN,
};
use findings::drift::flagged;
use findings::summary::CellSummary;
use plan::cell::Cell;
use plan::contender::{Contender, Iothreads};
use plan::runs::RunKey;
use plan::units::counted;
use plan::variant::Variant;
use records::calendar::{Date, time_of_day};
use records::results::Run;

use super::text::{headed, legend, listed, or_missing, place, section, short, who, wrapped};
use super::{Findings, Part, Style, advice, around as notes_of, facts};
use crate::table::Table;

/// Rows of one run only that are named.
const NAMED_MAX: usize = 12;

/// One of the two runs.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// Where its results are.
    pub name: &'a str,
    /// Its notes are what is wrong with the results.
    pub findings: Findings<'a>,
    /// What its runs say.
    pub cells: &'a [CellSummary],
}

/// Two runs and what they say together. `differences`: why they do not compare, as `Header::differences` tells it.
#[derive(Clone, Copy, Debug)]
pub struct Compared<'a> {
    /// The first.
    pub a: Side<'a>,
    /// The second.
    pub b: Side<'a>,
    /// Beside the figures, such as other programs.
    pub differences: &'a [String],
    /// Of the figures.
    pub comparison: &'a Comparison,
}

pub(super) const COLUMNS: [&str; 6] = ["subject", "A", "B", "B/A", "95 %", "verdict"];

/// Renders a comparison.
pub fn render(style: Style, compared: &Compared<'_>) -> String {
    let comparison = compared.comparison;
    let shown = |cell: &ComparedCell| {
        let table = Table::of(&COLUMNS, cell.rows.iter().map(|row| line(row).into()));
        section(style, &place(cell.cell, &cell.variant), &table, &[])
    };
    let cells = &comparison.cells;
    let explained = if cells.is_empty() { Vec::new() } else { meanings(comparison) };
    [
        head(style, compared),
        cells.iter().map(shown).collect(),
        headed(style, "In short", &summary(compared)),
        headed(style, "Notes", &notes(compared)),
        if explained.is_empty() { String::new() } else { legend(style, &explained) },
    ]
    .concat()
}

impl Side<'_> {
    /// When it was measured, if that is known.
    pub(super) fn when(&self) -> Option<String> {
        let header = self.findings.header;
        let started = header.started_unix_s;
        (!header.is_unknown())
            .then(|| format!("{} {} UTC", Date::of(started), time_of_day(started)))
    }

    pub(super) fn disk(&self) -> String {
        let [(_, disk), ..] = facts(&self.findings);
        disk
    }
}

fn head(style: Style, compared: &Compared<'_>) -> String {
    let line = |(letter, side): (&str, &Side<'_>)| {
        let when = side.when().map(|when| format!(", {when}")).unwrap_or_default();
        format!("{letter}: {}{when}: {}", side.name, side.disk())
    };
    let lines: Vec<String> = [("A", &compared.a), ("B", &compared.b)].map(line).to_vec();
    match style {
        Style::Plain => lines.iter().map(|line| wrapped(style, line)).collect(),
        Style::Markdown => format!("# ringloom report: two runs\n\n{}", listed(style, &lines)),
    }
}

/// The texts of a row, by column.
pub(super) fn line(row: &ComparedRow) -> [String; COLUMNS.len()] {
    let interval = row.ratio.and_then(|ratio| ratio.interval);
    [
        who(row.contender, row.emulated),
        short(row.a.median),
        short(row.b.median),
        or_missing(row.ratio.map(|ratio| format!("{:.2}", ratio.ratio))),
        or_missing(interval.map(|(low, high)| format!("{low:.2}–{high:.2}"))),
        word(row.verdict).to_owned(),
    ]
}

/// As the tables and the filter name it.
pub(super) fn word(verdict: ChangeVerdict) -> &'static str {
    match verdict {
        ChangeVerdict::Faster => "faster",
        ChangeVerdict::Slower => "slower",
        ChangeVerdict::Noise => "noise",
        ChangeVerdict::CannotTell => "cannot tell",
    }
}

/// What all rows say together: how many changed, how much each subject did, and what each recommends.
pub(super) fn summary(compared: &Compared<'_>) -> Vec<String> {
    let means = &compared.comparison.means;
    let mut lines = vec![counts(compared.comparison)];
    lines.extend(means.iter().map(|(subject, mean, rows)| {
        let own = compared.comparison.rows().filter(|row| row.contender.subject() == *subject);
        let changed = own.filter(|row| row.verdict.is_change()).count();
        let rows = counted(*rows, "row");
        let of = match changed {
            0 => format!("{rows}, none of them changed"),
            some => format!("{rows}, {some} of them changed"),
        };
        format!("{subject}: B has {mean:.2} × the IOPS of A (geometric mean of {of}).")
    }));
    lines.extend(answers(&compared.a, &compared.b));
    lines
}

fn counts(comparison: &Comparison) -> String {
    let all = comparison.rows().count();
    if all == 0 {
        return "No row is in both, so there is nothing to compare.".to_owned();
    }
    let kinds = [
        ChangeVerdict::Faster,
        ChangeVerdict::Slower,
        ChangeVerdict::Noise,
        ChangeVerdict::CannotTell,
    ];
    let told = kinds.into_iter().filter_map(|verdict| {
        let count = comparison.count(verdict);
        let words = match verdict {
            ChangeVerdict::Faster | ChangeVerdict::Slower => {
                format!("{count} {} in B", word(verdict))
            }
            ChangeVerdict::Noise => format!("{count} noise"),
            ChangeVerdict::CannotTell => format!("{count} that cannot be told"),
        };
        (count > 0).then_some(words)
    });
    format!("Of {}: {}.", counted(all, "row"), told.collect::<Vec<_>>().join(", "))
}

/// What each recommends, for the subjects whose numbers of iothreads both compare.
fn answers(a: &Side<'_>, b: &Side<'_>) -> Vec<String> {
    let all = |side: &Side<'_>| {
        let drift = flagged(side.findings.runs);
        advice::all(Part::FIRST, &side.findings, &drift, side.cells)
    };
    let b = all(b);
    let sentence = |a: &Answer| {
        let b = b.iter().map(|advice| &advice.answer).find(|b| b.subject == a.subject)?;
        Some(format!("{}: {}.", a.subject, answer(said(a), said(b))))
    };
    all(a).iter().filter_map(|advice| sentence(&advice.answer)).collect()
}

/// What is recommended, if anything is.
fn said(answer: &Answer) -> Option<Iothreads> {
    answer.recommends().then_some(answer.iothreads)
}

fn answer(a: Option<Iothreads>, b: Option<Iothreads>) -> String {
    match (a, b) {
        (Some(a), Some(b)) if a == b => format!("both recommend {}", threads(a)),
        (Some(a), Some(b)) => {
            format!("the answers differ: A said {}, B says {}", threads(a), threads(b))
        }
        (Some(a), None) => format!("A said {}, B cannot tell", threads(a)),
        (None, Some(b)) => format!("A could not tell, B says {}", threads(b)),
        (None, None) => "neither could tell how many iothreads are best".to_owned(),
    }
}

/// What bends the comparison, a sentence each.
pub(super) fn notes(compared: &Compared<'_>) -> Vec<String> {
    let Compared { a, b, differences, comparison } = *compared;
    let mut lines = Vec::new();
    if !differences.is_empty() {
        lines.push(format!(
            "Warning: the two were not measured alike, so a difference need not come from what was \
             changed: {}.",
            differences.join("; ")
        ));
    }
    lines.extend(overlap(&a.findings, &b.findings));
    let [of_a, of_b] = [&a, &b].map(|side| of_side(&side.findings));
    let is_of_both = |line: &&String| of_a.contains(line) && of_b.contains(line);
    lines.extend(of_a.iter().filter(is_of_both).map(|line| format!("A and B: {line}")));
    for (letter, own) in [("A", &of_a), ("B", &of_b)] {
        let own = own.iter().filter(|line| !is_of_both(line));
        lines.extend(own.map(|line| format!("{letter}: {line}")));
    }
    lines.extend(only("A", &comparison.only_a));
    lines.extend(only("B", &comparison.only_b));
    lines
}

/// What bends the figures of one of the two, as its own report tells it.
fn of_side(findings: &Findings<'_>) -> Vec<String> {
    let mut lines = notes_of::bending(findings, &flagged(findings.runs));
    if !findings.failures.is_empty() {
        let failures = counted(findings.failures.len(), "run");
        lines.push(format!("Note: {failures} failed; its own report names them."));
    }
    lines
}

/// Whether the two were measured at once on what seems to be the same machine.
fn overlap(a: &Findings<'_>, b: &Findings<'_>) -> Option<String> {
    let known = !a.header.is_unknown() && !b.header.is_unknown();
    if !known || a.header.machine != b.header.machine {
        return None;
    }
    let first = first_at_once(a.runs, b.runs)?;
    Some(format!(
        "Warning: A and B were measured at the same time, first at {} {} UTC, on machines that are alike: if it \
         is one, each was a load for the other.",
        Date::of(first),
        time_of_day(first)
    ))
}

/// The first second in which a run of one was measured during a run of the other. A run that both have is one run.
fn first_at_once(a: &[Run], b: &[Run]) -> Option<u64> {
    let [known_a, known_b] = [a, b].map(|runs| runs.iter().map(identity).collect::<HashSet<_>>());
    let mut spans = Vec::new();
    for (side, runs, others) in [(0, a, known_b), (1, b, known_a)] {
        let own = runs.iter().filter(|run| !others.contains(&identity(run)));
        spans.extend(own.map(|run| (run.started_unix_s, run.ended_unix_s(), side)));
    }
    spans.sort_unstable();
    // When the last of the runs ends that have started so far, of each side.
    let mut ends = [0; 2];
    spans.into_iter().find_map(|(started, ended, side)| {
        ends[side] = ended.max(ends[side]);
        (ends[1 - side] > started).then_some(started)
    })
}

/// What two lines have in common only if they are of one run.
fn identity(run: &Run) -> (&RunKey, [u64; 3]) {
    (&run.key, [run.started_unix_s, run.elapsed_ns, run.operations])
}

fn only(letter: &str, rows: &[(Variant, Cell, Contender)]) -> Option<String> {
    let name = |(variant, cell, contender): &(Variant, Cell, Contender)| {
        format!("{}: {contender}", place(*cell, variant))
    };
    let named: Vec<String> = rows.iter().take(NAMED_MAX).map(name).collect();
    let more = if rows.len() > named.len() { "; …" } else { "" };
    let count = counted(rows.len(), "row");
    let is = if rows.len() == 1 { "is" } else { "are" };
    (!rows.is_empty())
        .then(|| format!("{count} {is} in {letter} only: {}{more}.", named.join("; ")))
}

/// What the words of the tables mean, a sentence each.
pub(super) fn meanings(comparison: &Comparison) -> Vec<String> {
    let mut lines = vec![
        "A, B: IOPS, median of the repeats; B/A: their ratio, and between which values it is with \
         95 % (bootstrap over the repeats)."
            .to_owned(),
        format!(
            "faster, slower: by a factor above {EQUAL_WITHIN}, 1 is outside of the 95 %, and Welch's test \
             says so, corrected for the number of rows (Benjamini-Hochberg, 5 %). Anything else is noise: \
             more repeats may show that it is a change."
        ),
    ];
    if comparison.count(ChangeVerdict::CannotTell) > 0 {
        lines.push(format!(
            "cannot tell: fewer than {REPEATS_MIN} repeats in A or B, or one that did nothing."
        ));
    }
    if comparison.rows().any(|row| row.emulated) {
        lines.push(format!("† {}.", super::EMULATED));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use findings::summary::summarise;
    use plan::testing::{cell, client};
    use records::host_load::{HostLoad, User};
    use records::results::{Failure, Header};
    use records::testing::{header, run};
    use storage::target::Origin;

    use super::*;
    use crate::tests::findings;

    fn runs(rates: [u64; 3]) -> Vec<Run> {
        let contenders = [Contender::HOST, client(0), client(1)];
        let of = |repeat: u16| {
            contenders.into_iter().zip(rates).map(move |(who, iops)| {
                run(cell("randread", 4096, 2, 16), who, repeat, iops + u64::from(repeat) * 10)
            })
        };
        (0..6).flat_map(of).collect()
    }

    #[test]
    fn the_plain_comparison_is_exact() {
        let (a, mut b) = (runs([50_000, 20_000, 30_000]), runs([50_300, 26_000, 21_000]));
        b.push(run(cell("read", 4096, 1, 1), Contender::HOST, 0, 5));
        b.retain(|run| run.key.contender != Contender::HOST || run.key.repeat < 2);
        b.iter_mut().for_each(|run| run.started_unix_s += 60);
        let (cells_a, cells_b) = (summarise(&a, 16), summarise(&b, 16));
        let comparison = Comparison::new(&cells_a, &cells_b);
        let (header, notes) = (header(""), ["the last line is cut off".to_owned()]);
        let failures = [Failure::new(b[0].key.clone(), &anyhow::anyhow!("hung"))];
        let (findings_a, findings_b) = (findings(&header, &a), findings(&header, &b));
        let findings_b = Findings { failures: &failures, notes: &notes, ..findings_b };
        let differences = ["kernel is 7.1, was 6.1".to_owned()];
        let compared = Compared {
            a: Side { name: "old", findings: findings_a, cells: &cells_a },
            b: Side { name: "new", findings: findings_b, cells: &cells_b },
            differences: &differences,
            comparison: &comparison,
        };
        let expected = "\
A: old, 2023-11-14 22:13 UTC: a scratch file: 1G on ext4, O_DIRECT
B: new, 2023-11-14 22:13 UTC: a scratch file: 1G on ext4, O_DIRECT

randread 4k, 2 jobs × iodepth 16
  subject          A      B   B/A       95 %      verdict
  host         50.0k  50.3k  1.01          –  cannot tell
  client none  20.0k  26.0k  1.30  1.30–1.30       faster
  client 1     30.0k  21.0k  0.70  0.70–0.70       slower

Of 3 rows: 1 faster in B, 1 slower in B, 1 that cannot be told.
host: B has 1.01 × the IOPS of A (geometric mean of 1 row, none of them
  changed).
client: B has 0.95 × the IOPS of A (geometric mean of 2 rows, 2 of them
  changed).
client: the answers differ: A said 1 iothread, B says no iothread.

Warning: the two were not measured alike, so a difference need not come from
  what was changed: kernel is 7.1, was 6.1.
B: Note: the last line is cut off.
B: Note: 1 run failed; its own report names them.
1 row is in B only: read 4k, 1 job × iodepth 1: host.

A, B: IOPS, median of the repeats; B/A: their ratio, and between which values it
  is with 95 % (bootstrap over the repeats).
faster, slower: by a factor above 1.02, 1 is outside of the 95 %, and Welch's
  test says so, corrected for the number of rows (Benjamini-Hochberg, 5 %).
  Anything else is noise: more repeats may show that it is a change.
cannot tell: fewer than 3 repeats in A or B, or one that did nothing.
";
        assert_eq!(render(Style::Plain, &compared), expected);
        let text = render(Style::Markdown, &compared);
        for part in [
            "# ringloom report: two runs\n\n- A: old, ",
            "\n## randread 4k, 2 jobs × iodepth 16\n\n| subject | A | B | B/A |",
            "\n## In short\n\n- Of 3 rows: ",
            "\n## Notes\n\n- Warning: ",
        ] {
            assert!(text.contains(part), "{part}\nis missing in\n{text}");
        }
    }

    #[test]
    fn a_disk_that_looks_like_html_is_no_html_in_markdown() {
        let runs = runs([5, 5, 5]);
        let cells = summarise(&runs, 16);
        let mut header = header("");
        header.disk.origin = Origin::User;
        header.disk.path = PathBuf::from("/d/<img src=x onerror=alert(1)>");
        let side = Side { name: "<i>", findings: findings(&header, &runs), cells: &cells };
        let (differences, comparison) = (["<b>".to_owned()], Comparison::new(&cells, &cells));
        let compared =
            Compared { a: side, b: side, differences: &differences, comparison: &comparison };
        let text = render(Style::Markdown, &compared);
        assert!(!text.contains('<'), "{text}");
        for part in ["- A: &lt;i>, ", " UTC: /d/&lt;img src=x ", "changed: &lt;b>."] {
            assert!(text.contains(part), "{part}\nis missing in\n{text}");
        }
        assert!(
            render(Style::Plain, &compared).contains("/d/<img src=x "),
            "a terminal has no HTML"
        );
    }

    #[test]
    fn what_bends_either_side_is_told() {
        const START: u64 = 1_795_356_000;
        let measured = |from: u64| {
            let mut runs = runs([5, 5, 5]);
            for (step, run) in (0..).zip(&mut runs) {
                run.started_unix_s = from + 60 * step;
            }
            runs
        };
        let busy = |users: &str, cpus| {
            let mut header = header("");
            let users = vec![User { pid: 1, comm: users.to_owned(), cpus }];
            let cpus_in_use = Some(cpus);
            header.load_before =
                Some(HostLoad { load_average: None, cpus_in_use, of: Some(2), users });
            header.environment.cpu.smt = Some(true);
            (header.environment.cpu.threads, header.environment.cpu.cores) = (Some(8), Some(4));
            header
        };
        let told = |a: (&Header, &[Run]), b: (&Header, &[Run])| {
            let (cells_a, cells_b) = (summarise(a.1, 16), summarise(b.1, 16));
            notes(&Compared {
                a: Side { name: "old", findings: findings(a.0, a.1), cells: &cells_a },
                b: Side { name: "new", findings: findings(b.0, b.1), cells: &cells_b },
                differences: &[],
                comparison: &Comparison::new(&cells_a, &cells_b),
            })
        };
        let (quiet, loud) = (busy("idle", 0.0), busy("cargo", 1.3));
        let (first, second) = (measured(START), measured(START + 600));
        assert_eq!(
            told((&loud, &first), (&quiet, &second)),
            [
                "Warning: A and B were measured at the same time, first at 2026-11-22 14:10 UTC, on machines \
                 that are alike: if it is one, each was a load for the other.",
                "A and B: Note: SMT is on: 8 CPUs are 4 cores, and two busy CPUs of a core are slower \
                 than two cores.",
                "A: Warning: the host is busy: 1.3 of 2 CPUs are used before the start (cargo 1.3); \
                 figures will be lower and noisier.",
            ]
        );
        let plain = header("");
        let later = measured(START + 3600);
        assert_eq!(told((&plain, &first), (&plain, &later)), [""; 0], "one after the other");
        assert_eq!(told((&plain, &first), (&plain, &first)), [""; 0], "one with itself");
        let mut other = header("");
        other.machine.cpu = "Another CPU".to_owned();
        assert_eq!(told((&plain, &first), (&other, &second)), [""; 0], "two machines");
    }

    /// Runs of A and of B, each with when it started and how many seconds it took.
    #[track_caller]
    fn check_overlap(a: &[(u64, u64)], b: &[(u64, u64)], expected: Option<&str>) {
        const MIDNIGHT: u64 = 1_795_305_600;
        let measured = |spans: &[(u64, u64)], iops| -> Vec<Run> {
            let one = |(repeat, &(start, seconds)): (u16, &(u64, u64))| Run {
                started_unix_s: MIDNIGHT + start,
                elapsed_ns: seconds * 1_000_000_000,
                ..run(cell("randread", 4096, 2, 16), client(1), repeat, iops)
            };
            (0..).zip(spans).map(one).collect()
        };
        let (a, b) = (measured(a, 1), measured(b, 2));
        let header = header("");
        let (a, b) = (findings(&header, &a), findings(&header, &b));
        let told = overlap(&a, &b);
        assert_eq!(told, overlap(&b, &a), "it does not matter which is which");
        let time = told.map(|it| it.split("first at ").nth(1).unwrap()[..20].to_owned());
        assert_eq!(time.as_deref(), expected);
    }

    #[test]
    fn two_overlap_where_a_run_of_one_does_with_a_run_of_the_other() {
        const HOUR: u64 = 3600;
        let resumed = [(8 * HOUR, 5), (8 * HOUR + 10, 5), (22 * HOUR, 5)];
        check_overlap(&resumed, &[(12 * HOUR, 5), (12 * HOUR + 10, 5)], None);
        check_overlap(&resumed, &[(8 * HOUR + 5, 5)], None);
        check_overlap(&resumed, &[(8 * HOUR + 4, 5)], Some("2026-11-22 08:00 UTC"));
        check_overlap(
            &resumed,
            &[(12 * HOUR, 5), (22 * HOUR - 2, 5)],
            Some("2026-11-22 22:00 UTC"),
        );
        check_overlap(&[(HOUR, 2 * HOUR)], &[(0, 5), (2 * HOUR, 5)], Some("2026-11-22 02:00 UTC"));
        check_overlap(&[], &[(0, 5)], None);
    }

    #[test]
    fn runs_that_both_have_do_not_overlap() {
        let header = header("");
        let own = runs([5, 5, 5]);
        let told = |a: &[Run], b: &[Run]| overlap(&findings(&header, a), &findings(&header, b));
        assert_eq!(told(&own, &own), None);
        assert_eq!(told(&own[..9], &own), None, "B goes on with a copy of A");
        let mut other = own.clone();
        other[0].elapsed_ns += 1;
        assert!(told(&own, &other).is_some());
    }

    #[test]
    fn without_a_common_row_that_is_said() {
        let (a, b) = (runs([5, 5, 5]), vec![run(cell("read", 4096, 1, 1), client(4), 0, 5)]);
        let (cells_a, cells_b) = (summarise(&a, 4), summarise(&b, 4));
        let comparison = Comparison::new(&cells_a, &cells_b);
        let header = header("");
        let compared = Compared {
            a: Side { name: "a", findings: findings(&header, &a), cells: &cells_a },
            b: Side { name: "b", findings: findings(&header, &b), cells: &cells_b },
            differences: &[],
            comparison: &comparison,
        };
        let text = render(Style::Plain, &compared);
        assert!(text.contains("\nNo row is in both, so there is nothing to compare.\n"), "{text}");
        assert!(text.contains("3 rows are in A only: randread 4k"), "{text}");
        assert!(!text.contains("bootstrap"), "{text}");
    }

    #[test]
    fn what_each_recommends_is_told() {
        let (one, two) = (Some(Iothreads::new(1)), Some(Iothreads::new(2)));
        for (a, b, words) in [
            (one, one, "both recommend 1 iothread"),
            (one, two, "the answers differ: A said 1 iothread, B says 2 iothreads"),
            (Some(Iothreads::NONE), None, "A said no iothread, B cannot tell"),
            (None, two, "A could not tell, B says 2 iothreads"),
            (None, None, "neither could tell how many iothreads are best"),
        ] {
            assert_eq!(answer(a, b), words);
        }
    }
}
