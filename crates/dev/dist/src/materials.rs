//! The bill of materials (CycloneDX 1.5) and the licences of all that is linked into the program.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::components::Component;

/// How files are called that hold a licence or what belongs to it.
const LICENCE_FILES: &[&str] = &["licen", "copying", "copyright", "notice", "unlicense"];

/// The largest file that is taken for a licence.
const LICENCE_BYTES_MAX: u64 = 256 << 10;

/// The bill of materials as JSON.
pub fn bill(components: &[Component]) -> Value {
    let version = env!("CARGO_PKG_VERSION");
    let own = format!("pkg:generic/ringloom@{version}");
    let all: Vec<Value> = components.iter().map(component).collect();
    let reference = |component: &Component| Value::from(package_url(component));
    let references: Vec<Value> = components.iter().map(reference).collect();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "ringloom",
                "version": version,
                "licenses": [{"expression": "Apache-2.0 OR MIT"}],
                "purl": own,
            },
        },
        "components": all,
        "dependencies": [{"ref": own, "dependsOn": references}],
    })
}

fn component(component: &Component) -> Value {
    let Component { name, version, licence, description, checksum, .. } = component;
    let url = package_url(component);
    let mut entry = json!({
        "type": "library",
        "bom-ref": url,
        "name": name,
        "version": version,
        "licenses": [{"expression": licence}],
        "purl": url,
        "scope": "required",
    });
    if let Some(description) = description {
        entry["description"] = description.as_str().into();
    }
    if let Some(checksum) = checksum {
        entry["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    entry
}

fn package_url(component: &Component) -> String {
    format!("pkg:cargo/{}@{}", component.name, component.version)
}

/// The licences of all components: who is under which, and their texts, each once.
pub fn licences(components: &[Component]) -> Result<String> {
    let mut text = String::from(
        "Licences of what is linked into ringloom besides its own code and Rust's standard library (Apache-2.0 OR MIT).\n\
         Each package is listed with its SPDX expression and the texts that came with it.\n\n",
    );
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for component in components {
        let name = format!("{} {}", component.name, component.version);
        let _infallible = writeln!(text, "{name}: {}", component.licence);
        let own = texts_of(component)?;
        if own.is_empty() {
            let _infallible = writeln!(text, "  (its package holds no text of a licence)");
        }
        for licence in own {
            texts.entry(licence).or_default().push(name.clone());
        }
    }
    for (licence, names) in texts {
        let line = "-".repeat(100);
        let _infallible = write!(text, "\n{line}\n{}\n{line}\n\n{licence}\n", names.join(", "));
    }
    Ok(text)
}

/// The texts of licences in a package, the same under two names once.
fn texts_of(component: &Component) -> Result<Vec<String>> {
    let shown = component.directory.display();
    let mut texts = Vec::new();
    for entry in fs::read_dir(&component.directory).with_context(|| format!("{shown}"))? {
        let entry = entry.with_context(|| format!("{shown}"))?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        let found = entry.metadata().with_context(|| format!("{shown}/{name}"))?;
        let is_licence = LICENCE_FILES.iter().any(|start| name.starts_with(start));
        if !is_licence || !found.is_file() || found.len() > LICENCE_BYTES_MAX {
            continue;
        }
        let bytes = fs::read(entry.path()).with_context(|| format!("{shown}/{name}"))?;
        let lines: Vec<String> = String::from_utf8_lossy(&bytes)
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        let text = lines.join("\n").trim_matches('\n').to_owned();
        if !text.is_empty() && !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.sort();
    Ok(texts)
}
