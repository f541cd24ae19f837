//! A private OpenSSH server of this user on this host: its own keys, port, and directory for temporary files.

use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::process::Bed;
use crate::tune::{skip, wait_until};

const SSHD: &str = "/usr/sbin/sshd";
/// Where sshd, as root, wants an empty directory.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";
/// What the guest's scripts need besides fio.
const PROGRAMS: [&str; 12] = [
    "sh", "cat", "mktemp", "rm", "uname", "head", "grep", "cut", "readlink", "stat", "dd", "sleep",
];

/// A server, and the files of a user who may log in.
pub(crate) struct SshServer {
    child: Child,
    port: u16,
    directory: PathBuf,
}

impl SshServer {
    /// A server whose sessions find programs in `path`. `None`, with a line saying so, without OpenSSH.
    pub(crate) fn start(bed: &Bed, path: &str) -> Option<Self> {
        let has_client = Command::new("ssh").arg("-V").stderr(Stdio::null()).status().is_ok();
        if !Path::new(SSHD).exists() || !has_client {
            skip("openssh-server is not installed");
            return None;
        }
        let directory = bed.path().join("ssh");
        std::fs::create_dir_all(directory.join("far")).unwrap();
        if geteuid().is_root() {
            std::fs::create_dir_all(PRIVILEGE_SEPARATION).unwrap();
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        write_files(&directory, port, path);
        let child = Command::new(SSHD)
            .args(["-D", "-E"])
            .arg(directory.join("log"))
            .arg("-f")
            .arg(directory.join("sshd_config"))
            .spawn()
            .unwrap();
        let server = Self { child, port, directory };
        let log = server.directory.join("log");
        let listens = || std::fs::read_to_string(&log).unwrap_or_default().contains("listening");
        wait_until(&listens);
        Some(server)
    }

    /// `--guest` for this disk.
    pub(crate) fn guest(&self, disk: &Path) -> String {
        format!("--guest ssh://127.0.0.1:{}{}", self.port, disk.display())
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The configuration of a user who may log in.
    pub(crate) fn config(&self) -> String {
        format!("--ssh-config {}", self.directory.join("config").display())
    }

    /// A copy of it in which `from` is `to`.
    pub(crate) fn config_with(&self, from: &str, to: &str) -> String {
        let text = std::fs::read_to_string(self.directory.join("config")).unwrap();
        assert!(text.contains(from), "{text}");
        let path = self.directory.join("other-config");
        std::fs::write(&path, text.replace(from, to)).unwrap();
        format!("--ssh-config {}", path.display())
    }

    /// The fio that runs in the guest.
    pub(crate) fn fio(&self) -> Option<u32> {
        processes().find(|pid| {
            let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/{name}"));
            let is_fio = link("exe").is_ok_and(|exe| exe.ends_with("fio"));
            is_fio && link("cwd").is_ok_and(|cwd| cwd.starts_with(self.far()))
        })
    }

    /// Ends all connections, each by the process that serves it; the server goes on.
    pub(crate) fn cut(&self) {
        for pid in children(self.child.id()) {
            kill(pid);
        }
    }

    /// Whether nothing runs or lies in the guest any more.
    pub(crate) fn is_clean(&self) -> bool {
        self.fio().is_none() && std::fs::read_dir(self.far()).unwrap().next().is_none()
    }

    /// Where the guest's temporary files are.
    fn far(&self) -> PathBuf {
        self.directory.join("far")
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        self.cut();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A directory with what the guest needs but fio, to be its PATH.
pub(crate) fn path_without_fio(bed: &Bed) -> PathBuf {
    let directory = bed.path().join("bin");
    std::fs::create_dir(&directory).unwrap();
    for name in PROGRAMS {
        let found = ["/usr/bin", "/bin"].map(|parent| Path::new(parent).join(name));
        let found = found.iter().find(|path| path.exists()).unwrap();
        symlink(found, directory.join(name)).unwrap();
    }
    directory
}

fn write_files(directory: &Path, port: u16, path: &str) {
    let name = |name: &str| directory.join(name).display().to_string();
    for key in ["host", "user", "stranger"] {
        let words = ["-q", "-t", "ed25519", "-N", "", "-f", &name(key)];
        assert!(Command::new("ssh-keygen").args(words).status().unwrap().success());
    }
    let host = std::fs::read_to_string(name("host.pub")).unwrap();
    let known = format!("[127.0.0.1]:{port} {host}");
    let server = format!(
        "ListenAddress 127.0.0.1\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
         StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
         PermitRootLogin yes\nSetEnv PATH={path} TMPDIR={}\n",
        name("host"),
        name("user.pub"),
        name("far")
    );
    let client = format!(
        "IdentityFile {}\nIdentitiesOnly yes\nUserKnownHostsFile {}\nGlobalKnownHostsFile none\n",
        name("user"),
        name("known")
    );
    for (file, text) in [("known", known), ("sshd_config", server), ("config", client)] {
        std::fs::write(name(file), text).unwrap();
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn children(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
        after_name.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    processes().filter(is_child).collect()
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    // It may have ended by itself.
    let _gone = kill_process(pid, Signal::KILL);
}
