//! In which format a disk lies in its file.
//!
//! Invariants: `qemu-img create` takes every image that exists here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::choice::named;
use crate::units::{BadValue, Bytes, stored_as_text};

const CLUSTER_BYTES_MIN: u64 = 512;
const CLUSTER_BYTES_MAX: u64 = 2 << 20;
/// The tables of the largest disk that anybody measures.
const CACHE_BYTES_MAX: u64 = 1 << 40;

/// The format of an image.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub enum Image {
    /// The disk's bytes.
    #[default]
    Raw,
    /// qcow2.
    Qcow2(Qcow2),
}

impl Image {
    /// Whether nothing is in it before a run.
    pub fn is_empty(self) -> bool {
        matches!(self, Self::Qcow2(Qcow2 { content: Content::Empty, .. }))
    }
}

/// How a qcow2 image is made and opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qcow2 {
    /// A power of two from 512 to 2 MiB; else what qemu-img takes.
    pub cluster: Option<Bytes>,
    /// `l2-cache-size` of the program that opens it; else its default.
    pub cache: Option<Bytes>,
    /// What is allocated before anything is written.
    pub preallocation: Preallocation,
    /// What it holds at first.
    pub content: Content,
}

/// What is allocated before the first write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Preallocation {
    /// Nothing.
    #[default]
    Off,
    /// The tables that say where clusters lie.
    Metadata,
    /// Also space on the host, without writing it.
    Falloc,
    /// Also space on the host, written once.
    Full,
}

named!(Preallocation, "preallocation", [
    "off" => Off, "metadata" => Metadata, "falloc" => Falloc, "full" => Full
]);

/// What is in an image before a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// Every cluster has data, written before the first run.
    #[default]
    Full,
    /// Made anew before every run: writes allocate, reads find nothing.
    Empty,
}

impl Qcow2 {
    fn set(&mut self, word: &str) -> Result<(), BadValue> {
        let bad = || bad(word);
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match (key, value) {
            ("cluster", _) => self.cluster = Some(cluster(value).ok_or_else(bad)?),
            ("cache", _) => self.cache = Some(cache(value).ok_or_else(bad)?),
            ("preallocation", _) => self.preallocation = value.parse()?,
            ("empty", "") if word == key => self.content = Content::Empty,
            _ => return Err(bad()),
        }
        Ok(())
    }

    /// What differs from the default, each with this before it.
    fn write_options(&self, f: &mut fmt::Formatter<'_>, separator: char) -> fmt::Result {
        if let Some(cluster) = self.cluster {
            write!(f, "{separator}cluster={cluster}")?;
        }
        if let Some(cache) = self.cache {
            write!(f, "{separator}cache={cache}")?;
        }
        if self.preallocation != Preallocation::default() {
            write!(f, "{separator}preallocation={}", self.preallocation)?;
        }
        match self.content {
            Content::Full => Ok(()),
            Content::Empty => write!(f, "{separator}empty"),
        }
    }
}

fn cluster(text: &str) -> Option<Bytes> {
    let bytes: Bytes = text.parse().ok()?;
    let range = CLUSTER_BYTES_MIN..=CLUSTER_BYTES_MAX;
    (range.contains(&bytes.0) && bytes.0.is_power_of_two()).then_some(bytes)
}

fn cache(text: &str) -> Option<Bytes> {
    text.parse().ok().filter(|bytes: &Bytes| (1..=CACHE_BYTES_MAX).contains(&bytes.0))
}

fn bad(text: &str) -> BadValue {
    let valid = "write raw, qcow2, or qcow2 with any of :cluster=64k (a power of two from 512 to \
                 2M), :cache=8M (l2-cache-size), :preallocation=off|metadata|falloc|full and :empty";
    BadValue::new(text, "image", valid)
}

impl FromStr for Image {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let mut words = text.split(':');
        match (words.next(), text) {
            (Some("raw"), "raw") => Ok(Self::Raw),
            (Some("qcow2"), _) => {
                let mut qcow2 = Qcow2::default();
                words.try_for_each(|word| qcow2.set(word))?;
                Ok(Self::Qcow2(qcow2))
            }
            _ => Err(bad(text)),
        }
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raw => f.write_str("raw"),
            Self::Qcow2(qcow2) => {
                f.write_str("qcow2")?;
                // With `{:#}` for readers; else as it is read again.
                qcow2.write_options(f, if f.alternate() { ' ' } else { ':' })
            }
        }
    }
}

stored_as_text!(Image);

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, printed: &str, readable: &str) {
        let image: Image = text.parse().unwrap();
        assert_eq!(image.to_string(), printed);
        assert_eq!(printed.parse::<Image>().unwrap(), image);
        assert_eq!(format!("{image:#}"), readable);
        let stored = serde_json::to_value(image).unwrap();
        assert_eq!(stored, printed);
        assert_eq!(serde_json::from_value::<Image>(stored).unwrap(), image);
    }

    #[test]
    fn images_are_read_printed_and_stored() {
        check("raw", "raw", "raw");
        check("qcow2", "qcow2", "qcow2");
        check("qcow2:preallocation=off", "qcow2", "qcow2");
        check(
            "qcow2:empty:preallocation=metadata:cache=8192k:cluster=2M",
            "qcow2:cluster=2M:cache=8M:preallocation=metadata:empty",
            "qcow2 cluster=2M cache=8M preallocation=metadata empty",
        );
        check("qcow2:cluster=512", "qcow2:cluster=512", "qcow2 cluster=512");
    }

    #[test]
    fn other_images_are_refused_with_what_is_valid() {
        for (text, named) in [
            ("", ""),
            ("vmdk", "vmdk"),
            ("raw:empty", "raw:empty"),
            ("qcow2:", ""),
            ("qcow2:cluster=3k", "cluster=3k"),
            ("qcow2:cluster=4M", "cluster=4M"),
            ("qcow2:cluster", "cluster"),
            ("qcow2:cache=0", "cache=0"),
            ("qcow2:cache=x", "cache=x"),
            ("qcow2:empty=on", "empty=on"),
            ("qcow2:empty=", "empty="),
            ("qcow2,empty", "qcow2,empty"),
        ] {
            let message = text.parse::<Image>().unwrap_err().to_string();
            let start = format!("'{named}' is no image: write raw, qcow2, or");
            assert!(message.starts_with(&start), "{message}");
        }
        let error = "qcow2:preallocation=on".parse::<Image>().unwrap_err();
        let expected = "'on' is no preallocation: valid are off, metadata, falloc, full";
        assert_eq!(error.to_string(), expected);
    }
}
