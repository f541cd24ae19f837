//! Running other programs: what fails is said with the command and what it wrote.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What a program printed. It must succeed.
pub fn output_of(command: &mut Command) -> Result<String> {
    let words = || {
        let all = [command.get_program()].into_iter().chain(command.get_args());
        all.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    };
    let words = words();
    let output = command.output().with_context(|| format!("start {words}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, wrong) = (text(&output.stdout), text(&output.stderr));
    ensure!(output.status.success(), "{words}: {}\n{said}{wrong}", output.status);
    Ok(said)
}
