//! Where things are: everything below `target/cluster`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// The longest path that a Unix socket may have.
const SOCKET_PATH_MAX: usize = 107;

/// The directories of the cluster of this checkout.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The root of the workspace.
    pub(crate) workspace: PathBuf,
    root: PathBuf,
}

impl Place {
    /// That of the checkout which this program was built in.
    pub(crate) fn find() -> Result<Self> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3);
        let workspace = workspace.context("the crate is in the workspace")?.to_owned();
        let place = Self { root: workspace.join("target/cluster"), workspace };
        let socket = place.run("node1/containerd.sock");
        ensure!(
            socket.as_os_str().len() <= SOCKET_PATH_MAX,
            "{}: too long for the path of a socket: put the checkout elsewhere",
            socket.display()
        );
        Ok(place)
    }

    /// What belongs to the cluster that runs, or is about to: `down` removes it.
    pub(crate) fn run(&self, name: &str) -> PathBuf {
        self.root.join("run").join(name)
    }

    /// Built programs, kept.
    pub(crate) fn programs(&self) -> PathBuf {
        self.root.join("programs")
    }

    /// Modules and caches of Go, of use while something is built.
    pub(crate) fn go(&self) -> PathBuf {
        self.root.join("go")
    }

    /// Debian's packages, unpacked.
    pub(crate) fn packages(&self) -> PathBuf {
        self.root.join("packages")
    }

    /// Archives of images.
    pub(crate) fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    /// The kubeconfig for this machine.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.run("kubeconfig")
    }
}
