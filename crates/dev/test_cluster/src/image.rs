//! Container images as archives in OCI's layout: one layer, made of a directory.
//!
//! Invariants: the same files give the same bytes, and so the same digest: names are sorted, times are zero, owners are
//! root, modes are what the owner may do. No registry and no other program of containers is needed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::run::{make_dir, output_of, remove, write};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Writes the archive of an image.
///
/// `root` is all that the image holds, `name` what pods call it, `command` what runs in it if a pod says nothing else.
/// Beside the archive a directory is made and removed. Hands back the image's digest.
pub(crate) fn write_archive(
    root: &Path,
    name: &str,
    command: &[&str],
    archive: &Path,
) -> Result<String> {
    let work = archive.with_extension("layout");
    remove(&work)?;
    let blobs = Blobs { directory: work.join("blobs/sha256") };
    make_dir(&blobs.directory)?;
    let layer = blobs.layer(root)?;
    let config = blobs.json(
        CONFIG,
        &json!({
            "architecture": "amd64", "os": "linux", "config": {"Cmd": command},
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        }),
    )?;
    let mut manifest = blobs.json(
        MANIFEST,
        &json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer]}),
    )?;
    let digest = manifest["digest"].as_str().context("a descriptor has a digest")?.to_owned();
    manifest["annotations"] = json!({"io.containerd.image.name": name});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    write(&work.join("index.json"), index.to_string())?;
    write(&work.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
    pack(&work, archive)?;
    remove(&work)?;
    Ok(digest)
}

/// Content that is found by its digest.
struct Blobs {
    directory: PathBuf,
}

impl Blobs {
    /// Adds a JSON text; hands back its descriptor.
    fn json(&self, media_type: &str, value: &Value) -> Result<Value> {
        let path = self.directory.join("new");
        write(&path, value.to_string())?;
        self.adopt(&path, media_type)
    }

    /// Adds a directory as a layer.
    fn layer(&self, root: &Path) -> Result<Value> {
        let path = self.directory.join("new");
        pack(root, &path)?;
        self.adopt(&path, LAYER)
    }

    fn adopt(&self, path: &Path, media_type: &str) -> Result<Value> {
        let text = output_of(Command::new("sha256sum").arg(path))?;
        let digest = text.split_whitespace().next().context("sha256sum prints a digest")?;
        let size = path.metadata().with_context(|| format!("look at {}", path.display()))?.len();
        std::fs::rename(path, self.directory.join(digest)).context("name a blob")?;
        Ok(json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size}))
    }
}

/// A tar archive that depends on names, content and who may execute, and on nothing else.
fn pack(root: &Path, archive: &Path) -> Result<()> {
    let mut command = Command::new("tar");
    command.args([
        "--create",
        "--format=gnu",
        "--sort=name",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
    ]);
    command.args(["--numeric-owner", "--hard-dereference", "--mode=u=rwX,go=rX"]);
    command.env("LC_ALL", "C").arg("--file").arg(archive).arg("--directory").arg(root).arg(".");
    output_of(&mut command).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A directory with these files, made in this order.
    fn root(at: &Path, files: &[(&str, &str)]) {
        for (name, content) in files {
            let path = at.join(name);
            make_dir(path.parent().expect("a parent")).expect("a directory");
            write(&path, content).expect("a file");
            set_permissions(&path, Permissions::from_mode(0o640)).expect("a mode");
        }
    }

    #[test]
    fn the_same_files_give_the_same_image() {
        let place = tempfile::tempdir().expect("a directory");
        let at = |name: &str| place.path().join(name);
        root(&at("a"), &[("bin/x", "1"), ("b", "2")]);
        root(&at("b"), &[("b", "2"), ("bin/x", "1")]);
        set_permissions(at("b/b"), Permissions::from_mode(0o600)).expect("a mode");
        root(&at("c"), &[("b", "2"), ("bin/x", "3")]);
        output_of(Command::new("touch").args(["-d", "2001-01-01"]).arg(at("a/b")))
            .expect("it works");
        let make = |name: &str| {
            let archive = at(name).with_extension("tar");
            let digest = write_archive(&at(name), "x.test/x:1", &["/bin/x"], &archive);
            (digest.expect("an image"), std::fs::read(archive).expect("its archive"))
        };
        let (one, two, other) = (make("a"), make("b"), make("c"));
        assert_eq!(one.0, two.0);
        assert!(one.1 == two.1, "the archives differ");
        assert_ne!(one.0, other.0);
    }

    #[test]
    fn every_blob_has_its_digest_as_its_name_and_the_index_leads_to_all() {
        let place = tempfile::tempdir().expect("a directory");
        let (files, archive) = (place.path().join("files"), place.path().join("image.tar"));
        root(&files, &[("bin/x", "1")]);
        let digest = write_archive(&files, "x.test/x:1", &["/bin/x"], &archive).expect("an image");
        let layout = place.path().join("unpacked");
        make_dir(&layout).expect("a directory");
        let mut command = Command::new("tar");
        output_of(command.arg("--extract").arg("--file").arg(&archive).arg("-C").arg(&layout))
            .expect("it is a tar archive");
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().expect("a digest");
            let name = digest.strip_prefix("sha256:").expect("its kind");
            let path = layout.join("blobs/sha256").join(name);
            let sum = output_of(Command::new("sha256sum").arg(&path)).expect("the blob is there");
            assert!(sum.starts_with(name), "{sum}");
            assert_eq!(descriptor["size"], path.metadata().expect("it").len());
            path
        };
        let parse = |path: PathBuf| -> Value {
            let text = std::fs::read_to_string(path).expect("a text");
            serde_json::from_str(&text).expect("JSON")
        };
        let index = parse(layout.join("index.json"));
        let manifest = &index["manifests"][0];
        assert_eq!(manifest["digest"], digest);
        assert_eq!(manifest["annotations"]["io.containerd.image.name"], "x.test/x:1");
        let manifest = parse(blob(manifest));
        let config = parse(blob(&manifest["config"]));
        assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
        let layer = blob(&manifest["layers"][0]);
        let names = output_of(Command::new("tar").arg("-tf").arg(layer)).expect("a tar archive");
        assert_eq!(names, "./\n./bin/\n./bin/x\n");
    }
}
