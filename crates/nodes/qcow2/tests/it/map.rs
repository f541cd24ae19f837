//! Block status against `qemu-img map`: chains of images of random form and history, range by range.
//!
//! What could go wrong: a level of the chain that is not counted, bytes behind the end of a short backing file that are
//! said to be somebody's, subclusters that are taken for their cluster, holes of a raw file that are taken for data.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use block::{Access, BlockStatus, ByteCount, Child, DiscardPolicy, Node, Rights};
use disk::{RawNode, RawWindow};
use kernel_io::FileTable;
use qcow2::{Children, FreedClusterDiscards, OverlapCheck, Qcow2Node, Qcow2Settings};
use tasks::ControlExecutor;
use testkit::rng::Rng;

use crate::node::{engines, file, sentence};
use crate::qemu;

const UNIT: u64 = 4096;

/// A map: neighbours are different.
type Map = Vec<(Range<u64>, BlockStatus)>;

fn push(map: &mut Map, bytes: Range<u64>, status: BlockStatus) {
    match map.last_mut() {
        Some((last, its)) if *its == status && last.end == bytes.start => last.end = bytes.end,
        Some(_) | None => map.push((bytes, status)),
    }
}

/// One image of a chain, as it is made.
struct Level {
    name: String,
    is_raw: bool,
    data_file: Option<String>,
    size: u64,
}

/// A directory with a chain of images, made with QEMU's tools.
struct Chain<'a> {
    directory: &'a Path,
    rng: Rng,
    levels: Vec<Level>,
}

