//! Whether a backup can be incremental, and why not.
//!
//! A bitmap records what is changed since one backup, and its name says of which: `LABEL:DATE`. It begins at the instant of that
//! backup, together with it, and nobody cleans it. The next backup copies what is marked there, has a bitmap of its own begin at
//! its own instant, and removes the old one when its file is whole and has its name. So whatever is killed in between, the
//! newest file that is there has its bitmap, with all that was changed since; or it has none that can be trusted, and the next
//! backup is a full one.

use serde_json::Value;

use super::date::BackupDate;
use super::directory::{Backup, CHAIN_MAX};

/// What is known of a disk that is to be copied.
#[derive(Debug)]
pub(crate) struct DiskFacts<'a> {
    pub(crate) node: &'a str,
    pub(crate) size: u64,
    /// Whether bitmaps of it outlive the daemon.
    pub(crate) keeps_bitmaps: bool,
    /// As `query-named-block-nodes` says.
    pub(crate) bitmaps: &'a [Value],
    /// What names of its bitmaps begin with.
    pub(crate) label: &'a str,
}

/// What the place has of the disk, to which the backup goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Before<'a> {
    /// Nothing.
    Nothing,
    /// That as its newest.
    File(&'a Backup),
    /// An export that holds what the last backup of that label copied, as the user says.
    Held,
    /// An export of which nobody has said that.
    Unknown,
}

/// How a backup is made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Only what was changed.
    Incremental { bitmap: String, since: BackupDate },
    /// The whole disk, for that reason.
    Full { why: String },
}

/// The name of the bitmap of what is changed since a backup.
pub(crate) fn bitmap_name(label: &str, date: BackupDate) -> String {
    format!("{label}:{date}")
}

/// The date of the backup to which a bitmap belongs, if it is one of that label.
pub(crate) fn date_of_bitmap(label: &str, name: &str) -> Option<BackupDate> {
    let date = BackupDate::parse(name.strip_prefix(label)?.strip_prefix(':')?)?;
    (bitmap_name(label, date) == name).then_some(date)
}

/// Decides. `is_asked_for` is whether the user wants a full backup.
pub(crate) fn choose(disk: &DiskFacts<'_>, before: Before<'_>, is_asked_for: bool) -> Choice {
    match since(disk, before, is_asked_for) {
        Ok(since) => Choice::Incremental { bitmap: bitmap_name(disk.label, since), since },
        Err(why) => Choice::Full { why },
    }
}

/// The date of the backup since which only what was changed has to be copied, or why there is none.
fn since(
    disk: &DiskFacts<'_>,
    before: Before<'_>,
    is_asked_for: bool,
) -> Result<BackupDate, String> {
    if is_asked_for {
        return Err("asked for".to_owned());
    }
    let date = match before {
        Before::Nothing => return Err("the first one there".to_owned()),
        Before::Unknown => {
            let why = "nobody says that the export holds the last one: --holds-last";
            return Err(why.to_owned());
        }
        Before::Held => {
            let dates = disk.bitmaps.iter().filter_map(|it| it["name"].as_str());
            let newest = dates.filter_map(|it| date_of_bitmap(disk.label, it)).max();
            newest.ok_or_else(|| {
                no_bitmap(disk, "the last backup") + ", nor does a full one that was cut off"
            })?
        }
        Before::File(last) => {
            check_file(disk, last)?;
            last.name.date
        }
    };
    check_bitmap(disk, date).map(|()| date)
}

fn check_file(disk: &DiskFacts<'_>, last: &Backup) -> Result<(), String> {
    let name = last.file_name();
    if let Some(damage) = &last.damage {
        return Err(format!("the chain is broken: {name}: {damage}"));
    }
    if last.size != Some(disk.size) {
        return Err(format!("the disk has another size than in {name}"));
    }
    if last.depth >= CHAIN_MAX {
        return Err(format!("a chain has at most {CHAIN_MAX} images: --keep N makes it shorter"));
    }
    Ok(())
}

