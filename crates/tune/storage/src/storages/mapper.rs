//! Stripes and delays by the kernel's device-mapper, so that every subject sees a block device.
//!
//! What the kernel has is tried, never assumed. Where it has not what a variant needs, ringloom makes
//! the layers, below the subjects that it serves only.
//! Limits: dm-delay is told whole milliseconds, and waits for whole ticks of the kernel's clock.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use plan::variant::{Delay, Layers, Stripe, Variant};

use super::tools::{DMSETUP, MODPROBE, Tools, check_root};
use super::undo::{Step, Undo};
use crate::interrupt::Interrupt;

const SECTOR_BYTES: u64 = 512;
const STRIPED: &str = "striped";
const DELAY: &str = "delay";
/// dm-delay has a thread that polls for a shorter one (`delay_ctr` of drivers/md/dm-delay.c).
const POLLED_BELOW: Duration = Duration::from_millis(50);

/// What this kernel's device-mapper can do for us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mapper {
    /// It is there, with these targets.
    Targets(Vec<String>),
    /// It cannot be used.
    Missing {
        /// Why not.
        reason: String,
    },
}

impl Mapper {
    /// `probe`, if one of these variants has stripes or a delay.
    ///
    /// # Errors
    /// As `probe`.
    pub fn for_variants(
        variants: &[Variant],
        tools: &Tools,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        if variants.iter().any(Variant::is_layered) {
            return Self::probe(tools, interrupt);
        }
        Ok(Self::Missing { reason: "no variant has stripes or a delay".to_owned() })
    }

    /// For the user's PATH, which nothing is put on but what ringloom makes.
    pub fn for_path() -> Self {
        Self::Missing { reason: "the disk is PATH, not a scratch file".to_owned() }
    }

    /// Asks the kernel, after an attempt to load the modules.
    ///
    /// # Errors
    /// `Interrupted` after a signal.
    pub fn probe(tools: &Tools, interrupt: &Interrupt) -> Result<Self> {
        let advice =
            "install the package dmsetup, run as root on a kernel with dm-mod and dm-delay";
        let missing = |why: String| Self::Missing {
            reason: format!("the kernel's device-mapper cannot be used, {why} ({advice})"),
        };
        if let Err(error) = check_root("it").and_then(|()| tools.find(DMSETUP).map(drop)) {
            return Ok(missing(error.to_string()));
        }
        for module in ["dm-mod", "dm-delay"] {
            interrupt.check()?;
            // What is built in needs no module, and what there is nothing of is seen below.
            drop(tools.run(MODPROBE, &["-q".as_ref(), module.as_ref()], interrupt));
        }
        interrupt.check()?;
        Ok(match tools.run(DMSETUP, &["targets".as_ref()], interrupt) {
            Ok(text) => Self::Targets(target_names(&text)),
            Err(error) => {
                interrupt.check()?;
                let text = error.to_string();
                missing(text.lines().next().unwrap_or_default().to_owned())
            }
        })
    }

    /// Who makes these stripes and this delay.
    pub fn layers(&self, stripe: Stripe, delay: Delay) -> Layers {
        let targets = match self {
            Self::Missing { reason } => return Layers::Ringloom { reason: reason.clone() },
            Self::Targets(targets) => targets,
        };
        let wanted = [(stripe != Stripe::None, STRIPED), (!delay.is_none(), DELAY)];
        let lacking = wanted
            .iter()
            .find(|(wanted, name)| *wanted && !targets.iter().any(|target| target == name));
        if let Some((_, name)) = lacking {
            let reason = format!("the kernel's device-mapper has no target {name}");
            return Layers::Ringloom { reason };
        }
        match delay.whole_milliseconds() {
            Some(_) => Layers::Kernel,
            None => Layers::Ringloom {
                reason: format!("the kernel's dm-delay counts whole milliseconds, {delay} is none"),
            },
        }
    }

