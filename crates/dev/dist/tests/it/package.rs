//! The Debian package, made of the program that cargo has built for tests; the bill of materials beside what is in it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use container_images::output_of;
use dist::components::{Component, linked};
use dist::debian::{self, PackageInput};
use dist::materials;
use dist::tree::TreeInput;
use serde_json::Value;

use super::binary;

fn workspace() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(3).expect("it is in the workspace").to_owned()
}

fn is_right() -> Result<()> {
    let place = tempfile::tempdir().context("make a directory")?;
    let input = PackageInput {
        tree: TreeInput {
            workspace: workspace(),
            binary: binary()?,
            date: "2026-11-27".to_owned(),
        },
        version: "0.1.0~test".to_owned(),
        // The program of the tests is large, and nobody keeps this.
        compression: &["-Znone"],
    };
    let package = debian::make(place.path(), &input)?;
    let listed = output_of(Command::new("dpkg-deb").arg("--contents").arg(&package))?;
    for (rights, file) in [
        ("-rwxr-xr-x root/root", "./usr/bin/ringloom"),
        ("-rw-r--r-- root/root", "./usr/share/man/man1/ringloom-serve.1.gz"),
        ("-rw-r--r-- root/root", "./usr/share/man/man1/ringloom-ctl-backup.1.gz"),
        ("-rw-r--r-- root/root", "./usr/share/bash-completion/completions/ringloom"),
        ("-rw-r--r-- root/root", "./usr/share/zsh/vendor-completions/_ringloom"),
        ("-rw-r--r-- root/root", "./usr/share/fish/vendor_completions.d/ringloom.fish"),
        ("-rw-r--r-- root/root", "./usr/share/doc/ringloom/copyright"),
        ("-rw-r--r-- root/root", "./usr/share/doc/ringloom/changelog.gz"),
        ("-rw-r--r-- root/root", "./usr/share/doc/ringloom/docs/config.md"),
        ("-rw-r--r-- root/root", "./usr/share/doc/ringloom/THIRD-PARTY-LICENCES.gz"),
        ("-rw-r--r-- root/root", "./usr/share/doc/ringloom/ringloom.cdx.json"),
        ("-rw-r--r-- root/root", "./etc/logrotate.d/ringloom"),
        ("-rw-r--r-- root/root", "./usr/lib/systemd/system/ringloom@.service"),
        ("-rw-r--r-- root/root", "./usr/lib/systemd/system/ringloom@.socket"),
        ("-rw-r--r-- root/root", "./usr/lib/sysusers.d/ringloom.conf"),
    ] {
        let is_it = |line: &str| line.starts_with(rights) && line.ends_with(&format!(" {file}"));
        ensure!(listed.lines().any(is_it), "{rights} {file} is not in {listed}");
    }
    let odd = |line: &&str| {
        !line.contains(" root/root ") || line.starts_with('d') && !line.starts_with("drwxr-xr-x")
    };
    ensure!(!listed.lines().any(|line| odd(&line)), "{listed}");
    let fields = output_of(Command::new("dpkg-deb").arg("--field").arg(&package))?;
    for field in ["Package: ringloom\n", "Version: 0.1.0~test\n", "Depends: libc6", "libgcc-s1"] {
        ensure!(fields.contains(field), "{field} is not in {fields}");
    }
    let bill = std::fs::read(place.path().join("root/usr/share/doc/ringloom/ringloom.cdx.json"))?;
    covers(&serde_json::from_slice(&bill)?, &input.tree.binary)
}

/// Each package whose source the program was compiled from, as its debugging information says, is in the bill, and its licence in the
/// text of licences.
fn covers(bill: &Value, binary: &Path) -> Result<()> {
    let script = "grep -aoE 'registry/src/[^/]+/[A-Za-z0-9_-]+-[0-9]+\\.[0-9]+\\.[0-9]+[A-Za-z0-9.+-]*' \"$0\" | \
                  cut -d/ -f4 | sort -u";
    let found = output_of(Command::new("sh").args(["-c", script]).arg(binary))?;
    let found: BTreeSet<&str> = found.lines().collect();
    ensure!(found.len() > 40, "the program says little of what it was compiled from: {found:?}");
    let components = bill["components"].as_array().context("components")?;
    let name = |component: &Value| {
        let text = |key: &str| component[key].as_str().unwrap_or_default().to_owned();
        format!("{}-{}", text("name"), text("version"))
    };
    let listed: BTreeSet<String> = components.iter().map(name).collect();
    let absent: Vec<&&str> = found.iter().filter(|it| !listed.contains(**it)).collect();
    let first = &absent[..absent.len().min(9)];
    ensure!(absent.is_empty(), "linked and not in the bill: {first:?}");
    Ok(())
}

#[test]
fn the_package_holds_what_belongs_into_it_and_the_bill_what_is_linked() {
    if let Err(error) = is_right() {
        panic!("{error:#}");
    }
}

#[test]
fn every_component_has_a_licence_with_its_text() {
    let components = linked(&workspace()).expect("cargo knows them");
    let text = materials::licences(&components).expect("they can be read");
    for Component { name, version, licence, .. } in &components {
        assert!(text.contains(&format!("{name} {version}: {licence}\n")), "{name}");
    }
    assert!(text.contains("Permission is hereby granted") && text.contains("Apache License"));
    // Macros run while the program is built; libFuzzer is of the tests.
    for absent in ["thiserror-impl ", "serde_derive ", "libfuzzer-sys ", "proptest "] {
        assert!(!components.iter().any(|it| it.name == absent.trim()), "{absent}");
    }
}
