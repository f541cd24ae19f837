//! Certificates for TLS as GnuTLS's certtool makes them, in directories as QEMU wants them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// An authority, and what it has signed.
pub(super) struct Authority {
    directory: PathBuf,
}

/// For how long a certificate counts.
#[derive(Clone, Copy)]
pub(super) enum Validity {
    Now,
    Over,
}

impl Authority {
    /// One that is made in that directory.
    pub(super) fn new(directory: PathBuf) -> Result<Self> {
        std::fs::create_dir(&directory)?;
        let authority = Self { directory };
        authority.key("ca-key.pem")?;
        authority.template("ca", "cn = test authority\nca\ncert_signing_key\n", Validity::Now)?;
        authority.certtool(&[
            "--generate-self-signed",
            "--load-privkey=ca-key.pem",
            "--template=ca.info",
            "--outfile=ca-cert.pem",
        ])?;
        Ok(authority)
    }

    /// A directory with the certificate of a `server` or `client` of that name.
    pub(super) fn sign(&self, side: &str, name: &str, validity: Validity) -> Result<PathBuf> {
        let key = format!("{name}.key");
        self.key(&key)?;
        let to = self.sign_with(side, name, validity, &key)?;
        std::fs::rename(self.directory.join(key), to.join(format!("{side}-key.pem")))?;
        Ok(to)
    }

    fn sign_with(&self, side: &str, name: &str, validity: Validity, key: &str) -> Result<PathBuf> {
        let to = self.directory.join(name);
        std::fs::create_dir(&to)?;
        let purpose = match side {
            "server" => "tls_www_server\nip_address = 127.0.0.1\ndns_name = localhost\n",
            _client => "tls_www_client\n",
        };
        let subject = format!(
            "country = GB\norganization = Test, Ltd\ncn = {name}\nsigning_key\nencryption_key\n{purpose}"
        );
        self.template(name, &subject, validity)?;
        self.certtool(&[
            "--generate-certificate",
            "--load-ca-certificate=ca-cert.pem",
            "--load-ca-privkey=ca-key.pem",
            &format!("--load-privkey={key}"),
            &format!("--template={name}.info"),
            &format!("--outfile={name}/{side}-cert.pem"),
        ])?;
        std::fs::copy(self.directory.join("ca-cert.pem"), to.join("ca-cert.pem"))?;
        Ok(to)
    }

    /// Encrypts the key of a server in its directory.
    pub(super) fn encrypt_key(&self, server: &Path, password: &str) -> Result<()> {
        let key = server.join("server-key.pem").display().to_string();
        self.certtool(&[
            "--to-p8",
            &format!("--load-privkey={key}"),
            &format!("--password={password}"),
            "--pkcs-cipher=aes-256",
            &format!("--outfile={key}.p8"),
        ])?;
        Ok(std::fs::rename(format!("{key}.p8"), key)?)
    }

    fn key(&self, name: &str) -> Result<()> {
        // QEMU wants keys with which others can be encrypted.
        self.certtool(&[
            "--generate-privkey",
            "--key-type=rsa",
            "--bits=2048",
            &format!("--outfile={name}"),
        ])
    }

    /// Gives a server a key on an elliptic curve, whose number certtool writes in its own way half of the time.
    pub(super) fn elliptic(&self, name: &str) -> Result<PathBuf> {
        let key = format!("{name}.key");
        let outfile = format!("--outfile={key}");
        self.certtool(&["--generate-privkey", "--key-type=ecdsa", "--curve=secp256r1", &outfile])?;
        let to = self.sign_with("server", name, Validity::Now, &key)?;
        std::fs::rename(self.directory.join(key), to.join("server-key.pem"))?;
        Ok(to)
    }

    fn template(&self, name: &str, text: &str, validity: Validity) -> Result<()> {
        let days = match validity {
            Validity::Now => "expiration_days = 30\n",
            Validity::Over => {
                "activation_date = \"2020-01-01 00:00:00\"\nexpiration_date = \"2020-02-01 00:00:00\"\n"
            }
        };
        let path = self.directory.join(format!("{name}.info"));
        Ok(std::fs::write(path, format!("{text}{days}"))?)
    }

    fn certtool(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new("certtool");
        let output = command.args(arguments).current_dir(&self.directory).output();
        let output = output.context("certtool")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "certtool {arguments:?}: {said}");
        Ok(())
    }
}
