//! Puts the words of files and those of the line together.
//!
//! What the line says wins. Objects, nodes, exports, character devices and monitors are known by their names: one on the
//! line takes the place of the one in a file, as a whole. Of every other option, what the line says takes the place of all
//! that files say, also of a list.
//!
//! Then all is put into the order that the line asks of its user: what others name comes first, also among nodes. Otherwise, within
//! a kind, files come first, in their order, and what takes the place of something there has its place.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use syntax::OptionFields;

use super::document::SWITCHED_OFF;
use super::forms::{self, ValueForm, first_key};
use super::{ConfigError, FilePosition};
use crate::getopt::{EitherFormOption, LongFormOption, OptionKind, ParsedOption};

/// The words of files and of the line as those of one line.
pub(super) fn merge(
    mut files: Vec<ParsedOption>,
    line: Vec<ParsedOption>,
) -> Result<Vec<ParsedOption>, ConfigError> {
    check_once(&files)?;
    let is_off = |word: &ParsedOption| {
        forms::form(word.name) == ValueForm::Flag && word.argument == SWITCHED_OFF
    };
    files.retain(|word| !is_off(word));
    let said: HashSet<OptionKind> = line.iter().map(|word| word.name).collect();
    let mut own: Vec<Option<ParsedOption>> = line.into_iter().map(Some).collect();
    let mut places: HashMap<(OptionKind, String), usize> = HashMap::new();
    for (place, word) in own.iter().flatten().enumerate() {
        if let Some(name) = name_of(word) {
            places.entry((word.name, name)).or_insert(place);
        }
    }
    let mut merged = Vec::new();
    for word in files {
        if is_named(&word) {
            let place = name_of(&word).and_then(|name| places.get(&(word.name, name)));
            let replacement = place.and_then(|place| own[*place].take());
            merged.push(replacement.unwrap_or(word));
        } else if !said.contains(&word.name) {
            merged.push(word);
        }
    }
    merged.extend(own.into_iter().flatten());
    // The order within a kind stays.
    merged.sort_by_key(|word| rank(word.name));
    order_nodes(&mut merged);
    Ok(merged)
}

/// Puts nodes behind those that they name; otherwise their order stays. What names each other in a circle is refused by whoever
/// reads it.
fn order_nodes(merged: &mut Vec<ParsedOption>) {
    let is_node = |word: &&ParsedOption| word.name == OptionKind::Step(LongFormOption::Blockdev);
    let Some(first) = merged.iter().position(|word| is_node(&word)) else { return };
    let count = merged[first..].iter().take_while(is_node).count();
    let mut nodes: Vec<_> = merged.drain(first..first + count).map(Some).collect();
    let texts: Vec<_> = nodes.iter().flatten().map(NodeTexts::of).collect();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (place, texts) in texts.iter().enumerate() {
        places.extend(texts.names.iter().map(|name| (name.as_str(), place)));
    }
    let below = |place: usize, number: usize| {
        let mut named = texts[place].others.iter().filter_map(|text| places.get(text.as_str()));
        named.nth(number).copied()
    };
    let (mut order, mut is_entered) = (Vec::with_capacity(count), vec![false; count]);
    for place in 0..count {
        // What is being placed, each with how many of those that it names were looked at.
        let mut path = Vec::new();
        if !std::mem::replace(&mut is_entered[place], true) {
            path.push((place, 0));
        }
        while let Some((place, looked)) = path.last_mut() {
            *looked += 1;
            match below(*place, *looked - 1) {
                Some(below) if !std::mem::replace(&mut is_entered[below], true) => {
                    path.push((below, 0));
                }
                Some(_) => {}
                None => {
                    order.push(*place);
                    path.pop();
                }
            }
        }
    }
    let in_order = order.into_iter().filter_map(|place| nodes[place].take());
    merged.splice(first..first, in_order);
}

/// The texts in the argument of a node.
#[derive(Debug, Default)]
struct NodeTexts {
    /// Of it and of what is inside it.
    names: Vec<String>,
    /// Others, which may be names of nodes. One that is something else, and the same, changes an order that matters to nobody.
    others: Vec<String>,
}

impl NodeTexts {
    fn of(word: &ParsedOption) -> Self {
        let mut texts = Self::default();
        let parse = |text| OptionFields::parse(text, first_key(word.name));
        if let Some(Ok(fields)) = word.argument.to_str().map(parse) {
            texts.take("", fields.into_map().into());
        }
        texts
    }

    fn take(&mut self, key: &str, value: Value) {
        match value {
            Value::String(text) if key == "node-name" => self.names.push(text),
            Value::String(text) => self.others.push(text),
            Value::Array(all) => all.into_iter().for_each(|value| self.take(key, value)),
            Value::Object(map) => map.into_iter().for_each(|(key, value)| self.take(&key, value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Refuses what two places in files say, of which none is stronger.
fn check_once(files: &[ParsedOption]) -> Result<(), ConfigError> {
    let mut known: HashMap<(OptionKind, Option<String>), FilePosition> = HashMap::new();
    for word in files {
        let Some(place) = &word.place else { continue };
        if matches!(forms::form(word.name), ValueForm::Several(_)) {
            continue;
        }
        let name = name_of(word);
        if name.is_none() && is_named(word) {
            // What has no name where it needs one is refused by whoever reads it.
            continue;
        }
        let position = place.position();
        if let Some(first) = known.insert((word.name, name), position.clone()) {
            let what = place.what.clone();
            return Err(ConfigError::Twice { what, first, second: position });
        }
    }
    Ok(())
}

fn is_named(word: &ParsedOption) -> bool {
    matches!(forms::form(word.name), ValueForm::Tables(_))
}

/// The name by which what an option makes is known, if it has one.
fn name_of(word: &ParsedOption) -> Option<String> {
    let ValueForm::Tables(key) = forms::form(word.name) else { return None };
    let fields = OptionFields::parse(word.argument.to_str()?, first_key(word.name)).ok()?;
    fields.into_map().get(key)?.as_str().map(str::to_owned)
}

/// Where an option stands in a line that can be carried out.
fn rank(name: OptionKind) -> u8 {
    match name {
        OptionKind::Shared(EitherFormOption::Chardev) => 1,
        OptionKind::Shared(EitherFormOption::Monitor) => 2,
        OptionKind::Step(LongFormOption::Object) => 3,
        OptionKind::Step(LongFormOption::Blockdev) => 4,
        OptionKind::Step(LongFormOption::Export) => 5,
        OptionKind::Help
        | OptionKind::Version
        | OptionKind::Config
        | OptionKind::Shared(_)
        | OptionKind::Short(_)
        | OptionKind::Later => 0,
    }
}
