//! Which crate may depend on which: the arrows of ARCHITECTURE.md as one table.
//!
//! Invariants: a new edge changes this table and ARCHITECTURE.md in the same commit. `testkit` is
//! only ever a dev-dependency, but for `conform`, which nobody uses. An allowed edge need not be in
//! use.

use crate::tidy::Problem;
use crate::tidy::metadata::{Dependency, Kind, Member};

/// What one crate may use.
struct Row {
    name: &'static str,
    normal: &'static [&'static str],
    /// For tests only, besides `normal` and `testkit`.
    dev: &'static [&'static str],
}

const fn row(
    name: &'static str,
    normal: &'static [&'static str],
    dev: &'static [&'static str],
) -> Row {
    Row { name, normal, dev }
}

const TESTKIT: &str = "testkit";

const TABLE: &[Row] = &[
    row(
        "fuzz",
        &[
            "block",
            "exports",
            "graph",
            "monitor",
            "nbd",
            "nbd_client",
            "options",
            "qcow2",
            "request_path",
            "takeover",
            "tuner",
            "vhost_user",
            "virtio",
        ],
        &[],
    ),
    row("test_cluster", &["container_images", "guest"], &[]),
    row("fake_cluster", &["agent"], &[]),
    row("dist", &["container_images", "options", "ringloom"], &[]),
    row("container_images", &["agent"], &[]),
    row(
        "ringloom",
        &["agent", "convert", "ctl", "daemon", "options", "top", "tuner"],
        &["fake_cluster"],
    ),
    row("top", &["ctl"], &[]),
    row("ctl", &["convert", "qcow2"], &[]),
    row(
        "convert",
        &[
            "block",
            "copy",
            "disk",
            "graph",
            "host",
            "iothread",
            "kernel_io",
            "layers",
            "options",
            "qcow2",
            "request_path",
            "syntax",
        ],
        &[],
    ),
    row(
        "bench",
        &[
            "bitmaps",
            "block",
            "disk",
            "iothread",
            "kernel_io",
            "layers",
            "load",
            "nbd",
            "qcow2",
            "request_path",
            TESTKIT,
            "virtio",
            "virtio_blk",
        ],
        &[],
    ),
    row(
        "conform",
        &[
            "bitmaps",
            "block",
            "copy",
            "disk",
            "iothread",
            "kernel_io",
            "layers",
            "nbd_client",
            "qcow2",
            "rbd",
            "request_path",
            TESTKIT,
            "virtio",
            "virtio_blk",
        ],
        &[],
    ),
    row("rehearsal", &["placement"], &[]),
    row(
        "tuner",
        &[
            "agent", "cluster", "emit", "findings", "guest", "load", "plan", "records", "report",
            "storage",
        ],
        &["model"],
    ),
    row(
        "report",
        &["emit", "findings", "formats", "load", "model", "plan", "records", "storage"],
        &[],
    ),
    row("emit", &["load", "plan", "records", "storage"], &[]),
    row("findings", &["load", "plan", "records"], &[]),
    row("records", &["load", "plan", "storage"], &[]),
    row("storage", &["formats", "load", "plan"], &[]),
    row("plan", &["guest", "load"], &[]),
    row("cluster", &["agent"], &["fake_cluster", "load"]),
    row("agent", &["load"], &[]),
    row("load", &[], &[]),
    row("model", &[], &["rehearsal"]),
    row(
        "daemon",
        &[
            "block",
            "control",
            "exports",
            "graph",
            "host",
            "iothread",
            "kernel_io",
            "metrics",
            "monitor",
            "nbd_server",
            "options",
            "sandbox",
            "takeover",
            "virtio",
        ],
        &[],
    ),
    row(
        "takeover",
        &[
            "bitmaps",
            "block",
            "control",
            "exports",
            "graph",
            "host",
            "kernel_io",
            "qcow2",
            "vhost_user",
            "virtio",
        ],
        &[],
    ),
    row(
        "options",
        &[
            "block",
            "control",
            "exports",
            "formats",
            "graph",
            "host",
            "kernel_io",
            "layers",
            "metrics",
            "monitor",
            "nbd_server",
            "sandbox",
            "syntax",
        ],
        &["disk"],
    ),
    row(
        "metrics",
        &["block", "exports", "host", "iothread", "kernel_io", "request_path", "syntax"],
        &["disk"],
    ),
    row(
        "monitor",
        &[
            "bitmaps",
            "block",
            "control",
            "copy",
            "exports",
            "graph",
            "host",
            "iothread",
            "jobs",
            "kernel_io",
            "layers",
            "nbd_server",
            "qcow2",
            "request_path",
            "sandbox",
            "syntax",
        ],
        &[],
    ),
    row(
        "control",
        &[
            "bitmaps",
            "block",
            "copy",
            "credentials",
            "exports",
            "graph",
            "host",
            "iothread",
            "kernel_io",
            "layers",
            "nbd_server",
            "placement",
            "qcow2",
            "request_path",
            "sandbox",
            "syntax",
        ],
        &["disk"],
    ),
    row(
        "nbd_server",
        &[
            "bitmaps",
            "block",
            "credentials",
            "exports",
            "host",
            "iothread",
            "kernel_io",
            "nbd",
            "request_path",
            "syntax",
        ],
        &[],
    ),
    row(
        "exports",
        &[
            "block",
            "graph",
            "host",
            "iothread",
            "kernel_io",
            "request_path",
            "sandbox",
            "syntax",
            "vhost_user",
            "virtio",
            "virtio_blk",
        ],
        &["disk"],
    ),
    row(
        "graph",
        &[
            "bitmaps",
            "block",
            "credentials",
            "disk",
            "host",
            "kernel_io",
            "layers",
            "nbd_client",
            "placement",
            "qcow2",
            "rbd",
            "request_path",
            "syntax",
        ],
        &[],
    ),
    row("sandbox", &["block", "host", "iothread"], &["kernel_io"]),
    row(
        "iothread",
        &["block", "kernel_io", "request_path"],
        &["disk", "layers", "virtio", "virtio_blk"],
    ),
    row("virtio_blk", &["block", "request_path", "virtio"], &[]),
    row("copy", &["bitmaps", "block", "request_path"], &["disk", "iothread", "kernel_io"]),
    row(
        "nbd",
        &["bitmaps", "block", "nbd_wire", "request_path"],
        &["disk", "iothread", "kernel_io"],
    ),
    row("request_path", &["block", "kernel_io"], &["disk"]),
    row("disk", &["block", "kernel_io"], &[]),
    row(
        "layers",
        &["bitmaps", "block", "tasks"],
        &["disk", "iothread", "kernel_io", "request_path", "virtio"],
    ),
    row(
        "qcow2",
        &["bitmaps", "block", "tasks"],
        &["disk", "iothread", "kernel_io", "request_path", "virtio"],
    ),
    row("nbd_client", &["block", "nbd_wire"], &[]),
    row("rbd", &["block"], &[]),
    row("credentials", &[], &[]),
    row("tasks", &["block"], &[]),
    row("bitmaps", &["block"], &[]),
    row("vhost_user", &["block", "virtio"], &[]),
    row("virtio", &["block"], &[]),
    row("kernel_io", &["block"], &[]),
    row("host", &["block"], &[]),
    row("jobs", &[], &[]),
    row("placement", &[], &[]),
    row("nbd_wire", &[], &[]),
    row("block", &[], &[]),
    row("syntax", &["formats"], &[]),
    row("formats", &[], &[]),
    row(TESTKIT, &["block", "guest", "kernel_io", "request_path"], &[]),
    row("guest", &[], &[]),
    row("xtask", &[], &[]),
];

