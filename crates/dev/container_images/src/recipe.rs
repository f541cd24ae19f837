//! The recipes, each with what its build takes from this repository.

use std::path::{Path, PathBuf};

/// Short for the image of pods that measure.
pub const AGENT_NAME: &str = "ringloom-agent";
/// Short for the image of virtual machines.
pub const GUEST_NAME: &str = "ringloom-guest";

/// A recipe of `contrib`, and the directories that it copies from.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// Short for the image, and how its archive is called.
    pub name: &'static str,
    pub(crate) file: PathBuf,
    pub(crate) context: PathBuf,
    /// A context under the name `program`: the directory of the static program.
    pub(crate) program: Option<PathBuf>,
}

/// The image of the daemon. `root` is the tree of the Debian package.
pub fn serve(workspace: &Path, root: &Path) -> Recipe {
    let file = workspace.join("contrib/Containerfile");
    Recipe { name: "ringloom", file, context: root.to_owned(), program: None }
}

/// The image of pods that measure. `program` is a directory with a `ringloom` that is linked statically.
pub fn agent(workspace: &Path, program: &Path) -> Recipe {
    let file = workspace.join("contrib/Containerfile.agent");
    Recipe { name: AGENT_NAME, file, context: program.to_owned(), program: None }
}

/// The image of virtual machines that are measured in, with the same program.
pub fn guest(workspace: &Path, program: &Path) -> Recipe {
    let (file, context) =
        (workspace.join("contrib/Containerfile.guest"), workspace.join("contrib"));
    Recipe { name: GUEST_NAME, file, context, program: Some(program.to_owned()) }
}
