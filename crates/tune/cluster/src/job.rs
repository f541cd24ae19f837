//! The job file: what is measured on a cluster, and with what.
//!
//! Names are Kubernetes' own where it has the thing, and those of `ringloom tune`'s options in the workload.
//!
//! Invariants: a `ClusterJob` can be asked of a cluster as it stands: names are short enough for what is made of them, nothing is empty, and
//! what treatments need is there. Not here: whether the cluster has it (`session`), and what the workload's options mean (the tuner).

mod yaml;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

pub use self::yaml::JobError;
use self::yaml::{Fields, Place, Value};
use crate::error::ClusterError;

/// A job with comments.
const EXAMPLE: &str = include_str!("job/example.yaml");
/// Names of claims have the run, the storage and more in at most 63 letters.
const STORAGE_NAME_MAX: usize = 24;
/// Pods or machines at a time: so many have been tried, with a fio in each (docs/cluster.md).
pub const WORKERS_MAX: u16 = 128;
const CPUS_MAX: u64 = 1024;
const IOTHREADS_MAX: u64 = 64;
/// A file of this size is no job.
const JOB_BYTES_MAX: usize = 1 << 20;

/// A job whose every word is commented.
#[must_use]
pub fn example() -> &'static str {
    EXAMPLE
}

/// What is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterJob {
    /// Where everything is made.
    pub namespace: String,
    /// Whether the namespace is made, and removed at the end.
    pub create_namespace: bool,
    /// What pods and guests are made of.
    pub images: Images,
    /// Pods, virtual machines or both.
    pub treatments: Vec<TreatmentKind>,
    /// Of virtual machines.
    pub iothreads: Vec<VmIothreads>,
    /// Of virtual machines.
    pub vm: VmShape,
    /// Of pods.
    pub pod: PodShape,
    /// Where pods may run.
    pub nodes: NodeChoice,
    /// How many work at a time.
    pub workers: Vec<u16>,
    /// How several are placed.
    pub placement: Vec<Placement>,
    /// What is measured.
    pub storage: Vec<ClaimStorage>,
    /// Options of `ringloom tune` without their dashes.
    pub workload: BTreeMap<String, String>,
    /// How often all is done, each time with new pods and machines.
    pub rounds: u16,
    /// How pods are fenced in.
    pub security: Security,
    /// Pods and machines that are not ready after so many seconds are given up.
    pub start_seconds: u64,
}

/// Images of containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// With ringloom and fio.
    pub agent: String,
    /// With a kernel and an initramfs, for virtual machines.
    pub guest: Option<String>,
    /// The secret with which they are pulled.
    pub pull_secret: Option<String>,
    /// As Kubernetes has it.
    pub pull_policy: &'static str,
}

/// What fio runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreatmentKind {
    /// A container.
    Pod,
    /// A KubeVirt virtual machine.
    Vm,
}

/// How the disk of a virtual machine is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VmIothreads {
    /// By QEMU's main loop, with as many queues as QEMU gives by itself.
    None,
    /// By a pool of so many iothreads, with a queue for each CPU.
    Pool(u16),
}

/// What fio runs in, with everything that tells one from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Treatment {
    /// A container.
    Pod,
    /// A KubeVirt virtual machine.
    Vm(VmIothreads),
}

impl fmt::Display for Treatment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod => formatter.write_str("pod"),
            Self::Vm(VmIothreads::None) => formatter.write_str("vm"),
            Self::Vm(VmIothreads::Pool(1)) => formatter.write_str("vm with 1 iothread"),
            Self::Vm(VmIothreads::Pool(count)) => write!(formatter, "vm with {count} iothreads"),
        }
    }
}

/// Of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmShape {
    /// Virtual CPUs.
    pub cpus: u16,
    /// Kubernetes' quantity.
    pub memory: String,
    /// Such as `q35`.
    pub machine_type: Option<String>,
}

impl VmShape {
    /// Its memory in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        crate::quantity::whole(&self.memory)
    }
}

/// Of a pod: what it asks for, and may not exceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodShape {
    /// Kubernetes' quantity.
    pub cpu: Option<String>,
    /// Kubernetes' quantity.
    pub memory: Option<String>,
}

/// Where pods may run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeChoice {
    /// Labels that a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that do not keep them away.
    pub tolerations: Vec<NodeToleration>,
}

