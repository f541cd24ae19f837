//! What the model admits, and what it leaves as it was.

use std::path::Path;

use super::*;

fn new<'a>(name: &'a str, below: &[(&str, ChildRole, &str)]) -> NewNode<'a> {
    let edge = |(key, role, node): &(&str, ChildRole, &str)| Edge {
        key: (*key).to_owned(),
        role: *role,
        node: (*node).to_owned(),
    };
    NewNode {
        name,
        access: Access::ReadWrite,
        activity: Activity::Active,
        edges: below.iter().map(edge).collect(),
        objects: Vec::new(),
        owner: NodeOwner::Operator,
        bottom: None,
        is_filter: false,
    }
}

fn filter<'a>(name: &'a str, below: &str) -> NewNode<'a> {
    new(name, &[("file", ChildRole::Filtered, below)])
}

fn export<'a>(id: &'a str, node: &'a str, access: Access) -> NewExport<'a> {
    NewExport { id, node, access, iothreads: &[], address: ExportAddress::Socket(Path::new(id)) }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, ModelError>, expected: &str) {
    assert_eq!(result.unwrap_err().to_string(), expected);
}

#[test]
fn what_is_refused_leaves_everything_as_it_was() {
    let mut model = GraphModel::default();
    let group = TypedObjectId { kind: THROTTLE_GROUP, id: "g" };
    model.add_object(group).unwrap();
    model.add_node(new("n", &[])).unwrap();
    model.add_node(NewNode { objects: vec![group], ..filter("t", "n") }).unwrap();
    model.add_node(NewNode { access: Access::ReadOnly, ..new("fixed", &[]) }).unwrap();
    model.add_node(NewNode { activity: Activity::Inactive, ..new("asleep", &[]) }).unwrap();
    model.add_export(export("e", "t", Access::ReadWrite)).unwrap();
    let before = format!("{model:?}");
    refused(model.add_object(group), "object id 'g' exists already");
    refused(model.add_node(new("n", &[])), "node-name 'n' exists already");
    refused(model.add_node(filter("u", "m")), "there is no node 'm'");
    let other = TypedObjectId { kind: IOTHREAD, id: "g" };
    refused(
        model.add_node(NewNode { objects: vec![other], ..filter("u", "n") }),
        "there is no iothread 'g'",
    );
    refused(
        model.add_node(filter("u", "asleep")),
        "Inactive 'asleep' can't be a file child of active 'u'",
    );
    refused(
        model.add_node(new("q", &[("file", ChildRole::Metadata, "fixed")])),
        "node 'fixed' is read-only, and image 'q' in it is not; say read-only=on for both",
    );
    let conflict = model.add_node(new("q", &[("file", ChildRole::Metadata, "n")])).unwrap_err();
    assert!(conflict.to_string().starts_with("Permission conflict on node 'n'"), "{conflict}");
    refused(
        model.add_export(export("f", "fixed", Access::ReadWrite)),
        "cannot export read-only node 'fixed' as writable",
    );
    refused(model.add_export(export("e", "n", Access::ReadOnly)), "export id 'e' exists already");
    refused(
        model.add_export(NewExport { id: "f", ..export("e", "n", Access::ReadOnly) }),
        "an export with socket 'e' exists already",
    );
    let e = NodeUser::Export("e".to_owned());
    refused(
        model.set_edge(&e, "root", Some("fixed"), None),
        "node fixed is read-only, and export 'e' is not",
    );
    refused(model.set_edge(&e, "file", Some("n"), None), "export 'e' has no child 'file'");
    let t = NodeUser::Node("t".to_owned());
    refused(model.set_edge(&t, "file", Some("t"), None), "node 't' would stand on itself: t -> t");
    refused(model.remove_object("g"), "object 'g' is in use, can not be deleted");
    refused(model.remove_node("t"), "Block device t is in use");
    assert_eq!(format!("{model:?}"), before);
}

