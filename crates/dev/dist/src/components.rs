//! The packages that are linked into the program: what cargo says, resolved for it alone.
//!
//! Invariants: macros that run while it is built, build scripts and what only tests need are not among them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use container_images::output_of;

/// A package of others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Component {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its licence as an SPDX expression.
    pub licence: String,
    /// What it says of itself.
    pub description: Option<String>,
    /// Where its source is.
    pub directory: PathBuf,
    /// SHA-256 of the package that it came in.
    pub checksum: Option<String>,
}

/// All packages of others that are linked into the program, in the order of their names.
pub fn linked(workspace: &Path) -> Result<Vec<Component>> {
    let names = names(workspace)?;
    let checksums = checksums(&read(&workspace.join("Cargo.lock"))?);
    let metadata = cargo(workspace, &["metadata", "--format-version=1", "--locked"])?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let mut found = Vec::new();
    for package in packages {
        let text = |key: &str| package[key].as_str().map(str::to_owned);
        let (name, version) =
            (text("name").unwrap_or_default(), text("version").unwrap_or_default());
        let is_ours = package["source"].is_null();
        if is_ours || !names.contains(&(name.clone(), version.clone())) {
            continue;
        }
        let manifest = PathBuf::from(text("manifest_path").context("a package has no manifest")?);
        let directory = manifest.parent().context("a manifest is in a directory")?.to_owned();
        let licence = text("license").with_context(|| format!("{name} {version}: no licence"))?;
        let checksum = checksums.get(&(name.clone(), version.clone())).cloned();
        // Old manifests write `MIT/Apache-2.0` and mean `OR`.
        let licence = licence.replace('/', " OR ");
        let description = text("description").map(|text| text.trim().to_owned());
        found.push(Component { name, version, licence, description, directory, checksum });
    }
    found.sort();
    ensure!(!found.is_empty(), "cargo knows no package that is linked");
    Ok(found)
}

/// Name and version of each package that cargo links into the program.
fn names(workspace: &Path) -> Result<BTreeSet<(String, String)>> {
    let arguments = ["tree", "--locked", "-p", "ringloom", "-e", "normal,no-proc-macro"];
    let tree = cargo(workspace, &[&arguments[..], &["--prefix=none", "--format={p}"]].concat())?;
    let name = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, version) = (words.next()?, words.next()?);
        Some((name.to_owned(), version.strip_prefix('v')?.to_owned()))
    };
    Ok(tree.lines().filter_map(name).collect())
}

/// The checksums of a `Cargo.lock`, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |part: &str, key: &str| {
        let line = part.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))?;
        Some(line.trim_matches('"').to_owned())
    };
    let package = |part: &str| {
        Some(((value(part, "name")?, value(part, "version")?), value(part, "checksum")?))
    };
    lock.split("[[package]]").filter_map(package).collect()
}

fn cargo(workspace: &Path, arguments: &[&str]) -> Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    output_of(Command::new(cargo).args(arguments).current_dir(workspace))
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_read_from_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"x\"\nchecksum = \"ff\"\n\n\
                    [[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        let expected = [(("a".to_owned(), "1.0.0".to_owned()), "ff".to_owned())];
        assert_eq!(checksums(lock), expected.into());
    }
}
