//! TLS: clients of GnuTLS and of QEMU, certificates that do not count, rules about who may come.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::image;
use testkit::process::{Bench, Program};

use super::certificates::{Authority, Validity};
use super::{disk, outcome, server, socket, start, tool};
use crate::support::{ringloom, stop, with};

const MIB: u64 = 1 << 20;

/// An export as a client with the certificates of that directory finds it.
fn uri(bench: &Bench, certificates: &Path) -> String {
    let (socket, certificates) = (socket(bench), certificates.display());
    format!("nbds+unix://localhost/a?socket={}&tls-certificates={certificates}", socket.display())
}

/// What QEMU needs to reach it.
fn qemu(bench: &Bench, certificates: &Path) -> [String; 3] {
    [
        "--object".to_owned(),
        format!("tls-creds-x509,id=t,endpoint=client,dir={}", certificates.display()),
        format!(
            "driver=nbd,server.type=unix,server.path={},export=a,tls-creds=t,tls-hostname=localhost",
            socket(bench).display()
        ),
    ]
}

/// A line that serves over TLS with these credentials, and rules if there are some.
fn line(bench: &Bench, credentials: &str, rules: &[&str]) -> Vec<String> {
    let mut line = vec!["--object".to_owned(), format!("tls-creds-x509,id=c,{credentials}")];
    let mut served = server(bench, &[]);
    served[1] += ",tls-creds=c";
    if let [rules] = rules {
        line.extend(["--object".to_owned(), (*rules).to_owned()]);
        served[1] += ",tls-authz=z";
    }
    line.extend(served);
    line.extend(disk(bench, "a", ""));
    line
}

/// Data go both ways through TLS, with clients that have certificates and a key that is encrypted.
fn clients_come_through(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_filled(&bench.path("a.img"), usize::try_from(16 * MIB)?, 5)?;
    let authority = Authority::new(bench.path("ca"))?;
    let ours = authority.sign("server", "ours", Validity::Now)?;
    authority.encrypt_key(&ours, "open sesame")?;
    let theirs = authority.sign("client", "theirs", Validity::Now)?;
    let credentials = format!("endpoint=server,passwordid=p,dir={}", ours.display());
    let mut line = line(&bench, &credentials, &[]);
    line.splice(0..0, ["--object".to_owned(), "secret,id=p,data=open sesame".to_owned()]);
    let server = start(program, &bench, &line)?;
    let uri = uri(&bench, &theirs);
    let info = tool("nbdinfo", &[&uri])?;
    ensure!(info.contains("with TLS"), "{info}");
    let copy = bench.text("copy");
    tool("nbdcopy", &[&uri, &copy])?;
    ensure!(std::fs::read(bench.path("a.img"))? == std::fs::read(&copy)?, "another copy");
    let [object, credentials, options] = qemu(&bench, &theirs);
    let script = ["-c", "write -P 7 1M 5M", "-c", "read -P 7 1M 5M", "-c", "flush"];
    let words =
        [&[object.as_str(), &credentials, "--image-opts"], &script[..], &[&options]].concat();
    let done = tool("qemu-io", &words)?;
    ensure!(!done.contains("failed"), "{done}");
    let log = stop(server, &[&socket(&bench)])?;
    ensure!(log.contains(", TLS"), "{log}");
    ensure!(!log.contains("sesame"), "{log}");
    Ok(())
}

/// Who comes in the clear, without a certificate, with a foreign one or one that has expired.
fn others_do_not(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), MIB)?;
    let authority = Authority::new(bench.path("ca"))?;
    let ours = authority.sign("server", "ours", Validity::Now)?;
    let old = authority.sign("client", "old", Validity::Over)?;
    let stranger = Authority::new(bench.path("other"))?.sign("client", "x", Validity::Now)?;
    std::fs::copy(ours.join("ca-cert.pem"), stranger.join("ca-cert.pem"))?;
    let nobody = bench.path("nobody");
    std::fs::create_dir(&nobody)?;
    std::fs::copy(ours.join("ca-cert.pem"), nobody.join("ca-cert.pem"))?;
    let server = start(
        program,
        &bench,
        &line(&bench, &format!("endpoint=server,dir={}", ours.display()), &[]),
    )?;
    let plain = format!("nbd+unix:///a?socket={}", socket(&bench).display());
    let clear = outcome("nbdinfo", &[&plain])?;
    ensure!(!clear.status.success(), "served in the clear");
    for certificates in [&old, &stranger, &nobody] {
        let refused = outcome("nbdinfo", &[&uri(&bench, certificates)])?;
        ensure!(!refused.status.success(), "served {}", certificates.display());
    }
    server.wait_for_log("its TLS handshake failed", Duration::from_secs(10))?;
    stop(server, &[&socket(&bench)]).map(drop)
}

