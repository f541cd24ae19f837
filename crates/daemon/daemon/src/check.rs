//! `ringloom check`: what a line would serve, without serving it.
//!
//! Files are opened and closed, and images looked at; locks are tried and given back; nothing is written, no socket
//! is made, no thread is started. What a start would refuse is said in its words.
//!
//! Threads: the process's first one. It waits for storage as a start does.

use std::fmt::Write;
use std::fs::DirEntry;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Access, Alignments, Clock, FlushPolicy, Permissions, Rights, SystemClock};
use control::StateFile;
use exports::{
    ExportKind, ExportOptions, VhostUserBlkOptions, descriptors_wanted_by, wait_until_unserved,
};
use graph::{Graph, NODE, ObjectKind, ObjectOptions, StorageWatchdog};
use host::chain_of;
use kernel_io::{Aio, Caching, FilePlace, FileTable, OpenFile, SpareRings, StorageBlockingKind};
use options::{OldState, Plan, PlanStep, restored};
use rustix::process::{Resource, getrlimit};
use sandbox::SandboxMode;

/// What an iothread's ring takes of memory that the kernel keeps, in KiB.
const RING_KIB: usize = 280;

/// What nobody needs.
const NOTHING: Rights = Rights { uses: Permissions::NONE, shares: Permissions::ALL };

/// What was found out about a line.
#[derive(Debug, Default)]
pub struct CheckReport {
    text: String,
    /// What a start would refuse.
    refusals: Vec<String>,
    /// What works and should be looked at.
    advice: Vec<String>,
}

impl CheckReport {
    /// Whether a start would serve what the line says.
    pub fn is_servable(&self) -> bool {
        self.refusals.is_empty()
    }

    /// All of it, for people.
    pub fn text(&self) -> String {
        let mut text = self.text.clone();
        for advice in &self.advice {
            let _infallible = writeln!(text, "unwise: {advice}");
        }
        for refusal in &self.refusals {
            let _infallible = writeln!(text, "refused: {refusal}");
        }
        text.push_str(match self.is_servable() {
            true => "a start would serve this\n",
            false => "a start would fail\n",
        });
        text
    }

    fn say(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }
}

/// Finds out what a start with that plan would do. Blocks as far as storage does.
pub fn check(mut plan: Plan) -> CheckReport {
    let mut report = CheckReport::default();
    report.look_at_state(&mut plan);
    let files = Arc::<FileTable>::default();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let watch = Arc::new(StorageWatchdog::default());
    let mut graph = Graph::new(files, clock, plan.named_files.clone(), watch);
    for step in &plan.steps {
        if let Err(error) = make(&mut graph, step) {
            report.refusals.push(error);
            return report;
        }
    }
    plan.exports().for_each(|export| report.look_at_export(&graph, export));
    if plan.exports().next().is_none() && plan.monitors.is_empty() {
        report.refusals.push("nothing to serve: no --export, and no --monitor".to_owned());
    }
    report.look_at_files(&graph);
    report.look_at_needs(&plan, &graph);
    report.look_at_whole(&plan);
    report
}

fn make(graph: &mut Graph, step: &PlanStep) -> Result<(), String> {
    let sentence = |error: &dyn std::error::Error| chain_of(error).to_string();
    match step {
        PlanStep::Object(ObjectOptions { id, kind: ObjectKind::ThrottleGroup(limits) }) => {
            graph.add_throttle_group(id, *limits).map_err(|it| sentence(&it))
        }
        PlanStep::Object(object) => {
            look_at_files_of(object).map_err(|it| format!("{}: {it}", object.id))?;
            graph.add_object(object.name()).map_err(|it| sentence(&it))
        }
        PlanStep::Blockdev(blockdev) => graph.add(blockdev).map_err(|it| sentence(&it)),
        PlanStep::Export(export) => {
            graph.add_export(export.entry()).map(drop).map_err(|it| sentence(&it))
        }
    }
}

/// Whether what an object is read from can be read.
fn look_at_files_of(object: &ObjectOptions) -> Result<(), String> {
    let sentence = |error: &dyn std::error::Error| chain_of(error).to_string();
    match &object.kind {
        ObjectKind::Secret(secret) => secret.load().map(drop).map_err(|it| sentence(&it)),
        // The password of a key is another object.
        ObjectKind::TlsCredsX509(options) if options.password.is_some() => Ok(()),
        ObjectKind::TlsCredsX509(options) => {
            options.files.load(None).map(drop).map_err(|it| sentence(&it))
        }
        ObjectKind::Authorization(options) => options.load().map(drop).map_err(|it| sentence(&it)),
        ObjectKind::Iothread(_)
        | ObjectKind::IothreadPool(_)
        | ObjectKind::ThrottleGroup(_)
        | ObjectKind::MainLoop => Ok(()),
    }
}