/// Kubernetes' toleration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeToleration {
    /// Of the taint.
    pub key: Option<String>,
    /// `Equal` or `Exists`.
    pub operator: Option<&'static str>,
    /// Of the taint.
    pub value: Option<String>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: Option<&'static str>,
}

/// How several workers are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Placement {
    /// On as many nodes as there are.
    Spread,
    /// On one node.
    Packed,
}

impl Placement {
    /// As a job writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Spread => "spread",
            Self::Packed => "packed",
        }
    }
}

/// Claims of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimStorage {
    /// In this job and its report.
    pub name: String,
    /// Without one the cluster's default counts.
    pub storage_class_name: Option<String>,
    /// What a pod gets.
    pub volume_mode: VolumeMode,
    /// In bytes.
    pub bytes: u64,
    /// Kubernetes' words.
    pub access_modes: Vec<&'static str>,
}

/// Kubernetes' `volumeMode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeMode {
    /// A block device.
    Block,
    /// A directory.
    Filesystem,
}

impl VolumeMode {
    /// As Kubernetes writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Block => "Block",
            Self::Filesystem => "Filesystem",
        }
    }
}

/// How pods are fenced in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// As closely as the claim allows: the profile *restricted* for directories, root without capabilities for devices.
    Auto,
    /// The profile *restricted* always.
    Restricted,
    /// Not at all.
    Privileged,
}

impl ClusterJob {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or what is wrong in it and where.
    pub fn read(path: &Path) -> Result<Self, ClusterError> {
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => {
                Self::parse(&text).map_err(|source| ClusterError::Job { path: name, source })
            }
            Err(source) => Err(ClusterError::JobFile { path: name, source }),
        }
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// What is wrong and where.
    pub fn parse(text: &str) -> Result<Self, JobError> {
        if text.len() > JOB_BYTES_MAX {
            let what = format!("the file has more than {JOB_BYTES_MAX} bytes");
            return Err(JobError { line: 1, column: 1, what });
        }
        let mut fields = yaml::parse(text)?.fields()?;
        let namespace = fields.need("namespace")?;
        let namespace = label(namespace, 63)?;
        let create_namespace = fields.take("createNamespace").map_or(Ok(false), Value::flag)?;
        let images = fields.need("images")?;
        let images_place = images.place;
        let images = self::images(images.fields()?)?;
        let treatments = words(
            fields.need("treatments")?,
            &[("pod", TreatmentKind::Pod), ("vm", TreatmentKind::Vm)],
        )?;
        let of_vms = |value: Option<Value>| match value {
            Some(value) if !treatments.contains(&TreatmentKind::Vm) => {
                let what =
                    format!("{} is of the treatment vm, which the job does not have", value.name);
                Err(value.place.error(what))
            }
            value => Ok(value),
        };
        let iothreads = of_vms(fields.take("iothreads"))?.map(iothreads).transpose()?;
        let vm = of_vms(fields.take("vm"))?.map(vm).transpose()?;
        let pod = fields.take("pod").map(pod).transpose()?;
        let nodes = fields.take("nodes").map(nodes).transpose()?.unwrap_or_default();
        let workers = fields.take("workers").map(workers).transpose()?.unwrap_or_else(|| vec![1]);
        let placement = [("spread", Placement::Spread), ("packed", Placement::Packed)];
        let placement = fields.take("placement").map(|it| words(it, &placement)).transpose()?;
        let storage = storages(fields.need("storage")?)?;
        let workload = workload(fields.need("workload")?)?;
        let rounds = fields.take("rounds").map_or(Ok(1), |it| it.number(1, 1000))?;
        let security = fields.take("security").map_or(Ok(Security::Auto), security)?;
        let start_seconds =
            fields.take("startSeconds").map_or(Ok(600), |it| it.number(1, 86_400))?;
        fields.end()?;
        if treatments.contains(&TreatmentKind::Vm) && images.guest.is_none() {
            return Err(images_place.error("images lacks guest, which the treatment vm needs"));
        }
        Ok(Self {
            namespace,
            create_namespace,
            images,
            treatments,
            iothreads: iothreads.unwrap_or_else(|| vec![VmIothreads::None]),
            vm: vm.unwrap_or(VmShape { cpus: 4, memory: "2Gi".to_owned(), machine_type: None }),
            pod: pod.unwrap_or(PodShape { cpu: None, memory: None }),
            nodes,
            workers,
            placement: placement.unwrap_or_else(|| vec![Placement::Spread]),
            storage,
            workload,
            rounds: small(rounds),
            security,
            start_seconds,
        })
    }

