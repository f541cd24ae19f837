//! The command line of `ringloom serve`.
//!
//! Limits: no `/` in an input, so that no run opens a file outside its working directory, which
//! is empty.

use std::error::Error;
use std::ffi::OsString;
use std::iter;
use std::os::unix::ffi::OsStringExt;

/// Arguments in front of the input's own, by its first byte: a line of its own, or one option's
/// argument with what it may refer to.
const FRONTS: &[&[&str]] = &[
    &[],
    &["--object"],
    &["--blockdev"],
    &["--blockdev=null-co,node-name=n", "--blockdev"],
    &["--object=iothread,id=t", "--blockdev=null-co,node-name=n", "--export"],
    &["--socket=s", "--iothreads=1"],
];

/// The first byte chooses what stands in front, the others are arguments, one for each line.
pub fn options_keyval(data: &[u8]) {
    let Some((choice, text)) = data.split_first() else {
        return;
    };
    if text.contains(&b'/') {
        return;
    }
    let front = FRONTS[usize::from(*choice) % FRONTS.len()];
    let given = text.split(|byte| *byte == b'\n').map(|it| OsString::from_vec(it.to_vec()));
    let line: Vec<OsString> = front.iter().map(OsString::from).chain(given).collect();
    let said = said(line.clone());
    assert_eq!(said, self::said(line), "the same line means the same");
}

/// What comes of it: the plan, or the sentences about what is wrong.
pub(crate) fn said(line: Vec<OsString>) -> Result<options::ServeCommand, String> {
    options::parse(line).map_err(|error| {
        let first: Option<&dyn Error> = Some(&error);
        let causes = iter::successors(first, |&error| error.source());
        let sentences: Vec<String> = causes.map(ToString::to_string).collect();
        assert!(sentences.iter().all(|it| !it.is_empty()), "{error:?} says nothing");
        sentences.join(": ")
    })
}
