//! The limits of a throttle group: QEMU's parameters, and the proof that they go together.
//!
//! Invariants: a [`ThrottleLimits`] was checked; behind it nobody checks again. The rules are those of
//! qemu-storage-daemon 10.0, so that what one takes the other takes.

use std::fmt;

/// The largest rate or burst rate, in bytes or operations per second, as in QEMU.
pub const THROTTLE_RATE_MAX: u64 = 1_000_000_000_000_000;

/// One of the six quantities that can be limited, under the name that QEMU gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// Bytes per second of all that is read and written.
    BpsTotal,
    /// Bytes per second of reads.
    BpsRead,
    /// Bytes per second of writes, discards and zeroings.
    BpsWrite,
    /// All operations per second.
    IopsTotal,
    /// Reads per second.
    IopsRead,
    /// Writes, discards and zeroings per second.
    IopsWrite,
}

impl LimitKind {
    /// All of them, in the order of [`ThrottleSettings::limits`].
    pub const ALL: [Self; 6] = [
        Self::BpsTotal,
        Self::BpsRead,
        Self::BpsWrite,
        Self::IopsTotal,
        Self::IopsRead,
        Self::IopsWrite,
    ];

    /// QEMU's name for the rate; those for bursts end in `-max` and `-max-length`.
    pub fn name(self) -> &'static str {
        match self {
            Self::BpsTotal => "bps-total",
            Self::BpsRead => "bps-read",
            Self::BpsWrite => "bps-write",
            Self::IopsTotal => "iops-total",
            Self::IopsRead => "iops-read",
            Self::IopsWrite => "iops-write",
        }
    }

    /// What a read has to pay for: bytes and operations.
    pub(super) fn limits_reads(self) -> bool {
        !matches!(self, Self::BpsWrite | Self::IopsWrite)
    }

    /// What a write has to pay for.
    pub(super) fn limits_writes(self) -> bool {
        !matches!(self, Self::BpsRead | Self::IopsRead)
    }

    pub(super) fn counts_bytes(self) -> bool {
        matches!(self, Self::BpsTotal | Self::BpsRead | Self::BpsWrite)
    }
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How much of something may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Units per second in the long run; 0 is no limit.
    pub rate: u64,
    /// Units per second during a burst (`-max`); 0 leaves short bursts to the daemon.
    pub burst: u64,
    /// For how many seconds of burst after a pause (`-max-length`).
    pub burst_seconds: u64,
}

impl Default for Limit {
    fn default() -> Self {
        Self { rate: 0, burst: 0, burst_seconds: 1 }
    }
}

/// The parameters of a group as they were given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThrottleSettings {
    /// In the order of [`LimitKind::ALL`].
    pub limits: [Limit; 6],
    /// Requests of more than this many bytes count as several operations, in fractions; 0 is never.
    pub iops_size: u64,
}

impl ThrottleSettings {
    /// The limit of that kind.
    pub fn limit(&self, kind: LimitKind) -> &Limit {
        &self.limits[kind as usize]
    }

    /// The limit of that kind, to change it.
    pub fn limit_mut(&mut self, kind: LimitKind) -> &mut Limit {
        &mut self.limits[kind as usize]
    }
}

/// The limits of a throttle group, checked: they are in range and do not contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThrottleLimits(ThrottleSettings);

impl ThrottleLimits {
    /// Checks that the parameters are in range and do not contradict each other.
    pub fn check(settings: ThrottleSettings) -> Result<Self, LimitsError> {
        for (total, part) in [
            (LimitKind::BpsTotal, LimitKind::BpsRead),
            (LimitKind::BpsTotal, LimitKind::BpsWrite),
            (LimitKind::IopsTotal, LimitKind::IopsRead),
            (LimitKind::IopsTotal, LimitKind::IopsWrite),
        ] {
            let (whole, half) = (settings.limit(total), settings.limit(part));
            for (suffix, total_value, part_value) in
                [("", whole.rate, half.rate), ("-max", whole.burst, half.burst)]
            {
                let error =
                    LimitsError::TotalAndPart { suffix, total, total_value, part, part_value };
                refuse_if(total_value > 0 && part_value > 0, error)?;
            }
        }
        let iops = [LimitKind::IopsTotal, LimitKind::IopsRead, LimitKind::IopsWrite];
        let has_rate = iops.iter().any(|kind| settings.limit(*kind).rate > 0);
        let value = settings.iops_size;
        refuse_if(value > 0 && !has_rate, LimitsError::SizeWithoutRate { value })?;
        for kind in LimitKind::ALL {
            check_one(kind, settings.limit(kind))?;
        }
        Ok(Self(settings))
    }

