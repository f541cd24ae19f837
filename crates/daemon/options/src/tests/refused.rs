//! What is said about the wrong lines.

use super::{ADDR, NULL, refuse, refuse_line};

#[test]
fn wrong_objects_are_named() {
    refuse("--object", "iothread", "parameter 'id' is missing");
    refuse("--object", "id=x", "parameter 'qom-type' is missing");
    refuse("--object", "", "parameter 'qom-type' is missing");
    refuse("--object", "iothread,id=t0", "object id 't0' exists already");
    refuse(
        "--object",
        "iothread,id=0t",
        "parameter 'id' expects an identifier, not '0t': letters, digits, '-', '.', '_', starting \
         with a letter",
    );
    refuse(
        "--object",
        "iothread,id=x,aio-max-batch=0",
        "option 'aio-max-batch' of --object iothread is not supported yet",
    );
    refuse(
        "--object",
        "iothread,id=x,poll-grow=1000001",
        "parameter 'poll-grow' expects a number up to 1000000",
    );
    refuse(
        "--object",
        "iothread,foo=1",
        "unknown option 'foo' of --object iothread (supported: qom-type, id, poll-max-ns, poll-grow, poll-shrink)",
    );
    refuse(
        "--object",
        "tls-creds-psk,id=s",
        "object type 'tls-creds-psk' is not supported yet (supported: iothread, iothread-pool, throttle-group, secret, \
         main-loop, tls-creds-x509, authz-simple, authz-list, authz-list-file)",
    );
    refuse(
        "--object",
        "iothred,id=g",
        "parameter 'qom-type' does not accept value 'iothred'; did you mean 'iothread'?",
    );
    refuse("--object", r#"{"qom-type":"iothread","id":5}"#, "parameter 'id' expects a string");
    refuse(
        "--object",
        r#"{"qom-type":"iothread""#,
        "not valid JSON: EOF while parsing an object at line 1 column 22",
    );
}

#[test]
fn wrong_nodes_are_named() {
    let refuse = |argument: &str, expected: &str| refuse("--blockdev", argument, expected);
    refuse("null-co", "'node-name' must be specified for the root node");
    refuse("node-name=a", "parameter 'driver' is missing");
    refuse("file,node-name=a", "parameter 'filename' is missing");
    refuse("file,node-name=a,filename=", "the filename is empty");
    refuse(
        "file,node-name=a,fielname=x",
        "unknown option 'fielname' of --blockdev driver=file; did you mean 'filename'?",
    );
    refuse(
        "flie,node-name=a",
        "parameter 'driver' does not accept value 'flie'; did you mean 'file'?",
    );
    let drivers: Vec<_> = graph::DRIVERS.iter().map(|driver| driver.name).collect();
    let supported = format!("(supported: {})", drivers.join(", "));
    assert!(supported.starts_with("(supported: file, host_device, raw, qcow2, null-co, "));
    refuse(
        "bogus,node-name=a",
        &format!("parameter 'driver' does not accept value 'bogus' {supported}"),
    );
    refuse(
        "vhdx,node-name=a",
        &format!(
            "driver 'vhdx' is not supported yet {supported}; convert it: qemu-img convert -f vhdx -O \
             qcow2 OLD NEW"
        ),
    );
    refuse("null-co,node-name=n", "node-name 'n' exists already");
    refuse("raw,node-name=a,file.driver=null-co,file.node-name=n", "node-name 'n' exists already");
    refuse("raw,node-name=a,file.driver=null-co,file.node-name=a", "node-name 'a' exists already");
    refuse("raw,node-name=a", "parameter 'file' is missing");
    refuse("raw,node-name=a,file=m", "node 'm' is not defined before its use; did you mean 'n'?");
    refuse("raw,node-name=a,file.driver=file", "parameter 'file.filename' is missing");
    refuse(
        "raw,node-name=a,file.driver=null-co,file.siez=1",
        "unknown option 'file.siez' of --blockdev driver=null-co; did you mean 'size'?",
    );
    refuse("raw,node-name=a,file.0=x", "parameter 'file' expects a string or an object");
    let nested = format!("raw,node-name=a,{0}driver=null-co", "file.".repeat(8));
    let inner: String =
        (1..8).map(|depth| format!(",{}driver=raw", "file.".repeat(depth))).collect();
    refuse(
        &format!("{nested}{inner}"),
        &format!("parameter '{}' is nested deeper than 8 levels", ["file"; 8].join(".")),
    );
    refuse(
        "null-co,node-name=abcdefghijklmnopqrstuvwxyz012345",
        "node-name 'abcdefghijklmnopqrstuvwxyz012345' has 32 bytes; the limit is 31",
    );
    refuse("null-co,node-name.0=a", "parameter 'node-name' expects a string");
}

#[test]
fn what_a_node_cannot_do_yet_is_refused_by_name() {
    let refuse = |driver: &str, key: &str, value: &str| {
        refuse(
            "--blockdev",
            &format!("{driver},node-name=a,{key}={value}"),
            &format!("option '{key}' of --blockdev driver={driver} is not supported yet"),
        );
    };
    refuse("file", "aio-max-batch", "0");
    refuse("host_device", "pr-manager", "p");
    refuse("null-co", "detect-zeroes", "off");
}

#[test]
fn locks_that_cannot_be_are_named() {
    let refuse = |rest: &str, expected: &str| {
        refuse("--blockdev", &format!("file,node-name=a,filename=Cargo.toml,{rest}"), expected);
    };
    refuse(
        "locking=maybe",
        "parameter 'locking' does not accept value 'maybe' (supported: auto, on, off)",
    );
    let force = "force-share=on can only be used with read-only images";
    refuse("force-share=on", force);
    super::refuse(
        "--blockdev",
        "raw,node-name=a,read-only=on,force-share=on,file.driver=file,file.filename=Cargo.toml,\
         file.read-only=off",
        force,
    );
}

#[test]
fn an_active_node_does_not_stand_on_an_inactive_one() {
    let refuse = |argument: &str, child: &str| {
        let inactive = "--blockdev=null-co,node-name=i,active=off";
        let expected = format!("Inactive '{child}' can't be a file child of active 'a'");
        refuse_line(
            &[inactive, "--blockdev", argument],
            &format!("--blockdev {argument}: {expected}"),
        );
    };
    refuse("raw,node-name=a,file=i", "i");
    refuse("raw,node-name=a,file.driver=null-co,file.node-name=b,file.active=off", "b");
    refuse("raw,node-name=a,file.driver=null-co,file.active=off", "a/file");
}

#[test]
fn engines_that_cannot_be_are_named() {
    let node = |rest: &str| format!("file,node-name=a,filename=Cargo.toml,{rest}");
    refuse(
        "--blockdev",
        &node("aio=native"),
        "aio=native was specified, but it requires cache.direct=on, which was not specified.",
    );
    refuse(
        "--blockdev",
        &node("aio=uring,cache.direct=on"),
        "parameter 'aio' does not accept value 'uring' (supported: threads, native, io_uring)",
    );
}

#[test]
fn wrong_values_of_nodes_are_named() {
    let refuse = |argument: &str, expected: &str| {
        refuse("--blockdev", &format!("null-co,node-name=a,{argument}"), expected);
    };
    refuse("size=1G", "parameter 'size' expects a whole number without unit");
    refuse("size=-1", "parameter 'size' expects a whole number without unit");
    refuse("size=9223372036854775808", "parameter 'size' expects at most 2^63 - 1");
    refuse("read-only=maybe", "parameter 'read-only' expects 'on' or 'off'");
    refuse("read-only", "expected '=' after parameter 'read-only'");
    refuse(
        "discard=foo",
        "parameter 'discard' does not accept value 'foo' (supported: ignore, unmap)",
    );
    refuse(
        "cache=none",
        "parameter 'cache' has no value but keys of its own: cache.KEY=VALUE (cache=none is \
         cache.direct=on, cache=unsafe is cache.no-flush=on, cache=writethrough is writethrough=on of \
         the export)",
    );
    refuse(
        "direct=on",
        "unknown option 'direct' of --blockdev driver=null-co; did you mean 'cache.direct'?",
    );
    refuse("size=99999999999999999999", "parameter 'size' expects a number below 2^64");
    refuse("cache.direct=on,cache=x", "parameters 'cache.*' used inconsistently");
    for key in ["offset", "size"] {
        let refuse = |value: &str, expected: &str| {
            let argument = format!("raw,node-name=a,file=n,{key}={value}");
            super::refuse(
                "--blockdev",
                &argument,
                &format!("parameter '{key}' expects {expected}"),
            );
        };
        refuse("1M", "a whole number without unit");
        refuse("-1", "a whole number without unit");
        refuse("9223372036854775808", "at most 2^63 - 1");
    }
    super::refuse(
        "--blockdev",
        r#"{"driver":"null-co","node-name":"a","size":"1024"}"#,
        "parameter 'size' expects a whole number without unit",
    );
    super::refuse(
        "--blockdev",
        r#"{"driver":"null-co","node-name":"a","read-only":"on"}"#,
        "parameter 'read-only' expects true or false",
    );
}

#[test]
fn files_are_looked_at_before_anything_starts() {
    let refuse = |argument: &str, expected: &str| refuse("--blockdev", argument, expected);
    refuse(
        "file,node-name=a,filename=nope",
        "could not open 'nope': No such file or directory (os error 2)",
    );
    refuse("file,node-name=a,filename=src", "could not open 'src': is a directory");
    refuse(
        "raw,node-name=a,file.driver=file,file.filename=nope",
        "could not open 'nope': No such file or directory (os error 2)",
    );
    refuse(
        "host_device,node-name=a,filename=Cargo.toml",
        "'host_device' driver requires 'Cargo.toml' to be a block device",
    );
    refuse(
        "file,node-name=a,filename=/dev/null",
        "'file' driver requires '/dev/null' to be a regular file",
    );
    refuse_line(
        &["nope", "--socket=s"],
        "serve nope: could not open 'nope': No such file or directory (os error 2)",
    );
    refuse_line(&["src", "--socket=s"], "serve src: could not open 'src': is a directory");
    refuse_line(
        &["/dev/null", "--socket=s"],
        "serve /dev/null: not a regular file or a block device",
    );
}

#[test]
fn wrong_exports_are_named() {
    let refuse = |argument: &str, expected: &str| refuse("--export", argument, expected);
    refuse("id=e", "parameter 'type' is missing");
    refuse("vhost-user-blk,node-name=n", "parameter 'id' is missing");
    refuse("vhost-user-blk,id=e", "parameter 'node-name' is missing");
    refuse("vhost-user-blk,id=e,node-name=n", "parameter 'addr' is missing");
    refuse(
        "vhost-user-blk,id=e,node-name=n,addr=s",
        "parameter 'addr' has no value but keys of its own: addr.KEY=VALUE",
    );
    refuse("vhost-user-blk,id=e,node-name=n,addr.path=s", "parameter 'addr.type' is missing");
    refuse("vhost-user-blk,id=e,node-name=n,addr.type=unix", "parameter 'addr.path' is missing");
    refuse("vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=", "the socket path is empty");
    refuse(
        "vhost-user-blk,id=e,node-name=n,addr.type=fd,addr.str=9999",
        "File descriptor '9999' is not a socket",
    );
    refuse(
        "vhost-user-blk,id=e,node-name=n,addr.type=inet,addr.host=h,addr.port=1",
        "parameter 'addr.type' does not accept value 'inet' (supported: fd, unix)",
    );
    refuse(
        "vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.pth=s",
        "unknown option 'addr.pth' of addr.type=unix; did you mean 'path'?",
    );
    refuse(
        "fuse,id=e,node-name=n",
        "export type 'fuse' is not supported yet (supported: nbd, vhost-user-blk)",
    );
    refuse(
        "vhost-user-blkk,id=e",
        "parameter 'type' does not accept value 'vhost-user-blkk'; did you mean 'vhost-user-blk'?",
    );
    let path = "x".repeat(108);
    refuse(
        &format!("vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={path}"),
        &format!("socket path '{path}' has 108 bytes; the limit is 107"),
    );
}

#[test]
fn wrong_values_of_exports_are_named() {
    let refuse = |argument: &str, expected: &str| {
        refuse("--export", &format!("vhost-user-blk,id=e,{ADDR},{argument}"), expected);
    };
    for queues in [0, 257, 70_000] {
        refuse(
            &format!("num-queues={queues}"),
            &format!("parameter num-queues must be between 1 and 256, not {queues}"),
        );
    }
    refuse("num-queues=x", "parameter 'num-queues' expects a whole number without unit");
    for bytes in ["511", "768", "4194304"] {
        refuse(
            &format!("logical-block-size={bytes}"),
            &format!(
                "parameter logical-block-size must be a power of 2 between 512 and 2097152, not \
                 {bytes}"
            ),
        );
    }
    refuse("iothread=t2", "iothread 't2' is not defined before its use; did you mean 't0'?");
    refuse("iothread.0=t0,iothread.1=t0", "iothread 't0' is listed twice");
    refuse("iothread.1=t0", "parameter 'iothread.0' is missing");
    for key in ["fixed-iothread", "allow-inactive"] {
        refuse(
            &format!("{key}=off"),
            &format!("option '{key}' of --export type=vhost-user-blk is not supported yet"),
        );
    }
    refuse(
        "serial=x",
        "unknown option 'serial' of --export type=vhost-user-blk (supported: type, id, node-name, \
         writable, iothread, writethrough, addr, logical-block-size, num-queues, pin)",
    );
    super::refuse(
        "--export",
        r#"{"type":"vhost-user-blk","id":"e","node-name":"n","addr":{"type":"unix","path":"s"},"iothread":[]}"#,
        "parameter 'iothread' is an empty list; leave it out to serve without iothread",
    );
}

#[test]
fn steps_use_only_what_came_before() {
    let export = format!("--export=vhost-user-blk,id=e,{ADDR}");
    let written = format!("--export vhost-user-blk,id=e,{ADDR}");
    refuse_line(&[&export], &format!("{written}: node 'n' is not defined before its use"));
    let later = "is defined only after its use; options are carried out in order";
    refuse_line(&[&export, NULL], &format!("{written}: node 'n' {later}"));
    let raw = "raw,node-name=a,file=n";
    refuse_line(&["--blockdev", raw, NULL], &format!("--blockdev {raw}: node 'n' {later}"));
    // Also inside a node: what its children name is there before the next one is made.
    let image = "qcow2,node-name=a,file=x,backing.driver=raw,backing.node-name=x,backing.file=n";
    refuse_line(&[NULL, "--blockdev", image], &format!("--blockdev {image}: node 'x' {later}"));
    let threaded = format!("vhost-user-blk,id=e,{ADDR},iothread=t");
    refuse_line(
        &[NULL, "--export", &threaded, "--object=iothread,id=t"],
        &format!("--export {threaded}: iothread 't' {later}"),
    );
    refuse_line(&[NULL, &export, &export], &format!("{written}: export id 'e' exists already"));
    let again = format!("vhost-user-blk,id=f,{ADDR}");
    refuse_line(
        &[NULL, &export, "--export", &again],
        &format!("--export {again}: an export with socket 's' exists already"),
    );
    let writable = format!("vhost-user-blk,id=e,{ADDR},writable=on");
    for node in [
        ["--blockdev=null-co,node-name=n,read-only=on"].as_slice(),
        &["--blockdev=null-co,node-name=x,read-only=on", "--blockdev=raw,node-name=n,file=x"],
        &["--blockdev=raw,node-name=n,file.driver=null-co,file.read-only=on"],
        &[
            "--blockdev=raw,node-name=n,auto-read-only=on,file.driver=file,file.filename=Cargo.toml,file.read-only=on",
        ],
    ] {
        let line = [node, &["--export", &writable]].concat();
        refuse_line(
            &line,
            &format!("--export {writable}: cannot export read-only node 'n' as writable"),
        );
    }
}

#[test]
fn nodes_that_would_stand_on_themselves_are_named_with_the_way() {
    let refuse = |line: &[&str], way: &str| {
        let (node, _) = way.split_once(' ').unwrap();
        let [first, others @ ..] = line else { panic!("a line") };
        let others = others.iter().flat_map(|other| ["--blockdev", other]);
        let line: Vec<&str> = [NULL, "--blockdev", first].into_iter().chain(others).collect();
        let expected = format!("--blockdev {first}: node '{node}' would stand on itself: {way}");
        refuse_line(&line, &expected);
    };
    refuse(&["raw,node-name=a,file=a"], "a -> a");
    refuse(&["raw,node-name=a,file=b", "raw,node-name=b,file=a"], "a -> b -> a");
    refuse(
        &[
            "raw,node-name=a,file=b",
            "raw,node-name=b,file=c",
            "raw,node-name=c,file.driver=raw,file.file=a",
        ],
        "a -> b -> c -> c/file -> a",
    );
    refuse(&["raw,node-name=a,file.driver=raw,file.file=a"], "a/file -> a -> a/file");
    refuse(&["raw,node-name=a,file.driver=raw,file.file=a/file"], "a/file -> a/file");
    // A circle that is not the first thing wrong is not what is said.
    let late = "raw,node-name=a,file=b";
    refuse_line(
        &["--blockdev", late, "--blockdev=raw,node-name=b,file=b"],
        &format!(
            "--blockdev {late}: node 'b' is defined only after its use; options are carried out in order"
        ),
    );
}

#[test]
fn what_is_wrong_first_is_said_first() {
    let unknown = "raw,node-name=a,file=x";
    refuse_line(
        &[NULL, "--blockdev", unknown, "--blockdev=bogus"],
        &format!("--blockdev {unknown}: node 'x' is not defined before its use; did you mean 'n'?"),
    );
    let bogus = "null-co,node-name=a,sise=1";
    refuse_line(
        &["--blockdev", bogus, "--blockdev", unknown],
        &format!(
            "--blockdev {bogus}: unknown option 'sise' of --blockdev driver=null-co; did you mean 'size'?"
        ),
    );
}

#[test]
fn keys_that_belong_into_an_object_are_named_with_it() {
    let json = r#"{"driver":"null-co","node-name":"a","cache.direct":true}"#;
    refuse_line(
        &["--blockdev", json],
        &format!(
            "--blockdev {json}: unknown option 'cache.direct' of --blockdev driver=null-co; did you mean \
             '\"cache\": {{\"direct\": …}}'?"
        ),
    );
}

#[test]
fn wrong_lines_are_named() {
    refuse_line(&[], "nothing to serve: give an image, or --blockdev and --export; see --help");
    refuse_line(&["--blokdev", "x"], "unknown option '--blokdev'; did you mean '--blockdev'?");
    refuse_line(&["-x"], "unknown option '-x'");
    refuse_line(&["--object"], "option '--object' requires an argument");
    refuse_line(&["--daemonize=x"], "option '--daemonize' takes no argument");
    refuse_line(&["--quiet", "a"], "unknown option '--quiet'");
    for (given, names) in [
        ("--socket-m", "'--socket-mode'"),
        ("--named", "'--named-files'"),
        ("--soc", "'--socket-mode', '--socket-group', '--socket'"),
    ] {
        refuse_line(
            &[&format!("{given}=x"), "a"],
            &format!(
                "unknown option '{given}'; did you mean {names}? (of options that qemu-storage-daemon does \
                 not have, write the whole name)"
            ),
        );
    }
    refuse_line(&["--trace", "x"], "option '--trace' is not supported yet");
    refuse_line(&["--nbd-server", "x"], "--nbd-server x: expected '=' after parameter 'x'");
    refuse_line(
        &[NULL, "--export=nbd,id=e,node-name=n"],
        "export 'e' is an NBD export, and there is no NBD server: --nbd-server says where it listens",
    );
    refuse_line(
        &["/dev/null", "--nbd=s", "--writable", "--read-only"],
        "--read-only and --writable contradict each other",
    );
    refuse_line(&["-Tx"], "option '--trace' is not supported yet");
    refuse_line(
        &[NULL, "disk.img"],
        "'disk.img' cannot be combined with --blockdev: give either an image or the long options",
    );
    refuse_line(
        &["--iothreads=2", NULL],
        "--iothreads cannot be combined with --blockdev: give either an image or the long options",
    );
    refuse_line(
        &["a.img", "b.img", "--socket=s"],
        "b.img: unexpected argument; the short form serves one image (a.img), use --blockdev and \
         --export for several",
    );
    refuse_line(
        &["--socket=s"],
        "--socket needs an image to serve, as in: ringloom serve disk.img --socket disk.sock",
    );
    refuse_line(&["Cargo.toml"], "serve Cargo.toml: option '--socket' or '--nbd' is missing");
}

#[test]
fn wrong_values_of_options_are_named() {
    let refuse = |option: &str, value: &str, expected: &str| {
        let line = ["Cargo.toml", "--socket=s", option, value];
        refuse_line(&line, &format!("{option} {value}: {expected}"));
    };
    for value in ["0", "65", "x", ""] {
        refuse("--iothreads", value, "expects a number from 1 to 64, 'none', 'auto' or 'auto:MAX'");
    }
    refuse("--num-queues", "x", "expects a number from 1 to 256");
    refuse("--num-queues", "257", "parameter num-queues must be between 1 and 256, not 257");
    refuse("--direct", "maybe", "expects 'on' or 'off'");
    refuse("--print", "xen", "expects 'qemu', 'libvirt' or 'config'");
    for value in ["", "+6", "0888", "1777", "rw"] {
        refuse("--socket-mode", value, "expects permission bits in octal, 0 to 0777");
    }
    refuse("--socket-group", "", "expects a group");
    refuse("--pidfile", "", "the pidfile's path is empty");
    refuse("--socket", "", "the socket path is empty");
}
