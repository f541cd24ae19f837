//! Whole command lines: what they mean (here) and what is said about wrong ones (`refused`). The
//! cases were tried on qemu-storage-daemon 10.0.2; `docs/options.md` lists the differences.
//!
//! The tests run in the crate's directory: `SourceBundle.toml` is a regular file, `src` a directory.

mod config;
mod delay;
mod metrics;
mod monitors;
mod qcow2;
mod refused;
mod stripe;
mod throttle;

use std::collections::HashMap;
use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::{env, fs, iter, process};

use block::{DiscardPolicy, FlushPolicy};
use exports::{AttachLinesFormat, ExportKind, ExportOptions, SocketOptions, VhostUserBlkOptions};
use graph::{
    Activity, BaseOptions, Blockdev, BlockdevRef, KeyedChild, ObjectKind, ObjectOptions,
    PollOptions,
};

use super::{Daemonize, HelpTopic, OldState, Plan, PlanStep, ServeCommand, parse};

const NULL: &str = "--blockdev=null-co,node-name=n";
const ADDR: &str = "node-name=n,addr.type=unix,addr.path=s";

/// What a line means. Whatever it serves means the same as a configuration file.
#[track_caller]
fn command(line: &[&str]) -> Result<ServeCommand, String> {
    let command = as_line(line);
    if let Ok(ServeCommand::Serve(plan)) = &command {
        config::check_same_in_a_file(line, plan);
    }
    command
}

fn as_line(line: &[&str]) -> Result<ServeCommand, String> {
    parse(line.iter().map(OsString::from)).map_err(|error| {
        let first: Option<&dyn Error> = Some(&error);
        let causes = iter::successors(first, |&error| error.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    })
}

#[track_caller]
fn plan(line: &[&str]) -> Plan {
    match command(line) {
        Ok(ServeCommand::Serve(plan)) => *plan,
        other => panic!("{line:?} gives {other:?}"),
    }
}

/// Checks what one option's argument means, after a node `n` and iothreads `t0` and `t1`.
#[track_caller]
fn check(option: &str, arguments: &[&str], expected: &PlanStep) {
    for argument in arguments {
        let line = ["--object=iothread,id=t0", "--object=iothread,id=t1", NULL, option, argument];
        assert_eq!(plan(&line).steps.last(), Some(expected), "{argument}");
    }
}

/// Checks what is said about one option's argument, after the same.
#[track_caller]
fn refuse(option: &str, argument: &str, expected: &str) {
    let line = ["--object=iothread,id=t0", "--object=iothread,id=t1", NULL, option, argument];
    assert_eq!(command(&line), Err(format!("{option} {argument}: {expected}")));
}

#[track_caller]
fn refuse_line(line: &[&str], expected: &str) {
    assert_eq!(command(line), Err(expected.to_owned()), "{line:?}");
}

/// What a node inside another one is told that is told nothing.
const INNER: BaseOptions = BaseOptions { discard: DiscardPolicy::Unmap, ..BaseOptions::DEFAULT };

/// The node that a line ends with, after a node `n`.
#[track_caller]
fn node(argument: &str) -> Blockdev {
    match plan(&[NULL, "--blockdev", argument]).steps.pop() {
        Some(PlanStep::Blockdev(node)) => node,
        other => panic!("{argument} gives {other:?}"),
    }
}

/// What only a node's driver is told.
fn own(node: &Blockdev) -> String {
    let files = node.files().into_iter().map(|path| path.display().to_string());
    let of_all = ["active", "driver", "read-only", "discard", "force-share"];
    let is_own = |key: &str| !of_all.contains(&key) && !key.starts_with("cache.");
    let options = node.describe(&HashMap::new()).into_iter().filter(|(key, _)| is_own(key));
    let options = options.map(|(key, value)| format!("{key}={value}"));
    iter::once(node.driver.name.to_owned())
        .chain(files)
        .chain(options)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Checks that these arguments mean the same node, and what it is told.
#[track_caller]
fn check_node(arguments: &[&str], said: &str, base: BaseOptions) -> Blockdev {
    let first = node(arguments[0]);
    assert_eq!((own(&first).as_str(), first.base), (said, base), "{}", arguments[0]);
    for argument in arguments {
        assert_eq!(node(argument), first, "{argument}");
    }
    first
}

/// The children of a node: by name, or what they are told.
fn children(node: &Blockdev) -> Vec<String> {
    let child = |KeyedChild { key, node }: &KeyedChild| match node {
        BlockdevRef::Reference(name) => format!("{key}={name}"),
        BlockdevRef::Inline(inner) => format!("{key}: {}", own(inner)),
    };
    node.children.iter().map(child).collect()
}

/// The only node inside a node.
fn inner(node: &Blockdev) -> &Blockdev {
    match node.children.as_slice() {
        [KeyedChild { node: BlockdevRef::Inline(inner), .. }] => inner,
        other => panic!("{other:?}"),
    }
}

fn iothread(id: &str, polling: PollOptions) -> PlanStep {
    PlanStep::Object(ObjectOptions { id: id.to_owned(), kind: ObjectKind::Iothread(polling) })
}

fn export() -> ExportOptions {
    ExportOptions {
        id: "e".to_owned(),
        node_name: "n".to_owned(),
        writable: false,
        iothreads: Vec::new(),
        writethrough: false,
        kind: ExportKind::VhostUserBlk(device()),
    }
}

fn device() -> VhostUserBlkOptions {
    VhostUserBlkOptions {
        socket: SocketOptions { path: "s".into(), descriptor: None, mode: None, group: None },
        logical_block_size: 512,
        num_queues: None,
        pins: Vec::new(),
    }
}

/// A file that is removed again.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, content: &[u8]) -> Self {
        let path = env::temp_dir().join(format!("ringloom-options-{}-{name}", process::id()));
        fs::write(&path, content).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A file left behind in the temporary directory fails no test.
        drop(fs::remove_file(&self.0));
    }
}

