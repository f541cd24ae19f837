//! The choices of a variant that are one word: device, engine, file system, stripes, delay.
//!
//! Invariants: a stripe or delay that exists can be made; each is read back from what it prints.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{BadValue, Bytes, stored_as_text};

/// As many files as anybody stripes over.
const STRIPE_FILES_MAX: u16 = 16;
const CHUNK_BYTES_MIN: u64 = 4 << 10;
const CHUNK_BYTES_MAX: u64 = 16 << 20;
/// A third of what guests wait before they give a request up.
const DELAY_MAX: Duration = Duration::from_secs(10);
/// Units of a delay, the largest first, and how many nanoseconds they have.
const DELAY_UNITS: [(&str, u64); 3] = [("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// Names for a list of values, as text in both directions.
macro_rules! named {
    ($name:ident, $kind:literal, [$($text:literal => $value:ident),+]) => {
        impl std::str::FromStr for $name {
            type Err = $crate::units::BadValue;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($text => Ok(Self::$value),)+
                    _ => {
                        let valid = format!("valid are {}", [$($text),+].join(", "));
                        Err($crate::units::BadValue::new(text, $kind, valid))
                    }
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $(Self::$value => $text,)+
                })
            }
        }
    };
}
pub(super) use named;

/// What a guest sees its disk as.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub enum Device {
    /// virtio-blk-pci, or vhost-user-blk-pci for ringloom.
    #[default]
    VirtioBlk,
    /// A SCSI disk on virtio-scsi-pci.
    VirtioScsi,
    /// QEMU's NVMe controller; it knows no iothreads.
    Nvme,
    /// A SATA disk on the machine's AHCI; it knows no iothreads and cannot be hot-plugged.
    Ide,
}

named!(Device, "device", [
    "virtio-blk" => VirtioBlk, "virtio-scsi" => VirtioScsi, "nvme" => Nvme, "ide" => Ide
]);

/// Which engine does the I/O on the host.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub enum Aio {
    /// What ringloom takes by itself; for QEMU the best that it has and the host allows.
    #[default]
    Auto,
    /// Linux AIO; only with O_DIRECT.
    Native,
    /// Blocking calls on threads.
    Threads,
    /// io_uring.
    IoUring,
}

named!(Aio, "engine", [
    "auto" => Auto, "native" => Native, "threads" => Threads, "io_uring" => IoUring
]);

/// Which file system the files lie on.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub enum FileSystem {
    /// That of the directory.
    #[default]
    Here,
    /// A fresh ext4 in a file in the directory.
    Ext4,
    /// A fresh xfs in a file in the directory.
    Xfs,
}

named!(FileSystem, "file system", ["here" => Here, "ext4" => Ext4, "xfs" => Xfs]);

/// Over how many files a disk is spread.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub enum Stripe {
    /// One file.
    #[default]
    None,
    /// Several.
    Of(StripeOf),
}

/// Chunks of a disk that lie in these many files in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StripeOf {
    count: u16,
    chunk: Bytes,
}

impl StripeOf {
    /// 2 to 16 files with chunks of a power of two between 4 KiB and 16 MiB; the kernel wants that.
    pub fn new(count: u16, chunk: Bytes) -> Option<Self> {
        let legal = (2..=STRIPE_FILES_MAX).contains(&count)
            && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk.0)
            && chunk.0.is_power_of_two();
        legal.then_some(Self { count, chunk })
    }

    pub fn count(self) -> u16 {
        self.count
    }

    pub fn chunk(self) -> Bytes {
        self.chunk
    }
}

impl FromStr for Stripe {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        if text == "none" {
            return Ok(Self::None);
        }
        let stripe = text.split_once('x').and_then(|(count, chunk)| {
            StripeOf::new(count.parse().ok()?, chunk.parse().ok()?).map(Self::Of)
        });
        stripe.ok_or_else(|| {
            let (least, most) = (Bytes(CHUNK_BYTES_MIN), Bytes(CHUNK_BYTES_MAX));
            let valid = format!(
                "write none, or files x chunk such as 8x64k: 2 to {STRIPE_FILES_MAX} files, chunks \
                 of a power of two from {least} to {most}"
            );
            BadValue::new(text, "stripe", valid)
        })
    }
}

impl fmt::Display for Stripe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Of(StripeOf { count, chunk }) => write!(f, "{count}x{chunk}"),
        }
    }
}

/// How much later than the files a disk answers.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Delay(Duration);

impl Delay {
    /// As the standard library has it.
    pub fn duration(self) -> Duration {
        self.0
    }

    /// Whether nothing is delayed.
    pub fn is_none(self) -> bool {
        self.0.is_zero()
    }

