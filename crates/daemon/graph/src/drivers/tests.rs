//! What holds for every driver in the table.

use std::collections::BTreeSet;

use syntax::{Key, Keys, ValueType};

use super::table::DRIVERS;

/// The cells of the rows of a table in Markdown that begin with a key.
fn rows(document: &str) -> impl Iterator<Item = Vec<&str>> {
    let rows = document.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| line.split('|').map(str::trim).skip(1).collect())
}

/// Whether the document has a row for a key of that driver, or for keys inside it.
#[track_caller]
fn check_documented(driver: &str, key: &Key) {
    let document = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/options.md"));
    let found = rows(document).any(|row| {
        let has = |cell: &str, name: &str| {
            cell.contains(&format!("`{name}`")) || cell.contains(&format!("`{name}."))
        };
        has(row[0], key.name) && (row[1] == "all" || has(row[1], driver))
    });
    assert!(found, "docs/options.md has no row for {} of {driver}", key.name);
}

#[test]
fn every_key_of_every_driver_has_a_row_in_the_document() {
    for driver in DRIVERS {
        driver.keys.supported().for_each(|key| check_documented(driver.name, key));
    }
}

/// Checks what a reader and a schema take for granted.
fn check_keys(keys: &Keys) {
    let mut names = BTreeSet::new();
    for key in keys.supported() {
        assert!(names.insert(key.name), "{} has {} twice", keys.of, key.name);
        assert!(keys.later.iter().all(|group| !group.contains(&key.name)), "{}", key.name);
        match key.takes {
            ValueType::Word(words) | ValueType::WordOrObject(words, _) => {
                assert!(!words.is_empty())
            }
            ValueType::Union(union) => {
                let has_tag = |keys: &Keys| keys.names().any(|name| name == union.tag);
                assert!(union.branches.iter().all(|(_, keys)| has_tag(keys)), "{}", key.name);
                let is_branch = |name| union.branches.iter().any(|(branch, _)| *branch == name);
                assert!(union.default.is_none_or(is_branch), "{}", key.name);
            }
            ValueType::Text
            | ValueType::Blockdev
            | ValueType::TextOrNull
            | ValueType::Flag
            | ValueType::Number
            | ValueType::Int
            | ValueType::Size
            | ValueType::Texts
            | ValueType::Object(_)
            | ValueType::Node
            | ValueType::NodeOrNull
            | ValueType::Nodes { .. }
            | ValueType::List(_)
            | ValueType::TextOrObject(_)
            | ValueType::Any => {}
        }
        key.takes.inner().into_iter().for_each(check_keys);
    }
}

#[test]
fn drivers_say_what_their_keys_and_children_are() {
    for driver in DRIVERS {
        check_keys(&driver.keys);
        assert_eq!(driver.keys.of, format!("--blockdev driver={}", driver.name));
        assert!(driver.help.contains(&format!("[driver=]{},node-name=N", driver.name)));
        let is_child = |key: &&Key| {
            matches!(key.takes, ValueType::Node | ValueType::NodeOrNull | ValueType::Nodes { .. })
        };
        let children = driver.keys.supported().filter(is_child).map(|key| key.name);
        assert!(children.eq(driver.roles.iter().map(|(key, _)| *key)), "{}", driver.name);
        if let Some(options) = driver.as_format {
            let words = format!(r#"{{"driver":"{}","node-name":"a","file":"b"}}"#, driver.name);
            let read = super::Blockdev::parse(&words).unwrap().options;
            assert_eq!(format!("{read:?}"), format!("{:?}", options()));
        }
    }
}