    /// The parameters.
    pub fn settings(&self) -> &ThrottleSettings {
        &self.0
    }
}

fn check_one(kind: LimitKind, limit: &Limit) -> Result<(), LimitsError> {
    let Limit { rate, burst, burst_seconds } = *limit;
    let value = burst_seconds;
    let too_large = |suffix, value| LimitsError::TooLarge { kind, suffix, value };
    refuse_if(rate > THROTTLE_RATE_MAX, too_large("", rate))?;
    refuse_if(burst > THROTTLE_RATE_MAX, too_large("-max", burst))?;
    let is_length = (1..=u64::from(u32::MAX)).contains(&value);
    refuse_if(!is_length, LimitsError::LengthRange { kind, value })?;
    refuse_if(value > 1 && burst == 0, LimitsError::LengthWithoutBurst { kind, value })?;
    let is_long = burst > 0 && value > THROTTLE_RATE_MAX / burst;
    refuse_if(is_long, LimitsError::LengthTooLong { kind, value, burst })?;
    let value = burst;
    refuse_if(burst > 0 && rate == 0, LimitsError::BurstWithoutRate { kind, value })?;
    refuse_if(burst > 0 && burst < rate, LimitsError::BurstBelowRate { kind, value, rate })
}

fn refuse_if(is_wrong: bool, error: LimitsError) -> Result<(), LimitsError> {
    if is_wrong { Err(error) } else { Ok(()) }
}

