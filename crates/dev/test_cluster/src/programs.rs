//! The programs of Kubernetes and KubeVirt, built once from the Go module proxy and kept.
//!
//! Invariants: a directory of programs appears when all of it is complete; its name tells the version, the compiler's
//! version and what our own part (`programs/`) was, so that nothing old is taken. What building leaves (modules and
//! caches, some 4 GB) is removed once all are there.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::place::Place;
use crate::run::{make_dir, must_succeed, output_of, remove, write};

/// Several programs in one file, which are told apart by the name that it is called by.
#[derive(Debug)]
pub(crate) struct Bundle {
    name: &'static str,
    version: &'static str,
    module: &'static str,
    source: &'static str,
    links: &'static [&'static str],
    /// What the linker is told besides leaving out symbols.
    linker: &'static str,
}

/// Kubernetes itself and its client.
pub(crate) const KUBERNETES: Bundle = Bundle {
    name: "kubernetes",
    version: "v1.34.1",
    module: include_str!("../programs/kubernetes/go.mod"),
    source: include_str!("../programs/kubernetes/main.go"),
    links: &["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet"],
    linker: "-X k8s.io/component-base/version.gitVersion=v1.34.1 \
             -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34",
};

/// Which KubeVirt it is.
pub(crate) const KUBEVIRT_VERSION: &str = "v1.6.0";

/// KubeVirt's server and controllers, and what prints the objects that its operator would make. It asks for other versions of
/// modules than Kubernetes itself does.
pub(crate) const KUBEVIRT: Bundle = Bundle {
    name: "kubevirt",
    version: KUBEVIRT_VERSION,
    module: include_str!("../programs/kubevirt/go.mod"),
    source: include_str!("../programs/kubevirt/main.go"),
    links: &["kubevirt-objects", "virt-api", "virt-controller"],
    linker: "",
};

/// The stand-in of KubeVirt's program of that name, which runs in containers without anything else.
pub(crate) const CONTAINER_DISK: Bundle = Bundle {
    name: "container-disk",
    version: "stand-in",
    module: include_str!("../programs/container-disk/go.mod"),
    source: include_str!("../programs/container-disk/main.go"),
    links: &[],
    linker: "",
};

/// Builds what is missing.
pub(crate) fn build(place: &Place) -> Result<()> {
    let bundles = [&KUBERNETES, &KUBEVIRT, &CONTAINER_DISK];
    let mut is_new = false;
    for bundle in bundles {
        if !bundle.directory(place)?.is_dir() {
            bundle.build(place)?;
            is_new = true;
        }
    }
    if is_new { remove(&place.go()) } else { Ok(()) }
}

impl Bundle {
    /// Where its programs are once they are built.
    pub(crate) fn directory(&self, place: &Place) -> Result<PathBuf> {
        let go = output_of(Command::new("go").args(["env", "GOVERSION"]))
            .context("Go builds the programs of Kubernetes and KubeVirt: 1.24 or newer")?;
        let mut hasher = DefaultHasher::new();
        (self.module, self.source, self.linker).hash(&mut hasher);
        let (name, version, go, key) = (self.name, self.version, go.trim(), hasher.finish());
        Ok(place.programs().join(format!("{name}-{version}-{go}-{key:016x}")))
    }

    fn build(&self, place: &Place) -> Result<()> {
        let place_of = self.directory(place)?;
        println!("== {} {}: built once, up to 10 minutes", self.name, self.version);
        let work = place.go().join(self.name);
        make_dir(&work)?;
        write(&work.join("go.mod"), self.module)?;
        write(&work.join("main.go"), self.source)?;
        let new = place_of.with_extension("new");
        remove(&new)?;
        make_dir(&new)?;
        let linker = format!("-s -w {}", self.linker);
        let mut command = go(place, &work);
        command.args(["build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", &linker]);
        must_succeed(command.arg("-o").arg(new.join(self.name)).arg("."))?;
        for link in self.links {
            symlink(self.name, new.join(link)).with_context(|| format!("link {link}"))?;
        }
        std::fs::rename(&new, &place_of).with_context(|| format!("rename {}", new.display()))
    }
}

/// The compiler, with modules and caches of its own.
fn go(place: &Place, directory: &Path) -> Command {
    let mut command = Command::new("go");
    command.current_dir(directory).env("CGO_ENABLED", "0");
    command.env("GOFLAGS", "-mod=mod -modcacherw -buildvcs=false");
    command.env("GOPATH", place.go().join("path")).env("GOCACHE", place.go().join("cache"));
    command
}
