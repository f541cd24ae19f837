//! Which of the reports of one results file this is, and so how its files are called. Pure functions.
//!
//! Invariants: the names of the first are those that `ringloom tune` writes; no two parts have a name in common.

/// What each has, as the first calls it, besides configurations.
const FILES: [&str; 4] = ["report.md", "report.html", "report.csv", "report.jsonl"];

/// One of the reports of a results file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part(usize);

impl Part {
    /// The only one, where all runs compare with each other.
    pub const FIRST: Self = Self(1);

    /// All of so many.
    pub fn all(parts: usize) -> impl Iterator<Item = Self> {
        (1..=parts).map(Self)
    }

    /// Those that a file with so many does not have, without an end.
    pub fn after(parts: usize) -> impl Iterator<Item = Self> {
        (parts + 1..).map(Self)
    }

    /// From 1.
    pub fn number(self) -> usize {
        self.0
    }

    /// The files that it has whatever it says.
    pub fn reports(self) -> impl Iterator<Item = String> {
        FILES.into_iter().map(move |name| self.named(name))
    }

    /// What this part calls a file, of a path as the first has it: `report-2.md`, `config-2/ringloom/serve.sh`.
    pub fn named(self, path: &str) -> String {
        if self == Self::FIRST {
            return path.to_owned();
        }
        let number = self.0;
        match (path.split_once('/'), path.split_once('.')) {
            (Some((directory, rest)), _) => format!("{directory}-{number}/{rest}"),
            (None, Some((stem, extension))) => format!("{stem}-{number}.{extension}"),
            (None, None) => format!("{path}-{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_names_of_its_own() {
        let paths = ["report.md", "config/ringloom/serve.sh", "config"];
        for (part, expected) in
            Part::all(2).zip([paths, ["report-2.md", "config-2/ringloom/serve.sh", "config-2"]])
        {
            assert_eq!(paths.map(|path| part.named(path)), expected);
        }
    }
}
