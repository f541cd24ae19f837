//! Builds ahead: what the steps after the tests need is built while the tests wait for clocks, disks and guests.
//!
//! Invariants: the builds get what the tests leave of the processors. One that fails here fails again in the step that
//! needs it, which tells why.
//! Not here: what is built (`test`, `fuzz`).

use std::process::{Command, Stdio};

/// Runs this command, with the lowest priority.
pub(crate) fn build(build: &Command) {
    let mut command = with_lowest_priority(build);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // The step that needs it builds it again, and tells what is wrong.
    let _judged_later = command.status();
}

/// The same command behind `nice`.
fn with_lowest_priority(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        nice.current_dir(directory);
    }
    nice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_build_leaves_the_processors_to_others_and_its_failure_to_the_next_step() {
        let name = format!("xtask-ahead-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let mut last = shell("nice >\"$NAME\"");
        last.env("NAME", &name).current_dir(std::env::temp_dir());
        [shell("exit 1"), Command::new("/no/such/program"), last].iter().for_each(build);
        let priority = std::fs::read_to_string(&path).expect("the last one has run");
        std::fs::remove_file(path).expect("it is there");
        assert_eq!(priority.trim(), "19");
    }
}
