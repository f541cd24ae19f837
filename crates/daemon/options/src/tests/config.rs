//! `--config`: what files say, what the line changes, and what is said about wrong ones; a line written as a file.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use graph::NamedFilesPolicy;
use sandbox::SandboxMode;

use super::{
    Daemonize, NULL, OldState, Plan, PlanStep, Scratch, ServeCommand, as_line, plan, refuse_line,
};
use crate::{config, getopt};

/// A file with this text, and the option that names it.
fn file(text: &str) -> (Scratch, String) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let file = Scratch::new(&format!("{number}.toml"), text.as_bytes());
    let option = format!("--config={}", file.path());
    (file, option)
}

/// The plan of a file and a line.
#[track_caller]
fn with_line(text: &str, line: &[&str]) -> Plan {
    let (_file, option) = file(text);
    plan(&[&[option.as_str()], line].concat())
}

/// What is said about a file and a line; the name of the file is `F`.
#[track_caller]
fn refuse(text: &str, line: &[&str], expected: &str) {
    let (file, option) = file(text);
    let said = as_line(&[&[option.as_str()], line].concat()).map(|_| text);
    assert_eq!(said.map_err(|said| said.replace(file.path(), "F")), Err(expected.to_owned()));
}

/// Steps in the order that files have, and nothing that no file can say.
fn comparable(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    plan.config.clear();
    plan.old_state = OldState::Used;
    plan.steps.sort_by_key(|step| match step {
        PlanStep::Object(_) => 0,
        PlanStep::Blockdev(_) => 1,
        PlanStep::Export(_) => 2,
    });
    plan
}

/// Writes a line as a file and reads that.
#[track_caller]
pub(super) fn check_same_in_a_file(line: &[&str], plan: &Plan) {
    if line.iter().any(|word| word.starts_with("--conf")) {
        return;
    }
    let words = getopt::split(line.iter().map(OsString::from)).expect("it was understood");
    let text = config::printed(&words).expect("it was understood");
    let (_file, option) = file(&text);
    let again = match as_line(&[&option]) {
        Ok(ServeCommand::Serve(again)) => *again,
        other => panic!("{line:?} is {text} and gives {other:?}"),
    };
    assert_eq!(comparable(&again), comparable(plan), "{line:?} is {text}");
    let (again, first) = (comparable(&again).configuration(), comparable(plan).configuration());
    assert_eq!(again.differences(&first, "file", "line"), Vec::<String>::new(), "{text}");
    // Written once more it is the same text.
    let (words, _) =
        config::with_files(getopt::split([OsString::from(&option)]).expect("one option"))
            .expect("it was read before");
    assert_eq!(config::printed(&words).expect("it was written before"), text);
}

const TWO_DISKS: &str = r#"
pidfile = "pid"
socket-mode = "0660"
max-guest-memory = "2T"
named-files = "src"
allow-below = ["src", "src/tests,ro"]
sandbox = false

[nbd-server]
addr = { type = "unix", path = "nbd" }

[[export]]
type = "vhost-user-blk"
id = "e"
node-name = "n"
addr.type = "unix"
addr.path = "s"
iothread = ["t0", "t1"]
logical-block-size = "4k"
writable = true

[[export]]
type = "nbd"
id = "f"
node-name = "m"

[[blockdev]]
driver = "raw"
node-name = "n"
[blockdev.file]
driver = "null-co"
size = 1048576
cache.direct = true

[[blockdev]]
driver = "null-co"
node-name = "m"

[[object]]
qom-type = "iothread"
id = "t0"
poll-max-ns = 0

[[object]]
qom-type = "iothread"
id = "t1"

[[monitor]]
chardev = "c"
readonly = true

[[chardev]]
backend = "socket"
id = "c"
path = "qmp"
server = true
wait = false
"#;

#[test]
fn a_file_says_what_a_line_says_in_whatever_order() {
    let as_file = with_line(TWO_DISKS, &[]);
    let line = plan(&[
        "--pidfile=pid",
        "--socket-mode=0660",
        "--max-guest-memory=2T",
        "--named-files=src",
        "--allow-below=src",
        "--allow-below=src/tests,ro",
        "--sandbox=off",
        "--nbd-server=addr.type=unix,addr.path=nbd",
        "--chardev=socket,id=c,path=qmp,server=on,wait=off",
        "--monitor=c,readonly=on",
        "--object=iothread,id=t0,poll-max-ns=0",
        "--object=iothread,id=t1",
        "--blockdev=raw,node-name=n,file.driver=null-co,file.size=1048576,file.cache.direct=on",
        "--blockdev=null-co,node-name=m",
        "--export=vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=s,iothread.0=t0,iothread.1=t1,\
         logical-block-size=4k,writable=on",
        "--export=nbd,id=f,node-name=m",
    ]);
    assert_eq!(comparable(&as_file), line);
    assert_eq!(as_file.config.len(), 1);
    assert_eq!(as_file.config[0].writers, None);
    assert!(as_file.source().starts_with("the command line and /"), "{}", as_file.source());
}

