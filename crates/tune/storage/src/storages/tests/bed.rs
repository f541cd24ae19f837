//! What storage is made in for a test, with which programs, and how nothing of it is seen to be left.

use std::os::unix::fs::PermissionsExt;

use crate::clock;
use crate::storages::*;

pub(super) const SIZE: Bytes = Bytes(16 << 20);
/// All that storage is made with.
pub(super) const TOOLS: [&str; 7] =
    ["losetup", "mkfs.ext4", "mkfs.xfs", "qemu-img", "qemu-io", "qemu-storage-daemon", "sh"];
pub(super) const LIMIT: Duration = Duration::from_secs(20);
pub(super) const POLL: Duration = Duration::from_millis(20);

/// A directory on the disk, because /tmp may be memory, and programs to use.
pub(super) struct Bed {
    pub(super) directory: tempfile::TempDir,
    pub(super) programs: tempfile::TempDir,
    pub(super) tools: Tools,
    pub(super) mapper: Mapper,
}

impl Bed {
    /// `None`, with a line saying so, where loop devices or programs are missing.
    pub(super) fn new() -> Option<Self> {
        let system = Tools::of_system();
        let missing = TOOLS.iter().find(|name| program(name).is_none());
        let reason = match missing {
            Some(name) => Some(format!("{name} is not installed")),
            None => tools::check_root("storage").err().map(|error| error.to_string()),
        };
        if let Some(reason) = reason {
            skipped(&reason);
            return None;
        }
        let mapper = Mapper::Missing { reason: "it is not tried".to_owned() };
        let (directory, programs) = (directory(), tempfile::tempdir().unwrap());
        Some(Self { directory, programs, tools: system, mapper })
    }

    /// Only these programs, and those that are made with `fake`.
    pub(super) fn with_programs(mut self, names: &[&str]) -> Self {
        for name in names {
            let place = self.programs.path().join(name);
            std::os::unix::fs::symlink(program(name).unwrap(), place).unwrap();
        }
        self.tools = Tools::only(self.programs.path());
        self
    }

    pub(super) fn fake(&self, name: &str, script: &str) {
        let place = self.programs.path().join(name);
        drop(std::fs::remove_file(&place));
        std::fs::write(&place, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&place, PermissionsExt::from_mode(0o755)).unwrap();
    }

    pub(super) fn prepare(&self, variants: &[Variant], interrupt: &Interrupt) -> Result<Storages> {
        self.prepare_heard(variants, interrupt, &|_| {})
    }

    pub(super) fn prepare_heard(
        &self,
        variants: &[Variant],
        interrupt: &Interrupt,
        report: &dyn Fn(u64),
    ) -> Result<Storages> {
        let Self { tools, mapper, .. } = self;
        let (directory, size) = (self.directory.path(), SIZE);
        let workshop = Workshop { directory, size, seed: 3, tools, mapper, interrupt, report };
        let plan = StoragePlan::new(variants);
        plan.check(&workshop)?;
        Storages::prepare(&plan, &workshop)
    }

    /// Nothing in the directory, no mount and no loop device on it.
    #[track_caller]
    pub(super) fn check_clean(&self) {
        let place = self.directory.path();
        let left = || {
            let mut left: Vec<String> = std::fs::read_dir(place)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            let name = place.display().to_string();
            let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
            let loops = Tools::of_system().run_anyway(tools::LOSETUP, &["-a".as_ref()]).unwrap();
            let both = mounts.lines().chain(loops.lines()).filter(|line| line.contains(&name));
            left.extend(both.map(str::to_owned));
            left
        };
        // The kernel detaches a loop device when the last look at it has ended.
        wait_until(|| left().is_empty(), || format!("is left: {:?}", left()));
    }
}

#[track_caller]
pub(crate) fn wait_until(is_so: impl Fn() -> bool, complaint: impl Fn() -> String) {
    let deadline = clock::now() + LIMIT;
    while !is_so() {
        assert!(clock::now() < deadline, "{}", complaint());
        clock::pause(POLL);
    }
}

pub(crate) fn directory() -> tempfile::TempDir {
    let here = std::env::current_exe().unwrap();
    tempfile::tempdir_in(here.parent().unwrap()).unwrap()
}

pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let places = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].iter();
    places.map(|place| Path::new(place).join(name)).find(|place| place.exists())
}

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
pub(crate) fn skipped(reason: &str) {
    eprintln!("skipped: {reason}");
}

pub(super) fn variant(image: &str, fs: &str, stripe: &str, delay: &str) -> Variant {
    Variant {
        image: image.parse().unwrap(),
        fs: fs.parse().unwrap(),
        stripe: stripe.parse().unwrap(),
        delay: delay.parse().unwrap(),
        ..Variant::default()
    }
}
