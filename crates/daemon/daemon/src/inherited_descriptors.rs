//! The descriptors that whoever started the daemon has left open in it: which ones are meant.
//!
//! Where it stands: asked once, before anything is opened; all others are closed
//! (`host::close_descriptors_but`), since a breached daemon could use them.
//!
//! Not here: the standard streams, which always stay.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::RawFd;
use std::path::Path;

use graph::{Blockdev, ServerAddress};
use metrics::MetricsOptions;
use monitor::{ChardevKind, ChardevOptions};
use nbd_server::{ListenAddress, NbdServerOptions};

use options::{Plan, PlanStep};

/// Where descriptors have names.
const DIRECTORIES: [&str; 2] = ["/dev/fd", "/proc/self/fd"];

/// The descriptors that a plan names, and those that a service manager passes to this process.
pub(crate) fn meant(plan: &Plan) -> BTreeSet<RawFd> {
    // The directories of guest memory have been resolved.
    let Plan {
        steps,
        pidfile,
        log_file,
        daemonize: _,
        takeover: _,
        print: _,
        print_by_default: _,
        sandbox: _,
        named_files: _,
        guest_memory: _,
        gauges,
        metrics,
        socket_rights: _,
        chardevs,
        monitors: _,
        state,
        old_state: _,
        allowed: _,
        nbd_server,
        allow_listen: _,
        allow_connect: _,
        log_format: _,
        log_levels: _,
        config: _,
    } = plan;
    let own = [pidfile, log_file, state].into_iter().filter_map(Option::as_deref);
    let paths = steps.iter().flat_map(paths_of).chain(chardevs.iter().flat_map(paths_of_chardev));
    let server = nbd_server.as_ref().and_then(NbdServerOptions::path);
    let metrics = metrics.as_ref().and_then(MetricsOptions::path);
    let paths = paths.chain(own).chain(server).chain(metrics);
    let passed = exports::passed_descriptors().iter().copied();
    let exports = plan.exports().filter_map(|export| export.vhost_user_blk()?.socket.descriptor);
    let monitors = chardevs.iter().filter_map(|chardev| match &chardev.kind {
        ChardevKind::Socket { descriptor, .. } => *descriptor,
        ChardevKind::File { .. } | ChardevKind::Stdio | ChardevKind::Null => None,
    });
    let nbd = nbd_server.as_ref().and_then(|server| match server.address {
        ListenAddress::Descriptor(descriptor) => Some(descriptor),
        ListenAddress::Inet(_) | ListenAddress::Unix(_) => None,
    });
    let sockets = exports.chain(monitors).chain(nbd).chain(servers(plan));
    paths.filter_map(number_of).chain(passed).chain(sockets).chain(*gauges).collect()
}

/// The connections to NBD servers that the process was started with.
pub(crate) fn servers(plan: &Plan) -> impl Iterator<Item = RawFd> {
    let blockdevs = plan.steps.iter().filter_map(|step| match step {
        PlanStep::Blockdev(blockdev) => Some(blockdev),
        PlanStep::Object(_) | PlanStep::Export(_) => None,
    });
    blockdevs.flat_map(Blockdev::nodes).filter_map(|node| match node.server() {
        Some(ServerAddress::Descriptor(descriptor)) => Some(*descriptor),
        Some(ServerAddress::Inet { .. } | ServerAddress::Unix(_)) | None => None,
    })
}

fn paths_of(step: &PlanStep) -> Vec<&Path> {
    match step {
        PlanStep::Object(object) => object.files(),
        PlanStep::Blockdev(blockdev) => {
            blockdev.nodes().into_iter().flat_map(Blockdev::files).collect()
        }
        PlanStep::Export(export) => {
            export.vhost_user_blk().into_iter().map(|own| &*own.socket.path).collect()
        }
    }
}

fn paths_of_chardev(chardev: &ChardevOptions) -> Vec<&Path> {
    match &chardev.kind {
        ChardevKind::Socket { path, .. } => vec![path],
        ChardevKind::File { path, input, .. } => {
            input.as_deref().into_iter().chain([&**path]).collect()
        }
        ChardevKind::Stdio | ChardevKind::Null => Vec::new(),
    }
}

/// The descriptor that a path names, or goes through.
fn number_of(path: &Path) -> Option<RawFd> {
    let below = DIRECTORIES.iter().find_map(|directory| path.strip_prefix(directory).ok())?;
    below.iter().next().and_then(OsStr::to_str)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use options::ServeCommand;
    use options::parse;

    #[track_caller]
    fn check(path: &str, expected: Option<RawFd>) {
        assert_eq!(number_of(Path::new(path)), expected, "{path}");
    }

    #[test]
    fn a_path_names_a_descriptor_in_the_directories_of_descriptors() {
        check("/dev/fd/7", Some(7));
        check("/proc/self/fd/12", Some(12));
        check("/dev/fd/9/run/a.sock", Some(9));
        check("/dev/fd/", None);
        check("/dev/fd/x", None);
        check("/dev/fdset/7", None);
        check("/tmp/dev/fd/7", None);
    }

    #[test]
    fn each_place_of_the_line_can_name_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = tempfile::NamedTempFile::new_in(dir.path()).unwrap();
        file.as_file().set_len(512).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(file.as_file());
        let line = [
            "--blockdev",
            &format!("raw,node-name=n,file.driver=file,file.filename=/dev/fd/{number}"),
            "--export",
            "vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=/dev/fd/1001/s",
            "--pidfile",
            "/proc/self/fd/1002",
            "--gauges-fd",
            "1003",
            "--blockdev",
            "qcow2,node-name=q,file.driver=nbd,file.server.type=fd,file.server.str=1004",
        ];
        let ServeCommand::Serve(plan) = parse(line.map(Into::into)).unwrap() else {
            panic!("a line that serves")
        };
        assert_eq!(meant(&plan), [number, 1001, 1002, 1003, 1004].into());
    }
}
