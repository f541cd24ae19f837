//! Short names for daemons: what tells the paths of their sockets apart.

use std::path::{Component, Path};

/// A name for each path: its part between what all begin and all end with. A single one is named by its last part.
pub(crate) fn labels<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Vec<String> {
    let all: Vec<Vec<String>> = paths.into_iter().map(parts).collect();
    let [first, ..] = all.as_slice() else { return Vec::new() };
    let shortest = all.iter().map(Vec::len).min().unwrap_or(0);
    let is_same = |place: &usize| all.iter().all(|it| it[*place] == first[*place]);
    let begin = (0..shortest).take_while(is_same).count();
    let last = |of: &[String], place: usize| of.get(of.len() - 1 - place).cloned();
    let ends_same = |place: &usize| all.iter().all(|it| last(it, *place) == last(first, *place));
    let end = (0..shortest - begin).take_while(ends_same).count();
    let label = |parts: &Vec<String>| match &parts[begin..parts.len() - end] {
        [] => parts.last().cloned().unwrap_or_default(),
        own => own.join("/"),
    };
    without_same_end(all.iter().map(label).collect())
}

/// Without what the last parts of all end with, from a sign on: of `vm1-qmp.sock` and `vm2-qmp.sock` that is `vm1` and `vm2`.
fn without_same_end(labels: Vec<String>) -> Vec<String> {
    let [first, others @ ..] = labels.as_slice() else { return labels };
    let is_end = |end: &str| !others.is_empty() && labels.iter().all(|it| it.ends_with(end));
    let is_begin = |(place, it): &(usize, char)| !it.is_alphanumeric() && *it != '/' && *place > 0;
    let ends = first.char_indices().filter(is_begin).map(|(place, _)| &first[place..]);
    let Some(end) = ends.into_iter().find(|it| is_end(it)).map(str::to_owned) else {
        return labels;
    };
    let cut = |it: &String| it.strip_suffix(&end).unwrap_or(it).to_owned();
    let short: Vec<String> = labels.iter().map(cut).collect();
    if short.iter().any(String::is_empty) { labels } else { short }
}

fn parts(path: &Path) -> Vec<String> {
    let part = |it: Component<'_>| it.as_os_str().to_string_lossy().into_owned();
    path.components().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(paths: &[&str], expected: &[&str]) {
        assert_eq!(labels(paths.iter().map(Path::new)), expected);
    }

    #[test]
    fn daemons_are_named_by_what_differs() {
        check(&["/run/vm1/qmp.sock", "/run/vm2/qmp.sock"], &["vm1", "vm2"]);
        check(&["/run/a.sock", "/run/b.sock"], &["a", "b"]);
        check(&["/run/vm1-qmp.sock", "/run/vm2-qmp.sock"], &["vm1", "vm2"]);
        check(&["/run/top-qmp.sock", "/run/qmp.sock"], &["top-qmp", "qmp"]);
        check(&["/run/a/x/s", "/run/b/y/s"], &["a/x", "b/y"]);
        check(&["/run/qmp.sock"], &["qmp.sock"]);
        check(&["/run/s", "/run/a/s"], &["s", "a"]);
        check(&[], &[]);
    }
}
