//! Who else uses the host before a measurement starts.
//!
//! Limits: it looks for `LOOK` and asks its caller every `STEP` whether to go on; processes that
//! start and end in between are in the sum, but not named.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use storage::clock;

use crate::meter::reading;

const LOOK: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(20);
/// Of all CPUs; less is what an idle system does for itself.
const BUSY: f64 = 0.1;
const USERS_MAX: usize = 3;
/// Less than this is not worth a name.
const CPUS_MIN: f64 = 0.05;

/// What the host did before the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostLoad {
    /// Over 1, 5 and 15 minutes.
    pub load_average: Option<[f64; 3]>,
    /// How many CPUs were busy on average.
    pub cpus_in_use: Option<f64>,
    /// How many CPUs there are.
    pub of: Option<usize>,
    /// The busiest processes, the busiest first.
    pub users: Vec<User>,
}

/// A busy process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct User {
    /// The process.
    pub pid: u32,
    /// Its name, as the kernel has it.
    pub comm: String,
    /// How many CPUs it used on average.
    pub cpus: f64,
}

impl HostLoad {
    /// Looks at the host for a second.
    ///
    /// # Errors
    /// As soon as `go_on` fails, with its error.
    pub fn before(go_on: &mut dyn FnMut() -> Result<()>) -> Result<Self> {
        let begun = clock::now();
        let (host, processes) = (reading::host(), all_processes());
        while begun.elapsed() < LOOK {
            go_on()?;
            clock::pause(STEP);
        }
        let elapsed = begun.elapsed();
        let cpu = host
            .zip(reading::host())
            .and_then(|(open, close)| reading::host_cpu(&open, &close, elapsed));
        let per_cpu = rustix::param::clock_ticks_per_second() as f64 * elapsed.as_secs_f64();
        Ok(Self {
            load_average: fs::read_to_string("/proc/loadavg").ok().and_then(|it| averages(&it)),
            cpus_in_use: cpu.as_ref().map(|cpu| cpu.cpus_in_use),
            of: cpu.as_ref().map(|cpu| cpu.of),
            users: busiest(&processes, &all_processes(), per_cpu),
        })
    }

    /// A sentence for the user if the host is busy.
    pub fn sentence(&self) -> Option<String> {
        let (in_use, of) = (self.cpus_in_use?, self.of?);
        if in_use <= BUSY * of as f64 {
            return None;
        }
        let name = |user: &User| format!("{} {:.1}", user.comm, user.cpus);
        let users = self.users.iter().map(name).collect::<Vec<_>>().join(", ");
        let users = if users.is_empty() { users } else { format!(" ({users})") };
        Some(format!(
            "the host is busy: {in_use:.1} of {of} CPUs are used before the start{users}; figures \
             will be lower and noisier"
        ))
    }
}

/// The first three numbers of /proc/loadavg.
fn averages(text: &str) -> Option<[f64; 3]> {
    let mut numbers = text.split(' ').map_while(|number| number.parse().ok());
    Some([numbers.next()?, numbers.next()?, numbers.next()?])
}

/// A process: its id, and when it started, since ids are used again.
type Identity = (u32, u64);

/// What a process has used since its start.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ProcessUse {
    comm: String,
    ticks: u64,
}

fn all_processes() -> HashMap<Identity, ProcessUse> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    let own = std::process::id();
    let ids = entries.flatten().filter_map(|it| it.file_name().to_str()?.parse::<u32>().ok());
    // A process may end between the listing and the reading.
    let stats = ids
        .filter(|&pid| pid != own)
        .filter_map(|pid| process(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?));
    stats.collect()
}

/// `pid (comm) state …` with user and system time as fields 14 and 15, the start as 22 (proc(5)).
fn process(pid: u32, stat: &str) -> Option<(Identity, ProcessUse)> {
    let (head, tail) = stat.rsplit_once(") ")?;
    let comm = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = tail.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let ticks = number(14)? + number(15)?;
    Some(((pid, number(22)?), ProcessUse { comm, ticks }))
}