impl Chain<'_> {
    fn run(&self, line: &[&str]) -> Result<String> {
        qemu::succeeds(self.directory, line).with_context(|| line.join(" "))
    }

    /// Puts an image on top and gives it a history.
    fn grow(&mut self) -> Result<()> {
        let number = self.levels.len();
        let size = UNIT * (1 + self.rng.below(1024));
        let is_raw = number == 0 && self.rng.one_in(3);
        let suffix = if is_raw { "raw" } else { "qcow2" };
        let name = format!("{number}.{suffix}");
        let mut data_file = None;
        let mut options = Vec::new();
        if is_raw {
            if self.rng.one_in(4) {
                options.push("preallocation=falloc".to_owned());
            }
        } else {
            let has_subclusters = self.rng.one_in(3);
            let least = if has_subclusters { 14 } else { 9 };
            options.push(format!("cluster_size={}", 1 << (least + self.rng.below(17 - least))));
            options.push(format!("extended_l2={}", if has_subclusters { "on" } else { "off" }));
            if number == 0 {
                let kinds = ["off", "off", "metadata", "falloc", "full"];
                options.push(format!("preallocation={}", kinds[self.rng.index(5)]));
            }
            if self.rng.one_in(4) {
                data_file = Some(format!("{number}.data"));
                options.push(format!("data_file={number}.data"));
                if number == 0 && self.rng.one_in(2) {
                    options.push("data_file_raw=on".to_owned());
                }
            }
        }
        let (options, size_text) = (options.join(","), size.to_string());
        let mut line = vec!["qemu-img", "create", "-q", "-f", suffix];
        if !options.is_empty() {
            line.extend(["-o", &options]);
        }
        if let Some(below) = self.levels.last() {
            let format = if below.is_raw { "raw" } else { "qcow2" };
            line.extend(["-F", format, "-b", &below.name]);
        }
        line.extend([name.as_str(), &size_text]);
        self.run(&line)?;
        self.levels.push(Level { name, is_raw, data_file, size });
        self.change()
    }

    /// Writes, discards and zeroes in the top.
    fn change(&mut self) -> Result<()> {
        let Level { name, is_raw, data_file, size } = self.levels.last().context("a level")?;
        let (name, size) = (name.clone(), *size);
        let may_compress = !is_raw && data_file.is_none();
        let format = if *is_raw { "raw" } else { "qcow2" };
        let mut line = vec!["qemu-io".to_owned(), "-d".to_owned(), "unmap".to_owned()];
        line.extend(["-f".to_owned(), format.to_owned()]);
        for _ in 0..self.rng.below(12) {
            let unit = if self.rng.one_in(2) { 512 } else { UNIT };
            let units = size / unit;
            let start = self.rng.below(units);
            let longest = 1 << self.rng.below(9);
            let count = 1 + self.rng.below((units - start).min(longest));
            let what = match self.rng.below(10) {
                0..5 => "write -P 9",
                5 => "write -z",
                6 => "write -z -u",
                7 if may_compress => "write -c -P 3",
                7 => "write -P 0",
                _ => "discard",
            };
            line.extend(["-c".to_owned(), format!("{what} {} {}", start * unit, count * unit)]);
        }
        line.push(name);
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        // What cannot be compressed as it is fails alone.
        qemu::run(self.directory, &line).map(drop)
    }

    /// Has the host write what it has in its page cache, which the claim then empties: a file system may take pages there for
    /// data that are a hole otherwise.
    fn settle(&self) -> Result<()> {
        for level in &self.levels {
            let files = [Some(&level.name), level.data_file.as_ref()];
            for name in files.into_iter().flatten() {
                std::fs::File::open(self.directory.join(name))?.sync_all()?;
            }
        }
        Ok(())
    }

    /// What QEMU says of the top.
    fn theirs(&self) -> Result<Map> {
        let top = self.levels.last().context("a level")?;
        let format = if top.is_raw { "raw" } else { "qcow2" };
        let said = self.run(&["qemu-img", "map", "--output=json", "-f", format, &top.name])?;
        let mut map = Map::new();
        for line in said.lines() {
            let field = |name: &str| {
                let from = line.split(&format!("\"{name}\": ")).nth(1);
                from.and_then(|rest| rest.split([',', '}']).next()).context("a field")
            };
            let number = |name| anyhow::Ok(field(name)?.parse::<u64>()?);
            let start = number("start")?;
            let is_data = field("data")? == "true";
            let status = BlockStatus {
                is_data,
                // Of images that look preallocated QEMU asks the file for holes in data, which is not done here.
                is_zero: field("zero")? == "true" && !is_data,
                is_allocated: field("present")? == "true",
                depth: u8::try_from(number("depth")?)?,
            };
            push(&mut map, start..start + number("length")?, status);
        }
        Ok(map)
    }

    /// What the node says.
    fn ours(&self) -> Result<Map> {
        let table = Arc::new(FileTable::default());
        let engines = engines(&table);
        let mut node: Option<Arc<dyn Node>> = None;
        for level in &self.levels {
            let open = |name: &str| file(&self.directory.join(name), &table);
            let below: Arc<dyn Node> = open(&level.name)?;
            node = Some(if level.is_raw {
                let (whole, policy) = (RawWindow::WHOLE, DiscardPolicy::Unmap);
                let child = Child::new(below);
                Arc::new(RawNode::new("raw", child, whole, Access::ReadWrite, policy)?)
            } else {
                let data_file = level.data_file.as_deref().map(open).transpose()?;
                let children = Children {
                    file: Child::new(below),
                    backing: node.map(Child::new),
                    data_file: data_file.map(|node| Child::new(node)),
                };
                let image = Qcow2Node::open("image", children, SETTINGS, Arc::clone(&engines));
                Arc::new(image.map_err(|error| anyhow::anyhow!("{}", sentence(&error)))?)
            });
        }
        let node = node.context("a level")?;
        let _claim = node.claim(Rights::of_user(Access::ReadOnly))?;
        let mut control = ControlExecutor::open(&*engines, &node)?;
        let storage = control.storage();
        let (mut map, mut at, end) = (Map::new(), 0, node.size().0.0);
        while at < end {
            let told = control.run(storage.status(at..end));
            let from = at;
            for run in told.map_err(|kind| anyhow::anyhow!("status at byte {at}: {kind:?}"))? {
                ensure!(from + run.skip == at, "a gap at byte {at}");
                at += run.record.count.0;
                push(&mut map, from + run.skip..at, run.record.status);
            }
        }
        Ok(map)
    }
}

const SETTINGS: Qcow2Settings = Qcow2Settings {
    access: Access::ReadWrite,
    discards: FreedClusterDiscards::Passed,
    l2_cache: ByteCount(0),
    refcount_cache: ByteCount(0),
    clean_after: None,
    overlap_check: OverlapCheck::None,
};

#[test]
fn status_is_what_qemu_maps() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let mut kinds = std::collections::HashSet::new();
    for seed in 0..40 {
        let directory = tempfile::tempdir()?;
        let rng = Rng::new(seed);
        let mut chain = Chain { directory: directory.path(), rng, levels: Vec::new() };
        for _ in 0..1 + chain.rng.below(4) {
            chain.grow().with_context(|| format!("seed {seed}"))?;
        }
        chain.settle()?;
        let (ours, theirs) = (chain.ours()?, chain.theirs()?);
        ensure!(theirs == ours, "seed {seed}:\nQEMU says {theirs:?}\nbut here is {ours:?}");
        kinds.extend(ours.into_iter().map(|(_, status)| status));
    }
    ensure!(kinds.len() > 10, "too few kinds were seen: {kinds:?}");
    Ok(())
}
