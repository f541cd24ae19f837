//! What `ringloom tune` has written, as `ringloom report` reads it.

use std::collections::HashSet;
use std::path::{Component, Path};

use tuner::Rendered;

/// The input is a file `results.jsonl`; it becomes the report in all its forms, or a sentence.
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
}

fn check(report: &Rendered) {
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
