//! The driver `qcow2`.

use qcow2::OverlapCheck;

use super::Entry;
use crate::options::blockdev::{BASE, BASE_LATER, Reader};
use crate::options::fault::Fault;
use crate::options::fields::Keys;
use crate::options::plan::{Driver, NamedFiles, Qcow2Caches};
use crate::permissions::DATA_FILE;

const LATER: &[&str] = &[
    "discard-no-unref",
    "encrypt",
    "l2-cache-entry-size",
    "lazy-refcounts",
    "pass-discard-other",
    "pass-discard-request",
    "pass-discard-snapshot",
];

/// `driver=qcow2`.
pub(super) const ENTRY: Entry = Entry {
    name: "qcow2",
    keys: Keys {
        of: "--blockdev driver=qcow2",
        supported: &[
            BASE,
            &["file", "backing", "data-file"],
            &["l2-cache-size", "refcount-cache-size", "cache-size", "cache-clean-interval"],
            &["overlap-check"],
        ],
        later: &[BASE_LATER, LATER],
    },
    read,
};

fn read(reader: &mut Reader) -> Result<Driver, Fault> {
    let caches = caches(reader)?;
    reader.child("file")?;
    let backing = reader.backing()?;
    reader.child_if_any(DATA_FILE)?;
    Ok(Driver::Qcow2 { caches, backing, named_files: NamedFiles::Refused })
}

/// The sizes of the caches, which must not contradict each other.
fn caches(reader: &mut Reader) -> Result<Qcow2Caches, Fault> {
    let caches = Qcow2Caches {
        l2: reader.number("l2-cache-size")?,
        refcount: reader.number("refcount-cache-size")?,
        both: reader.number("cache-size")?,
        clean_seconds: reader.number("cache-clean-interval")?,
        overlap_check: overlap_check(reader)?,
    };
    let above = |part: Option<u64>, all| part.is_some_and(|part| part > all);
    match caches {
        Qcow2Caches { l2: Some(_), refcount: Some(_), both: Some(_), .. } => {
            Err(Fault::CacheThrice)
        }
        Qcow2Caches { l2, both: Some(all), .. } if above(l2, all) => {
            Err(Fault::CacheAboveBoth { key: "l2-cache-size" })
        }
        Qcow2Caches { refcount, both: Some(all), .. } if above(refcount, all) => {
            Err(Fault::CacheAboveBoth { key: "refcount-cache-size" })
        }
        Qcow2Caches { .. } => Ok(caches),
    }
}

/// QEMU's flags, which add to a template or take from it.
const OVERLAP_FLAGS: &[&str] = &[
    "active-l1",
    "active-l2",
    "bitmap-directory",
    "inactive-l1",
    "inactive-l2",
    "main-header",
    "refcount-block",
    "refcount-table",
    "snapshot-table",
];

const OVERLAP: Keys =
    Keys { of: "--blockdev driver=qcow2", supported: &[&["template"]], later: &[OVERLAP_FLAGS] };

const TEMPLATES: &[&str] = &["none", "constant", "cached", "all"];

/// A template, by itself or in an object. What `constant` asks for costs nothing less than `cached` here.
fn overlap_check(reader: &mut Reader) -> Result<OverlapCheck, Fault> {
    const KEY: &str = "overlap-check";
    let fields = &mut reader.fields;
    let template = if fields.is_object(KEY) {
        let mut nested = fields.object(KEY)?.expect("it is one");
        nested.check_keys(&OVERLAP)?;
        nested.choice("template", TEMPLATES)?
    } else {
        fields.choice(KEY, TEMPLATES)?
    };
    Ok(match template {
        Some("none") => OverlapCheck::None,
        Some("all") => OverlapCheck::All,
        Some(_) | None => OverlapCheck::Cached,
    })
}