/// The processes that used most; `per_cpu` are the ticks of a CPU that is busy all the time.
fn busiest(
    open: &HashMap<Identity, ProcessUse>,
    close: &HashMap<Identity, ProcessUse>,
    per_cpu: f64,
) -> Vec<User> {
    let user = |(identity, used): (&Identity, &ProcessUse)| {
        let before = open.get(identity).map_or(0, |used| used.ticks);
        let cpus = used.ticks.saturating_sub(before) as f64 / per_cpu;
        User { pid: identity.0, comm: used.comm.clone(), cpus }
    };
    let mut users: Vec<User> = close.iter().map(user).filter(|it| it.cpus >= CPUS_MIN).collect();
    users.sort_by(|a, b| b.cpus.total_cmp(&a.cpus).then(a.pid.cmp(&b.pid)));
    users.truncate(USERS_MAX);
    users
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use anyhow::bail;

    use super::*;

    fn user(pid: u32, comm: &str, cpus: f64) -> User {
        User { pid, comm: comm.to_owned(), cpus }
    }

    #[test]
    fn a_busy_host_is_told() {
        let mut load = HostLoad {
            load_average: None,
            cpus_in_use: Some(1.31),
            of: Some(2),
            users: vec![user(7, "cargo", 0.82), user(8, "rustc", 0.5)],
        };
        let expected = "the host is busy: 1.3 of 2 CPUs are used before the start (cargo 0.8, \
                        rustc 0.5); figures will be lower and noisier";
        assert_eq!(load.sentence().unwrap(), expected);
        let text = serde_json::to_string(&load).unwrap();
        assert_eq!(serde_json::from_str::<HostLoad>(&text).unwrap(), load);
        load.users.clear();
        assert!(load.sentence().unwrap().contains("before the start; figures"));
        load.cpus_in_use = Some(0.2);
        assert_eq!(load.sentence(), None);
        assert_eq!(HostLoad::default().sentence(), None);
    }

    #[test]
    fn the_load_average_is_read() {
        assert_eq!(averages("0.52 1.58 3.00 4/300 71\n"), Some([0.52, 1.58, 3.0]));
        assert_eq!(averages("0.52 x 3.00"), None);
    }

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 30 12 13 14 15 16 17 18 999 20";
        let used = ProcessUse { comm: "a) b (c".to_owned(), ticks: 42 };
        assert_eq!(process(42, stat), Some(((42, 999), used)));
        assert_eq!(process(42, "42 (a) S 1"), None);
    }

    #[test]
    fn the_busiest_are_named_in_order() {
        let processes = |list: &[(u32, u64, u64)]| -> HashMap<Identity, ProcessUse> {
            let one = |&(pid, start, ticks)| {
                ((pid, start), ProcessUse { comm: format!("p{pid}"), ticks })
            };
            list.iter().map(one).collect()
        };
        let open = processes(&[(1, 5, 1000), (2, 5, 1000), (3, 5, 1000), (4, 5, 1000)]);
        // 5 is new, and so is 4, whose id another process had.
        let close = processes(&[(1, 5, 1004), (2, 5, 1050), (3, 5, 1080), (4, 6, 90), (5, 6, 70)]);
        let expected = [user(4, "p4", 0.9), user(3, "p3", 0.8), user(5, "p5", 0.7)];
        assert_eq!(busiest(&open, &close, 100.0), expected);
    }

    #[test]
    fn a_child_that_spins_is_seen() {
        let mut child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut asked = 0;
        let load = HostLoad::before(&mut || {
            asked += 1;
            Ok(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let load = load.unwrap();
        assert!(asked > 10, "asked {asked} times");
        assert!(load.load_average.is_some());
        let (in_use, of) = (load.cpus_in_use.unwrap(), load.of.unwrap());
        assert!(in_use > 0.3 && in_use <= of as f64, "{load:?}");
        // Others may be busier on a busy machine, but not all of these.
        assert!(!load.users.is_empty(), "{load:?}");
    }

    #[test]
    fn it_ends_at_once_when_told() {
        let begun = clock::now();
        let error = HostLoad::before(&mut || bail!("interrupted")).unwrap_err();
        assert_eq!(error.to_string(), "interrupted");
        assert!(begun.elapsed() < LOOK / 2);
    }
}