    /// In milliseconds, if it has no fraction of one.
    pub fn whole_milliseconds(self) -> Option<u128> {
        self.0.subsec_nanos().is_multiple_of(1_000_000).then_some(self.0.as_millis())
    }
}

/// Whole units up to the longest delay.
fn parse_delay(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let end = text.find(|letter: char| !letter.is_ascii_digit())?;
    let (digits, unit) = text.split_at(end);
    let (_, nanoseconds) = DELAY_UNITS.iter().find(|(name, _)| *name == unit)?;
    let number: u64 = digits.parse().ok()?;
    let delay = Duration::from_nanos(number.checked_mul(*nanoseconds)?);
    (delay <= DELAY_MAX).then_some(delay)
}

impl FromStr for Delay {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let valid = "write 0 or a whole number of us, ms or s up to 10s, such as 2ms or 500us";
        parse_delay(text).map(Self).ok_or_else(|| BadValue::new(text, "delay", valid))
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.0.as_nanos();
        let exact = |(_, factor): &&(&str, u64)| nanoseconds.is_multiple_of(u128::from(*factor));
        match DELAY_UNITS.iter().rev().find(exact) {
            _ if nanoseconds == 0 => f.write_str("0"),
            Some((unit, factor)) => write!(f, "{}{unit}", nanoseconds / u128::from(*factor)),
            None => unreachable!("a delay is read in whole microseconds"),
        }
    }
}

stored_as_text!(Device, Aio, FileSystem, Stripe, Delay);

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the texts, prints them again, and stores and loads them.
    #[track_caller]
    fn check_text<T>(texts: &[&str])
    where
        T: FromStr<Err = BadValue> + fmt::Display + Serialize + for<'a> Deserialize<'a>,
        T: PartialEq + fmt::Debug,
    {
        for text in texts {
            let choice: T = text.parse().unwrap();
            assert_eq!(&choice.to_string(), text);
            let stored = serde_json::to_string(&choice).unwrap();
            assert_eq!(stored, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<T>(&stored).unwrap(), choice);
        }
    }

    #[track_caller]
    fn check_refused<T: FromStr<Err = BadValue> + fmt::Debug>(texts: &[&str], valid: &str) {
        for text in texts {
            let message = text.parse::<T>().unwrap_err().to_string();
            assert!(message.starts_with(&format!("'{text}' is no ")), "{message}");
            assert!(message.contains(valid), "{message}");
        }
    }

    #[test]
    fn names_are_read_printed_and_stored() {
        check_text::<Device>(&["virtio-blk", "virtio-scsi", "nvme", "ide"]);
        check_text::<Aio>(&["auto", "native", "threads", "io_uring"]);
        check_text::<FileSystem>(&["here", "ext4", "xfs"]);
        check_refused::<Device>(&["", "scsi", "Nvme"], "virtio-blk, virtio-scsi, nvme, ide");
        check_refused::<Aio>(&["io-uring"], "auto, native, threads, io_uring");
        check_refused::<FileSystem>(&["btrfs"], "here, ext4, xfs");
    }

    #[test]
    fn stripes_are_bounded() {
        check_text::<Stripe>(&["none", "2x4k", "8x64k", "16x16M"]);
        let Stripe::Of(stripe) = "8x64k".parse().unwrap() else { panic!("8 files are no stripe") };
        assert_eq!((stripe.count(), stripe.chunk()), (8, Bytes(64 << 10)));
        let wrong = ["", "8", "1x64k", "17x64k", "8x48k", "8x2k", "8x32M", "x64k", "8x", "-2x4k"];
        check_refused::<Stripe>(&wrong, "8x64k");
    }

    #[test]
    fn delays_are_whole_and_bounded() {
        check_text::<Delay>(&["0", "2ms", "500us", "10s", "1001us"]);
        assert_eq!("2000us".parse::<Delay>().unwrap().to_string(), "2ms");
        assert_eq!("500us".parse::<Delay>().unwrap().duration(), Duration::from_micros(500));
        assert_eq!("0ms".parse::<Delay>().unwrap(), Delay::default());
        let wrong = ["", "2", "ms", "11s", "1.5ms", "-1ms", "2 ms", "2ns", "99999999999999999999s"];
        check_refused::<Delay>(&wrong, "2ms or 500us");
    }

    #[test]
    fn a_delay_knows_whether_it_is_whole_milliseconds() {
        for (text, milliseconds) in [("0", Some(0)), ("2ms", Some(2)), ("1500us", None)] {
            assert_eq!(text.parse::<Delay>().unwrap().whole_milliseconds(), milliseconds);
        }
    }
}
