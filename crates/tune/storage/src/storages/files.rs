//! One disk as data: its files, and how QEMU, ringloom and the host open them.
//!
//! Invariants: `chunk` is there exactly if there are several files. What the kernel makes of stripes
//! and delays is one block device here; what ringloom has to make is `chunk` and `delay`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use load::probe::CacheMode;
use plan::variant::{Aio, Image, Qcow2};
use serde_json::{Value, json};

use crate::quote::keyval;
use crate::target::{Kind, Target};

/// A disk that subjects can open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFiles {
    /// What is in it.
    pub format: Image,
    /// How it is opened.
    pub kind: Kind,
    /// One, or one per stripe.
    pub files: Vec<PathBuf>,
    /// Neighbouring bytes that lie in one file.
    pub chunk: Option<u64>,
    /// How much later ringloom shall answer.
    pub delay: Duration,
    /// The size a guest sees.
    pub bytes: u64,
    /// How the page cache is used.
    pub cache: CacheMode,
}

impl DiskFiles {
    /// The disk of the user as it is.
    pub(super) fn of_target(target: &Target) -> Self {
        Self {
            format: Image::Raw,
            kind: target.kind,
            files: vec![target.path.clone()],
            chunk: None,
            delay: Duration::ZERO,
            bytes: target.bytes,
            cache: target.cache,
        }
    }

    /// Whether the engine can open the files.
    ///
    /// # Errors
    /// Why not, as the end of a sentence.
    pub fn allows(&self, aio: Aio) -> Result<(), String> {
        match (aio, self.cache) {
            (Aio::Native, CacheMode::Buffered) => Err(
                "aio native needs O_DIRECT, which the file system does not know: use aio threads \
                 or io_uring"
                    .to_owned(),
            ),
            (Aio::Auto | Aio::Threads | Aio::IoUring, _) | (Aio::Native, CacheMode::Direct) => {
                Ok(())
            }
        }
    }

    /// The engine to name to QEMU, whose own default is not its best. `io_uring` says whether QEMU
    /// has it and the host allows it.
    pub fn qemu_aio(&self, aio: Aio, io_uring: bool) -> Aio {
        match (aio, self.cache) {
            (Aio::Auto, _) if io_uring => Aio::IoUring,
            (Aio::Auto, CacheMode::Direct) => Aio::Native,
            (Aio::Auto, CacheMode::Buffered) => Aio::Threads,
            (Aio::Native | Aio::Threads | Aio::IoUring, _) => aio,
        }
    }

    /// The graph for `blockdev-add`, without the name of its top. Only for disks without layers of
    /// ringloom, which `Variant::fits` keeps from QEMU.
    pub fn qemu_blockdev(&self, aio: Aio, read_only: bool) -> Value {
        self.graph(aio, read_only)
    }

    /// The options of the daemon that make `node`.
    pub fn daemon_options(&self, node: &str, aio: Aio, read_only: bool) -> Vec<(String, String)> {
        let mut graph = self.graph(aio, read_only);
        graph["node-name"] = node.into();
        let mut words = vec![format!("driver={}", graph["driver"].as_str().unwrap_or_default())];
        flatten("", &graph, &mut words);
        vec![("--blockdev".to_owned(), words.join(","))]
    }

    /// What a load on the host opens: `None` if the bytes are not those of the disk.
    pub fn host_path(&self) -> Option<&Path> {
        match (self.files.as_slice(), self.format) {
            ([path], Image::Raw) if self.delay.is_zero() => Some(path),
            _ => None,
        }
    }

    fn graph(&self, aio: Aio, read_only: bool) -> Value {
        let mut graph = self.stripes(aio);
        if !self.delay.is_zero() {
            let nanoseconds = u64::try_from(self.delay.as_nanos()).expect("at most some seconds");
            graph = json!({"driver": "delay", "latency-ns": nanoseconds, "file": graph});
        }
        if let Image::Qcow2(Qcow2 { cache, .. }) = self.format {
            graph = json!({"driver": "qcow2", "file": graph});
            if let Some(cache) = cache {
                graph["l2-cache-size"] = cache.0.into();
            }
        }
        // Nodes below inherit both.
        if self.cache == CacheMode::Direct {
            graph["cache"] = json!({"direct": true});
        }
        if read_only {
            graph["read-only"] = true.into();
        }
        graph
    }

    fn stripes(&self, aio: Aio) -> Value {
        let mut files: Vec<_> = self.files.iter().map(|path| self.file(path, aio)).collect();
        match self.chunk {
            Some(chunk) => json!({"driver": "stripe", "chunk": chunk, "children": files}),
            None => files.swap_remove(0),
        }
    }

    fn file(&self, path: &Path, aio: Aio) -> Value {
        let driver = match self.kind {
            Kind::File => "file",
            Kind::BlockDevice => "host_device",
        };
        let mut file = json!({"driver": driver, "filename": path.to_string_lossy()});
        if aio != Aio::Auto {
            file["aio"] = aio.to_string().into();
        }
        file
    }
}

