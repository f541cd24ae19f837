//! The calls of apt: backports switched on, lists fetched, packages installed.
//!
//! Invariants: never asks a question, installs no recommended packages, waits a bounded time for
//! another apt (a fresh machine upgrades itself).

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::install::needs::{self, Need, Origin};
use crate::install::sources;
use crate::steps::must_succeed;

const SOURCES_DIR: &str = "/etc/apt/sources.list.d";
const SOURCES_LIST: &str = "/etc/apt/sources.list";
const OUR_SOURCE: &str = "ringloom-backports.sources";

/// How long to wait for another apt or dpkg.
const LOCK_TIMEOUT: &str = "DPkg::Lock::Timeout=300";

/// The Debian release of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) codename: String,
}

impl Release {
    /// Reads it from `/etc/os-release`; without apt there is nothing to install with.
    pub(crate) fn of_this_machine() -> Result<Self> {
        if needs::find("apt-get").is_none() {
            bail!("no apt-get: install the packages named above by hand");
        }
        let text = std::fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
        Self::parse(&text).context("/etc/os-release: no VERSION_CODENAME")
    }

    fn parse(text: &str) -> Option<Self> {
        let value = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
        Some(Self { codename: value.trim_matches('"').to_owned() })
    }

    /// The suite for packages that are too old in the release itself: bookworm has QEMU 7.2 and
    /// Linux 6.1; what comes after it has new enough ones.
    pub(crate) fn backports(&self) -> Option<String> {
        (self.codename == "bookworm").then(|| format!("{}-backports", self.codename))
    }
}

/// Switches backports on if they are needed and off, and fetches the package lists.
pub(crate) fn prepare(release: &Release) -> Result<()> {
    if let Some(suite) = release.backports() {
        let texts = source_files()?;
        if !texts.iter().any(|text| sources::has_suite(text, &suite)) {
            let text = texts
                .iter()
                .find_map(|text| sources::with_suite(text, &release.codename, &suite))
                .with_context(|| {
                    format!(
                        "{SOURCES_DIR}: no source of {} to take a mirror from",
                        release.codename
                    )
                })?;
            let path = Path::new(SOURCES_DIR).join(OUR_SOURCE);
            println!("   {suite} is not enabled: writing {}", path.display());
            std::fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
        }
    }
    // Old lists name files that a mirror no longer has; fetching them anew takes a second.
    must_succeed(apt_get().arg("update"))
}

/// Installs packages, those of each origin in one call.
pub(crate) fn install(missing: &[&Need], release: &Release) -> Result<()> {
    let backports = release.backports();
    for origin in [Origin::Release, Origin::Backports, Origin::BackportsAlone] {
        let mut packages: Vec<String> = missing
            .iter()
            .filter(|it| it.origin == origin)
            .map(|it| it.package.to_owned())
            .collect();
        if packages.is_empty() {
            continue;
        }
        let mut command = apt_get();
        command.args(["install", "--yes", "--no-install-recommends"]);
        match (origin, &backports) {
            (Origin::Backports, Some(suite)) => {
                command.args(["--target-release", suite]);
            }
            (Origin::BackportsAlone, Some(suite)) => {
                packages.iter_mut().for_each(|package| package.push_str(&format!("/{suite}")));
            }
            (Origin::Backports | Origin::BackportsAlone, None) | (Origin::Release, _) => {}
        }
        must_succeed(command.args(packages))?;
    }
    Ok(())
}

/// `apt-get` as it must run without a person in front of it: asks nothing, prints only errors.
pub(crate) fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["--quiet=2", "-o", LOCK_TIMEOUT])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// The texts of all files that say where packages come from.
fn source_files() -> Result<Vec<String>> {
    let mut paths = vec![Path::new(SOURCES_LIST).to_path_buf()];
    if let Ok(entries) = std::fs::read_dir(SOURCES_DIR) {
        for entry in entries {
            paths.push(entry.with_context(|| SOURCES_DIR.to_owned())?.path());
        }
    }
    paths.retain(|path| {
        // Apt reads only these; `x.list.disabled` is off.
        path.is_file() && path.extension().is_some_and(|it| it == "list" || it == "sources")
    });
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read_to_string(path).with_context(|| format!("{}", path.display())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(os_release: &str, expected: Option<&str>) {
        let release = Release::parse(os_release).expect("there is a code name");
        assert_eq!(release.backports().as_deref(), expected);
    }

    #[test]
    fn only_bookworm_needs_backports() {
        check("ID=debian\nVERSION_CODENAME=bookworm\n", Some("bookworm-backports"));
        check("VERSION_CODENAME=\"trixie\"\n", None);
        assert_eq!(Release::parse("ID=arch\n"), None);
    }
}