    /// What bends the kernel's delays among these variants; `tick` is that of its clock.
    pub fn notes(&self, variants: &[Variant], tick: Duration) -> Vec<String> {
        let is_ours = |it: &&Variant| self.layers(it.stripe, it.delay) == Layers::Kernel;
        let delays: BTreeSet<Delay> =
            variants.iter().filter(is_ours).map(|it| it.delay).filter(|it| !it.is_none()).collect();
        let mut notes = Vec::new();
        for delay in &delays {
            let waits = in_ticks(delay.duration(), tick);
            if waits != delay.duration() {
                notes.push(format!(
                    "the kernel's dm-delay waits for ticks of its clock, one every {tick:?}: a delay of \
                     {delay} is one of up to {waits:?}, and of that where the next request follows \
                     the last answer at once"
                ));
            }
        }
        if delays.iter().any(|delay| delay.duration() < POLLED_BELOW) {
            notes.push(format!(
                "the kernel's dm-delay may keep a CPU busy for each disk with a delay below \
                 {POLLED_BELOW:?}, for which kernels such as 6.12 poll"
            ));
        }
        notes
    }
}

/// A delay as the kernel has it, in whole ticks of its clock, of which a second has a whole number.
fn in_ticks(delay: Duration, tick: Duration) -> Duration {
    const SECOND: u128 = 1_000_000_000;
    let tick = tick.as_nanos().max(1);
    let per_second = (SECOND + tick / 2) / tick;
    let ticks = (delay.as_nanos() * per_second).div_ceil(SECOND);
    let nanoseconds = ticks * SECOND / per_second.max(1);
    Duration::from_nanos(u64::try_from(nanoseconds).expect("a delay is at most 10 s"))
}

/// The first word of each line: `striped          v1.6.0`.
fn target_names(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// The table of a device whose chunks lie on these devices in turn, each of them this long.
fn striped_table(devices: &[PathBuf], member_bytes: u64, chunk_bytes: u64) -> String {
    let count = devices.len();
    let sectors = member_bytes * u64::try_from(count).expect("at most 16") / SECTOR_BYTES;
    let chunk = chunk_bytes / SECTOR_BYTES;
    let members: String = devices.iter().map(|device| format!(" {} 0", device.display())).collect();
    format!("0 {sectors} {STRIPED} {count} {chunk}{members}")
}

/// The table of a device that answers later than this one: reads, writes and flushes alike.
fn delay_table(device: &Path, bytes: u64, milliseconds: u128) -> String {
    format!("0 {} {DELAY} {} 0 {milliseconds}", bytes / SECTOR_BYTES, device.display())
}

/// Loop devices of one disk, all of the same size, to be put together.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    /// Unique on the machine; the devices' names begin with it.
    pub(super) name: &'a str,
    pub(super) devices: Vec<PathBuf>,
    pub(super) member_bytes: u64,
}