impl CheckReport {
    /// What is kept takes the place of what the line says, as at a start.
    fn look_at_state(&mut self, plan: &mut Plan) {
        let Some(path) = plan.state.clone() else { return };
        let shown = path.display();
        if plan.old_state == OldState::Forgotten {
            self.say(format!("state {shown}: what is kept there would be forgotten"));
            return;
        }
        let kept = match StateFile::peek(&path) {
            Ok(Some(kept)) => kept,
            Ok(None) => {
                self.say(format!("state {shown}: nothing is kept there yet"));
                return;
            }
            Err(error) => {
                self.refusals.push(chain_of(&error).to_string());
                return;
            }
        };
        let differences = plan.configuration().differences(&kept, &plan.source(), "the state");
        if differences.is_empty() {
            self.say(format!("state {shown}: as {} says", plan.source()));
        } else {
            let line = plan.source();
            self.say(format!("state {shown}: counts instead of {line} (--state-reset)"));
            differences.iter().for_each(|difference| self.say(format!("  {difference}")));
        }
        match restored(&kept, &plan.socket_rights) {
            Ok((steps, server)) => (plan.steps, plan.nbd_server) = (steps, server),
            Err(error) => {
                self.refusals.push(format!("state file {shown}: {}", chain_of(&error)));
            }
        }
    }

    fn look_at_export(&mut self, graph: &Graph, export: &ExportOptions) {
        let ExportOptions { id, node_name, .. } = export;
        let node = match graph.node(node_name) {
            Ok(node) => Arc::clone(node),
            Err(error) => {
                self.refusals.push(format!("export {id}: {error}"));
                return;
            }
        };
        let iothreads = match &export.iothreads[..] {
            [] => "the main thread".to_owned(),
            names => names.join(", "),
        };
        let access = if export.writable { "writable" } else { "read-only" };
        let size = bytes(node.size().0.0);
        match &export.kind {
            ExportKind::VhostUserBlk(own) => {
                let block = own.logical_block_size;
                self.say(format!(
                    "export {id}: node {node_name}, {size}, {access}, blocks of {block} bytes"
                ));
                let queues = match own.num_queues {
                    Some(queues) => queues.to_string(),
                    None => "as many as asked for, up to 256".to_owned(),
                };
                self.say(format!("  queues: {queues}; served by {iothreads}"));
                if let Err(error) = exports::blk_config(export, own, &*node) {
                    self.refusals.push(error.to_string());
                }
                self.look_at_device(export, own);
            }
            ExportKind::Nbd(own) => {
                self.say(format!("export {id}: node {node_name}, {size}, {access}"));
                self.say(format!("  NBD export '{}'; served by {iothreads}", own.name));
            }
        }
    }

    fn look_at_device(&mut self, export: &ExportOptions, own: &VhostUserBlkOptions) {
        let (id, socket) = (&export.id, &own.socket);
        let path = socket.path.display();
        match socket.listening_at() {
            Some(number) => self.say(format!("  socket {path}: inherited as descriptor {number}")),
            None => self.look_at_socket(id, &socket.path),
        }
        if let Some(queues) = own.num_queues
            && usize::from(queues) < export.iothreads.len()
        {
            let count = export.iothreads.len();
            self.advice.push(format!(
                "export {id}: {count} iothreads for {queues} queues; some do nothing"
            ));
        }
    }

    fn look_at_socket(&mut self, id: &str, socket: &Path) {
        let path = socket.display();
        if is_systemds(socket) {
            self.say(format!(
                "  socket {path}: systemd listens there, and has to start the daemon"
            ));
            return;
        }
        match wait_until_unserved(socket) {
            Ok(()) => self.say(format!("  socket {path}: nobody listens there")),
            Err(error) => {
                self.say(format!("  socket {path}: in use"));
                self.refusals.push(format!("export {id}: {}", chain_of(&error)));
            }
        }
        let directory = socket.parent().filter(|it| !it.as_os_str().is_empty());
        if let Some(directory) = directory.filter(|it| !it.is_dir()) {
            let shown = directory.display();
            self.refusals
                .push(format!("export {id}: socket {path}: there is no directory {shown}"));
        }
    }

