//! Which fio there is, and whether it is new enough.
//!
//! Limits: a program that hangs at `--version` hangs the caller; it is the user's own.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::fio::error::FioError;

/// Where root's programs are, which the PATH of a user may lack.
const ALSO: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The oldest fio whose reports can be read.
///
/// 3.18 (February 2020) is the first that puts the bins of total latencies under `lat_ns`
/// (`lat_percentiles=1`); before, `json+` had bins of completion latencies only. All other options of
/// a job file are older, io_uring being the newest of them (3.13).
pub const FIO_OLDEST: FioVersion = FioVersion(3, 18);

/// The version of a fio, without patch level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FioVersion(u16, u16);

impl FioVersion {
    /// Reads what `fio --version` prints: `fio-3.33`, also `fio-3.36-43-g1234` of a development
    /// version.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (major, rest) = text.trim().strip_prefix("fio-")?.split_once('.')?;
        let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        Some(Self(major.parse().ok()?, minor.parse().ok()?))
    }
}

impl fmt::Display for FioVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Finds fio in PATH and in the directories of root's programs.
///
/// # Errors
/// `NotInstalled`, `TooOld`, or the program does not run or says no version.
pub fn program() -> Result<(PathBuf, FioVersion), FioError> {
    let path = env::var_os("PATH").unwrap_or_default();
    let path = find(&path).ok_or(FioError::NotInstalled)?;
    let version = ask(&path)?;
    Ok((path, version))
}

fn find(path: &OsStr) -> Option<PathBuf> {
    let also = ALSO.iter().map(PathBuf::from);
    let mut candidates = env::split_paths(path).chain(also).map(|directory| directory.join("fio"));
    candidates.find(|candidate| is_program(candidate))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

fn ask(path: &Path) -> Result<FioVersion, FioError> {
    let failed =
        |error: io::Error| FioError::run(format!("run {} --version", path.display()), error);
    let mut command = Command::new(path);
    let output = command.arg("--version").stdin(Stdio::null()).output().map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match FioVersion::parse(&said) {
        None => Err(FioError::Version { path: path.to_owned(), said }),
        Some(found) if found < FIO_OLDEST => Err(FioError::TooOld { path: path.to_owned(), found }),
        Some(found) => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        for (text, expected) in [
            ("fio-3.33", Some(FioVersion(3, 33))),
            ("fio-3.33\n", Some(FioVersion(3, 33))),
            ("fio-3.36-43-g1234-dirty", Some(FioVersion(3, 36))),
            ("fio-2.2.10", Some(FioVersion(2, 2))),
            ("fio 3.33", None),
            ("fio-3", None),
            ("fio-x.y", None),
            ("", None),
        ] {
            assert_eq!(FioVersion::parse(text), expected, "{text}");
        }
        assert!(FioVersion(3, 9) < FIO_OLDEST);
        assert!(FioVersion(2, 99) < FIO_OLDEST);
        assert!(FioVersion(4, 0) > FIO_OLDEST);
        assert_eq!(FioVersion(3, 33).to_string(), "3.33");
    }

    fn fake(directory: &Path, says: &str) -> PathBuf {
        let path = directory.join("fio");
        fs::write(&path, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn old_and_foreign_programs_are_refused_with_what_they_say() {
        let directory = tempfile::tempdir().unwrap();
        for (says, expected) in [
            ("fio-2.19", Err("is fio 2.19, which is too old: 3.18 is the oldest")),
            ("hello", Err("--version says 'hello', which is no version of fio")),
            ("fio-3.40", Ok(FioVersion(3, 40))),
        ] {
            match (ask(&fake(directory.path(), says)), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (found, _) => panic!("{says}: {found:?}"),
            }
        }
    }

    #[test]
    fn the_first_program_of_the_path_is_taken() {
        let (plain, good) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(plain.path().join("fio"), "no program").unwrap();
        let expected = fake(good.path(), "fio-3.33");
        let path = env::join_paths([plain.path(), good.path()]).unwrap();
        assert_eq!(find(&path), Some(expected));
    }

    #[test]
    fn what_to_do_without_fio_is_said() {
        let message = FioError::NotInstalled.to_string();
        assert!(message.contains("install the package fio"), "{message}");
    }
}