/// Makes the block device of a disk: stripes if there are several parts, the delay above them.
///
/// # Errors
/// What dmsetup says.
pub(super) fn assemble(
    parts: &Parts<'_>,
    layers: (Stripe, Delay),
    tools: &Tools,
    undo: &mut Undo,
    interrupt: &Interrupt,
) -> Result<PathBuf> {
    let (stripe, delay) = layers;
    let mut top = parts.devices[0].clone();
    let mut bytes = parts.member_bytes;
    let mut create = |name: String, table: &str| -> Result<PathBuf> {
        let words = ["create", &name, "--table", table].map(OsStr::new);
        tools.run(DMSETUP, &words, interrupt).inspect_err(|_| {
            // A dmsetup that a signal ended may have made it; the error to tell is that one.
            drop(tools.run_anyway(DMSETUP, &["remove".as_ref(), name.as_ref()]));
        })?;
        undo.push(Step::Mapped(name.clone()));
        let device = Path::new("/dev/mapper").join(&name);
        if !device.exists() {
            // Without udev, in containers, nobody else makes it.
            tools.run(DMSETUP, &["mknodes".as_ref(), name.as_ref()], interrupt)?;
        }
        Ok(device)
    };
    if let Stripe::Of(stripe) = stripe {
        let table = striped_table(&parts.devices, bytes, stripe.chunk().0);
        top = create(format!("{}-striped", parts.name), &table)?;
        bytes *= u64::from(stripe.count());
    }
    if let Some(milliseconds) = delay.whole_milliseconds().filter(|&delay| delay > 0) {
        let table = delay_table(&top, bytes, milliseconds);
        top = create(format!("{}-delayed", parts.name), &table)?;
    }
    Ok(top)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::Interrupt;

    fn paths(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn tables_count_in_sectors() {
        let devices = paths(&["/dev/loop0", "/dev/loop1"]);
        assert_eq!(
            striped_table(&devices, 1 << 20, 64 << 10),
            "0 4096 striped 2 128 /dev/loop0 0 /dev/loop1 0"
        );
        let device = Path::new("/dev/mapper/s");
        assert_eq!(delay_table(device, 2 << 20, 2), "0 4096 delay /dev/mapper/s 0 2");
    }

    #[test]
    fn targets_are_read() {
        let text = "delay            v1.4.0\nstriped          v1.6.0\nlinear           v1.4.0\n";
        assert_eq!(target_names(text), ["delay", "striped", "linear"]);
        assert!(target_names("").is_empty());
    }

    #[track_caller]
    fn check_layers(mapper: &Mapper, stripe: &str, delay: &str, reason: Option<&str>) {
        match (mapper.layers(stripe.parse().unwrap(), delay.parse().unwrap()), reason) {
            (Layers::Kernel, None) => {}
            (Layers::Ringloom { reason }, Some(part)) if reason.contains(part) => {}
            (layers, expected) => panic!("{layers:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn the_kernel_makes_what_it_can() {
        let with =
            |names: &[&str]| Mapper::Targets(names.iter().map(|&name| name.to_owned()).collect());
        let all = with(&["linear", "striped", "delay"]);
        check_layers(&all, "4x64k", "2ms", None);
        check_layers(&all, "none", "0", None);
        check_layers(&all, "none", "500us", Some("whole milliseconds, 500us is none"));
        let plain = with(&["linear", "striped"]);
        check_layers(&plain, "4x64k", "0", None);
        check_layers(&plain, "4x64k", "2ms", Some("no target delay"));
        let missing = Mapper::Missing { reason: "it is not there".to_owned() };
        check_layers(&missing, "4x64k", "0", Some("it is not there"));
    }

    #[test]
    fn what_bends_delays_of_the_kernel_is_noted() {
        let all = Mapper::Targets(vec![DELAY.to_owned(), STRIPED.to_owned()]);
        let (tick, millisecond) = (Duration::from_millis(4), Duration::from_millis(1));
        let notes = |mapper: &Mapper, delays: &[&str], tick| {
            let of = |delay: &&str| Variant { delay: delay.parse().unwrap(), ..Variant::default() };
            let variants: Vec<_> = delays.iter().map(of).collect();
            mapper.notes(&variants, tick).join("\n")
        };
        assert_eq!(notes(&all, &["0", "100ms", "500us"], tick), "");
        let both = notes(&all, &["2ms", "2ms", "102ms"], tick);
        assert!(both.contains("every 4ms: a delay of 2ms is one of up to 4ms"), "{both}");
        assert!(both.contains("a delay of 102ms is one of up to 104ms"), "{both}");
        assert!(both.ends_with("below 50ms, for which kernels such as 6.12 poll"), "{both}");
        assert_eq!(both.lines().count(), 3, "{both}");
        assert_eq!(notes(&all, &["100ms"], Duration::from_nanos(3_333_333)), "");
        assert_eq!(notes(&all, &["2ms"], millisecond).lines().count(), 1);
        assert_eq!(notes(&Mapper::for_path(), &["2ms"], tick), "");
    }

    #[test]
    fn a_kernel_without_device_mapper_says_why() {
        let nothing = Tools::only(Path::new("/nonexistent"));
        let Mapper::Missing { reason } = Mapper::probe(&nothing, &Interrupt::deaf(false)).unwrap()
        else {
            panic!("there is no dmsetup");
        };
        assert!(reason.contains("not installed") || reason.contains("needs root"), "{reason}");
        assert!(reason.contains("package dmsetup"), "{reason}");
        if check_root("it").is_ok() && Tools::of_system().find(DMSETUP).is_ok() {
            assert!(Mapper::probe(&Tools::of_system(), &Interrupt::deaf(true)).is_err());
        }
    }

    #[test]
    fn the_kernel_is_asked_only_when_it_matters() {
        let plain = [Variant::default()];
        let slow = Variant { delay: "2ms".parse().unwrap(), ..plain[0] };
        let (nothing, interrupt) = (Tools::only(Path::new("/nonexistent")), Interrupt::deaf(false));
        let reason =
            |variants: &[Variant]| match Mapper::for_variants(variants, &nothing, &interrupt)
                .unwrap()
            {
                Mapper::Missing { reason } => reason,
                Mapper::Targets(targets) => panic!("{targets:?} without dmsetup"),
            };
        assert_eq!(reason(&plain), "no variant has stripes or a delay");
        assert!(reason(&[plain[0], slow]).contains("cannot be used"));
        check_layers(&Mapper::for_path(), "none", "2ms", Some("PATH"));
    }
}