    fn look_at_files(&mut self, graph: &Graph) {
        let (model, edges) = (graph.model(), graph.model().edges());
        for name in model.names(NODE) {
            let Ok(info) = graph.node_info(name) else { continue };
            let Some(file) = info.file else { continue };
            let above = edges.iter().filter(|edge| edge.node == name);
            let rights = above.fold(NOTHING, |all, edge| Rights {
                uses: all.uses.union(edge.uses),
                shares: all.shares.both(edge.shares),
            });
            // Of the file alone: the claim on an image that is written would change it.
            let claimed = info.node.claim(rights);
            self.look_at_file(
                file,
                if claimed.is_ok() { "free" } else { "locked by somebody else" },
            );
            if let Err(error) = claimed {
                self.refusals.push(chain_of(&error).to_string());
            }
            if info.access == Access::ReadWrite && info.base.flushes == FlushPolicy::Ignored {
                self.advice.push(format!(
                    "node {name}: cache.no-flush=on: a power loss may cost the whole disk"
                ));
            }
        }
    }

    fn look_at_file(&mut self, file: &OpenFile, lock: &str) {
        use std::os::unix::fs::MetadataExt;
        let path = file.path().display();
        let engine = match file.aio() {
            Aio::Automatic => match SpareRings::default().fill(1) {
                Ok(()) => "io_uring",
                Err(_) => "Linux AIO or threads (no io_uring here)",
            },
            Aio::IoUring => "io_uring",
            Aio::Native => "Linux AIO",
            Aio::Threads => "threads",
        };
        let caching = match file.caching() {
            Caching::Direct => "past the page cache",
            Caching::Buffered => "through the page cache",
        };
        let place = match file.residence() {
            StorageBlockingKind::Memory => ", in memory",
            StorageBlockingKind::Device => "",
            StorageBlockingKind::Elsewhere => ", where each call may block (network or FUSE)",
        };
        let Alignments { offset, memory, .. } = file.medium().alignments();
        let alignment = match (offset, memory) {
            (1, 1) => "any alignment".to_owned(),
            (offset, memory) => format!("alignment {offset} bytes, of memory {memory}"),
        };
        let size = bytes(file.bytes());
        self.say(format!("file {path}: {size}, {lock}, {caching}, {engine}{place}, {alignment}"));
        let allocated = std::fs::metadata(file.path()).map(|it| it.blocks() * 512);
        let free = rustix::fs::statvfs(file.path()).map(|it| it.f_bavail * it.f_frsize);
        if let (Ok(allocated), Ok(free)) = (allocated, free)
            && allocated < file.bytes()
            && file.bytes() - allocated > free
        {
            self.advice.push(format!(
                "file {path}: may grow by {}, and its file system has {} left",
                bytes(file.bytes() - allocated),
                bytes(free)
            ));
        }
        if file.look_for_place().is_ok_and(|place| place != FilePlace::InPlace) {
            self.advice
                .push(format!("file {path}: was removed or replaced while it was looked at"));
        }
    }

    fn look_at_needs(&mut self, plan: &Plan, graph: &Graph) {
        let kinds = plan.steps.iter().filter_map(|step| match step {
            PlanStep::Object(object) => Some(&object.kind),
            PlanStep::Blockdev(_) | PlanStep::Export(_) => None,
        });
        let threads: usize = kinds
            .map(|kind| match kind {
                ObjectKind::Iothread(_) => 1,
                ObjectKind::IothreadPool(pool) => {
                    pool.settings(pool.cpus.as_ref()).map_or(1, |settings| settings.max())
                }
                ObjectKind::ThrottleGroup(_)
                | ObjectKind::Secret(_)
                | ObjectKind::MainLoop
                | ObjectKind::TlsCredsX509(_)
                | ObjectKind::Authorization(_) => 0,
            })
            .sum();
        let main = usize::from(plan.exports().any(|export| export.iothreads.is_empty()));
        let threads = threads + main;
        let tables: u64 = graph.images().map(|image| image.cache_bytes().0).sum();
        let wanted: usize = plan
            .exports()
            .filter_map(ExportOptions::vhost_user_blk)
            .map(|own| descriptors_wanted_by(own.num_queues))
            .sum();
        let limit = getrlimit(Resource::Nofile).maximum;
        let of = limit.map_or_else(String::new, |limit| format!(" of {limit}"));
        let rings = bytes((threads * RING_KIB) as u64 * 1024);
        self.say(format!(
            "needs: iothreads: up to {threads}, with {rings} of rings; {} of tables of images; {wanted} descriptors{of} for clients",
            bytes(tables)
        ));
        if limit.is_some_and(|limit| limit < wanted as u64) {
            self.advice.push(format!(
                "clients may need {wanted} descriptors and the limit is {}: each gets a share",
                limit.unwrap_or_default()
            ));
        }
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        if threads > cpus {
            self.advice.push(format!("{threads} iothreads on {cpus} CPUs"));
        }
    }