fn check_bitmap(disk: &DiskFacts<'_>, date: BackupDate) -> Result<(), String> {
    let name = bitmap_name(disk.label, date);
    let Some(bitmap) = disk.bitmaps.iter().find(|it| it["name"] == name.as_str()) else {
        return Err(no_bitmap(disk, &date.to_string()));
    };
    if bitmap["inconsistent"] == true {
        return Err(format!("the bitmap since {date} is inconsistent: the daemon was killed"));
    }
    if bitmap["recording"] != true {
        return Err(format!("the bitmap since {date} was disabled and has not recorded all"));
    }
    Ok(())
}

fn no_bitmap(disk: &DiskFacts<'_>, since: &str) -> String {
    let node = disk.node;
    let end = match disk.keeps_bitmaps {
        true => ": a daemon that is killed keeps none",
        false => ": those of a disk that is no qcow2 image end with the daemon",
    };
    format!("node {node} has no bitmap since {since}{end}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::directory::BackupName;
    use super::*;

    const NAME: &str = "a-full-20260101T000000Z.qcow2";
    const BITMAP: &str = "/srv/b:20260101T000000Z";

    fn backup() -> Backup {
        Backup {
            name: BackupName::parse(NAME).unwrap(),
            path: NAME.into(),
            size: Some(1024),
            used: 0,
            backing: None,
            depth: 1,
            damage: None,
            is_merging: false,
        }
    }

    /// The reason for a full backup, or the bitmap.
    fn chosen(before: Before<'_>, bitmaps: &[Value], is_asked_for: bool) -> String {
        let disk =
            DiskFacts { node: "disk", size: 1024, keeps_bitmaps: true, bitmaps, label: "/srv/b" };
        match choose(&disk, before, is_asked_for) {
            Choice::Incremental { bitmap, since } => {
                assert_eq!(date_of_bitmap("/srv/b", &bitmap), Some(since));
                bitmap
            }
            Choice::Full { why } => why,
        }
    }

    #[test]
    fn a_full_backup_has_a_reason() {
        let good = [json!({"name": BITMAP, "recording": true})];
        let whole = backup();
        assert_eq!(chosen(Before::File(&whole), &good, false), BITMAP);
        assert_eq!(chosen(Before::Held, &good, false), BITMAP);
        assert_eq!(chosen(Before::File(&whole), &good, true), "asked for");
        assert_eq!(chosen(Before::Nothing, &good, false), "the first one there");
        assert!(chosen(Before::Unknown, &good, false).contains("--holds-last"));
        assert!(chosen(Before::Held, &[], false).contains("no bitmap since the last backup"));
        let none = chosen(Before::File(&whole), &[], false);
        assert!(none.starts_with("node disk has no bitmap since 20260101T000000Z: "), "{none}");
        let killed = [json!({"name": BITMAP, "inconsistent": true, "recording": false})];
        assert!(chosen(Before::File(&whole), &killed, false).contains("inconsistent"));
        let disabled = [json!({"name": BITMAP, "recording": false})];
        assert!(chosen(Before::File(&whole), &disabled, false).contains("disabled"));
        let broken = Backup { damage: Some("it is cut".to_owned()), ..backup() };
        assert!(chosen(Before::File(&broken), &good, false).contains("chain is broken"));
        let small = Backup { size: Some(512), ..backup() };
        assert!(chosen(Before::File(&small), &good, false).contains("another size"));
        let deep = Backup { depth: CHAIN_MAX, ..backup() };
        assert!(chosen(Before::File(&deep), &good, false).contains("--keep N"));
    }

    #[test]
    fn bitmaps_belong_to_one_place() {
        for name in ["/srv/b", "/srv/b:", "/srv/bb:20260101T000000Z", "/srv/b:20260101", "x"] {
            assert_eq!(date_of_bitmap("/srv/b", name), None, "{name}");
        }
    }
}