/// The keys below `prefix` as the options of a command line: dots nest, commas are doubled. The
/// driver of the top is left out: it has to come first.
fn flatten(prefix: &str, value: &Value, words: &mut Vec<String>) {
    let key =
        |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
    let text = match value {
        Value::Object(map) => {
            let keys = map.iter().filter(|(name, _)| !(prefix.is_empty() && *name == "driver"));
            return keys.for_each(|(name, inner)| flatten(&key(name), inner, words));
        }
        Value::Array(list) => {
            let numbered = list.iter().enumerate();
            return numbered.for_each(|(at, inner)| flatten(&key(&at.to_string()), inner, words));
        }
        Value::Bool(on) => if *on { "on" } else { "off" }.to_owned(),
        Value::String(text) => keyval(text),
        Value::Number(number) => number.to_string(),
        Value::Null => "null".to_owned(),
    };
    words.push(format!("{prefix}={text}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> DiskFiles {
        DiskFiles {
            format: Image::Raw,
            kind: Kind::File,
            files: vec![PathBuf::from("/d/a,b.img")],
            chunk: None,
            delay: Duration::ZERO,
            bytes: 1 << 30,
            cache: CacheMode::Direct,
        }
    }

    fn striped() -> DiskFiles {
        let files = ["/d/0", "/d/1"].map(PathBuf::from).to_vec();
        DiskFiles { files, chunk: Some(65_536), ..disk() }
    }

    #[track_caller]
    fn check(disk: &DiskFiles, aio: Aio, read_only: bool, graph: &Value, option: &str) {
        assert_eq!(&disk.qemu_blockdev(aio, read_only), graph);
        let options = disk.daemon_options("disk", aio, read_only);
        assert_eq!(options, [("--blockdev".to_owned(), option.to_owned())]);
    }

    #[test]
    fn a_file_is_one_node() {
        check(
            &disk(),
            Aio::Auto,
            false,
            &json!({"driver": "file", "filename": "/d/a,b.img", "cache": {"direct": true}}),
            "driver=file,cache.direct=on,filename=/d/a,,b.img,node-name=disk",
        );
        let device = DiskFiles { kind: Kind::BlockDevice, cache: CacheMode::Buffered, ..disk() };
        check(
            &device,
            Aio::IoUring,
            true,
            &json!({"driver": "host_device", "filename": "/d/a,b.img", "aio": "io_uring",
                "read-only": true}),
            "driver=host_device,aio=io_uring,filename=/d/a,,b.img,node-name=disk,read-only=on",
        );
    }

    #[test]
    fn an_image_stands_on_its_file() {
        let qcow2 = DiskFiles { format: "qcow2:cache=8M:cluster=4k".parse().unwrap(), ..disk() };
        check(
            &qcow2,
            Aio::Native,
            false,
            &json!({"driver": "qcow2", "l2-cache-size": 8 << 20, "cache": {"direct": true},
                "file": {"driver": "file", "filename": "/d/a,b.img", "aio": "native"}}),
            "driver=qcow2,cache.direct=on,file.aio=native,file.driver=file,\
             file.filename=/d/a,,b.img,l2-cache-size=8388608,node-name=disk",
        );
    }

    #[test]
    fn layers_of_ringloom_stand_between_image_and_files() {
        let format = "qcow2".parse().unwrap();
        let layered = DiskFiles { format, delay: Duration::from_micros(500), ..striped() };
        let options = layered.daemon_options("d0", Aio::Threads, true);
        assert_eq!(
            options[0].1,
            "driver=qcow2,cache.direct=on,file.driver=delay,file.file.children.0.aio=threads,\
             file.file.children.0.driver=file,file.file.children.0.filename=/d/0,\
             file.file.children.1.aio=threads,file.file.children.1.driver=file,\
             file.file.children.1.filename=/d/1,file.file.chunk=65536,file.file.driver=stripe,\
             file.latency-ns=500000,node-name=d0,read-only=on"
        );
    }

    #[test]
    fn the_host_opens_what_has_the_bytes_of_the_disk() {
        assert_eq!(disk().host_path(), Some(Path::new("/d/a,b.img")));
        let delay = Duration::from_millis(2);
        for other in [
            striped(),
            DiskFiles { delay, ..disk() },
            DiskFiles { format: "qcow2".parse().unwrap(), ..disk() },
        ] {
            assert_eq!(other.host_path(), None);
        }
    }

    #[test]
    fn qemu_is_told_the_best_engine() {
        let (direct, cached) = (disk(), DiskFiles { cache: CacheMode::Buffered, ..disk() });
        assert_eq!(direct.qemu_aio(Aio::Auto, true), Aio::IoUring);
        assert_eq!(direct.qemu_aio(Aio::Auto, false), Aio::Native);
        assert_eq!(cached.qemu_aio(Aio::Auto, false), Aio::Threads);
        assert_eq!(cached.qemu_aio(Aio::Threads, true), Aio::Threads);
        assert!(cached.allows(Aio::Native).unwrap_err().contains("O_DIRECT"));
        assert!(direct.allows(Aio::Native).is_ok() && cached.allows(Aio::IoUring).is_ok());
    }
}
