//! A domain of libvirt in the place of defaults: read, judged, and what of it is measured.
//!
//! Invariants: the domain itself is never changed, and one that runs is not touched (`virsh`).

mod adopt;
mod virsh;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use plan::args::MeasureArgs;
use records::domain::view::{View, parse, short};
use records::domain::{Domain, judge};
use storage::interrupt::Interrupt;
use storage::machine::{Machine, is_same};
use storage::storages::Tools;

/// A domain before anything is measured.
#[derive(Debug)]
pub(crate) struct Baseline {
    pub(crate) domain: Domain,
    /// What of it bears on the disk, and what is not measured as it is there.
    pub(crate) notes: Vec<String>,
}

impl Baseline {
    /// Reads the domain that the options name, if they name one, and fills what they leave open in with what it says. `machine`
    /// is this host.
    ///
    /// # Errors
    /// If it cannot be read, has no such disk, or if PATH is its disk and may not be measured now.
    pub(crate) fn read(
        args: &mut MeasureArgs,
        machine: &Machine,
        tools: &Tools,
        interrupt: &Interrupt,
    ) -> Result<Option<Self>> {
        let Some(option) = args.domain.domain.clone() else { return Ok(None) };
        let about = || format!("--domain {option}");
        let (xml, runs) = if virsh::is_file(&option) {
            (virsh::of_file(Path::new(&option)).with_context(about)?, false)
        } else {
            let ask = |command: &[&str]| virsh::ask(command, &option, tools, interrupt);
            let state = ask(&["domstate"]).with_context(about)?;
            let runs = !matches!(state.trim(), "shut off" | "crashed");
            (ask(&["dumpxml", "--inactive"]).with_context(about)?, runs)
        };
        let document = parse(&xml).with_context(about)?;
        let view = View::new(&document, args.domain.disk.as_deref()).with_context(about)?;
        let (name, target) = (short(view.name()), view.target().to_owned());
        let mut notes = judge::judged(&view, machine.cores);
        let source = view.source();
        check_path(args, &(name.clone(), short(&target)), source.as_deref(), runs)?;
        notes.extend(place(args.path.as_deref(), source, &short(&target)));
        notes.extend(adopt::adopt(&view, args, machine));
        Ok(Some(Self { domain: Domain { name, disk: target, xml }, notes }))
    }
}

/// The disk of a domain is measured only while that does not run, and only read.
fn check_path(
    args: &MeasureArgs,
    (name, target): &(String, String),
    source: Option<&Path>,
    runs: bool,
) -> Result<()> {
    let Some(path) = args.path.as_deref() else { return Ok(()) };
    if !source.is_some_and(|source| is_same(source, path)) {
        return Ok(());
    }
    let path = path.display();
    if runs {
        bail!(
            "{path} is the disk {target} of the domain {name}, which runs and is not touched: leave PATH out to measure a \
             scratch file, or shut the domain down"
        );
    }
    if args.destructive {
        bail!(
            "{path} is the disk {target} of the domain {name}, which is only read: leave --destructive out"
        );
    }
    Ok(())
}

/// Whose figures these are.
fn place(path: Option<&Path>, source: Option<PathBuf>, target: &str) -> Option<String> {
    match (path, source) {
        (Some(path), Some(source)) if is_same(&source, path) => None,
        (Some(path), _) => {
            Some(format!("the figures are of {}, which is not the disk {target}", path.display()))
        }
        (None, Some(source)) => Some(format!(
            "the figures are of a scratch file in the current directory, not of the storage of {target} ({}): run tune in the \
             directory of the image, or name it as PATH while the domain is shut off",
            short(&source.display().to_string())
        )),
        (None, None) => Some(format!(
            "the figures are of a scratch file in the current directory: {target} is no file or device of this host"
        )),
    }
}

#[cfg(test)]
mod tests;
