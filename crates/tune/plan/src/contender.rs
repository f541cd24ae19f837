//! Who runs a cell: the bare host, a client of the daemon, a guest under QEMU, or a pod or virtual machine of a cluster, with a
//! number of iothreads.
//!
//! Invariants: a stored contender that could not be run fails to load.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::units::{BadValue, stored_as_text};

/// The most iothreads a contender may have: one per queue of an export.
pub const IOTHREADS_MAX: u16 = 256;

/// What is measured.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
pub enum Subject {
    /// The load straight on the file or device
    #[value(name = "host")]
    #[serde(rename = "host")]
    Host,
    /// A vhost-user client of the daemon: one thread and one queue per job, sleeping for completions
    #[value(name = "client")]
    #[serde(rename = "client")]
    Client,
    /// A guest on QEMU's own devices: virtio-blk with iothread-vq-mapping, virtio-scsi, nvme, ide
    #[value(name = "vm:qemu")]
    #[serde(rename = "vm:qemu")]
    VmQemu,
    /// The same guest on the daemon's export, by vhost-user-blk
    #[value(name = "vm:ringloom")]
    #[serde(rename = "vm:ringloom")]
    VmRingloom,
    /// Your own guest as it stands, over ssh (--guest ssh://…)
    #[value(name = "vm:given")]
    #[serde(rename = "vm:given")]
    VmGiven,
    /// A container of a Kubernetes cluster, straight on its claim; only `tune cluster` measures it
    #[value(skip)]
    #[serde(rename = "pod")]
    Pod,
    /// A virtual machine of KubeVirt, on the claim by virtio-blk; only `tune cluster` measures it
    #[value(skip)]
    #[serde(rename = "vm:kubevirt")]
    VmKubevirt,
}

impl Subject {
    /// Whether fio runs in a guest.
    pub fn is_vm(self) -> bool {
        match self {
            Self::Host | Self::Client | Self::Pod => false,
            Self::VmQemu | Self::VmRingloom | Self::VmGiven | Self::VmKubevirt => true,
        }
    }

    /// Whether ringloom boots that guest.
    pub fn is_booted(self) -> bool {
        matches!(self, Self::VmQemu | Self::VmRingloom)
    }

    /// Whether it runs in a cluster.
    pub fn is_of_cluster(self) -> bool {
        matches!(self, Self::Pod | Self::VmKubevirt)
    }

    /// Whether numbers of iothreads are compared.
    pub const fn counts_iothreads(self) -> bool {
        match self {
            Self::Host | Self::VmGiven | Self::Pod => false,
            Self::Client | Self::VmQemu | Self::VmRingloom | Self::VmKubevirt => true,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Client => "client",
            Self::VmQemu => "vm:qemu",
            Self::VmRingloom => "vm:ringloom",
            Self::VmGiven => "vm:given",
            Self::Pod => "pod",
            Self::VmKubevirt => "vm:kubevirt",
        })
    }
}

/// A number of iothreads; 0 is `none`, the export without an iothread. Above all numbers is `auto`: as many as ringloom
/// finds to pay, which is compared with numbers but is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Iothreads(u16);

impl Iothreads {
    /// No iothread: the main loop serves.
    pub const NONE: Self = Self(0);
    /// `iothread=auto`.
    pub const AUTO: Self = Self(u16::MAX);

    /// So many; 0 is none.
    pub const fn new(count: u16) -> Self {
        Self(count)
    }

    /// How many there are; of `auto` one, with which it begins.
    pub fn count(self) -> u16 {
        if self.is_auto() { 1 } else { self.0 }
    }

    /// Whether ringloom decides how many there are.
    pub fn is_auto(self) -> bool {
        self == Self::AUTO
    }

    /// The threads that serve requests: `none` is served by one, the internal `main`.
    pub fn busy(self) -> u16 {
        self.count().max(1)
    }
}

impl FromStr for Iothreads {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self::NONE);
        }
        if text == "auto" {
            return Ok(Self::AUTO);
        }
        let count: Option<u16> = text.parse().ok();
        let legal = count.filter(|n| (1..=IOTHREADS_MAX).contains(n));
        let valid = || format!("valid are none, 1 to {IOTHREADS_MAX} and auto");
        legal.map(Self).ok_or_else(|| BadValue::new(text, "number of iothreads", valid()))
    }
}

stored_as_text!(Iothreads);

