//! What the kernel tells in files of `name : value` lines (proc(5)).

use std::fs;

/// The value of the first line `name : value` of a file of procfs.
#[must_use]
pub fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}