/// Compares the workspace with the table.
pub(crate) fn check(members: &[Member]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for member in members {
        match TABLE.iter().find(|row| row.name == member.name) {
            Some(row) => problems
                .extend(member.dependencies.iter().filter_map(|dependency| judge(row, dependency))),
            None => problems.push(Problem::new(
                &member.name,
                "crate has no row in the table of xtask/src/tidy/edges.rs",
            )),
        }
    }
    for row in TABLE {
        if !members.iter().any(|member| member.name == row.name) {
            problems.push(Problem::new(
                row.name,
                "crate is in the table of xtask/src/tidy/edges.rs but not in the workspace",
            ));
        }
    }
    problems
}

fn judge(row: &Row, dependency: &Dependency) -> Option<Problem> {
    let name = dependency.name.as_str();
    let message = match dependency.kind {
        Kind::Normal if row.normal.contains(&name) => return None,
        Kind::Normal if name == TESTKIT => "`testkit` may only be a dev-dependency".to_owned(),
        Kind::Dev if name == TESTKIT || row.normal.contains(&name) || row.dev.contains(&name) => {
            return None;
        }
        Kind::Normal => format!("may not depend on `{name}`"),
        Kind::Dev => format!("may not depend on `{name}`, not even in tests"),
    };
    Some(Problem::new(row.name, message + "; xtask/src/tidy/edges.rs has the allowed edges"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_edge(from: &str, to: &str, kind: Kind, allowed: bool) {
        let dependency = Dependency { name: to.to_owned(), kind };
        let row = TABLE.iter().find(|row| row.name == from).expect("the crate has a row");
        assert_eq!(judge(row, &dependency).is_none(), allowed, "{from} -> {to} as {kind:?}");
    }

    #[test]
    fn arrows_point_down_only() {
        check_edge("ringloom", "daemon", Kind::Normal, true);
        check_edge("daemon", "ringloom", Kind::Normal, false);
        check_edge("disk", "kernel_io", Kind::Normal, true);
        check_edge("vhost_user", "kernel_io", Kind::Normal, false);
        check_edge("tuner", "daemon", Kind::Normal, false);
        check_edge("load", "block", Kind::Dev, false);
    }

    #[test]
    fn testkit_is_for_tests_only() {
        check_edge("disk", "testkit", Kind::Dev, true);
        check_edge("disk", "testkit", Kind::Normal, false);
        check_edge("conform", "testkit", Kind::Normal, true);
    }

    #[test]
    fn some_edges_are_for_tests_only() {
        check_edge("iothread", "disk", Kind::Dev, true);
        check_edge("iothread", "disk", Kind::Normal, false);
    }

    #[test]
    fn every_name_in_the_table_has_a_row_below_its_user() {
        for (index, row) in TABLE.iter().enumerate() {
            for name in row.normal {
                let target = TABLE.iter().position(|it| it.name == *name);
                let is_below = target.is_some_and(|it| it > index) || row.name == TESTKIT;
                assert!(is_below, "{} -> {name}", row.name);
            }
        }
    }

    #[test]
    fn a_crate_that_is_not_in_the_table_is_told() {
        let problems = check(&[Member {
            name: "vhdx".to_owned(),
            directory: String::new(),
            dependencies: Vec::new(),
        }]);
        assert!(problems.iter().any(|it| it.to_string().starts_with("vhdx: crate has no row")));
        assert_eq!(problems.len(), 1 + TABLE.len());
    }
}
