//! `--blockdev`: what all nodes have, and the nodes written inside them.
//!
//! Limits: nodes nest at most [`NESTING_MAX`] deep.
//! Not here: what only one driver has (`drivers`).

use super::drivers;
use super::fault::Fault;
use super::fields::{Fields, Keys, TextOrObject};
use super::names::is_identifier;
use super::plan::{Activity, AutoReadOnly, Backing, Blockdev, Child, Discard, Flushes, NamedChild};
use crate::permissions::BACKING;

/// How deep nodes written inside nodes may go; it bounds the recursion that reads them.
const NESTING_MAX: usize = 8;

/// The longest node-name; QEMU keeps 32 bytes with the terminating zero.
const NODE_NAME_BYTES_MAX: usize = 31;

/// The keys that every driver has.
pub(super) const BASE: &[&str] = &[
    "active",
    "driver",
    "node-name",
    "read-only",
    "auto-read-only",
    "discard",
    "cache",
    "force-share",
];

/// The keys of qemu-storage-daemon that no driver has yet.
pub(super) const BASE_LATER: &[&str] = &["detect-zeroes"];

/// The keys of `cache`.
pub(super) const CACHE: Keys =
    Keys { of: "--blockdev cache", supported: &[&["direct", "no-flush"]], later: &[] };

/// What every node has, with what it took from the node that it is written in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Common {
    pub(super) read_only: bool,
    pub(super) auto_read_only: AutoReadOnly,
    pub(super) discard: Discard,
    pub(super) cache_direct: bool,
    pub(super) flushes: Flushes,
    pub(super) force_share: bool,
}

impl Common {
    /// What a node has that is written in none and says nothing.
    const DEFAULT: Self = Self {
        read_only: false,
        auto_read_only: AutoReadOnly::Off,
        discard: Discard::Ignore,
        cache_direct: false,
        flushes: Flushes::Obeyed,
        force_share: false,
    };

    /// What a node written inside this one has unless it says otherwise. It takes discards
    /// whatever this one was told: whoever stands above decides which come through. What an image stands on
    /// is only read, as in QEMU.
    fn below(self, role: &str) -> Self {
        if role == BACKING {
            let auto_read_only = AutoReadOnly::Off;
            return Self { read_only: true, auto_read_only, discard: Discard::Ignore, ..self };
        }
        Self { discard: Discard::Unmap, ..self }
    }

    fn read(fields: &mut Fields, inherited: Self) -> Result<Self, Fault> {
        let read_only = fields.flag("read-only")?.unwrap_or(inherited.read_only);
        let auto_read_only = match fields.flag("auto-read-only")? {
            Some(true) => AutoReadOnly::On,
            Some(false) => AutoReadOnly::Off,
            None => inherited.auto_read_only,
        };
        let force_share = fields.flag("force-share")?.unwrap_or(inherited.force_share);
        if force_share && !read_only {
            return Err(Fault::ForceShareWritable);
        }
        let discard = match fields.choice("discard", &["ignore", "unmap"])? {
            Some("unmap") => Discard::Unmap,
            Some(_) => Discard::Ignore,
            None => inherited.discard,
        };
        let (cache_direct, flushes) = cache(fields, inherited)?;
        Ok(Self { read_only, auto_read_only, discard, cache_direct, flushes, force_share })
    }
}

/// A node that is being read: what a driver takes its keys and children from.
#[derive(Debug)]
pub(super) struct Reader {
    /// What is left to take.
    pub(super) fields: Fields,
    /// What was taken already.
    pub(super) common: Common,
    children: Vec<NamedChild>,
    depth: usize,
}

impl Reader {
    /// Takes the child under this key, which must be there.
    pub(super) fn child(&mut self, key: &str) -> Result<(), Fault> {
        let given = self.fields.text_or_object(key)?;
        self.add_child(key.to_owned(), given)
    }

    /// Takes the child under this key, if there is any.
    pub(super) fn child_if_any(&mut self, key: &str) -> Result<(), Fault> {
        match self.fields.text_or_object_if_any(key)? {
            Some(given) => self.add_child(key.to_owned(), given),
            None => Ok(()),
        }
    }

    /// Takes the child that an image stands on.
    pub(super) fn backing(&mut self) -> Result<Backing, Fault> {
        if self.fields.is_nothing(BACKING) {
            return Ok(Backing::OfLine);
        }
        match self.fields.text_or_object_if_any(BACKING)? {
            None => Ok(Backing::OfImage),
            Some(given) => {
                self.add_child(BACKING.to_owned(), given)?;
                Ok(Backing::OfLine)
            }
        }
    }