#[test]
fn objects_read_the_same_in_both_notations() {
    check(
        "--object",
        &[
            "iothread,id=i.0-_",
            "qom-type=iothread,id=i.0-_",
            r#"{"qom-type":"iothread","id":"i.0-_"}"#,
        ],
        &iothread("i.0-_", PollOptions::default()),
    );
    check(
        "--object",
        &[
            "iothread,id=t,poll-max-ns=0,poll-grow=3,poll-shrink=2",
            r#"{"qom-type":"iothread","id":"t","poll-max-ns":0,"poll-grow":3,"poll-shrink":2}"#,
        ],
        &iothread("t", PollOptions { max_ns: Some(0), grow: 3, shrink: 2 }),
    );
}

const FILE: &str = "file Cargo.toml aio=any locking=auto";

#[test]
fn nodes_read_the_same_in_both_notations() {
    let plain = BaseOptions::DEFAULT;
    let file = check_node(
        &[
            "file,node-name=a,filename=Cargo.toml",
            "filename=Cargo.toml,driver=file,node-name=x,node-name=a,",
            r#"{"driver":"file","node-name":"a","filename":"Cargo.toml"}"#,
        ],
        FILE,
        plain,
    );
    assert_eq!((file.node_name.as_deref(), file.activity), (Some("a"), Activity::Active));
    check_node(
        &[
            "file,node-name=a,filename=Cargo.toml,read-only=on,discard=unmap,cache.direct=on",
            "file,node-name=a,filename=Cargo.toml,read-only=yes,discard=unmap,cache.direct=y",
            r#"{"driver":"file","node-name":"a","filename":"Cargo.toml","read-only":true,
                "discard":"unmap","cache":{"direct":true}}"#,
        ],
        FILE,
        BaseOptions { read_only: true, cache_direct: true, discard: DiscardPolicy::Unmap, ..plain },
    );
    check_node(
        &[
            "file,node-name=a,filename=Cargo.toml,cache.direct=on,aio=native",
            r#"{"driver":"file","node-name":"a","filename":"Cargo.toml","aio":"native",
                "cache":{"direct":true}}"#,
        ],
        "file Cargo.toml aio=native locking=auto",
        BaseOptions { cache_direct: true, ..plain },
    );
    check_node(
        &[
            "null-co,node-name=a,size=0x2000,read-zeroes=on",
            r#"{"driver":"null-co","node-name":"a","size":8192,"read-zeroes":true}"#,
        ],
        "null-co size=8192 read-zeroes=on latency-ns=0",
        plain,
    );
}

