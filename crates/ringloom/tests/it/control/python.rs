//! QEMU's own Python client of QMP, and its shell, drive ringloom.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use testkit::process::{Bench, Program};
use testkit::report::skipped;

use super::{monitor_socket, start};
use crate::support::{ringloom, stop, with};

/// Debian's, whatever else is in PATH.
const PYTHON: &str = "/usr/bin/python3";

/// Asks, is refused, sees a job through its events, and asks many things at once.
const SCRIPT: &str = r"
import asyncio, sys
from qemu.qmp import ExecuteError, QMPClient
async def main():
    client = QMPClient('test')
    with client.listener(('JOB_STATUS_CHANGE',)) as listener:
        await client.connect(sys.argv[1])
        assert client.greeting.QMP.version['qemu']['major'] == 10
        assert await client.execute('query-block-jobs') == []
        try:
            await client.execute('blockdev-del', {'node-name': 'none'})
            assert False, 'it was not refused'
        except ExecuteError as error:
            assert error.error_class == 'GenericError' and 'none' in str(error), error
        made = {'driver': 'file', 'filename': sys.argv[2], 'size': 65536}
        await client.execute('blockdev-create', {'job-id': 'j', 'options': made})
        seen = []
        async for event in listener:
            seen.append(event['data']['status'])
            if seen[-1] == 'concluded':
                break
        assert seen == ['created', 'running', 'waiting', 'pending', 'concluded'], seen
        await client.execute('job-dismiss', {'id': 'j'})
        asked = [client.execute('query-commands') for _ in range(40)]
        answers = await asyncio.gather(*asked)
        assert all(answer == answers[0] for answer in answers)
    await client.disconnect()
asyncio.run(main())
";

/// What is typed into the shell.
const TYPED: &str = "\
query-version
blockdev-add driver=null-co node-name=m size=65536
blockdev-del node-name=none
transaction(
abort
)
blockdev-del node-name=m
";

fn packages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python")
}

fn with_client(behaviour: fn(&Program) -> Result<()>) {
    if packages().join("qemu/qmp/qmp_shell.py").is_file() && Path::new(PYTHON).is_file() {
        with(&ringloom(), behaviour);
    } else {
        skipped("qemu.qmp is not there: cargo xtask install fetches it");
    }
}

/// Runs Python with these arguments; gives what it printed.
fn python(arguments: &[&str], input: &str) -> Result<String> {
    let mut command = Command::new(PYTHON);
    command.args(arguments).env("PYTHONPATH", packages()).env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context(PYTHON)?;
    child.stdin.take().context("its input")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let (said, wrong) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{}: {said}{wrong}", output.status);
    Ok(said.into_owned())
}

fn the_library(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let (server, client) = start(program, &bench, &[], &[])?;
    // A monitor has one client at a time.
    drop(client);
    let socket = monitor_socket(&bench);
    python(&["-c", SCRIPT, &socket.display().to_string(), &bench.text("made")], "")?;
    ensure!(std::fs::metadata(bench.path("made"))?.len() == 65536, "it was not made");
    stop(server, &[&socket]).map(drop)
}

#[test]
fn the_client_of_qemu_drives_a_daemon() {
    with_client(the_library);
}

fn the_shell(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let (server, client) = start(program, &bench, &[], &[])?;
    drop(client);
    let socket = monitor_socket(&bench);
    let said = python(&["-m", "qemu.qmp.qmp_shell", &socket.display().to_string()], TYPED)?;
    let expected = [
        "Connected to QEMU 10.0.2",
        "\"package\": \"ringloom ",
        "node-name='none'",
        "Transaction aborted using Abort action",
    ];
    for words in expected {
        ensure!(said.contains(words), "not said: {words}: {said}");
    }
    ensure!(said.matches("{\"return\": {}}").count() == 2, "{said}");
    stop(server, &[&socket]).map(drop)
}

#[test]
fn the_shell_of_qemu_drives_a_daemon() {
    with_client(the_shell);
}
