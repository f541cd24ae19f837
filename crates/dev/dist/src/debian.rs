//! The Debian package: what dpkg-deb wants beside the tree.
//!
//! Invariants: made twice of the same commit it is the same, byte by byte (`SOURCE_DATE_EPOCH`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::tree::{self, CONFIGURATION_FILES, TreeInput};
use container_images::output_of;

/// Who is written to about the package.
const MAINTAINER: &str = "ringloom developers <packages@ringloom.invalid>";

/// What the package is made of, and how.
#[derive(Debug)]
pub struct PackageInput {
    /// The files.
    pub tree: TreeInput,
    /// Its version.
    pub version: String,
    /// How it is compressed, as dpkg-deb is told.
    pub compression: &'static [&'static str],
}

/// Makes the package in a directory, and the tree beside it. Returns the package.
pub fn make(directory: &Path, input: &PackageInput) -> Result<PathBuf> {
    let root = directory.join("root");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("{}", root.display()))?;
    }
    fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    tree::directory(directory, "root")?;
    tree::make(&root, &input.tree)?;
    let epoch = epoch(&input.tree.workspace)?;
    documents(&root, &input.version, epoch)?;
    let architecture = output_of(Command::new("dpkg").arg("--print-architecture"))?;
    control(&root, &input.version, architecture.trim())?;
    let name = format!("ringloom_{}_{}.deb", input.version, architecture.trim());
    let package = directory.join(name);
    let mut command = Command::new("dpkg-deb");
    command.env("SOURCE_DATE_EPOCH", epoch.to_string()).args(input.compression);
    output_of(command.args(["--root-owner-group", "--build"]).arg(&root).arg(&package))?;
    Ok(package)
}

/// The time of the commit that is checked out, in seconds since 1970.
pub fn epoch(workspace: &Path) -> Result<u64> {
    let mut git = Command::new("git");
    let time = output_of(git.args(["log", "-1", "--format=%ct"]).current_dir(workspace))?;
    time.trim().parse().context("the time of the commit")
}

/// What Debian's policy wants beside the tree's documents.
fn documents(root: &Path, version: &str, epoch: u64) -> Result<()> {
    let place = tree::directory(root, "usr/share/doc/ringloom")?;
    let file = place.join("copyright");
    fs::write(&file, COPYRIGHT).context("copyright")?;
    tree::set_mode(&file, 0o644)?;
    let mut date = Command::new("date");
    let date = output_of(date.env("LC_ALL", "C").args(["-u", "-R", "-d", &format!("@{epoch}")]))?;
    let changes = format!(
        "ringloom ({version}) unstable; urgency=medium\n\n  * What a user notices is in NEWS.gz.\n\n -- {MAINTAINER}  {date}"
    );
    tree::compress(&place.join("changelog.gz"), changes.as_bytes())
}

fn control(root: &Path, version: &str, architecture: &str) -> Result<()> {
    let place = tree::directory(root, "DEBIAN")?;
    let depends = depends(&root.join("usr/bin/ringloom"))?;
    let size = kibibytes(root)?;
    let text = format!(
        "Package: ringloom\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\n\
         Installed-Size: {size}\nDepends: {depends}\nSuggests: qemu-system, librbd1, logrotate\nSection: admin\nPriority: optional\n\
         {DESCRIPTION}"
    );
    let write = |name: &str, text: &str, mode: u32| -> Result<()> {
        let path = place.join(name);
        fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
        tree::set_mode(&path, mode)
    };
    write("control", &text, 0o644)?;
    let files: String = CONFIGURATION_FILES.iter().map(|name| format!("{name}\n")).collect();
    write("conffiles", &files, 0o644)?;
    write("md5sums", &sums(root)?, 0o644)?;
    write("postinst", POSTINST, 0o755)?;
    write("postrm", POSTRM, 0o755)
}

/// The libraries of the system that the program needs, as Debian's own tool finds them.
fn depends(binary: &Path) -> Result<String> {
    let place = tempfile::tempdir().context("make a directory")?;
    let debian = tree::directory(place.path(), "debian")?;
    let control = "Source: ringloom\n\nPackage: ringloom\nArchitecture: any\n";
    fs::write(debian.join("control"), control).context("write a control file")?;
    let mut tool = Command::new("dpkg-shlibdeps");
    let said = output_of(tool.current_dir(place.path()).arg("-O").arg("-e").arg(binary))?;
    let line = said.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    line.map(str::to_owned).with_context(|| format!("dpkg-shlibdeps says {said:?}"))
}

/// What the tree takes of a disk.
fn kibibytes(root: &Path) -> Result<u64> {
    let mut du = Command::new("du");
    let said = output_of(du.args(["-sk", "--apparent-size", "--exclude=DEBIAN"]).arg(root))?;
    let number = said.split_whitespace().next().unwrap_or_default();
    number.parse().with_context(|| format!("du says {said:?}"))
}

/// The sums of all files, as dpkg checks them.
fn sums(root: &Path) -> Result<String> {
    let script = "find . -path ./DEBIAN -prune -o -type f -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 md5sum";
    output_of(Command::new("sh").args(["-c", script]).current_dir(root))
}

const DESCRIPTION: &str = "\
Description: storage daemon that serves virtual disks over several threads
 ringloom serves virtual disks to virtual machines over vhost-user-blk, and
 to all others over NBD. It spreads the queues of a disk over several threads
 and moves them while guests run. Images are raw or qcow2; snapshots, mirrors
 and backups are made under running guests. It takes the command line and the
 monitor protocol of qemu-storage-daemon.
 .
 'ringloom tune' measures a disk with different numbers of threads and says
 which one to use.
";

/// Daemons go on with the program that they were started with; `--takeover` puts the new one in their place.
const POSTINST: &str = "\
#!/bin/sh
set -e

if [ \"$1\" = configure ]; then
    if command -v systemd-sysusers >/dev/null; then
        systemd-sysusers ringloom.conf
    fi
    if [ ! -d /var/log/ringloom ]; then
        mkdir -m 0750 /var/log/ringloom
        if getent passwd ringloom >/dev/null; then
            chown ringloom:ringloom /var/log/ringloom
        fi
    fi
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
";

const POSTRM: &str = "\
#!/bin/sh
set -e

if [ \"$1\" = purge ]; then
    rm -rf /var/log/ringloom
fi
";

const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: ringloom
Comment: What is linked into the program beside its own code is listed in
 ringloom.cdx.json, with its licences in THIRD-PARTY-LICENCES.gz, both beside
 this file.

Files: *
Copyright: 2026 the ringloom authors
License: Apache-2.0 or MIT

License: Apache-2.0
 On Debian systems the full text is in /usr/share/common-licenses/Apache-2.0.

License: MIT
 Permission is hereby granted, free of charge, to any person obtaining a copy
 of this software and associated documentation files (the \"Software\"), to
 deal in the Software without restriction, including without limitation the
 rights to use, copy, modify, merge, publish, distribute, sublicense, and/or
 sell copies of the Software, and to permit persons to whom the Software is
 furnished to do so, subject to the following conditions:
 .
 The above copyright notice and this permission notice shall be included in
 all copies or substantial portions of the Software.
 .
 THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
 SOFTWARE.
";