    fn look_at_whole(&mut self, plan: &Plan) {
        for source in &plan.config {
            if let Some(writers) = &source.writers {
                self.advice.push(format!("config {}: {writers}", source.path.display()));
            }
        }
        if plan.sandbox == SandboxMode::Off {
            self.advice.push(
                "--sandbox off: a guest that breaks out has all rights of the daemon".to_owned(),
            );
        }
        if !plan.monitors.is_empty() && plan.state.is_none() {
            self.advice.push(
                "--monitor without --state: snapshots are refused, because a restart would not know them".to_owned(),
            );
        }
        if !plan.allowed.is_empty() && plan.monitors.is_empty() {
            self.advice.push("--allow-below without --monitor: nobody needs it".to_owned());
        }
        if let Some(directory) = plan.state.as_deref().and_then(Path::parent)
            && !directory.as_os_str().is_empty()
            && !directory.is_dir()
        {
            self.refusals
                .push(format!("state file: there is no directory {}", directory.display()));
        }
    }
}

/// A number of bytes for people.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    let mut rest = count as f64;
    while rest >= 1024.0 && unit + 1 < UNITS.len() {
        rest /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && rest.fract() > 0.05 && rest < 100.0);
    format!("{rest:.digits$} {}", UNITS[unit])
}

/// Whether systemd listens there for a unit. It is not asked by a connection, which would start that. Only root can find it out.
fn is_systemds(socket: &Path) -> bool {
    let is_first =
        std::fs::read_to_string("/proc/1/comm").is_ok_and(|it| it.trim_end() == "systemd");
    let (Ok(all), Ok(path)) =
        (std::fs::read_to_string("/proc/net/unix"), std::path::absolute(socket))
    else {
        return false;
    };
    let numbers = all.lines().filter_map(|line| number_of_listener(line, &path));
    let links: Vec<PathBuf> = numbers.map(|number| format!("socket:[{number}]").into()).collect();
    let is_it =
        |entry: &DirEntry| std::fs::read_link(entry.path()).is_ok_and(|it| links.contains(&it));
    let open = std::fs::read_dir("/proc/1/fd").into_iter().flatten().flatten();
    is_first && !links.is_empty() && open.into_iter().any(|entry| is_it(&entry))
}

/// The number of a socket that listens at that path, from a line of /proc/net/unix (proc(5)).
fn number_of_listener<'a>(line: &'a str, path: &Path) -> Option<&'a str> {
    const LISTENS: &str = "00010000";
    let (head, name) = line.split_at(line.find(" /")?);
    let fields: Vec<&str> = head.split_whitespace().collect();
    let [_, _, _, flags, _, _, number] = fields.as_slice() else { return None };
    (*flags == LISTENS && Path::new(&name[1..]) == path).then_some(*number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_listens_is_found_by_its_path() {
        let check = |line: &str, path: &str, expected: Option<&str>| {
            assert_eq!(number_of_listener(line, Path::new(path)), expected, "{line}");
        };
        let listens = "0000000071bbfba8: 00000002 00000000 00010000 0001 01    77 /run/a b.sock";
        check(listens, "/run/a b.sock", Some("77"));
        check(listens, "/run/a", None);
        check(&listens.replace("00010000", "00000000"), "/run/a b.sock", None);
        check("0000000071bbfba8: 00000003 00000000 00000000 0001 03 106475", "/run/a", None);
        check("0000000071bbfba8: 00000002 00000000 00010000 0001 01 5 @/run/a", "/run/a", None);
        check("Num       RefCount Protocol Flags    Type St Inode Path", "/run/a", None);
    }
}