impl fmt::Display for Iothreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NONE => f.write_str("none"),
            Self::AUTO => f.write_str("auto"),
            Self(count) => write!(f, "{count}"),
        }
    }
}

/// One of the things that run the same cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "ContenderFields")]
pub struct Contender {
    subject: Subject,
    /// Where numbers are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    iothreads: Option<Iothreads>,
}

/// A contender as it stands in the results.
#[derive(Deserialize)]
struct ContenderFields {
    subject: Subject,
    iothreads: Option<Iothreads>,
}

impl TryFrom<ContenderFields> for Contender {
    type Error = &'static str;

    fn try_from(
        ContenderFields { subject, iothreads }: ContenderFields,
    ) -> Result<Self, Self::Error> {
        match (subject.counts_iothreads(), iothreads) {
            (true, None) => Err("missing field `iothreads`"),
            (counts, iothreads) => Ok(Self { subject, iothreads: iothreads.filter(|_| counts) }),
        }
    }
}

impl Contender {
    /// The bare file on this host.
    pub const HOST: Self = Self { subject: Subject::Host, iothreads: None };
    /// The guest that was given, by its address.
    pub const VM_GIVEN: Self = Self { subject: Subject::VmGiven, iothreads: None };
    /// A container straight on its claim.
    pub const POD: Self = Self { subject: Subject::Pod, iothreads: None };

    /// A contender of this subject; the count is ignored where none is compared.
    pub const fn new(subject: Subject, iothreads: Iothreads) -> Self {
        let iothreads = if subject.counts_iothreads() { Some(iothreads) } else { None };
        Self { subject, iothreads }
    }

    /// Whether the load is on the storage itself, without a virtual machine or a daemon between: what others are compared with.
    pub fn is_baseline(self) -> bool {
        self == Self::HOST || self == Self::POD
    }

    /// Who serves the disk, and to whom.
    pub fn subject(self) -> Subject {
        self.subject
    }

    /// The number of iothreads, where numbers are compared, or `auto`.
    pub fn iothreads(self) -> Option<Iothreads> {
        self.iothreads
    }

    /// The number of iothreads, if it is one.
    pub fn number(self) -> Option<Iothreads> {
        self.iothreads.filter(|it| !it.is_auto())
    }
}

impl fmt::Display for Contender {
    /// `host`, `client 2`, `vm:qemu none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.subject())?;
        match self.iothreads() {
            Some(iothreads) => write!(f, " {iothreads}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::client;

    #[test]
    fn iothreads_are_none_or_a_count() {
        for (text, count) in [("none", 0), ("1", 1), ("16", 16), ("256", 256)] {
            let iothreads: Iothreads = text.parse().unwrap();
            assert_eq!(iothreads.count(), count);
            assert_eq!(iothreads.to_string(), text);
        }
        for text in ["", "0", "257", "-1", "None", "two"] {
            let message = text.parse::<Iothreads>().unwrap_err().to_string();
            assert!(message.contains("valid are none, 1 to 256 and auto"), "{message}");
        }
        let auto: Iothreads = "auto".parse().unwrap();
        assert!(auto.is_auto() && auto > Iothreads(IOTHREADS_MAX) && auto.to_string() == "auto");
    }

    #[test]
    fn contenders_survive_json_and_name_themselves() {
        for (contender, json, name) in [
            (Contender::HOST, r#"{"subject":"host"}"#, "host"),
            (client(0), r#"{"subject":"client","iothreads":"none"}"#, "client none"),
            (
                Contender::new(Subject::VmQemu, Iothreads(16)),
                r#"{"subject":"vm:qemu","iothreads":"16"}"#,
                "vm:qemu 16",
            ),
            (
                Contender::new(Subject::VmRingloom, Iothreads(1)),
                r#"{"subject":"vm:ringloom","iothreads":"1"}"#,
                "vm:ringloom 1",
            ),
            (Contender::VM_GIVEN, r#"{"subject":"vm:given"}"#, "vm:given"),
        ] {
            assert_eq!(serde_json::to_string(&contender).unwrap(), json);
            assert_eq!(serde_json::from_str::<Contender>(json).unwrap(), contender);
            assert_eq!(contender.to_string(), name);
            let again = Contender::new(
                contender.subject(),
                contender.iothreads().unwrap_or(Iothreads::NONE),
            );
            assert_eq!(again, contender);
        }
    }
}
