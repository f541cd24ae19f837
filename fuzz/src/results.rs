//! What `ringloom tune` has written, as `ringloom report` reads it.

use std::collections::HashSet;
use std::path::{Component, Path};

use tuner::{ComparisonText, ReportText};

/// So many digits of a line are changed.
const DIGITS: usize = 3;

/// The input is a file `results.jsonl`; it becomes the report in all its forms, or a sentence. It is compared with itself,
/// and with itself after some lines were changed.
pub fn results_file(data: &[u8]) {
    let said = tuner::rendered(data).map_err(|error| format!("{error:#}"));
    match &said {
        Ok(reports) => {
            assert!(!reports.is_empty(), "no report and no error");
            reports.iter().for_each(check);
            let names: Vec<&String> =
                reports.iter().flat_map(|it| &it.files).map(|(name, _)| name).collect();
            let distinct: HashSet<&String> = names.iter().copied().collect();
            assert_eq!(distinct.len(), names.len(), "two files of one name in {names:?}");
        }
        Err(sentence) => assert!(!sentence.is_empty(), "it says nothing"),
    }
    let again = tuner::rendered(data).map_err(|error| format!("{error:#}"));
    assert!(said == again, "the same results make the same report");
    if said.is_ok() {
        compare(data);
    }
}

fn compare(data: &[u8]) {
    let own = tuner::rendered_pair(data, data).expect("it was rendered alone");
    assert_eq!((own.changed, own.alone), (0, 0), "it differs from itself: {}", own.text);
    check_pair(&own);
    match tuner::rendered_pair(data, &changed(data)) {
        Ok(pair) => check_pair(&pair),
        Err(error) => assert!(!format!("{error:#}").is_empty(), "it says nothing"),
    }
}

fn check_pair(pair: &ComparisonText) {
    let ComparisonText { markdown, page, .. } = pair;
    assert!(page.ends_with("</html>"), "the page is not whole");
    let title = "# ringloom report: two runs\n";
    assert!(markdown.starts_with(title), "the Markdown has no title");
}

/// The same results without some lines, with others twice, and with other figures: what becomes of a line, its own bytes
/// decide.
fn changed(data: &[u8]) -> Vec<u8> {
    let mut changed = Vec::new();
    for line in data.split_inclusive(|byte| *byte == b'\n') {
        let mut state = line
            .iter()
            .fold(1_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
        let mut number = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        match number() % 8 {
            0 => {}
            1 => changed.extend([line, line].concat()),
            2 | 3 => changed.extend(line),
            4.. => {
                let mut line = line.to_vec();
                let digits: Vec<usize> =
                    (0..line.len()).filter(|place| line[*place].is_ascii_digit()).collect();
                for _ in 0..DIGITS {
                    let place = digits.get(number() as usize % digits.len().max(1));
                    let Some(place) = place else { break };
                    line[*place] = b"0123456789"[number() as usize % 10];
                }
                changed.extend(line);
            }
        }
    }
    changed
}

fn check(report: &ReportText) {
    for (name, text) in &report.files {
        let inside = |part: Component<'_>| matches!(part, Component::Normal(_));
        assert!(Path::new(name).components().all(inside), "{name} leads elsewhere");
        // What a terminal obeys is taken from all others when they are written; serve.sh names the disk byte for byte.
        if name.contains('/') && !name.ends_with("/serve.sh") {
            assert_clean(name, text);
        }
    }
    let of_kind = |ending: &str| {
        let files = report.files.iter();
        let mut found =
            files.filter(|(name, _)| name.starts_with("report") && name.ends_with(ending));
        found.next().map(|(_, text)| text).expect("a report has all forms")
    };
    assert!(of_kind(".html").ends_with("</html>"), "the page is not whole");
    assert!(of_kind(".md").starts_with("# ringloom tune\n"), "the Markdown has no title");
    let rows = of_kind(".jsonl").lines().inspect(|row| {
        let row: serde_json::Result<serde_json::Value> = serde_json::from_str(row);
        assert!(row.is_ok(), "a row that is no JSON: {row:?}");
    });
    assert!(rows.count() <= of_kind(".csv").lines().count(), "a row is not in the table");
}

/// Nothing that a terminal obeys.
fn assert_clean(name: &str, text: &str) {
    let control = text.chars().find(|it| it.is_control() && *it != '\n');
    assert!(control.is_none(), "{control:?} in {name}");
}
