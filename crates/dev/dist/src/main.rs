//! `cargo xtask dist`: builds the program with the profile `dist` and makes all that is handed out of it below
//! `target/packages`.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command line tool talks to its user on the terminal")]

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Parser;
use container_images::{NEEDED, cargo, output_of, static_program};
use dist::chroot::{Chroot, try_packages};
use dist::debian::{self, PackageInput};
use dist::images::{self, ImagesInput};
use dist::tree::TreeInput;

/// Makes the Debian package, with manual pages, completions, licences and bill of materials, in target/packages
#[derive(Debug, Parser)]
#[command(name = "cargo xtask dist")]
struct DistArgs {
    /// Take the program of `cargo build`, and compress little: to try the rest
    #[arg(long)]
    debug: bool,
    /// Install, upgrade, remove and purge the package in a new Debian (root, mmdebstrap)
    #[arg(long)]
    chroot: bool,
    /// Build the container images too, twice, compare and try them (root, mmdebstrap, buildah, QEMU)
    #[arg(long)]
    images: bool,
}

fn main() -> Result<()> {
    let arguments = DistArgs::parse();
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3);
    let workspace = workspace.context("the crate is in the workspace")?.to_owned();
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace.join("target"), |it| workspace.join(it));
    let place = target.join("packages");
    check_programs(&arguments)?;
    let binary = build(&workspace, &target, arguments.debug)?;
    let mut git = Command::new("git");
    let date = output_of(git.args(["log", "-1", "--format=%cs"]).current_dir(&workspace))?;
    let input = |version: &str| PackageInput {
        tree: TreeInput {
            workspace: workspace.clone(),
            binary: binary.clone(),
            date: date.trim().to_owned(),
        },
        version: version.to_owned(),
        compression: if arguments.debug { &["-Zgzip", "-z1"] } else { &["-Zxz"] },
    };
    let version = env!("CARGO_PKG_VERSION");
    let package = debian::make(&place, &input(version))?;
    println!("{}", package.display());
    let said = output_of(Command::new("lintian").args(["--fail-on", "error"]).arg(&package));
    println!("lintian finds no error\n{}", said?);
    if arguments.chroot {
        let next = debian::make(&place.join("next"), &input(&format!("{version}+next")))?;
        let chroot = Chroot::make(&place.join("chroot"))?;
        for line in try_packages(&chroot, &package, &next)? {
            println!("chroot: {line}");
        }
    }
    if arguments.images {
        let profile = profile(arguments.debug).0;
        let program = static_program(&workspace, &target, profile)?;
        let (root, epoch) = (place.join("root"), debian::epoch(&workspace)?);
        let input = ImagesInput { workspace, root, program, epoch, place };
        images::make(&input, &mut |line| println!("{line}"))?;
    }
    Ok(())
}

/// Whether all programs are there that are needed after the long build.
fn check_programs(arguments: &DistArgs) -> Result<()> {
    let mut needed = vec![("dpkg-shlibdeps", "dpkg-dev"), ("lintian", "lintian")];
    if arguments.images {
        needed.extend(NEEDED);
        needed.push(("qemu-system-x86_64", "qemu-system-x86"));
    } else if arguments.chroot {
        needed.push(("mmdebstrap", "mmdebstrap"));
    }
    container_images::check_programs(&needed)
}

/// The profile of cargo's that the program is built with, and how cargo calls its directory.
fn profile(is_debug: bool) -> (&'static str, &'static str) {
    if is_debug { ("dev", "debug") } else { ("dist", "dist") }
}

/// Builds the program. The one of the profile `dist` is stripped: its lines are in a file beside it.
fn build(workspace: &Path, target: &Path, is_debug: bool) -> Result<PathBuf> {
    let (profile, directory) = profile(is_debug);
    let words = ["build", "--locked", "-p", "ringloom", "--profile", profile];
    output_of(cargo(workspace).args(words))?;
    Ok(target.join(directory).join("ringloom"))
}
