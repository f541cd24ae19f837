//! Keys, certificates and the token of one cluster, made by openssl.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::run::{output_of, write};

/// The key that signs the tokens of service accounts.
pub(crate) fn signing_key(path: &Path) -> Result<()> {
    let mut command = Command::new("openssl");
    output_of(command.args(["genrsa", "-out"]).arg(path).arg("2048")).map(drop)
}

/// A certificate that signs itself, valid for this name and for 127.0.0.1, as `NAME.crt` and `NAME.key`.
pub(crate) fn certificate(directory: &Path, name: &str) -> Result<()> {
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-nodes", "-days", "30", "-newkey", "ec"]);
    command.args(["-pkeyopt", "ec_paramgen_curve:P-256", "-subj", &format!("/CN={name}")]);
    command.args(["-addext", "subjectAltName=IP:127.0.0.1"]);
    command.arg("-keyout").arg(directory.join(format!("{name}.key")));
    command.arg("-out").arg(directory.join(format!("{name}.crt")));
    output_of(&mut command).map(drop)
}

/// A secret that only this cluster takes.
pub(crate) fn token() -> Result<String> {
    Ok(output_of(Command::new("openssl").args(["rand", "-hex", "24"]))?.trim().to_owned())
}

/// Writes a kubeconfig: this address, the server's certificates, this token.
pub(crate) fn kubeconfig(path: &Path, port: u16, authority: &Path, token: &str) -> Result<()> {
    let authority = base64_of(authority)?;
    let text = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {
            "server": format!("https://127.0.0.1:{port}"),
            "certificate-authority-data": authority,
        }}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        "users": [{"name": "admin", "user": {"token": token}}],
    });
    write(path, format!("{text:#}\n"))
}

/// A file's content as base64 on one line.
pub(crate) fn base64_of(path: &Path) -> Result<String> {
    Ok(output_of(Command::new("base64").arg("--wrap=0").arg(path))?.trim().to_owned())
}
