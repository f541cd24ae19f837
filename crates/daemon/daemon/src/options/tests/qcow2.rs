//! `driver=qcow2`: what it means, what is said about wrong ones, and which files images may name.

use std::path::PathBuf;

use qcow2::OverlapCheck;

use super::{
    AutoReadOnly, Blockdev, Child, Discard, Driver, NamedChild, Step, check, file_node, plan,
    read_only, refuse, refuse_line,
};
use crate::options::{Backing, NamedFiles, Qcow2Caches};

fn driver(caches: Qcow2Caches, backing: Backing) -> Driver {
    Driver::Qcow2 { caches, backing, named_files: NamedFiles::Refused }
}

fn child(name: &str, node: Child) -> NamedChild {
    NamedChild { name: name.to_owned(), node }
}

fn reference(name: &str, node: &str) -> NamedChild {
    child(name, Child::Reference(node.to_owned()))
}

#[test]
fn images_read_the_same_in_both_notations() {
    let caches = Qcow2Caches {
        l2: Some(1 << 20),
        refcount: None,
        both: Some(2 << 20),
        ..Qcow2Caches::default()
    };
    check(
        "--blockdev",
        &[
            "qcow2,node-name=a,file=n,l2-cache-size=1048576,cache-size=2097152",
            r#"{"driver":"qcow2","node-name":"a","file":"n","l2-cache-size":1048576,
                "cache-size":2097152}"#,
        ],
        &Step::Blockdev(Blockdev {
            driver: driver(caches, Backing::OfImage),
            children: vec![reference("file", "n")],
            ..file_node()
        }),
    );
    let none = Qcow2Caches::default();
    check(
        "--blockdev",
        &[
            "qcow2,node-name=a,file=n,backing=",
            "qcow2,node-name=a,file=n,backing=null",
            r#"{"driver":"qcow2","node-name":"a","file":"n","backing":null}"#,
            r#"{"driver":"qcow2","node-name":"a","file":"n","backing":""}"#,
        ],
        &Step::Blockdev(Blockdev {
            driver: driver(none, Backing::OfLine),
            children: vec![reference("file", "n")],
            ..file_node()
        }),
    );
}

/// What a node inside an image takes from it.
#[test]
fn what_an_image_stands_on_is_only_read_and_what_it_is_in_takes_discards() {
    let text = "qcow2,node-name=a,auto-read-only=on,discard=unmap,cache.direct=on,\
                file.driver=file,file.filename=Cargo.toml,\
                backing.driver=qcow2,backing.file.driver=file,backing.file.filename=Cargo.toml,\
                data-file.driver=file,data-file.filename=Cargo.toml";
    let plan = plan(&["--blockdev", text]);
    let [Step::Blockdev(image)] = plan.steps.as_slice() else { panic!("{plan:?}") };
    let found: Vec<_> = image
        .nodes()
        .iter()
        .map(|node| (node.read_only, node.auto_read_only, node.discard, node.cache_direct))
        .collect();
    let (on, off) = (AutoReadOnly::On, AutoReadOnly::Off);
    let expected = [
        (false, on, Discard::Unmap, true),
        (true, off, Discard::Unmap, true),
        (true, off, Discard::Ignore, true),
        (false, on, Discard::Unmap, true),
        (false, on, Discard::Unmap, true),
    ];
    assert_eq!(found, expected);
}

#[test]
fn null_is_nothing_unless_a_node_has_that_name() {
    let null = "--blockdev=null-co,node-name=null";
    let plan = plan(&[null, "--blockdev=qcow2,node-name=a,file.driver=null-co,backing=null"]);
    let [_, Step::Blockdev(image)] = plan.steps.as_slice() else { panic!("{plan:?}") };
    assert_eq!(image.children[1], reference("backing", "null"));
    let missing = "node 'nul' is not defined before its use";
    refuse("--blockdev", "qcow2,node-name=a,file=n,backing=nul", missing);
}

#[test]
fn caches_that_contradict_each_other_are_refused_in_qemus_words() {
    let refuse = |sizes: &str, expected: &str| {
        refuse("--blockdev", &format!("qcow2,node-name=a,file=n,{sizes}"), expected);
    };
    let thrice =
        "cache-size, l2-cache-size and refcount-cache-size may not be set at the same time";
    refuse("cache-size=3,l2-cache-size=1,refcount-cache-size=1", thrice);
    refuse("cache-size=1,l2-cache-size=2", "l2-cache-size may not exceed cache-size");
    refuse("cache-size=1,refcount-cache-size=2", "refcount-cache-size may not exceed cache-size");
    let number = "parameter 'l2-cache-size' expects a whole number without unit";
    refuse("l2-cache-size=1M", number);
    refuse("l2-cache-size=-1", number);
    let most = "parameter 'cache-size' expects at most 2^63 - 1";
    refuse("cache-size=9223372036854775808", most);
}

