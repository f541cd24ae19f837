//! An image as an archive in OCI's layout: what it is called by, its configuration, files of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::run::{make_dir, output_of};

/// The archive of an image.
#[derive(Debug)]
pub struct Archive(PathBuf);

impl Archive {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The digest of the image: of its manifest, which names everything else by digests.
    pub fn digest(&self) -> Result<String> {
        let index = self.json("index.json")?;
        digest_of(&index["manifests"][0])
    }

    /// How many bytes it has, layers not compressed.
    pub fn bytes(&self) -> Result<u64> {
        let facts = self.0.metadata().with_context(|| format!("look at {}", self.0.display()))?;
        Ok(facts.len())
    }

    /// What containers of it are told: user, command, environment.
    pub(crate) fn config(&self) -> Result<Value> {
        let config = self.json(&blob(&digest_of(&self.manifest()?["config"])?))?;
        Ok(config["config"].clone())
    }

    /// Takes a directory of the last layer out of it.
    pub(crate) fn extract(&self, name: &str, to: &Path) -> Result<()> {
        make_dir(to)?;
        let manifest = self.manifest()?;
        let layers = manifest["layers"].as_array().context("an image has layers")?;
        let layer = blob(&digest_of(layers.last().context("an image has a layer")?)?);
        let tar = |archive: &Path, at: &Path, member: &str| {
            let mut tool = Command::new("tar");
            tool.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(at).arg(member);
            output_of(&mut tool)
        };
        tar(&self.0, to, &layer)?;
        tar(&to.join(&layer), to, name).map(drop)
    }

    fn manifest(&self) -> Result<Value> {
        let index = self.json("index.json")?;
        self.json(&blob(&digest_of(&index["manifests"][0])?))
    }

    fn json(&self, member: &str) -> Result<Value> {
        let mut tool = Command::new("tar");
        let words = ["--extract", "--to-stdout", "--file"];
        let text = output_of(tool.args(words).arg(&self.0).arg(member))?;
        serde_json::from_str(&text).with_context(|| format!("{member} in {}", self.0.display()))
    }
}

fn digest_of(descriptor: &Value) -> Result<String> {
    let digest = descriptor["digest"].as_str();
    Ok(digest.with_context(|| format!("{descriptor} has no digest"))?.to_owned())
}

/// The member of an archive that has this digest.
fn blob(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

#[cfg(test)]
mod tests {
    use std::fs::write;

    use serde_json::json;

    use super::*;

    /// An image with a file in one layer; digests are names here.
    fn image(place: &Path) -> Archive {
        let (layout, archive) = (place.join("layout"), place.join("image.tar"));
        let blobs = layout.join("blobs/sha256");
        make_dir(&blobs).expect("a directory");
        let put = |name: &str, value: Value| write(layout.join(name), value.to_string());
        let named = |digest: &str| json!({"digest": format!("sha256:{digest}")});
        put("index.json", json!({"manifests": [named("m")]})).expect("a file");
        put("blobs/sha256/m", json!({"config": named("c"), "layers": [named("l")]}))
            .expect("a file");
        put("blobs/sha256/c", json!({"config": {"User": "65532:65532"}})).expect("a file");
        make_dir(&place.join("boot")).expect("a directory");
        write(place.join("boot/initrd"), "x").expect("a file");
        let tar = |archive: &Path, at: &Path, member: &str| {
            let mut tool = Command::new("tar");
            tool.arg("--create").arg("--file").arg(archive).arg("--directory").arg(at).arg(member);
            output_of(&mut tool).expect("it works");
        };
        tar(&blobs.join("l"), place, "boot");
        output_of(
            Command::new("tar")
                .arg("-cf")
                .arg(&archive)
                .arg("-C")
                .arg(&layout)
                .args(["index.json", "blobs"]),
        )
        .expect("it works");
        Archive::new(archive)
    }

    #[test]
    fn the_index_leads_to_digest_configuration_and_files() {
        let place = tempfile::tempdir().expect("a directory");
        let image = image(place.path());
        assert_eq!(image.digest().expect("a digest"), "sha256:m");
        assert_eq!(image.config().expect("a configuration")["User"], "65532:65532");
        let files = place.path().join("files");
        image.extract("boot", &files).expect("it has that directory");
        assert_eq!(std::fs::read_to_string(files.join("boot/initrd")).expect("a file"), "x");
        image.extract("etc", &files).expect_err("it has no such directory");
    }
}
