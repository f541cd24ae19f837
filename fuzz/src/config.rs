//! A configuration file of `ringloom serve` (`--config`).
//!
//! Limits: no `/` in an input, and nothing that may stand for one, so that no run opens a file outside its working directory,
//! which is empty. The file itself is in memory.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use ::options::ServeCommand;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::options::said;

/// The first byte says whether the file is written anew, the rest is the file.
pub fn config_file(data: &[u8]) {
    let Some((choice, text)) = data.split_first() else { return };
    let is_escaped = |pair: &[u8]| pair[0] == b'\\' && matches!(pair[1], b'u' | b'U' | b'x');
    if text.contains(&b'/') || text.windows(2).any(is_escaped) {
        return;
    }
    let print = (choice % 2 == 0).then_some("--print=config");
    // One for all, so that its name, which stands in sentences, is the same.
    let memory = memfd_create("config", MemfdFlags::CLOEXEC).expect("memory");
    let file = File::from(memory);
    let first = of_file(&file, text, print);
    assert_eq!(first, of_file(&file, text, print), "the same file means the same");
    if let Ok(ServeCommand::Config(written)) = first {
        let again = of_file(&file, written.as_bytes(), print);
        assert_eq!(again, Ok(ServeCommand::Config(written)), "what is written is read");
    }
}

/// What comes of a file with this text, with one more word on the line.
fn of_file(file: &File, text: &[u8], word: Option<&str>) -> Result<ServeCommand, String> {
    file.set_len(0).expect("memory is given back");
    file.write_all_at(text, 0).expect("there is memory for it");
    let option = format!("--config=/proc/self/fd/{}", file.as_raw_fd());
    said([Some(option.as_str()), word].into_iter().flatten().map(OsString::from).collect())
}