    /// What fio runs in, in the order of the file.
    #[must_use]
    pub fn all_treatments(&self) -> Vec<Treatment> {
        let of = |kind: &TreatmentKind| match kind {
            TreatmentKind::Pod => vec![Treatment::Pod],
            TreatmentKind::Vm => self.iothreads.iter().copied().map(Treatment::Vm).collect(),
        };
        self.treatments.iter().flat_map(of).collect()
    }

    /// Whether virtual machines are asked for.
    #[must_use]
    pub fn has_vms(&self) -> bool {
        self.treatments.contains(&TreatmentKind::Vm)
    }
}

/// A name of Kubernetes: small letters, digits and dashes.
fn label(value: Value, most: usize) -> Result<String, JobError> {
    let (place, name) = (value.place, value.name.clone());
    let text = value.text()?;
    let is_inner = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '-';
    let has_ends = !text.starts_with('-') && !text.ends_with('-');
    if text.len() <= most && has_ends && text.chars().all(is_inner) {
        return Ok(text);
    }
    Err(place.error(format!(
        "{name} is '{text}', not a name of at most {most} small letters, digits and dashes inside"
    )))
}

/// A list of different words.
fn words<T: Copy + PartialEq>(value: Value, known: &[(&str, T)]) -> Result<Vec<T>, JobError> {
    let mut all = Vec::new();
    for item in value.filled_list()? {
        let place = item.place;
        let name = item.name.clone();
        let word = item.word(known)?;
        different(&all, &word, place, &name)?;
        all.push(word);
    }
    Ok(all)
}

fn different<T: PartialEq>(all: &[T], next: &T, place: Place, name: &str) -> Result<(), JobError> {
    if all.contains(next) { Err(place.error(format!("{name} has this twice"))) } else { Ok(()) }
}

fn images(mut fields: Fields) -> Result<Images, JobError> {
    let images = Images {
        agent: fields.need("agent")?.text()?,
        guest: fields.take("guest").map(Value::text).transpose()?,
        pull_secret: fields.take("pullSecret").map(Value::text).transpose()?,
        pull_policy: fields.take("pullPolicy").map_or(Ok("IfNotPresent"), |it| {
            same_words(it, &["Always", "IfNotPresent", "Never"])
        })?,
    };
    fields.end()?;
    Ok(images)
}

