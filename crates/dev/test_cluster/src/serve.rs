//! The process that keeps the cluster: it starts the namespaces, and hands on connections from a port of this machine.
//!
//! Invariants: whoever kills it ends everything, for the kernel tells its child, and the child tells the first process
//! of the namespace, with which all others end.

use std::net::TcpListener;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::forward::tcp_to_unix;
use crate::place::Place;
use crate::run::write;

/// The first process of the namespaces: reaps what others leave, ends with the program that it starts.
const FIRST: &str = "\"$@\" & wait";

/// Until the cluster ends, which is an error.
pub(crate) fn serve(place: &Place) -> Result<()> {
    write(&place.run("pid"), std::process::id().to_string())?;
    let listener = TcpListener::bind("127.0.0.1:0").context("find a port")?;
    let port = listener.local_addr().context("ask for the port")?.port();
    tcp_to_unix(listener, place.run("api.sock"));
    let program = std::env::current_exe().context("find this program")?;
    let mut command = Command::new("setpriv");
    command.args([
        "--pdeathsig",
        "KILL",
        "unshare",
        "--fork",
        "--pid",
        "--mount",
        "--net",
        "--uts",
    ]);
    command.args(["--mount-proc", "--propagation", "private", "--kill-child=KILL"]);
    command.args(["sh", "-c", FIRST, "first"]).arg(program).args(["inside", &port.to_string()]);
    // Absolute paths only: nobody's directory of work is theirs.
    let mut child = command.current_dir("/").spawn().context("start the namespaces")?;
    let status = child.wait().context("wait for the namespaces")?;
    bail!("the cluster ended: {status}")
}
