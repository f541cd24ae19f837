//! Finds the name that a misspelt word probably meant.

/// The name closest to `word`, if one is close enough to be worth a question.
///
/// Close enough is one wrong, missing, extra or swapped letter for each three letters of the
/// word, rounded up.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let bound = word.chars().count().div_ceil(3);
    names
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(word, name), name))
        .filter(|(distance, _)| *distance <= bound)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[track_caller]
    fn check(word: &str, expected: Option<&str>) {
        assert_eq!(nearest(word, ["filename", "file", "node-name"]), expected);
    }

    #[test]
    fn a_slip_finds_its_name_and_a_stranger_none() {
        check("fielname", Some("filename"));
        check("flie", Some("file"));
        check("nodename", Some("node-name"));
        check("x", None);
        check("colour", None);
    }
}