#[test]
fn locks_read_the_same_in_both_notations() {
    for word in ["auto", "on", "off"] {
        check_node(
            &[
                &format!("file,node-name=a,filename=Cargo.toml,locking={word}"),
                &format!(
                    r#"{{"driver":"file","node-name":"a","filename":"Cargo.toml","locking":"{word}"}}"#
                ),
            ],
            &format!("file Cargo.toml aio=any locking={word}"),
            BaseOptions::DEFAULT,
        );
    }
    let raw = node(
        "raw,node-name=a,read-only=on,force-share=on,file.driver=file,file.filename=Cargo.toml",
    );
    let shared = BaseOptions { read_only: true, force_share: true, ..INNER };
    assert_eq!((own(inner(&raw)).as_str(), inner(&raw).base), (FILE, shared));
}

#[test]
fn inactive_nodes_read_the_same_in_both_notations() {
    let raw = check_node(
        &[
            "raw,node-name=a,active=off,file.driver=file,file.filename=Cargo.toml",
            r#"{"driver":"raw","node-name":"a","active":false,
                "file":{"driver":"file","filename":"Cargo.toml","active":true}}"#,
        ],
        "raw offset=0 size=all",
        BaseOptions::DEFAULT,
    );
    assert_eq!((raw.activity, inner(&raw).activity), (Activity::Inactive, Activity::Active));
}

#[test]
fn a_node_inside_another_takes_what_becomes_of_flushes() {
    let flushes = FlushPolicy::Ignored;
    let raw = check_node(
        &[
            "raw,node-name=a,cache.no-flush=on,file.driver=file,file.filename=Cargo.toml",
            r#"{"driver":"raw","node-name":"a","cache":{"no-flush":true},
                "file":{"driver":"file","filename":"Cargo.toml"}}"#,
        ],
        "raw offset=0 size=all",
        BaseOptions { flushes, ..BaseOptions::DEFAULT },
    );
    assert_eq!(inner(&raw).base, BaseOptions { flushes, ..INNER });
}

#[test]
fn a_node_inside_another_takes_what_the_other_has() {
    let raw = check_node(
        &["raw,node-name=a,file=n", r#"{"driver":"raw","node-name":"a","file":"n"}"#],
        "raw offset=0 size=all",
        BaseOptions::DEFAULT,
    );
    assert_eq!(children(&raw), ["file=n"]);
    let raw = check_node(
        &[
            "raw,node-name=a,read-only=on,cache.direct=on,file.driver=null-co,file.cache.direct=off",
            r#"{"driver":"raw","node-name":"a","read-only":true,"cache":{"direct":true},
                "file":{"driver":"null-co","cache":{"direct":false}}}"#,
        ],
        "raw offset=0 size=all",
        BaseOptions { read_only: true, cache_direct: true, ..BaseOptions::DEFAULT },
    );
    assert_eq!(children(&raw), ["file: null-co size=1073741824 read-zeroes=off latency-ns=0"]);
    let null = inner(&raw);
    assert_eq!(
        (null.node_name.as_ref(), null.base),
        (None, BaseOptions { read_only: true, ..INNER })
    );
}

/// Which of the nodes are opened read-only: by name, those in place after a slash.
#[track_caller]
fn read_only(line: &[&str], expected: &[&str]) {
    let plan = plan(line);
    let mut found = Vec::new();
    for step in &plan.steps {
        if let PlanStep::Blockdev(blockdev) = step {
            let name = blockdev.node_name.clone().unwrap();
            let inner = blockdev.nodes();
            let named = |node: &&Blockdev| node.node_name.clone().unwrap_or(format!("{name}/file"));
            found.extend(inner.iter().filter(|node| node.base.read_only).map(named));
        }
    }
    assert_eq!(found, expected, "{line:?}");
}

