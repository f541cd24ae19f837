//! `driver=stripe`: what it means, and what is said about wrong ones.

use graph::BaseOptions;

use super::{check_node, children, refuse};

#[test]
fn stripes_read_the_same_in_both_notations() {
    let stripe = check_node(
        &[
            "stripe,node-name=a,chunk=12k,children.0=n,children.1.driver=null-co",
            r#"{"driver":"stripe","node-name":"a","chunk":12288,
                "children":["n",{"driver":"null-co"}]}"#,
        ],
        "stripe chunk=12288",
        BaseOptions::DEFAULT,
    );
    let null = "children.1: null-co size=1073741824 read-zeroes=off latency-ns=0";
    assert_eq!(children(&stripe), ["children.0=n", null]);
}

fn null_children(count: usize) -> String {
    (0..count).map(|number| format!(",children.{number}.driver=null-co")).collect()
}

#[test]
fn a_chunk_that_md_could_not_have_is_refused() {
    let argument = |chunk: &str| format!("stripe,node-name=a{chunk}{}", null_children(2));
    refuse("--blockdev", &argument(""), "parameter 'chunk' is missing");
    for (chunk, bytes) in [("2k", "2048"), ("6000", "6000"), ("17M", "17825792"), ("0", "0")] {
        let expected = format!(
            "parameter 'chunk' must be a multiple of 4096 between 4096 and 16777216, not {bytes}"
        );
        refuse("--blockdev", &argument(&format!(",chunk={chunk}")), &expected);
    }
    let expected = "parameter 'chunk' expects a size: a whole number, optionally with k, M, G or T";
    refuse("--blockdev", &argument(",chunk=big"), expected);
}

#[test]
fn children_that_make_no_stripe_are_refused() {
    let argument = |children: &str| format!("stripe,node-name=a,chunk=64k{children}");
    refuse("--blockdev", &argument(""), "parameter 'children' is missing");
    let number = |count| format!("parameter 'children' takes 2 to 64 nodes, not {count}");
    refuse("--blockdev", &argument(&null_children(1)), &number(1));
    refuse("--blockdev", &argument(&null_children(65)), &number(65));
    refuse(
        "--blockdev",
        &argument(",children.0=n,children.1.driver=null-co,children.2=n"),
        "parameter 'children' names node 'n' twice",
    );
    // One node in two places, whoever names it first.
    refuse(
        "--blockdev",
        &argument(",children.0.driver=null-co,children.0.node-name=x,children.1=x"),
        "parameter 'children' names node 'x' twice",
    );
    refuse(
        "--blockdev",
        &argument(",children.0=x,children.1.driver=null-co,children.1.node-name=x"),
        "parameter 'children' names node 'x' twice",
    );
    refuse(
        "--blockdev",
        &argument(",children.0=n,children.1=m"),
        "node 'm' is not defined before its use; did you mean 'n'?",
    );
    refuse("--blockdev", &argument(",children=n"), "parameter 'children' expects a list");
    refuse(
        "--blockdev",
        &argument(&(null_children(2) + ",chunks=4k")),
        "unknown option 'chunks' of --blockdev driver=stripe; did you mean 'chunk'?",
    );
}
