//! The container image: built of `contrib/Containerfile` by buildah, where that is, on a base that is made here.
//!
//! Limits: needs root, mmdebstrap and buildah. Nothing is fetched but Debian's packages.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::run::output_of;

/// How the base is called that is made here.
const BASE: &str = "localhost/ringloom-base";

/// How the image is called.
const IMAGE: &str = "localhost/ringloom";

/// Builds the image with the tree of a package, and has it say its version. Returns what it contains: packages of the
/// system, and files of ringloom.
pub fn make(workspace: &Path, root: &Path, place: &Path) -> Result<String> {
    let store = place.join("containers");
    let run = |words: &[&str]| -> Result<String> {
        let mut tool = Command::new("buildah");
        tool.arg("--root").arg(store.join("root")).arg("--runroot").arg(store.join("run"));
        tool.args(["--storage-driver", "vfs"]).args(words);
        output_of(&mut tool)
    };
    let base = place.join("base.tar");
    if !base.exists() {
        let mut tool = Command::new("mmdebstrap");
        let words = ["--variant=essential", "--mode=root", "--include=libgcc-s1", "bookworm"];
        output_of(tool.args(words).arg(&base))?;
    }
    let container = run(&["from", "scratch"])?;
    let container = container.trim();
    run(&["add", container, &base.to_string_lossy()])?;
    run(&["commit", "--rm", container, BASE])?;
    let recipe = workspace.join("contrib/Containerfile");
    let (recipe, context) = (recipe.to_string_lossy(), root.to_string_lossy());
    let argument = format!("BASE={BASE}");
    run(&[
        "build",
        "--isolation",
        "chroot",
        "--pull=never",
        "--build-arg",
        &argument,
        "-t",
        IMAGE,
        "-f",
        &recipe,
        &context,
    ])?;
    let container = run(&["from", "--pull=never", IMAGE])?;
    let container = container.trim();
    let inside = |words: &[&str]| {
        let all = ["run", "--isolation", "chroot", container, "--"];
        run(&[&all[..], words].concat())
    };
    let version = inside(&["ringloom", "--version"])?;
    ensure!(version.starts_with("ringloom "), "{version}");
    let packages = inside(&["dpkg-query", "-W", "-f", "${Package} ${Version}\\n"])?;
    let files = inside(&["find", "/usr/bin/ringloom", "/usr/share/doc/ringloom", "-type", "f"])?;
    run(&["rm", container])?;
    let contents = format!("{version}\npackages of the system:\n{packages}\nof ringloom:\n{files}");
    fs::write(place.join("image-contents.txt"), &contents).context("write what is in the image")?;
    Ok(contents)
}
