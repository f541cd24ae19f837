//! TLS of the client: servers with certificates of GnuTLS's certtool, and those that do not count.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::process::{Bench, Program};

use super::{line, nbdkit, node, use_it};
use crate::nbd::certificates::{Authority, Validity};
use crate::nbd::{socket, start};
use crate::support::{ringloom, stop, with};

/// A line whose node has the credentials of that directory.
fn with_credentials(bench: &Bench, directory: &Path, more: &str) -> Vec<String> {
    let credentials = format!("tls-creds-x509,id=c,endpoint=client,dir={}", directory.display());
    let mut words = vec!["--object".to_owned(), credentials];
    words.extend(line(bench, &node(bench, more), ""));
    words
}

fn servers_are_checked(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let authority = Authority::new(bench.path("ca"))?;
    let theirs = authority.sign("server", "theirs", Validity::Now)?;
    let ours = authority.sign("client", "ours", Validity::Now)?;
    let foreign = Authority::new(bench.path("other"))?.sign("client", "foreign", Validity::Now)?;
    let certificates = format!("--tls-certificates={}", theirs.display());
    let secure = ["--tls=require", "--tls-verify-peer", &certificates, "memory", "64M"];
    let mut kit = nbdkit(&bench, &secure)?;
    let named = ",tls-creds=c,tls-hostname=localhost,reconnect-delay=10";
    let server = start(program, &bench, &with_credentials(&bench, &ours, named))?;
    use_it(&bench)?;
    // Another connection is as safe as the first one.
    kit.kill()?;
    let mut kit = nbdkit(&bench, &secure)?;
    use_it(&bench)?;
    stop(server, &[&socket(&bench)])?;
    let refuse = |directory: &Path, more: &str, part: &str| -> Result<()> {
        let line = with_credentials(&bench, directory, more);
        let exit = program.refusal(&line, Duration::from_secs(30))?;
        ensure!(!exit.status.success() && exit.stderr.contains(part), "{part}: {}", exit.stderr);
        Ok(())
    };
    refuse(&ours, ",tls-creds=c,tls-hostname=elsewhere", "certificate not valid for name")?;
    refuse(&foreign, ",tls-creds=c,tls-hostname=localhost", "invalid peer certificate")?;
    refuse(&ours, "", "Server requires TLS")?;
    refuse(&ours, ",tls-creds=c", "tls-creds on a UNIX socket needs tls-hostname")?;
    refuse(&ours, ",tls-creds=d,tls-hostname=localhost", "'d'")?;
    kit.kill()?;
    let mut kit = nbdkit(&bench, &["memory", "64M"])?;
    refuse(&ours, ",tls-creds=c,tls-hostname=localhost", "the server has no TLS")?;
    kit.kill()
}

#[test]
fn servers_of_tls_are_checked_and_used() {
    with(&ringloom(), servers_are_checked);
}