#[test]
fn what_is_held_against_metadata_is_a_template() {
    for (argument, expected) in [
        ("overlap-check=none", OverlapCheck::None),
        ("overlap-check=constant", OverlapCheck::Cached),
        ("overlap-check=cached", OverlapCheck::Cached),
        ("overlap-check.template=all", OverlapCheck::All),
        ("cache-size=8388608", OverlapCheck::Cached),
    ] {
        let file = "--blockdev=null-co,node-name=n";
        let image = format!("--blockdev=qcow2,node-name=a,file=n,{argument}");
        let steps = plan(&[file, &image]).steps;
        let found = steps.iter().find_map(|step| {
            let Step::Blockdev(node) = step else { return None };
            let Driver::Qcow2 { caches, .. } = &node.driver else { return None };
            Some(caches.overlap_check)
        });
        assert_eq!(found, Some(expected), "{argument}");
    }
}

#[test]
fn what_an_image_cannot_do_yet_is_refused_by_name() {
    for (key, value) in
        [("lazy-refcounts", "on"), ("pass-discard-other", "on"), ("encrypt.format", "luks")]
    {
        let name = key.split('.').next().unwrap();
        let expected = format!("option '{name}' of --blockdev driver=qcow2 is not supported yet");
        refuse("--blockdev", &format!("qcow2,node-name=a,file=n,{key}={value}"), &expected);
    }
    let flag = "option 'overlap-check.active-l2' of --blockdev driver=qcow2 is not supported yet";
    refuse("--blockdev", "qcow2,node-name=a,file=n,overlap-check.active-l2=off", flag);
    let nearest = "unknown option 'l2-cache-sise' of --blockdev driver=qcow2; did you mean \
                   'l2-cache-size'?";
    refuse("--blockdev", "qcow2,node-name=a,file=n,l2-cache-sise=1", nearest);
    refuse("--blockdev", "qcow2,node-name=a", "parameter 'file' is missing");
}

#[test]
fn an_image_that_is_written_is_in_a_file_that_is_written() {
    let file = "--blockdev=file,node-name=f,filename=Cargo.toml,auto-read-only=on";
    let image = |more: &str| format!("--blockdev=qcow2,node-name=a,file=f{more}");
    // Nobody writes to the image, but it may have to be repaired.
    read_only(&[file, &image("")], &[]);
    read_only(&[file, &image(",read-only=on")], &["f", "a"]);
    let export = "--export=vhost-user-blk,id=e,node-name=b,addr.type=unix,addr.path=s,writable=on";
    let overlay = "--blockdev=qcow2,node-name=b,file.driver=null-co,backing=a";
    read_only(&[file, &image(",read-only=on"), overlay, export], &["f", "a"]);
    let frozen = "--blockdev=file,node-name=f,filename=Cargo.toml,read-only=on";
    refuse_line(
        &[frozen, &image("")],
        "--blockdev qcow2,node-name=a,file=f: node 'f' is read-only, and image 'a' in it is not; \
         say read-only=on for both",
    );
    let written = export.replace("node-name=b", "node-name=f");
    refuse_line(
        &[&file.replace(",auto-read-only=on", ""), &image(""), &written],
        &format!(
            "--export {}: Permission conflict on node 'f': permissions 'write' are both required by \
             export 'e' (uses node 'f' as 'root' child) and unshared by node 'a' (uses node 'f' as \
             'file' child)",
            written.split_once('=').unwrap().1
        ),
    );
}

#[test]
fn the_short_form_writes_out_the_image() {
    let short = plan(&["Cargo.toml", "--socket=s", "--format=qcow2", "--named-files=src"]);
    let node = "--blockdev=qcow2,node-name=disk,cache.direct=on,file.driver=file,\
                file.filename=Cargo.toml";
    let export =
        "--export=vhost-user-blk,id=Cargo,node-name=disk,addr.type=unix,addr.path=s,writable=on";
    assert_eq!(short, plan(&[node, export, "--print=qemu", "--named-files=src"]));
}

#[test]
fn directories_of_named_files_add_up_until_all_or_none_are_said() {
    let real = |path: &str| PathBuf::from(path).canonicalize().unwrap();
    let below = |paths: &[&str]| NamedFiles::Below(paths.iter().map(|path| real(path)).collect());
    for (words, expected) in [
        (&[][..], NamedFiles::Refused),
        (&["on"], NamedFiles::Anywhere),
        (&["src", "./src/.."], below(&["src", "."])),
        (&["src", "on"], NamedFiles::Anywhere),
        (&["on", "src"], below(&["src"])),
        (&["src", "off"], NamedFiles::Refused),
    ] {
        let mut line = vec![
            "--blockdev=qcow2,node-name=a,file=n,backing.driver=qcow2,\
                             backing.file=m"
                .to_owned(),
        ];
        line.insert(0, "--blockdev=null-co,node-name=m".to_owned());
        line.insert(0, "--blockdev=null-co,node-name=n".to_owned());
        line.extend(words.iter().map(|word| format!("--named-files={word}")));
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let plan = plan(&line);
        let [.., Step::Blockdev(image)] = plan.steps.as_slice() else { panic!("{plan:?}") };
        let named: Vec<_> = image
            .nodes()
            .into_iter()
            .filter_map(|node| {
                let Driver::Qcow2 { named_files, .. } = &node.driver else { return None };
                Some(named_files.clone())
            })
            .collect();
        assert_eq!(named, [expected.clone(), expected], "{words:?}");
    }
    refuse_line(
        &["--named-files=Cargo.toml"],
        "--named-files Cargo.toml: could not open 'Cargo.toml': not a directory",
    );
    refuse_line(&["--named-files="], "--named-files : expects 'on', 'off' or a directory");
}
