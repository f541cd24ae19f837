//! The object type `secret`: bytes that are told only to what needs them, as passwords and keys.
//!
//! Invariants: no log, no answer and no state file shows them. Limits: [`SECRET_BYTES_MAX`].
//! Not here: `keyid` and `iv` (encrypted secrets), which are refused by name.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use syntax::{ArgumentError, Keys, OptionFields, ValueType, optional};

use super::{OBJECT_KEYS, ObjectKind, ObjectType};

/// The most bytes of a secret, as they are given.
const SECRET_BYTES_MAX: u64 = 1 << 20;

/// `O_NONBLOCK`: what is no regular file is refused when it is open, and opening a FIFO would wait for its other end.
const NONBLOCK: i32 = 0o4000;

/// `qom-type=secret`.
pub(super) const ENTRY: ObjectType = ObjectType {
    name: "secret",
    keys: Keys {
        of: "--object secret",
        supported: &[
            OBJECT_KEYS,
            &[
                optional("data", ValueType::Text),
                optional("file", ValueType::Text),
                optional("format", ValueType::Word(&["raw", "base64"])),
            ],
        ],
        later: &[&["keyid", "iv"]],
    },
    read,
};

/// Where a secret is, and how it is written there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretOptions {
    source: SecretSource,
    format: SecretFormat,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SecretSource {
    Data(Secret),
    File(PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SecretFormat {
    Raw,
    Base64,
}

/// The bytes of a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(…)")
    }
}

/// A secret that is not to be had. QEMU's sentences where it has some.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Nothing says where it is.
    #[error("Either 'file' or 'data' must be provided")]
    Nowhere,
    /// It is in two places.
    #[error("'file' and 'data' are mutually exclusive")]
    Twice,
    /// It is not what its format says.
    #[error("Base64 data contains invalid characters")]
    Base64,
    /// It is too long.
    #[error("a secret has at most {SECRET_BYTES_MAX} bytes")]
    TooLong,
    /// Its file cannot be read.
    #[error("Unable to read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl SecretOptions {
    /// The secret; its file is read now. Blocks.
    pub fn load(&self) -> Result<Secret, SecretError> {
        let given = match &self.source {
            SecretSource::Data(data) => data.clone(),
            SecretSource::File(path) => {
                let failed = |source| SecretError::File { path: path.clone(), source };
                Secret(read_file(path).map_err(failed)?)
            }
        };
        if given.0.len() as u64 > SECRET_BYTES_MAX {
            return Err(SecretError::TooLong);
        }
        match self.format {
            SecretFormat::Raw => Ok(given),
            SecretFormat::Base64 => {
                let text: Vec<u8> = given.0.into_iter().filter(|byte| *byte != b'\n').collect();
                // What is wrong with it would show a part of it.
                STANDARD.decode(text).map(Secret).map_err(|_shown| SecretError::Base64)
            }
        }
    }

    /// The file that it is in, if it is in one.
    pub fn file(&self) -> Option<&Path> {
        match &self.source {
            SecretSource::Data(_) => None,
            SecretSource::File(path) => Some(path),
        }
    }

    /// All that may be shown, by key.
    pub(super) fn written(&self) -> Map<String, Value> {
        let format = match self.format {
            SecretFormat::Raw => "raw",
            SecretFormat::Base64 => "base64",
        };
        let mut written = Map::from_iter([("format".to_owned(), format.into())]);
        if let Some(path) = self.file() {
            written.insert("file".to_owned(), path.to_string_lossy().into());
        }
        written
    }
}

/// At most a byte more than a secret may have.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(SECRET_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read(fields: &mut OptionFields) -> Result<ObjectKind, ArgumentError> {
    let source = match (fields.text("data")?, fields.text("file")?) {
        (None, None) => return Err(ArgumentError::own(SecretError::Nowhere)),
        (Some(_), Some(_)) => return Err(ArgumentError::own(SecretError::Twice)),
        (Some(data), None) => SecretSource::Data(Secret(data.into_bytes())),
        (None, Some(path)) => SecretSource::File(path.into()),
    };
    let format = match fields.word("format")? {
        Some("base64") => SecretFormat::Base64,
        Some(_) | None => SecretFormat::Raw,
    };
    let options = SecretOptions { source, format };
    if options.file().is_none() {
        options.load().map_err(ArgumentError::own)?;
    }
    Ok(ObjectKind::Secret(options))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::ObjectOptions;

    #[track_caller]
    fn check(text: &str, expected: Result<&[u8], &str>) {
        let options = ObjectOptions::parse(&format!("secret,id=s,{text}"));
        let loaded = options.map_err(|error| host::chain_of(&error).to_string()).and_then(|it| {
            let shown = format!("{it:?}{}", Value::from(it.written()));
            assert!(!shown.contains("letmein") && !shown.contains("bGV0bWVpbg"), "{shown}");
            assert_eq!(it.kept().is_some(), text.contains("file="));
            let ObjectKind::Secret(secret) = it.kind else { panic!("{it:?}") };
            secret.load().map_err(|error| host::chain_of(&error).to_string())
        });
        let loaded = loaded.as_ref().map(Secret::bytes).map_err(String::as_str);
        assert_eq!(loaded, expected, "{text}");
    }

    #[test]
    fn a_secret_is_what_its_format_says_and_is_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            format!("file={}", path.display())
        };
        check("data=letmein", Ok(b"letmein"));
        check("data=bGV0bWVpbg==,format=base64", Ok(b"letmein"));
        check("data=letmein,format=raw", Ok(b"letmein"));
        check("data=letmein!,format=base64", Err("Base64 data contains invalid characters"));
        check(&file("raw", b"\xff\0\n"), Ok(b"\xff\0\n"));
        let lines = file("base64", b"bGV0\nbWVpbg==\n");
        check(&format!("{lines},format=base64"), Ok(b"letmein"));
        check("format=raw", Err("Either 'file' or 'data' must be provided"));
        check("data=letmein,file=x", Err("'file' and 'data' are mutually exclusive"));
        check("data=x,keyid=s", Err("option 'keyid' of --object secret is not supported yet"));
        check("data=x,iv=s", Err("option 'iv' of --object secret is not supported yet"));
        let long = vec![0; 1 + (1 << 20)];
        check(&file("long", &long), Err("a secret has at most 1048576 bytes"));
        check(&file("fits", &long[1..]), Ok(&long[1..]));
    }

    #[test]
    fn what_is_no_regular_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        let (file, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &path, file, mode, 0).unwrap();
        let said = format!("Unable to read {}: it is not a regular file", path.display());
        check(&format!("file={}", path.display()), Err(&said));
        let (path, missing) = (dir.path().display(), dir.path().join("none"));
        check(&format!("file={path}"), Err(&format!("Unable to read {path}: is a directory")));
        let said =
            format!("Unable to read {}: No such file or directory (os error 2)", missing.display());
        check(&format!("file={}", missing.display()), Err(&said));
    }
}
