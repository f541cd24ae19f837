//! The programs that should stay, and whether they do.

use std::process::Child;

use anyhow::{Result, bail};

/// The programs that should stay.
#[derive(Debug, Default)]
pub(crate) struct Running {
    children: Vec<(&'static str, Child)>,
}

impl Running {
    /// Counts on this one too.
    pub(crate) fn add(&mut self, name: &'static str, child: Child) {
        self.children.push((name, child));
    }

    /// An error once one has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        for (name, child) in &mut self.children {
            if let Some(status) = child.try_wait()? {
                bail!("{name} ended: {status}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;
    use crate::clock::{Attempt, wait_for};

    #[test]
    fn a_program_that_ends_is_told() {
        let mut running = Running::default();
        running.add(
            "cat",
            Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("cat"),
        );
        running.check().expect("it waits for input");
        running.add("false", Command::new("false").spawn().expect("it starts"));
        let error = wait_for("its end", Duration::from_secs(20), || {
            Ok(match running.check() {
                Err(error) => Attempt::Done(error),
                Ok(()) => Attempt::later("it runs"),
            })
        });
        let text = error.expect("it ends").to_string();
        assert_eq!(text, "false ended: exit status: 1");
        let (_, cat) = &mut running.children[0];
        drop(cat.stdin.take());
        cat.wait().expect("it ends with its input");
    }
}
