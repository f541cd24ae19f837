//! The client of Kubernetes: asks, changes, follows.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use serde_json::{Deserializer, Value, json};

use crate::place::Place;
use crate::programs::KUBERNETES;
use crate::run::{output_given, output_of};

/// The program, and the cluster that it speaks to.
#[derive(Debug, Clone)]
pub(crate) struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// For the cluster that this kubeconfig leads to.
    pub(crate) fn new(place: &Place, kubeconfig: &Path) -> Result<Self> {
        let program = KUBERNETES.directory(place)?.join("kubectl");
        Ok(Self { program, kubeconfig: kubeconfig.to_owned() })
    }

    /// Where the program is.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The program with these arguments, to be run by the caller.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(arguments);
        // Else it notes what it learns about the server below the user's home.
        let cache = self.kubeconfig.with_extension("cache");
        command.env("KUBECACHEDIR", cache);
        command
    }

    /// Runs it; hands back what it printed.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String> {
        output_of(&mut self.command(arguments))
    }

    /// What it prints as JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> Result<Value> {
        let text = output_of(self.command(arguments).args(["--output", "json"]))?;
        serde_json::from_str(&text).with_context(|| format!("kubectl {arguments:?}: {text}"))
    }

    /// Makes objects or changes them to be as said.
    pub(crate) fn apply(&self, objects: &[Value]) -> Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        let arguments = ["apply", "--server-side", "--filename", "-"];
        output_given(&mut self.command(&arguments), &list).map(drop)
    }

    /// Hands over each object of these that there is, and each again when it changes, until the server ends it.
    pub(crate) fn follow(&self, what: &[&str], mut take: impl FnMut(&Value)) -> Result<()> {
        let mut command = self.command(&["get"]);
        command.args(what).args(["--all-namespaces", "--watch", "--output", "json"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().context("start kubectl")?;
        let output = child.stdout.take().expect("it was asked for above");
        for object in Deserializer::from_reader(output).into_iter::<Value>() {
            match object {
                Ok(object) => take(&object),
                Err(_cut_off) => break,
            }
        }
        // It has ended, or prints what is no object.
        let _already_ended = child.kill();
        child.wait().context("wait for kubectl").map(drop)
    }
}
