//! The licences of all dependencies against a list of those we accept.
//!
//! This stands in for cargo-deny: its advisories come from a database on the network, which the
//! quick gate must not need. The licences are in `cargo metadata` already.
//!
//! Invariants: an expression passes only if it can be met with accepted licences alone; what
//! cannot be understood does not pass. An expression nests as deep as the parser recurses:
//! at most its length, and it comes from a crate that a person chose.

use crate::tidy::Problem;
use crate::tidy::metadata::Package;

/// SPDX names. Of `A OR B` one side suffices, so this list can stay short. NCSA is libFuzzer's,
/// which is part of no program that is shipped; Zlib that of the hash function which ratatui brings, and asks for nothing of a
/// binary; CDLA-Permissive-2.0 that of a list of certificates, which no Linux program links;
/// the LLVM exception that of what a build script archives its objects with, of which no program has a byte.
const ACCEPTED: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-3-Clause",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "NCSA",
    "Unicode-3.0",
    "Zlib",
];

/// Checks each package.
pub(crate) fn check(packages: &[Package]) -> Vec<Problem> {
    packages.iter().filter_map(judge).collect()
}

fn judge(package: &Package) -> Option<Problem> {
    let place = format!("{} {}", package.name, package.version);
    let Some(licence) = &package.licence else {
        return Some(Problem::new(place, "names no licence in its manifest"));
    };
    let message = match Expression::evaluate(licence) {
        Some(true) => return None,
        Some(false) => format!(
            "its licence `{licence}` is not accepted; xtask/src/tidy/licences.rs has the list"
        ),
        None => format!("its licence `{licence}` is not an SPDX expression"),
    };
    Some(Problem::new(place, message))
}

/// What is left to read of an SPDX expression. `OR` binds least, then `AND`, then `WITH`.
#[derive(Debug)]
struct Expression {
    /// In reverse, so that the next word is at the end.
    words: Vec<String>,
}

impl Expression {
    /// Whether the accepted licences suffice; `None` if the text makes no sense.
    fn evaluate(text: &str) -> Option<bool> {
        // Old manifests write `MIT/Apache-2.0` and mean `OR`.
        let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
        let words = spaced.split_whitespace().rev().map(str::to_owned).collect();
        let mut expression = Self { words };
        let value = expression.any()?;
        expression.words.is_empty().then_some(value)
    }

    fn any(&mut self) -> Option<bool> {
        let mut value = self.all()?;
        while self.take("OR") {
            value |= self.all()?;
        }
        Some(value)
    }

    fn all(&mut self) -> Option<bool> {
        let mut value = self.one()?;
        while self.take("AND") {
            value &= self.one()?;
        }
        Some(value)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let value = self.any()?;
            return self.take(")").then_some(value);
        }
        let mut name = self.name()?;
        if self.take("WITH") {
            name = format!("{name} WITH {}", self.name()?);
        }
        Some(ACCEPTED.contains(&name.as_str()))
    }

    fn name(&mut self) -> Option<String> {
        let word = self.words.pop()?;
        (!["OR", "AND", "WITH", "(", ")"].contains(&word.as_str())).then_some(word)
    }

    fn take(&mut self, word: &str) -> bool {
        self.words.pop_if(|it| it == word).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_licence(text: &str, expected: Option<bool>) {
        assert_eq!(Expression::evaluate(text), expected, "{text}");
    }

    #[test]
    fn one_accepted_side_of_or_suffices() {
        check_licence("MIT", Some(true));
        check_licence("MIT/Apache-2.0", Some(true));
        check_licence("MIT OR Apache-2.0 OR LGPL-2.1-or-later", Some(true));
        check_licence("GPL-2.0", Some(false));
        check_licence("GPL-2.0 OR AGPL-3.0", Some(false));
    }

    #[test]
    fn both_sides_of_and_are_needed() {
        check_licence("(MIT OR Apache-2.0) AND Unicode-3.0", Some(true));
        check_licence("MIT AND GPL-2.0", Some(false));
        check_licence("MIT OR Apache-2.0 AND GPL-2.0", Some(true));
    }

    #[test]
    fn an_exception_makes_another_licence() {
        check_licence("Apache-2.0 WITH LLVM-exception", Some(true));
        check_licence("MIT WITH LLVM-exception", Some(false));
        check_licence("MIT WITH LLVM-exception OR MIT", Some(true));
    }

    #[test]
    fn nonsense_is_not_accepted() {
        check_licence("", None);
        check_licence("MIT Apache-2.0", None);
        check_licence("(MIT", None);
        check_licence("MIT OR", None);
    }

    #[test]
    fn a_package_without_a_licence_is_told() {
        let package = Package { name: "a".to_owned(), version: "1.0.0".to_owned(), licence: None };
        assert_eq!(check(&[package]).len(), 1);
    }
}