/// The examples of the document, with files that there are.
#[test]
fn the_examples_of_the_document_are_understood() {
    let document = include_str!("../../../../../docs/config.md");
    let examples: Vec<&str> = document
        .split("```toml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().expect("a split string has a part"))
        .collect();
    assert_eq!(examples.len(), 2);
    for example in examples {
        let example = example.replace("/srv/vm1/root.qcow2", "Cargo.toml");
        let example = example.replace("/srv/vm1", "src").replace("/srv/base", "src/tests");
        let plan = with_line(&example.replace("/dev/vg0/vm1", "Cargo.toml"), &[]);
        assert!(plan.exports().next().is_some(), "{example}");
    }
}

#[test]
fn a_file_has_the_short_form_too() {
    let text = "image = \"Cargo.toml\"\nsocket = \"s\"\niothreads = 2\nread-only = true\n\
                num-queues = 4\ndirect = false\ndaemonize = false\n";
    let line = plan(&[
        "Cargo.toml",
        "--socket=s",
        "--iothreads=2",
        "--read-only",
        "--num-queues=4",
        "--direct=off",
    ]);
    assert_eq!(comparable(&with_line(text, &[])), line);
    let auto = with_line("image = \"Cargo.toml\"\niothreads = \"auto:2\"\n", &["--socket=s"]);
    assert_eq!(comparable(&auto), plan(&["Cargo.toml", "--socket=s", "--iothreads=auto:2"]));
}

#[test]
fn what_the_line_says_wins() {
    let plan = with_line(
        TWO_DISKS,
        &[
            "--pidfile=other",
            "--allow-below=src/config",
            "--sandbox=on",
            "--daemonize",
            "--nbd-server=addr.type=inet,addr.host=localhost,addr.port=1",
            "--export=vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=x",
            "--object=iothread,id=t2",
            "--blockdev=null-co,node-name=m,size=512",
        ],
    );
    assert_eq!(plan.pidfile, Some(PathBuf::from("other")));
    assert_eq!((plan.sandbox, plan.daemonize), (SandboxMode::Required, Daemonize::Background));
    let allowed: Vec<_> = plan.allowed.iter().map(|it| it.path.file_name().unwrap()).collect();
    assert_eq!(allowed, ["config"], "a list of the line takes the place of the file's");
    assert!(matches!(&plan.named_files, NamedFilesPolicy::Below(all) if all.len() == 1));
    // The whole export, not its keys: the iothreads of the file are not those of the line.
    let export = plan.exports().find(|export| export.id == "e").unwrap();
    assert_eq!((export.writable, export.iothreads.len()), (false, 0));
    let kept = plan.configuration();
    assert_eq!(kept.nodes[1]["size"], 512);
    let ids: Vec<_> = kept.objects.iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["t0", "t1", "t2"]);
    assert_eq!(kept.nbd_server.unwrap()["addr"]["type"], "inet");
}

