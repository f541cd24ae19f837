//! YAML with places: every value knows its line and column, and fields are taken by name until none is left.
//!
//! Invariants: a field that nobody has taken is an error, and so is one that stands twice.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// What is wrong with a job file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}")]
pub struct JobError {
    /// From 1.
    pub line: u64,
    /// From 1.
    pub column: u64,
    /// The sentence.
    pub what: String,
}

/// Where something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    line: u64,
    column: u64,
}

impl Place {
    pub(super) fn error(self, what: impl Into<String>) -> JobError {
        JobError { line: self.line, column: self.column, what: what.into() }
    }
}

/// A value with its place and what it belongs to.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) place: Place,
    /// The name of its field, for sentences.
    pub(super) name: String,
    tree: Tree,
}

#[derive(Clone, Debug)]
enum Tree {
    Nothing,
    Text(String),
    List(Vec<Spanned<Tree>>),
    Map(Vec<(Spanned<String>, Spanned<Tree>)>),
}

/// The whole file.
pub(super) fn parse(text: &str) -> Result<Value, JobError> {
    let root: Spanned<Tree> = serde_saphyr::from_str(text).map_err(|error| {
        let place = error.location().map_or(Place { line: 1, column: 1 }, |it| Place {
            line: it.line(),
            column: it.column(),
        });
        let said = error.without_snippet().to_string();
        place.error(said.lines().next().unwrap_or_default())
    })?;
    Ok(Value::new("the job", root))
}

impl Value {
    fn new(name: &str, spanned: Spanned<Tree>) -> Self {
        let at = spanned.referenced;
        let place = Place { line: at.line(), column: at.column() };
        Self { place, name: name.to_owned(), tree: spanned.value }
    }

    fn wrong(&self, wanted: &str) -> JobError {
        let is = match &self.tree {
            Tree::Nothing => "nothing",
            Tree::Text(_) => "a single value",
            Tree::List(_) => "a list",
            Tree::Map(_) => "a map",
        };
        self.place.error(format!("{} is {is}, not {wanted}", self.name))
    }

    pub(super) fn fields(self) -> Result<Fields, JobError> {
        let Tree::Map(pairs) = self.tree else { return Err(self.wrong("a map")) };
        let mut left = BTreeMap::new();
        for (key, value) in pairs {
            let at = key.referenced;
            let place = Place { line: at.line(), column: at.column() };
            let value = Self::new(&key.value, value);
            if left.insert(key.value.clone(), (place, value)).is_some() {
                return Err(place.error(format!("{} stands twice", key.value)));
            }
        }
        Ok(Fields { place: self.place, name: self.name, left, known: Vec::new() })
    }

    pub(super) fn list(self) -> Result<Vec<Self>, JobError> {
        let name = self.name.clone();
        let Tree::List(items) = self.tree else { return Err(self.wrong("a list")) };
        Ok(items.into_iter().map(|it| Self::new(&name, it)).collect())
    }

    /// A list with at least one element.
    pub(super) fn filled_list(self) -> Result<Vec<Self>, JobError> {
        let (place, name) = (self.place, self.name.clone());
        let items = self.list()?;
        if items.is_empty() {
            return Err(place.error(format!("{name} is empty")));
        }
        Ok(items)
    }

    /// A single value as it is written, but for quotes.
    pub(super) fn text(self) -> Result<String, JobError> {
        match self.tree {
            Tree::Text(text) if !text.is_empty() => Ok(text),
            Tree::Text(_) => Err(self.place.error(format!("{} is empty", self.name))),
            Tree::Nothing | Tree::List(_) | Tree::Map(_) => Err(self.wrong("a single value")),
        }
    }

    /// One value or several, joined by commas.
    pub(super) fn joined(self) -> Result<String, JobError> {
        match self.tree {
            Tree::List(_) => {
                let items = self.filled_list()?.into_iter().map(Self::text);
                Ok(items.collect::<Result<Vec<_>, _>>()?.join(","))
            }
            Tree::Nothing | Tree::Text(_) | Tree::Map(_) => self.text(),
        }
    }

    pub(super) fn flag(self) -> Result<bool, JobError> {
        let (place, name) = (self.place, self.name.clone());
        match self.text()?.as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(place.error(format!("{name} is '{other}', not true or false"))),
        }
    }

    /// A whole number in a range.
    pub(super) fn number(self, least: u64, most: u64) -> Result<u64, JobError> {
        let (place, name) = (self.place, self.name.clone());
        let text = self.text()?;
        let number = text.parse().ok().filter(|it| (least..=most).contains(it));
        number.ok_or_else(|| {
            place.error(format!("{name} is '{text}', not a number from {least} to {most}"))
        })
    }

    /// One of these words.
    pub(super) fn word<T: Copy>(self, words: &[(&str, T)]) -> Result<T, JobError> {
        let (place, name) = (self.place, self.name.clone());
        let text = self.text()?;
        let names = || words.iter().map(|(name, _)| *name);
        if let Some((_, value)) = words.iter().find(|(name, _)| *name == text) {
            return Ok(*value);
        }
        let all = names().collect::<Vec<_>>().join(", ");
        let hint = nearest(&text, names()).map(|it| format!("; did you mean '{it}'?"));
        let hint = hint.unwrap_or_else(|| format!("; there are {all}"));
        Err(place.error(format!("{name} has no '{text}'{hint}")))
    }
}

/// A map whose fields are taken one by one.
#[derive(Debug)]
pub(super) struct Fields {
    place: Place,
    name: String,
    left: BTreeMap<String, (Place, Value)>,
    known: Vec<&'static str>,
}

impl Fields {
    pub(super) fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.left
            .remove(name)
            .map(|(_, value)| value)
            .filter(|it| !matches!(it.tree, Tree::Nothing))
    }

    pub(super) fn need(&mut self, name: &'static str) -> Result<Value, JobError> {
        let missing = self.place.error(format!("{} lacks {name}", self.name));
        self.take(name).ok_or(missing)
    }

    /// All that is left, whatever its names are.
    pub(super) fn rest(self) -> impl Iterator<Item = (String, Value)> {
        self.left.into_iter().map(|(name, (_, value))| (name, value))
    }

    /// Refuses what nobody has taken: the first of it in the file.
    pub(super) fn end(self) -> Result<(), JobError> {
        let first = self.left.iter().min_by_key(|(_, (place, _))| (place.line, place.column));
        let Some((field, (place, _))) = first else { return Ok(()) };
        let hint = nearest(field, self.known.iter().copied()).map_or_else(
            || format!("; there are {}", self.known.join(", ")),
            |it| format!("; did you mean '{it}'?"),
        );
        Err(place.error(format!("{} has no field '{field}'{hint}", self.name)))
    }
}

/// The name closest to a word: one wrong letter for each three.
fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let bound = word.chars().count().div_ceil(3);
    let distances = names.map(|name| (strsim::damerau_levenshtein(word, name), name));
    distances.filter(|(it, _)| *it <= bound).min_by_key(|(it, _)| *it).map(|(_, name)| name)
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("YAML")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Nothing)
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Nothing)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = access.next_entry()? {
            pairs.push(pair);
        }
        Ok(Tree::Map(pairs))
    }
}
