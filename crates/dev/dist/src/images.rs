//! The container images: built twice of the recipes of `contrib`, compared, tried.
//!
//! Invariants: both times everything is made anew, the base too, so an image that takes over when or where it was built is found.
//! Limits: needs root and what `container_images` needs. Nothing is fetched but Debian's packages.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use container_images::{Archive, Recipe, Store, agent, guest, serve};
use container_images::{try_agent, try_guest, try_serve};

/// What images are made of, and where.
#[derive(Debug)]
pub struct ImagesInput {
    /// The repository.
    pub workspace: PathBuf,
    /// The tree of the package.
    pub root: PathBuf,
    /// A directory with the static program.
    pub program: PathBuf,
    /// The time that files in images are of.
    pub epoch: u64,
    /// Where archives and what is in them are left.
    pub place: PathBuf,
}

/// Makes and tries the images. `say` is told each line of what was done.
pub fn make(input: &ImagesInput, say: &mut dyn FnMut(&str)) -> Result<()> {
    let ImagesInput { workspace, root, program, epoch, place } = input;
    let recipes = [serve(workspace, root), agent(workspace, program), guest(workspace, program)];
    let (images, again) = (place.join("images"), place.join("images-again"));
    let (store, built) = build(&recipes, &images, *epoch)?;
    let (_, built_again) = build(&recipes, &again, *epoch)?;
    for ((recipe, image), other) in recipes.iter().zip(&built).zip(&built_again) {
        let (digest, other) = (image.digest()?, other.digest()?);
        ensure!(digest == other, "{}: built twice it is {digest} and {other}", recipe.name);
        let mebibytes = image.bytes()? >> 20;
        let path = image.path().display();
        say(&format!("{path}: {mebibytes} MiB, {digest}, the same if built twice"));
    }
    remove(&again)?;
    let [serve, agent, guest] = &built;
    let contents = try_serve(&store, serve)?;
    fs::write(place.join("image-contents.txt"), &contents).context("write what is in the image")?;
    say(&format!("{}: {contents}", recipes[0].name));
    for line in try_agent(&store, agent)? {
        say(&format!("{}: {line}", recipes[1].name));
    }
    let unpacked = place.join("images/guest");
    for line in try_guest(guest, &unpacked)? {
        say(&format!("{}: {line}", recipes[2].name));
    }
    remove(&unpacked)?;
    store.finish()
}

/// Builds everything in a directory that is made anew.
fn build(recipes: &[Recipe; 3], place: &Path, epoch: u64) -> Result<(Store, [Archive; 3])> {
    remove(place)?;
    let store = Store::new(place, epoch)?;
    store.make_base()?;
    let build = |recipe: &Recipe| store.build(recipe, &format!("localhost/{}", recipe.name));
    let [serve, agent, guest] = recipes;
    let built = [build(serve)?, build(agent)?, build(guest)?];
    Ok((store, built))
}

fn remove(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    }
    Ok(())
}
