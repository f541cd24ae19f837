//! Puts the words of files and those of the line together.
//!
//! What the line says wins. Objects, nodes, exports, character devices and monitors are known by their names: one on the
//! line takes the place of the one in a file, as a whole. Of every other option, what the line says takes the place of all
//! that files say, also of a list.
//!
//! Then all is put into the order that the line asks of its user: what others name comes first. Within a kind, files come
//! first, in their order.

use std::collections::{HashMap, HashSet};

use syntax::OptionFields;

use super::forms::{self, ValueForm, first_key};
use super::{ConfigError, FilePosition};
use crate::getopt::{EitherFormOption, LongFormOption, OptionKind, ParsedOption};

/// The words of files and of the line as those of one line.
pub(super) fn merge(
    files: Vec<ParsedOption>,
    line: Vec<ParsedOption>,
) -> Result<Vec<ParsedOption>, ConfigError> {
    check_once(&files)?;
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
    Ok(merged)
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
