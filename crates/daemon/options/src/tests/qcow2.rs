//! `driver=qcow2`: what it means, what is said about wrong ones, and which files images may name.

use std::path::PathBuf;

use super::{
    check_node, children, node, own, plan, read_only, refuse, refuse_line, that_tells_how_to_attach,
};
use crate::PlanStep;
use block::DiscardPolicy;
use graph::{AutoReadOnly, BaseOptions, NamedFilesPolicy};

#[test]
fn images_read_the_same_in_both_notations() {
    let image = check_node(
        &[
            "qcow2,node-name=a,file=n,l2-cache-size=1048576,cache-size=2097152",
            r#"{"driver":"qcow2","node-name":"a","file":"n","l2-cache-size":1048576,
                "cache-size":2097152}"#,
        ],
        "qcow2 l2-cache-size=1048576 refcount-cache-size=auto cache-size=2097152 \
         cache-clean-interval=auto overlap-check=cached",
        BaseOptions::DEFAULT,
    );
    assert_eq!(children(&image), ["file=n"]);
    let none = "qcow2 l2-cache-size=auto refcount-cache-size=auto cache-size=auto \
                cache-clean-interval=auto overlap-check=cached";
    let image = check_node(
        &[
            "qcow2,node-name=a,file=n,backing=",
            "qcow2,node-name=a,file=n,backing=null",
            r#"{"driver":"qcow2","node-name":"a","file":"n","backing":null}"#,
            r#"{"driver":"qcow2","node-name":"a","file":"n","backing":""}"#,
        ],
        none,
        BaseOptions::DEFAULT,
    );
    assert_eq!(children(&image), ["file=n"]);
    // What is not said is left to the image.
    let open = node("qcow2,node-name=a,file=n");
    assert!(own(&open) == none && open != image);
}

/// What a node inside an image takes from it.
#[test]
fn what_an_image_stands_on_is_only_read_and_what_it_is_in_takes_discards() {
    let text = "qcow2,node-name=a,auto-read-only=on,discard=unmap,cache.direct=on,\
                file.driver=file,file.filename=Cargo.toml,\
                backing.driver=qcow2,backing.file.driver=file,backing.file.filename=Cargo.toml,\
                data-file.driver=file,data-file.filename=Cargo.toml";
    let plan = plan(&["--blockdev", text]);
    let [PlanStep::Blockdev(image)] = plan.steps.as_slice() else { panic!("{plan:?}") };
    let found: Vec<_> = image
        .nodes()
        .iter()
        .map(|node| node.base)
        .map(|it| (it.read_only, it.auto_read_only, it.discard, it.cache_direct))
        .collect();
    let (on, off) = (AutoReadOnly::On, AutoReadOnly::Off);
    let expected = [
        (false, on, DiscardPolicy::Unmap, true),
        (true, off, DiscardPolicy::Unmap, true),
        (true, off, DiscardPolicy::Ignore, true),
        (false, on, DiscardPolicy::Unmap, true),
        (false, on, DiscardPolicy::Unmap, true),
    ];
    assert_eq!(found, expected);
}

#[test]
fn null_is_nothing_unless_a_node_has_that_name() {
    let null = "--blockdev=null-co,node-name=null";
    let plan = plan(&[null, "--blockdev=qcow2,node-name=a,file.driver=null-co,backing=null"]);
    let [_, PlanStep::Blockdev(image)] = plan.steps.as_slice() else { panic!("{plan:?}") };
    assert_eq!(children(image)[1], "backing=null");
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
        ("overlap-check=none", "none"),
        ("overlap-check=constant", "cached"),
        ("overlap-check=cached", "cached"),
        ("overlap-check.template=all", "all"),
        ("cache-size=8388608", "cached"),
    ] {
        let image = node(&format!("qcow2,node-name=a,file=n,{argument}"));
        assert!(own(&image).ends_with(&format!(" overlap-check={expected}")), "{argument}");
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
    assert_eq!(short, that_tells_how_to_attach(&[node, export, "--named-files=src"]));
}

#[test]
fn directories_of_named_files_add_up_until_all_or_none_are_said() {
    let real = |path: &str| PathBuf::from(path).canonicalize().unwrap();
    let below =
        |paths: &[&str]| NamedFilesPolicy::Below(paths.iter().map(|path| real(path)).collect());
    for (words, expected) in [
        (&[][..], NamedFilesPolicy::Refused),
        (&["on"], NamedFilesPolicy::Anywhere),
        (&["src", "./src/.."], below(&["src", "."])),
        (&["src", "on"], NamedFilesPolicy::Anywhere),
        (&["on", "src"], below(&["src"])),
        (&["src", "off"], NamedFilesPolicy::Refused),
    ] {
        let words: Vec<String> = words.iter().map(|word| format!("--named-files={word}")).collect();
        let line: Vec<&str> = ["--blockdev=null-co,node-name=n"]
            .into_iter()
            .chain(words.iter().map(String::as_str))
            .collect();
        assert_eq!(plan(&line).named_files, expected, "{words:?}");
    }
    refuse_line(
        &["--named-files=Cargo.toml"],
        "--named-files Cargo.toml: could not open 'Cargo.toml': not a directory",
    );
    refuse_line(&["--named-files="], "--named-files : expects 'on', 'off' or a directory");
}