/// Parameters that are out of range or contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// A limit for all, and one for reads or writes alone: rates, or bursts (`-max`).
    #[error(
        "{total}{suffix}={total_value} and {part}{suffix}={part_value} cannot be used at the same time"
    )]
    TotalAndPart {
        /// What the names of the options end in.
        suffix: &'static str,
        /// The limit for all.
        total: LimitKind,
        /// Its value.
        total_value: u64,
        /// The other limit.
        part: LimitKind,
        /// Its value.
        part_value: u64,
    },
    /// A size that makes several operations of one, while operations are not limited.
    #[error("iops-size={value} needs one of iops-total, iops-read and iops-write")]
    SizeWithoutRate {
        /// The size.
        value: u64,
    },
    /// A rate or a burst (`-max`) that is larger than any can be.
    #[error("{kind}{suffix}={value} is more than {THROTTLE_RATE_MAX}")]
    TooLarge {
        /// Which.
        kind: LimitKind,
        /// What the name of the option ends in.
        suffix: &'static str,
        /// Its value.
        value: u64,
    },
    /// A burst of no time, or of a longer one than QEMU takes.
    #[error("{kind}-max-length={value} is not a number of seconds from 1 to {}", u32::MAX)]
    LengthRange {
        /// Which.
        kind: LimitKind,
        /// Its value.
        value: u64,
    },
    /// How long a burst may last, without how fast it is.
    #[error("{kind}-max-length={value} needs {kind}-max")]
    LengthWithoutBurst {
        /// Which.
        kind: LimitKind,
        /// Its value.
        value: u64,
    },
    /// A burst of more units than can be counted.
    #[error(
        "{kind}-max-length={value} is too long for {kind}-max={burst}: together they allow more \
         than {THROTTLE_RATE_MAX}"
    )]
    LengthTooLong {
        /// Which.
        kind: LimitKind,
        /// The length.
        value: u64,
        /// The burst rate.
        burst: u64,
    },
    /// A burst rate without a rate.
    #[error("{kind}-max={value} needs {kind}")]
    BurstWithoutRate {
        /// Which.
        kind: LimitKind,
        /// The burst rate.
        value: u64,
    },
    /// A burst that is slower than the long run.
    #[error("{kind}-max={value} is lower than {kind}={rate}")]
    BurstBelowRate {
        /// Which.
        kind: LimitKind,
        /// The burst rate.
        value: u64,
        /// The rate.
        rate: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings as `iops-total=5,bps-read-max=7`.
    fn settings(text: &str) -> ThrottleSettings {
        let mut settings = ThrottleSettings::default();
        for (key, value) in text.split(',').map(|part| part.split_once('=').unwrap()) {
            let value = value.parse().unwrap();
            if key == "iops-size" {
                settings.iops_size = value;
                continue;
            }
            let kind = LimitKind::ALL.into_iter().find(|kind| key.starts_with(kind.name()));
            let kind = kind.unwrap();
            let limit = settings.limit_mut(kind);
            match key.strip_prefix(kind.name()).unwrap() {
                "" => limit.rate = value,
                "-max" => limit.burst = value,
                "-max-length" => limit.burst_seconds = value,
                other => panic!("{other}"),
            }
        }
        settings
    }

    #[track_caller]
    fn takes(text: &str) {
        let settings = settings(text);
        assert_eq!(ThrottleLimits::check(settings).unwrap().settings(), &settings);
    }

    #[track_caller]
    fn refuses(text: &str, sentence: &str) {
        assert_eq!(ThrottleLimits::check(settings(text)).unwrap_err().to_string(), sentence);
    }

    #[test]
    fn what_qemu_takes_is_taken() {
        takes("iops-total=100");
        takes("iops-total=1000000000000000");
        takes("iops-read=5,iops-write=6,bps-total=7");
        takes("iops-total=10,iops-size=4096");
        takes("iops-write=10,iops-size=4096");
        takes("iops-total=100,iops-total-max=100,iops-total-max-length=60");
        takes("bps-read=100,bps-read-max=200,bps-write=1");
        takes("iops-total=0,iops-total-max-length=1");
        takes("iops-total=1,iops-total-max=232830,iops-total-max-length=4294967295");
    }

    #[test]
    fn what_contradicts_itself_is_refused_by_name_and_value() {
        refuses(
            "iops-total=100,iops-read=5",
            "iops-total=100 and iops-read=5 cannot be used at the same time",
        );
        refuses(
            "bps-total=1,bps-write=2",
            "bps-total=1 and bps-write=2 cannot be used at the same time",
        );
        refuses(
            "iops-total-max=3,iops-write-max=5",
            "iops-total-max=3 and iops-write-max=5 cannot be used at the same time",
        );
        refuses(
            "bps-total=9,iops-size=512",
            "iops-size=512 needs one of iops-total, iops-read and iops-write",
        );
        refuses(
            "iops-total=1000000000000001",
            "iops-total=1000000000000001 is more than 1000000000000000",
        );
        refuses(
            "bps-read=1,bps-read-max=1000000000000001",
            "bps-read-max=1000000000000001 is more than 1000000000000000",
        );
        let seconds = "is not a number of seconds from 1 to 4294967295";
        refuses(
            "iops-total=1,iops-total-max=2,iops-total-max-length=0",
            &format!("iops-total-max-length=0 {seconds}"),
        );
        refuses(
            "iops-total=1,iops-total-max=2,iops-total-max-length=4294967296",
            &format!("iops-total-max-length=4294967296 {seconds}"),
        );
        refuses("iops-read=1,iops-read-max-length=5", "iops-read-max-length=5 needs iops-read-max");
        refuses(
            "iops-total=1,iops-total-max=500000,iops-total-max-length=4294967295",
            "iops-total-max-length=4294967295 is too long for iops-total-max=500000: together they \
             allow more than 1000000000000000",
        );
        refuses("bps-total-max=5", "bps-total-max=5 needs bps-total");
        refuses("bps-total=6,bps-total-max=5", "bps-total-max=5 is lower than bps-total=6");
    }
}
