//! Completions in a real bash: what it offers for a line.

use std::fs;
use std::process::Command;

use clap_complete::Shell;
use dist::completions;

/// Has bash complete the last of these words, and prints what it finds.
const SCRIPT: &str = "\
source \"$1\"; shift
COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMP_LINE=\"$*\"; COMP_POINT=${#COMP_LINE}
COMPREPLY=()
_ringloom ringloom \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\" 2>&1
printf '%s\\n' \"${COMPREPLY[@]}\"
";

/// What bash offers.
fn offered(words: &[&str]) -> Vec<String> {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("completions");
    fs::write(&file, completions::text(Shell::Bash)).expect("write them");
    fs::write(directory.path().join("disk.img"), "").expect("an image");
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", SCRIPT, "bash"]).arg(&file).args(words);
    let found = bash.current_dir(directory.path()).output().expect("bash runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(found.status.success() && found.stderr.is_empty(), "{}", text(&found.stderr));
    text(&found.stdout).lines().map(str::to_owned).filter(|line| !line.is_empty()).collect()
}

#[track_caller]
fn check(words: &[&str], expected: &[&str]) {
    let offered = offered(words);
    for word in expected {
        assert!(offered.iter().any(|it| it == word), "{word} is not offered: {offered:?}");
    }
}

#[test]
fn bash_completes_commands_options_words_and_files() {
    check(&["ringloom", ""], &["serve", "check", "ctl", "convert", "map", "tune", "report"]);
    check(&["ringloom", "se"], &["serve"]);
    check(&["ringloom", "serve", "--bl"], &["--blockdev"]);
    check(&["ringloom", "serve", "--"], &["--config", "--export", "--log-format", "--takeover"]);
    check(&["ringloom", "serve", "--print", ""], &["qemu", "libvirt", "config"]);
    check(&["ringloom", "serve", "--sandbox", "o"], &["on", "off"]);
    check(&["ringloom", "serve", "--config", ""], &["disk.img"]);
    check(&["ringloom", "check", "--form"], &["--format"]);
    check(&["ringloom", "ctl", "ba"], &["backup"]);
    check(&["ringloom", "ctl", "backup", "--ke"], &["--keep"]);
    check(&["ringloom", "convert", "--ver"], &["--verify"]);
}