#[test]
fn files_that_nobody_writes_are_opened_read_only_if_asked_for() {
    let file = "--blockdev=file,node-name=n,filename=Cargo.toml,auto-read-only=on";
    let raw = "--blockdev=raw,node-name=n,auto-read-only=on,file.driver=file,\
               file.filename=Cargo.toml";
    let reads = format!("--export=vhost-user-blk,id=e,{ADDR}");
    let writes = format!("{reads},writable=on");
    read_only(&[file], &["n"]);
    read_only(&[file, &reads], &["n"]);
    read_only(&[file, &writes], &[]);
    read_only(&[raw, &reads], &["n/file"]);
    read_only(&[raw, &writes], &[]);
    // Whoever else writes counts, and who does not ask for it does not care.
    let other = "--export=vhost-user-blk,id=f,node-name=a,addr.type=unix,addr.path=t,writable=on";
    read_only(&[file, "--blockdev=raw,node-name=a,file=n", &reads, other], &[]);
    read_only(&[file, "--blockdev=null-co,node-name=a", &reads, other], &["n"]);
    read_only(&["--blockdev=file,node-name=n,filename=Cargo.toml"], &[]);
    read_only(&["--blockdev=null-co,node-name=n,auto-read-only=on"], &[]);
    read_only(&["--blockdev=null-co,node-name=n,auto-read-only=on,read-only=on"], &["n"]);
}

#[test]
fn raw_shows_a_part_of_its_child() {
    let raw = check_node(
        &[
            "raw,node-name=a,offset=0x200,size=1024,file=n",
            r#"{"driver":"raw","node-name":"a","offset":512,"size":1024,"file":"n"}"#,
        ],
        "raw offset=512 size=1024",
        BaseOptions::DEFAULT,
    );
    assert_eq!(children(&raw), ["file=n"]);
}

#[test]
fn exports_read_the_same_in_both_notations() {
    check(
        "--export",
        &[
            "vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=s",
            r#"{"type":"vhost-user-blk","id":"e","node-name":"n","addr":{"type":"unix","path":"s"}}"#,
        ],
        &PlanStep::Export(export()),
    );
    check(
        "--export",
        &[
            "vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=s,writable=on,num-queues=256,\
             logical-block-size=4k,iothread.0=t1,iothread.1=t0,writethrough=on",
            r#"{"type":"vhost-user-blk","id":"e","node-name":"n","addr":{"type":"unix","path":"s"},
                "writable":true,"num-queues":256,"logical-block-size":4096,
                "iothread":["t1","t0"],"writethrough":true}"#,
        ],
        &PlanStep::Export(ExportOptions {
            writable: true,
            writethrough: true,
            iothreads: vec!["t1".to_owned(), "t0".to_owned()],
            kind: ExportKind::VhostUserBlk(VhostUserBlkOptions {
                num_queues: Some(256),
                logical_block_size: 4096,
                ..device()
            }),
            ..export()
        }),
    );
    check(
        "--export",
        &["vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=s,iothread=t0"],
        &PlanStep::Export(ExportOptions { iothreads: vec!["t0".to_owned()], ..export() }),
    );
}

#[test]
fn what_both_forms_have_applies_to_all_exports() {
    let first = format!("--export=vhost-user-blk,id=e,{ADDR}");
    let second = format!("--expo=vhost-user-blk,id=f,{ADDR}2");
    let line = [
        "--daemonize",
        "--socket-mode",
        "0660",
        NULL,
        &first,
        &second,
        "--socket-group=kvm",
        "--pidfile",
        "old",
        "--pidfile=new",
        "--print=libvirt",
    ];
    let plan = plan(&line);
    assert_eq!(plan.pidfile, Some(PathBuf::from("new")));
    assert_eq!(plan.daemonize, Daemonize::Background);
    assert_eq!(plan.print, Some(AttachLinesFormat::Libvirt));
    let sockets: Vec<_> =
        plan.exports().filter_map(|export| Some(export.vhost_user_blk()?.socket.clone())).collect();
    let socket = |path: &str| SocketOptions {
        path: path.into(),
        descriptor: None,
        mode: Some(0o660),
        group: Some("kvm".to_owned()),
    };
    assert_eq!(sockets, [socket("s"), socket("s2")]);
}

/// The plan of a line that says by itself how a guest is attached, as the short form does.
fn that_tells_how_to_attach(line: &[&str]) -> Plan {
    Plan { print_by_default: Some(AttachLinesFormat::Qemu), ..plan(line) }
}