fn same_words(value: Value, words: &[&'static str]) -> Result<&'static str, JobError> {
    value.word(&words.iter().map(|it| (*it, *it)).collect::<Vec<_>>())
}

fn iothreads(value: Value) -> Result<Vec<VmIothreads>, JobError> {
    let mut all = Vec::new();
    for item in value.filled_list()? {
        let (place, name) = (item.place, item.name.clone());
        let one = match item.clone().text()?.as_str() {
            "none" => VmIothreads::None,
            _ => VmIothreads::Pool(small(item.number(1, IOTHREADS_MAX).map_err(|mut error| {
                error.what.push_str(", nor none");
                error
            })?)),
        };
        different(&all, &one, place, &name)?;
        all.push(one);
    }
    Ok(all)
}

fn small(number: u64) -> u16 {
    u16::try_from(number).expect("the range of the field is small")
}

fn vm(value: Value) -> Result<VmShape, JobError> {
    let mut fields = value.fields()?;
    let shape = VmShape {
        cpus: small(fields.need("cpus")?.number(1, CPUS_MAX)?),
        memory: quantity(fields.need("memory")?)?.0,
        machine_type: fields.take("machineType").map(Value::text).transpose()?,
    };
    fields.end()?;
    Ok(shape)
}

fn pod(value: Value) -> Result<PodShape, JobError> {
    let mut fields = value.fields()?;
    let cpu = fields.take("cpu").map(quantity).transpose()?.map(|(text, _)| text);
    let memory = fields.take("memory").map(quantity).transpose()?.map(|(text, _)| text);
    fields.end()?;
    Ok(PodShape { cpu, memory })
}

/// Kubernetes' quantity, and what it is as a number.
fn quantity(value: Value) -> Result<(String, f64), JobError> {
    let (place, name) = (value.place, value.name.clone());
    let text = value.text()?;
    match crate::quantity::parse(&text) {
        Some(number) if number > 0.0 => Ok((text, number)),
        _ => {
            Err(place.error(format!("{name} is '{text}', not a quantity such as 500m, 4 or 10Gi")))
        }
    }
}

fn nodes(value: Value) -> Result<NodeChoice, JobError> {
    let mut fields = value.fields()?;
    let mut choice = NodeChoice::default();
    if let Some(selector) = fields.take("nodeSelector") {
        for (key, value) in selector.fields()?.rest() {
            choice.node_selector.insert(key, value.text()?);
        }
    }
    if let Some(tolerations) = fields.take("tolerations") {
        choice.tolerations =
            tolerations.list()?.into_iter().map(toleration).collect::<Result<_, _>>()?;
    }
    fields.end()?;
    Ok(choice)
}

fn toleration(value: Value) -> Result<NodeToleration, JobError> {
    let mut fields = value.fields()?;
    let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let toleration = NodeToleration {
        key: fields.take("key").map(Value::text).transpose()?,
        operator: fields
            .take("operator")
            .map(|it| same_words(it, &["Equal", "Exists"]))
            .transpose()?,
        value: fields.take("value").map(Value::text).transpose()?,
        effect: fields.take("effect").map(|it| same_words(it, &effects)).transpose()?,
    };
    fields.end()?;
    Ok(toleration)
}

fn workers(value: Value) -> Result<Vec<u16>, JobError> {
    let mut all = Vec::new();
    for item in value.filled_list()? {
        let (place, name) = (item.place, item.name.clone());
        let count = small(item.number(1, WORKERS_MAX.into())?);
        different(&all, &count, place, &name)?;
        all.push(count);
    }
    Ok(all)
}

fn storages(value: Value) -> Result<Vec<ClaimStorage>, JobError> {
    let mut all: Vec<ClaimStorage> = Vec::new();
    for item in value.filled_list()? {
        let place = item.place;
        let storage = storage(item.fields()?)?;
        if all.iter().any(|it| it.name == storage.name) {
            return Err(place.error(format!("storage has the name {} twice", storage.name)));
        }
        all.push(storage);
    }
    Ok(all)
}

fn storage(mut fields: Fields) -> Result<ClaimStorage, JobError> {
    let modes = ["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"];
    let name = label(fields.need("name")?, STORAGE_NAME_MAX)?;
    let storage_class_name = fields.take("storageClassName").map(Value::text).transpose()?;
    let volume_mode = fields.take("volumeMode").map_or(Ok(VolumeMode::Block), |it| {
        it.word(&[("Block", VolumeMode::Block), ("Filesystem", VolumeMode::Filesystem)])
    })?;
    let size = fields.need("size")?;
    let place = size.place;
    let (text, number) = quantity(size)?;
    // The quantity of a claim is whole; what has no number as text is too large.
    let bytes =
        format!("{number:.0}").parse::<u64>().ok().filter(|it| *it >= 64 << 20 && *it < 1 << 60);
    let bytes = bytes.ok_or_else(|| place.error(format!("size is '{text}'; 64Mi is the least")))?;
    let known: Vec<_> = modes.iter().map(|it| (*it, *it)).collect();
    let access_modes = fields.take("accessModes").map(|it| words(it, &known)).transpose()?;
    fields.end()?;
    let access_modes = access_modes.unwrap_or_else(|| vec!["ReadWriteOnce"]);
    Ok(ClaimStorage { name, storage_class_name, volume_mode, bytes, access_modes })
}

fn workload(value: Value) -> Result<BTreeMap<String, String>, JobError> {
    let pairs = value.fields()?.rest();
    pairs.map(|(name, value)| Ok((name, value.joined()?))).collect()
}

fn security(value: Value) -> Result<Security, JobError> {
    value.word(&[
        ("auto", Security::Auto),
        ("restricted", Security::Restricted),
        ("privileged", Security::Privileged),
    ])
}

#[cfg(test)]
mod tests;