    /// Takes the children of the list under this key, at least `least` and at most `most`.
    pub(super) fn children(&mut self, key: &str, least: usize, most: usize) -> Result<(), Fault> {
        let list = self.fields.texts_or_objects(key)?;
        if !(least..=most).contains(&list.len()) {
            let (key, given) = (self.fields.path(key), list.len());
            return Err(Fault::ChildCount { key, given, least, most });
        }
        let mut numbered = list.into_iter().enumerate();
        numbered.try_for_each(|(index, given)| self.add_child(format!("{key}.{index}"), given))
    }

    /// The children that are given by name, in order.
    pub(super) fn references(&self) -> impl Iterator<Item = &str> {
        self.children.iter().filter_map(|child| match &child.node {
            Child::Reference(name) => Some(name.as_str()),
            Child::Inline(_) => None,
        })
    }

    /// Takes a number that fits a signed one of 64 bits, as the place in a file must; QEMU's bound.
    pub(super) fn number(&mut self, key: &str) -> Result<Option<u64>, Fault> {
        match self.fields.number(key)? {
            Some(bytes) if i64::try_from(bytes).is_err() => {
                Err(Fault::Expects { key: self.fields.path(key), expected: "at most 2^63 - 1" })
            }
            bytes => Ok(bytes),
        }
    }

    fn add_child(&mut self, name: String, given: TextOrObject) -> Result<(), Fault> {
        let node = match given {
            TextOrObject::Text(node_name) => Child::Reference(node_name),
            TextOrObject::Object(_) if self.depth + 1 >= NESTING_MAX => {
                let (key, levels_max) = (self.fields.path(&name), NESTING_MAX);
                return Err(Fault::TooDeep { key, levels_max });
            }
            TextOrObject::Object(inner) => {
                Child::Inline(Box::new(read(inner, self.common.below(&name), self.depth + 1)?))
            }
        };
        self.children.push(NamedChild { name, node });
        Ok(())
    }
}

/// Reads the argument of `--blockdev`.
pub(super) fn parse(text: &str) -> Result<Blockdev, Fault> {
    let node = read(Fields::parse(text, "driver")?, Common::DEFAULT, 0)?;
    if node.node_name.is_none() {
        return Err(Fault::NoNodeName);
    }
    Ok(node)
}

fn read(mut fields: Fields, inherited: Common, depth: usize) -> Result<Blockdev, Fault> {
    let name = fields.required_text("driver")?;
    let entry = drivers::find(&fields, name)?;
    fields.check_keys(&entry.keys)?;
    let node_name = fields.text("node-name")?.map(check_node_name).transpose()?;
    let common = Common::read(&mut fields, inherited)?;
    let activity = match fields.flag("active")? {
        Some(false) => Activity::Inactive,
        Some(true) | None => Activity::Active,
    };
    let mut reader = Reader { fields, common, children: Vec::new(), depth };
    let driver = (entry.read)(&mut reader)?;
    let Common { read_only, auto_read_only, discard, cache_direct, flushes, force_share } = common;
    Ok(Blockdev {
        node_name,
        driver,
        children: reader.children,
        read_only,
        auto_read_only,
        discard,
        cache_direct,
        flushes,
        force_share,
        activity,
    })
}

fn check_node_name(name: String) -> Result<String, Fault> {
    if !is_identifier(&name) {
        return Err(Fault::NotAnIdentifier { key: "node-name", value: name });
    }
    if name.len() > NODE_NAME_BYTES_MAX {
        return Err(Fault::NodeNameTooLong { name, bytes_max: NODE_NAME_BYTES_MAX });
    }
    Ok(name)
}

/// Whether the page cache is left out, and what becomes of flushes.
fn cache(fields: &mut Fields, inherited: Common) -> Result<(bool, Flushes), Fault> {
    let Some(mut cache) = fields.object("cache")? else {
        return Ok((inherited.cache_direct, inherited.flushes));
    };
    cache.check_keys(&CACHE)?;
    let direct = cache.flag("direct")?.unwrap_or(inherited.cache_direct);
    let flushes = match cache.flag("no-flush")? {
        Some(true) => Flushes::Ignored,
        Some(false) => Flushes::Obeyed,
        None => inherited.flushes,
    };
    Ok((direct, flushes))
}
