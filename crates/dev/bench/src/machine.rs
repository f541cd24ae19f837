//! Machine, kernel and versions, for the results.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use load::procfs::field;
use serde::{Deserialize, Serialize};

/// Where a run was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_kib: u64,
    pub(crate) kernel: String,
    /// Load average when the run began: who else was there.
    pub(crate) load: String,
}

impl Machine {
    pub(crate) fn read() -> Self {
        let uname = rustix::system::uname();
        let memory = field("/proc/meminfo", "MemTotal").unwrap_or_default();
        Self {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_kib: memory.trim_end_matches(" kB").parse().unwrap_or_default(),
            kernel: uname.release().to_string_lossy().into_owned(),
            load: fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned(),
        }
    }
}

/// The first line of a program's `--version`.
pub(crate) fn version(program: &Path) -> Result<String> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().with_context(|| format!("start {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}
