//! Runs `tuner::run` in a process of its own.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use clap::Parser;

const OPTIONS: &str = "RINGLOOM_TEST_TUNE_OPTIONS";
pub(crate) const QEMU_STORAGE_DAEMON: &str = "/usr/bin/qemu-storage-daemon";

#[derive(Parser)]
#[command(name = "tune")]
struct Cli {
    #[command(flatten)]
    tune: tuner::TuneArgs,
}

/// The program under test; an empty test when nobody asked for it.
#[test]
#[expect(
    clippy::exit,
    clippy::print_stderr,
    reason = "this is the program's main; its exit code and its messages are under test"
)]
fn entry() {
    let Ok(options) = std::env::var(OPTIONS) else {
        return;
    };
    let words = std::iter::once("tune").chain(options.split('\n'));
    let cli = Cli::try_parse_from(words.filter(|word| !word.is_empty()));
    let result = cli.map_err(anyhow::Error::from).and_then(|cli| tuner::run(cli.tune));
    let code = result.map_or_else(
        |error| {
            eprintln!("error: {error:#}");
            tuner::exit_code(&error)
        },
        |()| 0,
    );
    std::process::exit(i32::from(code));
}

/// A directory to run in, and the daemon to use.
pub(crate) struct Bed {
    directory: tempfile::TempDir,
}

impl Bed {
    /// `None`, with a line saying so, if qemu-storage-daemon is missing.
    #[expect(clippy::print_stderr, reason = "a skipped test says so")]
    pub(crate) fn with_qemu() -> Option<Self> {
        if Path::new(QEMU_STORAGE_DAEMON).exists() {
            return Some(Self::new());
        }
        eprintln!("skipped: qemu-storage-daemon is not installed");
        None
    }

    /// A bed on the disk, because /tmp may be memory.
    pub(crate) fn new() -> Self {
        let parent = env!("CARGO_TARGET_TMPDIR");
        Self { directory: tempfile::tempdir_in(parent).unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A disk of this many MiB, without holes.
    pub(crate) fn disk(&self, mebibytes: usize) -> PathBuf {
        let path = self.path().join("disk.img");
        std::fs::write(&path, vec![0x5a; mebibytes << 20]).unwrap();
        path
    }

    /// A program of this name.
    pub(crate) fn program(&self, name: &str, script: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    pub(crate) fn start(&self, options: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process::entry", "--nocapture", "--quiet"])
            .current_dir(self.path())
            .env(OPTIONS, options.split_whitespace().collect::<Vec<_>>().join("\n"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    pub(crate) fn run(&self, options: &str) -> Ran {
        Ran::from(self.start(options).wait_with_output().unwrap())
    }

    /// The names of the scratch files in the directory.
    pub(crate) fn scratch_files(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("ringloom-scratch")).collect()
    }

    /// The lines of a results file, each as JSON.
    pub(crate) fn results(&self, out: &str) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.path().join(out).join("results.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// What a run left.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    #[track_caller]
    pub(crate) fn expect_success(self) -> Self {
        assert_eq!(self.code, Some(0), "{}\n{}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    pub(crate) fn expect_refusal(&self, parts: &[&str]) {
        assert_eq!(self.code, Some(1), "{}\n{}", self.stdout, self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "'{part}' is missing in: {}", self.stderr);
        }
    }
}