/// The rules go by the name that the peer sees, too.
fn rules_hold(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), MIB)?;
    let authority = Authority::new(bench.path("ca"))?;
    let ours = authority.sign("server", "ours", Validity::Now)?;
    let (good, bad) = (
        authority.sign("client", "good", Validity::Now)?,
        authority.sign("client", "bad", Validity::Now)?,
    );
    let credentials = format!("endpoint=server,dir={}", ours.display());
    let file = bench.path("rules");
    let rule = r#"{"match": "C=GB,O=Test\\, Ltd,CN=good", "policy": "allow"}"#;
    std::fs::write(&file, format!(r#"{{"policy": "deny", "rules": [{rule}]}}"#))?;
    let identity = "C=GB,,O=Test\\,, Ltd,,CN=good";
    for rules in [
        format!("authz-simple,id=z,identity={identity}"),
        "authz-list,id=z,policy=deny,rules.0.match=*CN=good,rules.0.format=glob,rules.0.policy=allow".to_owned(),
        format!("authz-list-file,id=z,filename={},refresh=off", file.display()),
    ] {
        if program.name() != "ringloom" && rules.starts_with("authz-list-file") {
            // It cannot be made there.
            continue;
        }
        let mut server = start(program, &bench, &line(&bench, &credentials, &[&rules]))?;
        tool("nbdinfo", &["--size", &uri(&bench, &good)])?;
        let refused = outcome("nbdinfo", &["--size", &uri(&bench, &bad)])?;
        ensure!(!refused.status.success(), "{rules}: served");
        // The peer leaves its socket behind.
        server.terminate()?;
        if socket(&bench).exists() {
            std::fs::remove_file(socket(&bench))?;
        }
    }
    Ok(())
}

/// Credentials that cannot be used are an error of the start, with the file.
fn bad_credentials_are_named(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), MIB)?;
    let authority = Authority::new(bench.path("ca"))?;
    let old = authority.sign("server", "old", Validity::Over)?;
    let locked = authority.sign("server", "locked", Validity::Now)?;
    authority.encrypt_key(&locked, "x")?;
    let (old, locked) = (old.display(), locked.display());
    for (credentials, said) in [
        (format!("endpoint=server,dir={old}"), "expired"),
        (format!("endpoint=server,dir={locked}"), "passwordid"),
        (format!("endpoint=server,dir={old}/nowhere"), "server-cert.pem"),
        (format!("endpoint=client,dir={old},sanity-check=off"), "endpoint"),
        (format!("endpoint=server,priority=@SYSTEM,dir={old}"), "priority"),
    ] {
        let exit = program.refusal(&line(&bench, &credentials, &[]), Duration::from_secs(20))?;
        ensure!(exit.stderr.contains(said), "{credentials}: {}", exit.stderr);
    }
    Ok(())
}

#[test]
fn clients_of_others_come_through_tls() {
    with(&ringloom(), clients_come_through);
}

#[test]
fn clients_that_do_not_count_are_not_served() {
    with(&ringloom(), others_do_not);
}

/// Keys on elliptic curves are read however certtool writes them.
fn elliptic_keys_are_read(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), MIB)?;
    let authority = Authority::new(bench.path("ca"))?;
    let theirs = authority.sign("client", "theirs", Validity::Now)?;
    for number in 0..4 {
        let ours = authority.elliptic(&format!("ours{number}"))?;
        if number % 2 == 1 {
            authority.encrypt_key(&ours, "p")?;
        }
        let credentials = format!("endpoint=server,passwordid=p,dir={}", ours.display());
        let mut line = line(&bench, &credentials, &[]);
        line.splice(0..0, ["--object".to_owned(), "secret,id=p,data=p".to_owned()]);
        let server = start(program, &bench, &line)?;
        tool("nbdinfo", &["--size", &uri(&bench, &theirs)])?;
        stop(server, &[&socket(&bench)])?;
    }
    Ok(())
}

#[test]
fn keys_on_elliptic_curves_are_read() {
    with(&ringloom(), elliptic_keys_are_read);
}

#[test]
fn rules_say_whose_certificates_may_come() {
    with(&ringloom(), rules_hold);
}

#[test]
fn qemu_storage_daemon_knows_clients_by_the_same_names() {
    with(&Program::qemu_storage_daemon(), rules_hold);
}

#[test]
fn credentials_that_cannot_be_used_are_named() {
    with(&ringloom(), bad_credentials_are_named);
}
