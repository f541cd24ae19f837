//! The files of the package as they lie in a system: program, manual, completions, documents, units when there are some.
//!
//! Invariants: the same input makes the same tree, byte by byte.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};

use crate::components::linked;
use crate::{completions, manual, materials};
use container_images::output_of;

/// Files that an administrator may change, and an upgrade leaves alone.
pub const CONFIGURATION_FILES: &[&str] = &["/etc/logrotate.d/ringloom"];

/// Where units of systemd, and the users that they need, lie in the repository, and in a system.
const UNITS: &[(&str, &str)] =
    &[("contrib/systemd", "usr/lib/systemd/system"), ("contrib/sysusers.d", "usr/lib/sysusers.d")];

/// Where the units look for configurations.
const CONFIGURATIONS: &str = "etc/ringloom";

/// Folders of the repository with examples: a dashboard, rules for alerts.
const EXAMPLES: &[&str] = &["contrib/grafana", "contrib/prometheus"];

/// Where documents lie.
const DOCUMENTS: &str = "usr/share/doc/ringloom";

/// What the tree is made of.
#[derive(Debug)]
pub struct TreeInput {
    /// The repository.
    pub workspace: PathBuf,
    /// The program.
    pub binary: PathBuf,
    /// The day that its manual pages are of.
    pub date: String,
}

/// Makes the tree below a root, which is empty.
pub fn make(root: &Path, input: &TreeInput) -> Result<()> {
    let TreeInput { workspace, binary, date } = input;
    let program = directory(root, "usr/bin")?.join("ringloom");
    // As Debian wants it.
    let mut strip = Command::new("strip");
    let sections = ["--strip-unneeded", "--remove-section=.comment", "--remove-section=.note"];
    output_of(strip.args(sections).arg("-o").arg(&program).arg(binary))?;
    set_mode(&program, 0o755)?;
    manual_pages(root, date)?;
    completions::write(root)?;
    documents(root, workspace)?;
    configuration(root)?;
    units(root, workspace)
}

fn manual_pages(root: &Path, date: &str) -> Result<()> {
    let pages = directory(root, "usr/share/man/man1")?;
    for page in manual::pages(date)? {
        compress(&pages.join(format!("{}.1.gz", page.name)), page.text.as_bytes())?;
    }
    Ok(())
}

fn documents(root: &Path, workspace: &Path) -> Result<()> {
    let place = directory(root, DOCUMENTS)?;
    // The licences stand in the copyright file.
    copy(&workspace.join("README.md"), &place.join("README.md"))?;
    let changes = fs::read(workspace.join("CHANGELOG.md")).context("CHANGELOG.md")?;
    compress(&place.join("NEWS.gz"), &changes)?;
    let pages = directory(root, &format!("{DOCUMENTS}/docs"))?;
    let source = workspace.join("docs");
    for path in files(&source)?.iter().filter(|path| path.extension().is_some_and(|it| it == "md"))
    {
        let name = path.file_name().expect("a file has a name");
        copy(path, &pages.join(name))?;
    }
    let examples = directory(root, &format!("{DOCUMENTS}/examples"))?;
    for folder in EXAMPLES {
        for path in files(&workspace.join(folder))? {
            copy(&path, &examples.join(path.file_name().expect("a file has a name")))?;
        }
    }
    let components = linked(workspace)?;
    let bill = serde_json::to_string_pretty(&materials::bill(&components))?;
    fs::write(place.join("ringloom.cdx.json"), bill).context("the bill of materials")?;
    let licences = materials::licences(&components)?;
    compress(&place.join("THIRD-PARTY-LICENCES.gz"), licences.as_bytes())
}

/// The rotation of logs, in the way that needs no right of the daemon.
const LOGROTATE: &str = "\
/var/log/ringloom/*.log {
    weekly
    rotate 8
    compress
    delaycompress
    missingok
    notifempty
    copytruncate
}
";

fn configuration(root: &Path) -> Result<()> {
    let file = directory(root, "etc/logrotate.d")?.join("ringloom");
    fs::write(&file, LOGROTATE).context("the rotation of logs")?;
    set_mode(&file, 0o644)
}

fn units(root: &Path, workspace: &Path) -> Result<()> {
    directory(root, CONFIGURATIONS)?;
    for (source, target) in UNITS {
        let target = directory(root, target)?;
        for path in files(&workspace.join(source))? {
            copy(&path, &target.join(path.file_name().expect("a file has a name")))?;
        }
    }
    Ok(())
}

/// The files of a directory, in the order of their names.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let shown = || format!("{}", directory.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).with_context(shown)? {
        let path = entry.with_context(shown)?.path();
        if path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// A directory below the root, made if it is not there, with the rights that packages have.
pub fn directory(root: &Path, name: &str) -> Result<PathBuf> {
    let mut path = root.to_owned();
    for part in Path::new(name) {
        path.push(part);
        if !path.is_dir() {
            fs::create_dir(&path).with_context(|| format!("{}", path.display()))?;
            set_mode(&path, 0o755)?;
        }
    }
    Ok(path)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("copy {}", from.display()))?;
    set_mode(to, 0o644)
}

/// Sets the permission bits of a file.
pub fn set_mode(path: &Path, mode: u32) -> Result<()> {
    let mode = fs::Permissions::from_mode(mode);
    fs::set_permissions(path, mode).with_context(|| format!("{}", path.display()))
}

/// Writes a file that gzip reads, without a time.
pub fn compress(path: &Path, text: &[u8]) -> Result<()> {
    let shown = || format!("{}", path.display());
    let file = fs::File::create(path).with_context(shown)?;
    let mut writer = GzBuilder::new().mtime(0).write(file, Compression::best());
    writer.write_all(text).with_context(shown)?;
    writer.finish().with_context(shown)?;
    set_mode(path, 0o644)
}
