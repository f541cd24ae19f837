//! What tidy needs of `cargo metadata`.

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::steps::{Workspace, output_of};

/// The crates of this workspace and everything they depend on.
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    pub(crate) members: Vec<Member>,
    pub(crate) packages: Vec<Package>,
}

/// A crate of this workspace with its dependencies inside the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Its directory, as seen from the root of the workspace.
    pub(crate) directory: String,
    pub(crate) dependencies: Vec<Dependency>,
}

/// An arrow from one crate of this workspace to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

/// What a dependency is for; a build script counts as normal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Dev,
}

/// Any package that is built, ours and others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// An SPDX expression.
    pub(crate) licence: Option<String>,
}

impl Metadata {
    /// Asks cargo.
    pub(crate) fn of(workspace: &Workspace) -> Result<Self> {
        let arguments = ["metadata", "--format-version", "1", "--all-features"];
        let text = output_of(&mut workspace.cargo(&arguments))?;
        Self::parse(&text).context("cargo metadata")
    }

    fn parse(text: &str) -> Result<Self> {
        let root: Value = serde_json::from_str(text)?;
        let ids: Vec<&str> =
            list(&root, "workspace_members")?.iter().filter_map(Value::as_str).collect();
        let all = list(&root, "packages")?;
        let is_member =
            |package: &Value| package["id"].as_str().is_some_and(|id| ids.contains(&id));
        let mut names = Vec::new();
        for package in all.iter().filter(|it| is_member(it)) {
            names.push(string(package, "name")?);
        }
        let mut metadata = Self::default();
        for package in all {
            let name = string(package, "name")?;
            if is_member(package) {
                let dependencies = list(package, "dependencies")?
                    .iter()
                    .filter_map(|it| dependency(it, &names))
                    .collect();
                let directory = directory(&root, package)?;
                metadata.members.push(Member { name: name.clone(), directory, dependencies });
            }
            let version = string(package, "version")?;
            let licence = package["license"].as_str().map(str::to_owned);
            metadata.packages.push(Package { name, version, licence });
        }
        Ok(metadata)
    }
}

fn directory(root: &Value, package: &Value) -> Result<String> {
    let manifest = string(package, "manifest_path")?;
    let below = manifest.strip_prefix(&string(root, "workspace_root")?);
    let directory = below.and_then(|it| it.strip_prefix('/')?.strip_suffix("/Cargo.toml"));
    Ok(directory.with_context(|| format!("{manifest} is not in the workspace"))?.to_owned())
}

/// A dependency by path on a crate of the workspace; others are none of the edges' business.
fn dependency(value: &Value, members: &[String]) -> Option<Dependency> {
    value["path"].as_str()?;
    let name = value["name"].as_str()?;
    let kind = if value["kind"] == "dev" { Kind::Dev } else { Kind::Normal };
    members.iter().any(|it| it == name).then(|| Dependency { name: name.to_owned(), kind })
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value[key].as_array().with_context(|| format!("no list `{key}`"))
}

fn string(value: &Value, key: &str) -> Result<String> {
    Ok(value[key].as_str().with_context(|| format!("no string `{key}`"))?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{
        "workspace_members": ["a 1", "b 1"],
        "workspace_root": "/x",
        "packages": [
            {"id": "a 1", "name": "a", "version": "0.1.0", "license": "MIT",
             "manifest_path": "/x/y/a/Cargo.toml", "dependencies": [
                {"name": "b", "kind": null, "path": "/x/b"},
                {"name": "b", "kind": "dev", "path": "/x/b"},
                {"name": "libc", "kind": null}
            ]},
            {"id": "b 1", "name": "b", "version": "0.1.0", "license": null,
             "manifest_path": "/x/b/Cargo.toml", "dependencies": []},
            {"id": "libc 1", "name": "libc", "version": "1.0.0", "license": "MIT", "dependencies": []}
        ]
    }"#;

    #[test]
    fn members_have_only_edges_inside_the_workspace() {
        let metadata = Metadata::parse(TEXT).expect("the text is well-formed");
        let edge = |kind| Dependency { name: "b".to_owned(), kind };
        let names: Vec<&str> = metadata.members.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(metadata.members[0].directory, "y/a");
        assert_eq!(metadata.members[0].dependencies, [edge(Kind::Normal), edge(Kind::Dev)]);
    }

    #[test]
    fn every_package_is_listed_with_its_licence() {
        let metadata = Metadata::parse(TEXT).expect("the text is well-formed");
        assert_eq!(metadata.packages.len(), 3);
        assert_eq!(metadata.packages[1].licence, None);
    }

    #[test]
    fn text_of_another_shape_is_an_error() {
        assert!(Metadata::parse("{}").is_err());
        assert!(Metadata::parse("no json").is_err());
    }
}