#[test]
fn what_stands_on_a_read_only_node_is_one_and_what_is_written_is_known() {
    let mut model = GraphModel::default();
    model.add_node(NewNode { access: Access::ReadOnly, ..new("n", &[]) }).unwrap();
    assert_eq!(model.judge(&filter("r", "n")).unwrap(), Access::ReadOnly);
    model.add_node(filter("r", "n")).unwrap();
    refused(
        model.add_export(export("e", "r", Access::ReadWrite)),
        "cannot export read-only node 'r' as writable",
    );
    model.add_node(new("f", &[])).unwrap();
    let image = [("file", ChildRole::Metadata, "f"), ("backing", ChildRole::Backing, "n")];
    model.add_node(new("q", &image)).unwrap();
    assert!(model.is_written("f") && !model.is_written("q") && !model.is_written("n"));
    model.add_export(export("e", "q", Access::ReadWrite)).unwrap();
    assert!(model.is_written("q") && !model.is_written("n"));
    model.remove_export("e").unwrap();
    assert!(!model.is_written("q"));
}

#[test]
fn a_node_goes_with_what_was_written_inside_it_and_nothing_else_uses() {
    let mut model = GraphModel::default();
    let inside = |new| NewNode { owner: NodeOwner::Parent, ..new };
    model.add_node(inside(new("a/file/file", &[]))).unwrap();
    model.add_node(inside(filter("a/file", "a/file/file"))).unwrap();
    model.add_node(filter("a", "a/file")).unwrap();
    model.add_node(inside(new("shared", &[]))).unwrap();
    model.add_node(filter("b", "shared")).unwrap();
    model.add_node(filter("c", "shared")).unwrap();
    refused(model.remove_node("a/file"), "Block device a/file is in use");
    assert_eq!(model.remove_node("a").unwrap(), ["a", "a/file", "a/file/file"]);
    assert_eq!(model.remove_node("b").unwrap(), ["b"]);
    assert_eq!(model.remove_node("c").unwrap(), ["c", "shared"]);
    assert!(model.names(NODE).is_empty());
    refused(model.remove_node("a"), "there is no node 'a'");
}

#[test]
fn what_is_below_an_inactive_node_alone_is_inactive_with_it_and_what_is_below_an_active_one_active()
{
    use Activity::{Active, Inactive};
    let mut model = GraphModel::default();
    for name in ["shared", "own"] {
        model.add_node(new(name, &[])).unwrap();
    }
    let member = |key, node| (key, ChildRole::Member, node);
    model.add_node(filter("left", "shared")).unwrap();
    model.add_node(filter("right", "shared")).unwrap();
    model.add_node(new("top", &[member("a", "left"), member("b", "own")])).unwrap();
    let change = |model: &mut GraphModel, node: &str, to| {
        let mut changing = model.changing_activity(Some(node), to).unwrap();
        model.set_activity(&changing, to);
        changing.sort();
        changing.join(" ")
    };
    refused(
        model.changing_activity(Some("left"), Inactive),
        "Node has active parent node: node 'left' is below 'top'",
    );
    // Another active node stands on what is shared.
    assert_eq!(change(&mut model, "top", Inactive), "left own top");
    assert_eq!(change(&mut model, "top", Inactive), "");
    assert_eq!(change(&mut model, "right", Inactive), "right shared");
    assert_eq!(change(&mut model, "left", Active), "left shared");
    assert_eq!(change(&mut model, "top", Active), "own top");
    assert_eq!(model.changing_activity(None, Active).unwrap(), ["right"]);
    // All that is below both of two goes with the last of them, whatever the way down.
    model.set_activity(&["right".to_owned()], Active);
    model.add_node(new("over", &[member("a", "left"), member("b", "right")])).unwrap();
    assert_eq!(change(&mut model, "top", Inactive), "own top");
    assert_eq!(change(&mut model, "over", Inactive), "left over right shared");
}
