//! QEMU's own client of QMP: a package of the Python index that its makers keep beside QEMU.
//!
//! What others rely on: `target/python` can stand in PYTHONPATH and has `qemu.qmp`.
//!
//! Invariants: the package has the version and the checksum below; nothing else comes with it, and nothing of it is run
//! here.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::steps::must_succeed;

pub(crate) const WHY: &str = "QEMU's own client of QMP, which drives ringloom";

const VERSION: &str = "0.0.6";
const SHA256: &str = "5d7c5af0e9de427696e3bf72e333965c3a697929f77f6b7ddc30c989fc7b539b";

/// Whether the directory has the version above.
pub(crate) fn is_present(directory: &Path) -> bool {
    directory.join(format!("qemu_qmp-{VERSION}.dist-info/RECORD")).is_file()
}

/// Fetches it with pip from the index that this machine is configured for.
pub(crate) fn fetch(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    }
    fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    let list = directory.join("requirements.txt");
    let line = format!("qemu.qmp=={VERSION} --hash=sha256:{SHA256}\n");
    fs::write(&list, line).with_context(|| format!("{}", list.display()))?;
    let mut command = Command::new("pip3");
    command.args(["install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]);
    command.args(["--disable-pip-version-check", "--no-input", "--root-user-action", "ignore"]);
    command.arg("--requirement").arg(&list).arg("--target").arg(directory);
    must_succeed(&mut command)
}
