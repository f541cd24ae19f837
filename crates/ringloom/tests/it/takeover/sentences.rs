//! What an operator reads of a takeover that cannot be, or is none.

use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use testkit::process::{Bench, Program, START_LIMIT};
use testkit::report::skipped;

use super::{LIMIT, disk, line, replace};
use crate::support::{Disk, copy_binary, ringloom, stop, with};

/// A line that is refused with all these words; the old process goes on.
fn refuse(program: &Program, line: &[String], words: &[&str]) -> Result<()> {
    let exit = program.refusal(line, LIMIT)?;
    ensure!(exit.status.code() == Some(1), "{line:?}: {exit:?}");
    for word in words {
        ensure!(exit.stderr.contains(word), "{word:?} is not in {}", exit.stderr);
    }
    Ok(())
}

fn resize(disk: &Disk<'_>, bytes: u64) -> Result<()> {
    let file = std::fs::File::options().write(true).open(disk.image()).context("open the image")?;
    file.set_len(bytes).context("resize the image")
}

/// Both values of what differs are named, and both files.
#[test]
fn what_differs_is_told_as_both_processes_have_it() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = disk(&bench, 2);
        disk.create_sparse(1 << 20)?;
        let second = Disk { id: "other", ..disk.clone() };
        second.create_sparse(1 << 20)?;
        let old = disk.serve(program)?;
        let process =
            format!(" there) is not that of process {}, which goes on serving", old.pid());
        let (image, other) =
            (disk.image().display().to_string(), second.image().display().to_string());
        let right = line(&disk);
        let with_word = |from: &str, to: &str| -> Vec<String> {
            right.iter().map(|word| word.replace(from, to)).collect()
        };
        let files = format!("its image ({other} here, {image}");
        refuse(program, &with_word(&image, &other), &[&files, &process])?;
        let queues = with_word("num-queues=2", "num-queues=1");
        refuse(program, &queues, &["its number of queues (1 here, 2", &process])?;
        let block = with_word("writable=on", "writable=on,logical-block-size=4096");
        refuse(program, &block, &["its logical block size (4096 here, 512", &process])?;
        refuse(program, &with_word("id=e0,", "id=e9,"), &["export e9: its id (not e0)"])?;
        resize(&disk, 1 << 19)?;
        refuse(program, &right, &["its size in bytes (524288 here, 1048576", &process])?;
        resize(&disk, 1 << 20)?;
        stop(replace(program, &right, old)?, &[&disk.socket()]).map(drop)
    });
}

#[test]
fn another_user_is_told_who_may_take_over_and_the_old_process_says_it_once() {
    if !rustix::process::geteuid().is_root() {
        skipped("only root can be another user");
        return;
    }
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = disk(&bench, 1);
        disk.create_sparse(1 << 20)?;
        let old = disk.serve(program)?;
        for (path, mode) in [(bench.path(""), 0o755), (disk.image(), 0o666), (disk.socket(), 0o666)]
        {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
                .with_context(|| path.display().to_string())?;
        }
        // Where this user can start it, which need not be so where it was built.
        copy_binary(&bench, "ringloom")?;
        let words =
            ["--reuid=65534", "--regid=65534", "--clear-groups", &bench.text("ringloom"), "serve"];
        let nobody = Program::named("ringloom as nobody", "setpriv", &words);
        let sentence = format!(
            "process {} goes on serving: only its user (number 0) and root may take its place",
            old.pid()
        );
        refuse(&nobody, &line(&disk), &[&sentence])?;
        let log = stop(old, &[&disk.socket()])?;
        ensure!(log.matches("user 65534 may not take over").count() == 1, "{log}");
        Ok(())
    });
}

/// What hands over is a ringloom, however it is called.
#[test]
fn a_program_of_another_name_is_replaced() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = disk(&bench, 1);
        disk.create_sparse(1 << 20)?;
        let binary = copy_binary(&bench, "ringloom-2")?;
        let old = disk.serve(&Program::named("ringloom-2", binary, &["serve"]))?;
        stop(replace(program, &line(&disk), old)?, &[&disk.socket()]).map(drop)
    });
}

/// A daemon whose socket was removed serves on, and nobody finds it. That is said before the wait for its lock.
#[test]
fn a_socket_that_was_removed_is_served_by_nobody() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = disk(&bench, 1);
        disk.create_sparse(1 << 20)?;
        let old = disk.serve(program)?;
        std::fs::remove_file(disk.socket()).context("remove the socket")?;
        let new = program.spawn(&line(&disk))?;
        new.wait_for_log("trying for up to 30 s", START_LIMIT)?;
        let log = new.log();
        let (said, waits) = (log.find("no process serves these sockets"), log.find("trying for"));
        ensure!(said.is_some_and(|said| Some(said) < waits), "{log}");
        stop(old, &[])?;
        stop(new, &[&disk.socket()]).map(drop)
    });
}

/// A pidfile that cannot be written is not left behind.
#[test]
fn a_pidfile_that_cannot_be_written_is_removed() {
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\"";
    let words = ["-c", script, env!("CARGO_BIN_EXE_ringloom"), "serve"];
    with(&Program::named("ringloom that can write nothing", "bash", &words), |program| {
        let bench = Bench::new()?;
        let disk = disk(&bench, 1);
        disk.create_sparse(1 << 20)?;
        let line = [&line(&disk)[..], &["--pidfile".to_owned(), bench.text("pid")]].concat();
        refuse(program, &line, &["cannot write it: File too large"])?;
        ensure!(!bench.path("pid").exists(), "it is left behind");
        Ok(())
    });
}
