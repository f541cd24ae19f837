//! A small check that text is well-formed XML, and what elements it has.
//!
//! Limits: the subset that a person writes by hand: elements, attributes, comments, the five named entities.

use anyhow::{Context, Result, bail, ensure};

/// An element: where it is, and its attributes with entities resolved.
#[derive(Debug)]
pub(super) struct Element {
    path: String,
    attributes: Vec<(String, String)>,
}

impl Element {
    pub(super) fn has(&self, path: &str, key: &str, value: &str) -> bool {
        self.path == path && self.attributes.iter().any(|(k, v)| k == key && v == value)
    }
}

/// All elements of a sequence of elements; anything that is not well-formed is an error.
pub(super) fn elements(text: &str) -> Result<Vec<Element>> {
    let mut found = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        ensure!(!rest[..start].contains(['&', '>']), "a bare character in {:?}", &rest[..start]);
        rest = &rest[start..];
        if let Some(comment) = rest.strip_prefix("<!--") {
            let (inside, after) = comment.split_once("-->").context("a comment has no end")?;
            ensure!(!inside.contains("--"), "'--' in a comment: {inside}");
            rest = after;
            continue;
        }
        let (tag, after) = rest[1..].split_once('>').context("a tag has no end")?;
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            let last = open.pop();
            ensure!(last == Some(name), "</{name}> ends {last:?}");
            continue;
        }
        let (tag, empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        open.push(name);
        let path = open.join("/");
        let attributes = self::attributes(attributes).with_context(|| format!("<{tag}>"))?;
        found.push(Element { path, attributes });
        if empty {
            open.pop();
        }
    }
    ensure!(rest.trim().is_empty(), "text after the last element: {rest}");
    ensure!(open.is_empty(), "without an end: {open:?}");
    Ok(found)
}

fn attributes(text: &str) -> Result<Vec<(String, String)>> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (key, after) = rest.split_once("='").context("an attribute without a value")?;
        let (value, after) = after.split_once('\'').context("a value without an end")?;
        ensure!(after.is_empty() || after.starts_with(' '), "no blank before {after}");
        ensure!(found.iter().all(|(other, _)| other != key), "{key} twice");
        found.push((key.to_owned(), resolve(value)?));
        rest = after.trim_start();
    }
    Ok(found)
}

fn resolve(value: &str) -> Result<String> {
    let mut pieces = value.split('&');
    let mut resolved = pieces.next().unwrap_or_default().to_owned();
    ensure!(!value.contains('<'), "a bare '<' in {value}");
    for piece in pieces {
        let (name, after) = piece.split_once(';').context("an entity without an end")?;
        resolved.push(match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "apos" => '\'',
            "quot" => '"',
            _ => bail!("unknown entity {name}"),
        });
        resolved.push_str(after);
    }
    Ok(resolved)
}

#[test]
fn what_is_not_well_formed_is_found() {
    for wrong in
        ["<a>", "</a>", "<a><b></a></b>", "<a b='&x;'/>", "<a b='1' b='2'/>", "<a/>x", "a & b <c/>"]
    {
        assert!(elements(wrong).is_err(), "{wrong} was accepted");
    }
    let found = elements("<a><b c='&lt;1&gt;'/></a>").expect("well-formed");
    assert!(found.iter().any(|element| element.has("a/b", "c", "<1>")), "{found:?}");
}