#[test]
fn the_short_form_is_written_out() {
    let image = Scratch::new("1 disk.img", b"");
    let short = plan(&[image.path(), "--socket", "s", "--iothreads", "2", "--num-queues=4"]);
    let node = format!("--blockdev=file,node-name=disk,filename={},cache.direct=on", image.path());
    let id = format!("ringloom-options-{}-1-disk", process::id());
    let export = format!(
        "--export=vhost-user-blk,id={id},node-name=disk,addr.type=unix,addr.path=s,writable=on,\
         num-queues=4,iothread.0=iothread0,iothread.1=iothread1"
    );
    let objects = ["--object=iothread,id=iothread0", "--object=iothread,id=iothread1"];
    assert_eq!(short, that_tells_how_to_attach(&[objects[0], objects[1], &node, &export]));
}

#[test]
fn the_short_form_has_safe_defaults() {
    for line in [
        ["--socket=s", "--read-only", "--direct=off", "Cargo.toml"].as_slice(),
        &["--socket=s", "--read-only", "--direct=no", "--iothreads=none", "--", "Cargo.toml"],
    ] {
        let expected = that_tells_how_to_attach(&[
            "--blockdev=file,node-name=disk,filename=Cargo.toml,read-only=on",
            "--export=vhost-user-blk,id=Cargo,node-name=disk,addr.type=unix,addr.path=s",
        ]);
        assert_eq!(plan(line), expected);
    }
}

#[test]
fn a_format_must_be_said() {
    let refused = |name: &str, content: &[u8], format: &str, reason: &str| {
        let image = Scratch::new(name, content);
        let path = image.path();
        refuse_line(
            &[path, "--socket=s"],
            &format!(
                "serve {path}: looks like {format} ({reason}); say --format raw to serve its bytes \
                 as they are, or {}",
                match format {
                    "qcow2" => "--format qcow2 for the disk inside it".to_owned(),
                    _ => format!("convert it: qemu-img convert -f {format} -O qcow2 OLD NEW"),
                }
            ),
        );
        plan(&[path, "--socket=s", "--format=raw"]);
        plan(&[&format!("--blockdev=file,node-name=n,filename={path}")]);
    };
    refused("a.qcow2", b"", "qcow2", "its name ends in .qcow2");
    refused("a.VHD", b"x", "vpc", "its name ends in .vhd");
    refused("b.img", b"QFI\xfb\0\0\0\x03", "qcow2", "by its first bytes");
    refused("c.img", b"QFI\xfb\0\0\0\x01", "qcow", "by its first bytes");
    refused("d.img", b"KDMV", "vmdk", "by its first bytes");
    let vdi = [[b' '; 64].as_slice(), b"\x7f\x10\xda\xbe"].concat();
    refused("e.img", &vdi, "vdi", "by its first bytes");
    refuse_line(
        &["Cargo.toml", "--socket=s", "--format", "qed"],
        "--format qed: format 'qed' is not supported yet (supported: raw, qcow2); convert it: qemu-img \
         convert -f qed -O qcow2 OLD NEW",
    );
    refuse_line(
        &["Cargo.toml", "--socket=s", "--format", "row"],
        "--format row: parameter 'format' does not accept value 'row'; did you mean 'raw'?",
    );
}

#[test]
fn help_and_version_win_over_what_is_wrong_in_an_argument() {
    let help = |topic| Ok(ServeCommand::Help(topic));
    assert_eq!(command(&["--help"]), help(HelpTopic::Serve));
    assert_eq!(command(&["-h", "--bogus"]), help(HelpTopic::Serve));
    assert_eq!(command(&["--object", "bogus", "--help"]), help(HelpTopic::Serve));
    assert_eq!(command(&["-V"]), Ok(ServeCommand::Version));
    assert_eq!(command(&["-Vh", "--bogus"]), Ok(ServeCommand::Version));
    assert_eq!(command(&["--chardev", "x", "--vers"]), Ok(ServeCommand::Version));
    assert_eq!(command(&["--object", "help"]), help(HelpTopic::Object));
    assert_eq!(command(&["--blockdev", "file,help"]), help(HelpTopic::Blockdev));
    assert_eq!(command(&["--export=?"]), help(HelpTopic::Export));
    refuse_line(&["--bogus", "--version"], "unknown option '--bogus'");
}
