//! The package in a system of its own: installed, used, upgraded, removed and purged in a Debian that has nothing else.
//!
//! Limits: needs root and mmdebstrap, which takes the system from where this machine takes its packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use container_images::output_of;

/// A system below a directory.
#[derive(Debug)]
pub struct Chroot {
    root: PathBuf,
}

impl Chroot {
    /// Makes a system in a directory that is not there.
    pub fn make(root: &Path) -> Result<Self> {
        if root.exists() {
            fs::remove_dir_all(root).with_context(|| format!("{}", root.display()))?;
        }
        let mut tool = Command::new("mmdebstrap");
        tool.args(["--variant=apt", "--mode=root", "--include=libgcc-s1", "bookworm"]).arg(root);
        output_of(&mut tool)?;
        Ok(Self { root: root.to_owned() })
    }

    /// Runs a script there.
    fn run(&self, script: &str) -> Result<String> {
        let mut tool = Command::new("chroot");
        // The daemon wants to know of its mounts, and dpkg no questions.
        let words = ["sh", "-e", "-c", script];
        output_of(tool.arg(&self.root).args(words).env("DEBIAN_FRONTEND", "noninteractive"))
    }

    fn install(&self, package: &Path) -> Result<String> {
        let name = package.file_name().context("a package has a name")?;
        fs::copy(package, self.root.join("tmp").join(name)).context("copy the package")?;
        self.run(&format!("dpkg --force-confold --install '/tmp/{}'", name.to_string_lossy()))
    }

    fn has(&self, path: &str) -> bool {
        self.root.join(path.trim_start_matches('/')).exists()
    }
}

/// What a user does with a package, and with the next one. Says what was done.
pub fn try_packages(chroot: &Chroot, first: &Path, second: &Path) -> Result<Vec<String>> {
    let before = listed(chroot)?;
    chroot.install(first)?;
    let version = chroot.run("ringloom --version")?;
    ensure!(version.starts_with("ringloom "), "{version}");
    let config = chroot.run(USE)?;
    ensure!(config.contains("a start would serve this"), "{config}");
    chroot.run("dpkg --verify ringloom")?;
    chroot
        .run("echo '# mine' >> /etc/logrotate.d/ringloom; echo kept > /var/log/ringloom/a.log")?;
    chroot.install(second)?;
    let status = chroot.run("dpkg-query -W -f '${Status} ${Version}' ringloom")?;
    let name = second.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let version = name.split('_').nth(1).unwrap_or_default();
    ensure!(status == format!("install ok installed {version}"), "{status}");
    let kept = chroot.run("cat /etc/logrotate.d/ringloom /var/log/ringloom/a.log")?;
    ensure!(kept.ends_with("# mine\nkept\n"), "an upgrade has changed what is not its own: {kept}");
    chroot.run("dpkg --remove ringloom")?;
    ensure!(!chroot.has("/usr/bin/ringloom"), "the program is still there");
    ensure!(chroot.has("/etc/logrotate.d/ringloom"), "the configuration went with a removal");
    chroot.run("dpkg --purge ringloom")?;
    let left: Vec<String> = listed(chroot)?.into_iter().filter(|it| !before.contains(it)).collect();
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(vec![
        "installed, used, verified".to_owned(),
        format!("upgraded to {version}: the configuration that was changed is kept"),
        "removed and purged: nothing is left".to_owned(),
    ])
}

/// Looks at what a start would serve by a file, as an administrator does first.
const USE: &str = "\
truncate -s 16M /tmp/disk.img
printf 'image = \"/tmp/disk.img\"\\nsocket = \"/tmp/s\"\\n' > /tmp/vm.toml
ringloom check --config /tmp/vm.toml
rm /tmp/disk.img /tmp/vm.toml
";

/// All files of the system but those that dpkg keeps books in.
fn listed(chroot: &Chroot) -> Result<Vec<String>> {
    let script = "find / -xdev -path /proc -prune -o -path /sys -prune -o -path /tmp -prune -o \
                  -path /var/lib/dpkg -prune -o -path /var/log/dpkg.log -prune -o -path /dev -prune -o -print";
    Ok(chroot.run(script)?.lines().map(str::to_owned).collect())
}
