//! Who may come: rules about identities, as QEMU's `authz-simple`, `authz-list` and `authz-list-file`.
//!
//! Limits: a file of rules has at most [`FILE_BYTES_MAX`] bytes.
//! Threads: any; a file that is looked at anew is read by the thread that asks.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use serde::Deserialize;

/// The most bytes of a file of rules.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Rules about identities.
#[derive(Debug)]
pub enum Authorization {
    /// One identity, and no other.
    Simple(String),
    /// Rules, the first that fits counts.
    List(AuthorizationList),
    /// The same in a file.
    File(RuleFile),
}

/// Whether somebody may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RulePolicy {
    /// He may not.
    #[default]
    Deny,
    /// He may.
    Allow,
}

/// How a rule is compared with an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdentityMatch {
    /// Byte by byte.
    #[default]
    Exact,
    /// `*` stands for anything, `?` for one character.
    Glob,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthorizationRule {
    /// Whom it is about.
    #[serde(rename = "match")]
    pub identity: String,
    /// Whether he may come.
    pub policy: RulePolicy,
    /// How that is compared.
    #[serde(default)]
    pub format: IdentityMatch,
}

/// Rules in their order, and what counts if none fits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthorizationList {
    /// If no rule fits.
    #[serde(default)]
    pub policy: RulePolicy,
    /// The first that fits counts.
    #[serde(default)]
    pub rules: Vec<AuthorizationRule>,
}

/// Rules in a file, which is read anew when it has changed, if that was asked for.
#[derive(Debug)]
pub struct RuleFile {
    path: PathBuf,
    refreshes: bool,
    kept: Mutex<KeptRules>,
}

/// What was read, and when the file was changed last by then.
#[derive(Debug)]
struct KeptRules {
    list: AuthorizationList,
    changed: Option<SystemTime>,
}

/// A file of rules that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RuleFileError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is not what it should be.
    #[error("{} has no rules", path.display())]
    Form {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

impl Authorization {
    /// The rules in a file. With `refreshes` it is looked at before each answer whether the file has changed.
    pub fn of_file(path: &Path, refreshes: bool) -> Result<Self, RuleFileError> {
        let kept = Mutex::new(read(path)?);
        Ok(Self::File(RuleFile { path: path.to_owned(), refreshes, kept }))
    }

    /// Whether that one may come. A file that has changed and cannot be read lets nobody in. May block on a file.
    pub fn allows(&self, identity: &str) -> Result<bool, RuleFileError> {
        match self {
            Self::Simple(one) => Ok(one == identity),
            Self::List(list) => Ok(list.allows(identity)),
            Self::File(file) => file.allows(identity),
        }
    }
}

impl AuthorizationList {
    fn allows(&self, identity: &str) -> bool {
        let fits = |rule: &&AuthorizationRule| match rule.format {
            IdentityMatch::Exact => rule.identity == identity,
            IdentityMatch::Glob => glob(rule.identity.as_bytes(), identity.as_bytes()),
        };
        let policy = self.rules.iter().find(fits).map_or(self.policy, |rule| rule.policy);
        policy == RulePolicy::Allow
    }
}

impl RuleFile {
    fn allows(&self, identity: &str) -> Result<bool, RuleFileError> {
        let mut kept = self.kept.lock().expect("no holder of this lock panics");
        if self.refreshes && changed_at(&self.path) != kept.changed {
            *kept = read(&self.path)?;
        }
        Ok(kept.list.allows(identity))
    }
}

fn changed_at(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|it| it.modified()).ok()
}

fn read(path: &Path) -> Result<KeptRules, RuleFileError> {
    let changed = changed_at(path);
    let mut bytes = Vec::new();
    let read = File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map(drop));
    read.map_err(|source| RuleFileError::Read { path: path.to_owned(), source })?;
    let list = serde_json::from_slice(&bytes)
        .map_err(|source| RuleFileError::Form { path: path.to_owned(), source })?;
    Ok(KeptRules { list, changed })
}

/// Whether a text fits a pattern with `*` and `?`. Takes at most the product of their lengths.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // Where the last star stands, and what it has swallowed up to.
    let mut star: Option<(usize, usize)> = None;
    while from < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == text[from] => {
                at += 1;
                from += 1;
            }
            Some(_) | None => match &mut star {
                Some((place, swallowed)) => {
                    *swallowed += 1;
                    (at, from) = (*place + 1, *swallowed);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, text: &str, expected: bool) {
        assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
    }

    #[test]
    fn a_pattern_fits_as_a_shells_does() {
        check("*,CN=a?", "O=x,CN=ab", true);
        check("*,CN=a?", "O=x,CN=a", false);
        check("*a*b*", "xxaxxbxx", true);
        check("*a*b", "ab ba", false);
        check("", "", true);
        check("", "x", false);
        check("**", "", true);
    }

    #[test]
    fn the_first_rule_that_fits_counts() {
        let text = r#"{"policy":"deny","rules":[
            {"match":"CN=bad","policy":"deny"},
            {"match":"CN=*","policy":"allow","format":"glob"}]}"#;
        let list = Authorization::List(serde_json::from_str(text).unwrap());
        for (identity, expected) in [("CN=bad", false), ("CN=good", true), ("O=x", false)] {
            assert_eq!(list.allows(identity).unwrap(), expected, "{identity}");
        }
        assert!(!Authorization::List(AuthorizationList::default()).allows("CN=x").unwrap());
        assert!(Authorization::Simple("CN=x".to_owned()).allows("CN=x").unwrap());
    }

    #[test]
    fn a_file_that_is_no_more_readable_lets_nobody_in() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), r#"{"policy":"allow"}"#).unwrap();
        let fixed = Authorization::of_file(file.path(), false).unwrap();
        let fresh = Authorization::of_file(file.path(), true).unwrap();
        assert!(fresh.allows("x").unwrap());
        std::fs::remove_file(file.path()).unwrap();
        assert!(fixed.allows("x").unwrap());
        fresh.allows("x").unwrap_err();
        let missing = Authorization::of_file(file.path(), true).unwrap_err();
        assert!(missing.to_string().starts_with("cannot read "), "{missing}");
    }
}