/// The names of the nodes of a file and a line, in the order in which they are made.
#[track_caller]
fn nodes(text: &str, line: &[&str]) -> Vec<String> {
    let kept = with_line(text, line).configuration();
    kept.nodes.iter().map(|it| it["node-name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn nodes_are_made_in_the_order_in_which_they_need_each_other() {
    let raw = |name: &str, file: &str| {
        format!("[[blockdev]]\ndriver = \"raw\"\nnode-name = \"{name}\"\nfile = {file}\n")
    };
    let null = "[[blockdev]]\ndriver = \"null-co\"\nnode-name = \"n\"\n";
    assert_eq!(
        nodes(&[&raw("a", "\"b\""), &raw("b", "\"n\""), null].concat(), &[]),
        ["n", "b", "a"]
    );
    // What they need not, stays.
    let other = null.replace("\"n\"", "\"m\"");
    assert_eq!(nodes(&[&other, null, &raw("a", "\"n\"")].concat(), &[]), ["m", "n", "a"]);
    // One on the line that takes the place of one in the file may stand on others of the line, and be stood on.
    let file = [null, &raw("a", "\"n\"")].concat();
    let line = ["--blockdev=null-co,node-name=x", "--blockdev=raw,node-name=n,file=x"];
    assert_eq!(nodes(&file, &line), ["x", "n", "a"]);
    // And on what is inside another one.
    let inside = "{ driver = \"null-co\", node-name = \"i\" }";
    assert_eq!(nodes(&[raw("a", "\"i\""), raw("b", inside)].concat(), &[]), ["b", "a"]);
    refuse(
        &[raw("a", "\"b\""), raw("b", "\"a\"")].concat(),
        &[],
        "F:5:1: [[blockdev]] 'b': node 'b' would stand on itself: b -> a -> b",
    );
}

#[test]
fn a_file_does_not_speak_for_addresses_of_the_line() {
    let address = "192.0.2.1:9476";
    let both = format!("metrics = \"{address}\"\nmetrics-insecure = true\n");
    let metrics =
        |text: &str, line: &[&str]| with_line(text, line).metrics.map(|it| it.address.to_string());
    assert_eq!(metrics(&both, &[NULL]).as_deref(), Some(address));
    let asked = format!("metrics = \"{address}\"\n");
    assert_eq!(metrics(&asked, &[NULL, "--metrics-insecure"]).as_deref(), Some(address));
    let of_line = format!("--metrics={address}");
    let (_file, option) = file("metrics-insecure = true\n");
    let said = as_line(&[&option, NULL, &of_line]).map(|_| ()).unwrap_err();
    assert!(said.contains("can be reached from other hosts"), "{said}");
}

#[test]
fn several_files_add_up_and_none_wins() {
    let (_disk, disk) =
        file("allow-below = \"src\"\n[[blockdev]]\ndriver = \"null-co\"\nnode-name = \"n\"\n");
    let (_more, more) = file(
        "allow-below = \"src/tests\"\n[[chardev]]\nbackend = \"null\"\nid = \"c\"\n[[monitor]]\nchardev = \"c\"\n",
    );
    let both = plan(&[&disk, &more]);
    assert_eq!((both.allowed.len(), both.steps.len(), both.config.len()), (2, 1, 2));
    let (first, one) = file("pidfile = \"a\"\n");
    let (second, two) = file("\n  pidfile = \"a\"\n");
    let place = |file: &Scratch, at: &str| format!("{}:{at}", file.path());
    refuse_line(
        &[&one, &two, NULL],
        &format!(
            "{}: 'pidfile' is said at {} already; only the command line can change it",
            place(&second, "2:13"),
            place(&first, "1:11")
        ),
    );
    let (first, yes) = file("daemonize = true\n");
    let (second, no) = file("daemonize = false\n");
    refuse_line(
        &[&yes, &no, NULL],
        &format!(
            "{}: 'daemonize' is said at {} already; only the command line can change it",
            place(&second, "1:1"),
            place(&first, "1:1")
        ),
    );
    assert_eq!(plan(&[&no, NULL, "--daemonize"]).daemonize, Daemonize::Background);
    // What the line says, no file says any more; but the files still contradict each other.
    let node = "[[blockdev]]\ndriver = \"null-co\"\nnode-name = \"n\"\n";
    refuse(
        &format!("{node}{node}"),
        &[],
        "F:4:1: [[blockdev]] 'n' is said at F:1:1 already; only the command line can change it",
    );
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    refuse("pidfiel = \"x\"\n", &[], "F:1:1: unknown key 'pidfiel'; did you mean 'pidfile'?");
    refuse("x = 1\n", &[], "F:1:1: unknown key 'x'");
    refuse("\nobjetc = []\n", &[], "F:2:1: unknown key 'objetc'; did you mean 'object'?");
    refuse("pidfile = 3\n", &[], "F:1:11: 'pidfile' expects a string");
    refuse("daemonize = \"on\"\n", &[], "F:1:13: 'daemonize' expects true or false");
    refuse(
        "allow-below = [\"src\", 3]\n",
        &[],
        "F:1:23: 'allow-below' expects a string, or a list of such",
    );
    refuse("object = 3\n", &[], "F:1:10: 'object' expects a list of tables: [[object]]");
    refuse("[object]\nid = \"t\"\n", &[], "F:1:1: 'object' expects a list of tables: [[object]]");
    refuse("nbd-server = 3\n", &[], "F:1:14: 'nbd-server' expects a table: [nbd-server]");
    refuse(
        "socket-mode = \"999\"\n",
        &[NULL],
        "F:1:15: 'socket-mode': expects permission bits in octal, 0 to 0777",
    );
}

#[test]
fn what_is_wrong_inside_an_option_is_told_with_its_place() {
    let disk = "[[blockdev]]\ndriver = \"null-co\"\nnode-name = \"n\"\n";
    refuse(
        &format!("{disk}filenmae = \"x\"\n"),
        &[],
        "F:4:1: [[blockdev]] 'n': unknown option 'filenmae' of --blockdev driver=null-co (supported: active, driver, \
         node-name, read-only, auto-read-only, discard, cache, force-share, latency-ns, size, read-zeroes)",
    );
    refuse(
        &format!("{disk}szie = 3\n"),
        &[],
        "F:4:1: [[blockdev]] 'n': unknown option 'szie' of --blockdev driver=null-co; did you mean 'size'?",
    );
    refuse(
        &format!("{disk}read-only = \"on\"\n"),
        &[],
        "F:4:13: [[blockdev]] 'n': parameter 'read-only' expects true or false",
    );
    refuse(
        &format!("{disk}cache.direct = 1\n"),
        &[],
        "F:4:16: [[blockdev]] 'n': parameter 'cache.direct' expects true or false",
    );
    refuse(
        &format!("{disk}size = 1.5\n"),
        &[],
        "F:4:8: [[blockdev]] 'n': parameter 'size' expects a whole number without unit",
    );
    refuse(&format!("{disk}size = 1979-05-27\n"), &[], "F:4:8: no option takes a date");
    refuse(
        &format!("{disk}pidfile = \"x\"\n"),
        &[],
        "F:4:1: [[blockdev]] 'n': unknown option 'pidfile' of --blockdev driver=null-co (supported: active, driver, \
         node-name, read-only, auto-read-only, discard, cache, force-share, latency-ns, size, read-zeroes); keys of \
         the whole file, as 'pidfile', stand before its first [table]",
    );
}

#[test]
fn what_a_file_refers_to_and_what_belongs_elsewhere_is_told_with_its_place() {
    refuse(
        "[[export]]\ntype = \"vhost-user-blk\"\nid = \"e\"\nnode-name = \"x\"\naddr.type = \"unix\"\naddr.path = \"s\"\n",
        &[NULL],
        "F:1:1: [[export]] 'e': node 'x' is not defined before its use; did you mean 'n'?",
    );
    refuse(
        "[[object]]\nid = \"t\"\n",
        &[],
        "F:1:1: [[object]] 't': parameter 'qom-type' is missing",
    );
    refuse(
        "image = \"nowhere\"\nsocket = \"s\"\n",
        &[],
        "F:1:9: 'image': could not open 'nowhere': No such file or directory (os error 2)",
    );
    refuse(
        "a = \n",
        &[],
        "F:1:5: not valid TOML: string values must be quoted, expected literal string",
    );
    refuse(
        "state-reset = true\n",
        &[],
        "F:1:1: 'state-reset' belongs on the command line: a file would forget the state at each start",
    );
    refuse(
        "config = \"x\"\n",
        &[],
        "F:1:1: 'config' belongs on the command line: a file names no other file",
    );
    refuse(
        "trace = \"x\"\n",
        &[],
        "F:1:1: 'trace' belongs on the command line: it is not supported yet",
    );
    refuse(
        "print = \"config\"\n",
        &[NULL],
        "F:1:9: 'print': expects 'qemu', 'libvirt' or 'config'",
    );
    refuse("print = \"html\"\n", &[NULL], "F:1:9: 'print': expects 'qemu', 'libvirt' or 'config'");
}

#[test]
fn sources_that_contradict_each_other_are_named() {
    refuse(
        "image = \"Cargo.toml\"\nsocket = \"s\"\n",
        &[NULL],
        "'Cargo.toml' (F:1:9) cannot be combined with --blockdev: give either an image or the long options",
    );
    refuse(
        "[[object]]\nqom-type = \"iothread\"\nid = \"t\"\n",
        &["Cargo.toml", "--socket=s"],
        "'Cargo.toml' cannot be combined with --object (F:1:1): give either an image or the long options",
    );
    refuse(
        "[nbd-server]\naddr.type = \"unix\"\naddr.path = \"x\"\n",
        &["Cargo.toml", "--nbd=y"],
        "--nbd makes the NBD server that --nbd-server makes: give one of them",
    );
    refuse(
        "pidfile = \"x\"\n",
        &[],
        "nothing to serve: give an image, or --blockdev and --export; see --help",
    );
}

/// Whether a file is wrong in itself, or may be right another time.
#[test]
fn what_only_a_change_of_the_file_helps_against_is_known() {
    let is_lasting = |text: &str| {
        let (_file, option) = file(text);
        let said = crate::parse([OsString::from(option), OsString::from(NULL)]);
        said.expect_err("it is wrong").is_of_configuration()
    };
    for wrong in
        ["pidfiel = 1", "pidfile = 1", "a =", "state-reset = true", "[[object]]\nid = \"t\""]
    {
        assert!(is_lasting(wrong), "{wrong}");
    }
    // It does not go with the line.
    assert!(is_lasting("image = \"Cargo.toml\"\nsocket = \"s\"\n"));
    let missing = "[[blockdev]]\ndriver = \"file\"\nnode-name = \"x\"\nfilename = \"nowhere\"\n";
    assert!(!is_lasting(missing));
    let said = crate::parse(["--config=nowhere.toml", NULL].map(OsString::from));
    assert!(!said.expect_err("it is not there").is_of_configuration());
    let (_file, only) = file("pidfile = \"x\"\n");
    let said = crate::parse([OsString::from(only)]);
    assert!(said.expect_err("nothing to serve").is_of_configuration());
    let said = crate::parse(["--blockdev=null-co"].map(OsString::from));
    assert!(!said.expect_err("a line").is_of_configuration());
}

#[test]
fn files_that_are_none_or_others_may_write_are_told_of() {
    refuse_line(
        &["--config=nowhere.toml", NULL],
        "--config nowhere.toml: cannot read it: No such file or directory (os error 2)",
    );
    refuse_line(
        &["--config=src", NULL],
        "--config src: cannot read it: Is a directory (os error 21)",
    );
    let long = "#".repeat((1 << 20) + 1);
    refuse(&long, &[], "--config F: it has more than 1048576 bytes");
    let bytes = Scratch::new("bytes.toml", b"# \xc3\xbc\npidfile = \"\xff\"\n");
    refuse_line(
        &["--config", bytes.path(), NULL],
        &format!("{}:2:12: not valid UTF-8", bytes.path()),
    );
    use std::os::unix::fs::PermissionsExt;
    let (open, option) = file("daemonize = true\n");
    for (mode, expected) in [
        (0o600, None),
        (0o644, None),
        (0o664, Some("others than its owner may write it (mode 0664)")),
        (0o646, Some("others than its owner may write it (mode 0646)")),
    ] {
        std::fs::set_permissions(open.path(), PermissionsExt::from_mode(mode)).unwrap();
        assert_eq!(plan(&[&option, NULL]).config[0].writers.as_deref(), expected);
    }
}

#[test]
fn a_line_is_printed_as_a_file() {
    let line = [
        "--print=config",
        "--object=iothread,id=t0,poll-max-ns=0x10",
        "--blockdev=qcow2,node-name=n,backing=null,file.driver=file,file.filename=Cargo.toml,cache.direct=on",
        "--export=vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=s,logical-block-size=4k,iothread=t0",
        "--daemonize",
        "--max-guest-memory=1G",
    ];
    let expected = r#"# For ringloom serve --config FILE.

daemonize = true
max-guest-memory = "1G"

[[object]]
qom-type = "iothread"
id = "t0"
poll-max-ns = 16

[[blockdev]]
driver = "qcow2"
node-name = "n"
backing = "null"
cache.direct = true
file.driver = "file"
file.filename = "Cargo.toml"

[[export]]
type = "vhost-user-blk"
id = "e"
node-name = "n"
addr.type = "unix"
addr.path = "s"
iothread = "t0"
logical-block-size = 4096
"#;
    assert_eq!(as_line(&line), Ok(ServeCommand::Config(expected.to_owned())));
    // What is wrong is told instead.
    refuse_line(
        &["--print=config", "--object=iothread"],
        "--object iothread: parameter 'id' is missing",
    );
    // A file and a line become one file.
    let (_file, option) = file(expected);
    let merged = as_line(&[&option, "--print=config", "--pidfile=p"]);
    let merged = match merged {
        Ok(ServeCommand::Config(text)) => text,
        other => panic!("{other:?}"),
    };
    assert!(merged.contains("pidfile = \"p\"\ndaemonize = true\n"), "{merged}");
}

#[test]
fn nothing_below_a_node_is_kept_as_nothing() {
    for backing in ["backing=null", "backing="] {
        let node = format!(
            "--blockdev=qcow2,node-name=n,{backing},file.driver=file,file.filename=Cargo.toml"
        );
        let kept = plan(&[&node]).configuration();
        assert!(kept.nodes[0]["backing"].is_null(), "{backing}");
        assert!(kept.nodes[0].as_object().unwrap().contains_key("backing"), "{backing}");
    }
}
