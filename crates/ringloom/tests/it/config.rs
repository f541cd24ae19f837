//! `--config`: a file written from a line serves as the line does; with a state, beside `check`, and when a process with a
//! file takes the place of one with a line.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::RingLayout;
use testkit::process::{Bench, Exit, Program};
use testkit::rawring::{Collected, Survivor};
use testkit::rng::Rng;

use crate::control::{monitor, monitor_socket};
use crate::support::{Disk, Iothreads, ringloom, stop, with};

const LIMIT: Duration = Duration::from_secs(30);

const QUEUES: u16 = 2;

/// What a subcommand says to these words.
fn ask(bench: &Bench, command: &str, words: &[String]) -> Result<Exit> {
    let program = Program::named("ringloom", env!("CARGO_BIN_EXE_ringloom"), &[command]);
    program.in_directory(bench.path("")).refusal(words, LIMIT)
}

/// A disk with two iothreads and a monitor, as a line.
fn line(bench: &Bench, disk: &Disk<'_>) -> Vec<String> {
    let objects = ["t0", "t1"].map(|id| ["--object".to_owned(), format!("iothread,id={id}")]);
    objects.into_iter().flatten().chain(disk.arguments()).chain(monitor(bench)).collect()
}

/// The same in a file, as the option that names it.
fn as_file(bench: &Bench, line: &[String]) -> Result<Vec<String>> {
    let words = [&["--print=config".to_owned()], line].concat();
    let exit = ask(bench, "serve", &words)?;
    ensure!(exit.status.success() && exit.stderr.is_empty(), "{exit:?}");
    std::fs::write(bench.path("e0.toml"), &exit.stdout).context("write the file")?;
    Ok(vec!["--config".to_owned(), bench.text("e0.toml")])
}

fn disk(bench: &Bench) -> Result<Disk<'_>> {
    let disk = Disk { iothreads: Iothreads::Two, ..Disk::new(bench, "e0", QUEUES.into()) };
    disk.create_sparse(Survivor::disk_bytes(QUEUES))?;
    Ok(disk)
}

fn takes_over(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let disk = disk(&bench)?;
    let line = line(&bench, &disk);
    let file = as_file(&bench, &line)?;
    let mut old = program.start(&line, &[disk.socket(), monitor_socket(&bench)])?;
    let (mut client, mut rng) =
        (Survivor::connect(&disk.socket(), RingLayout::Split, QUEUES)?, Rng::new(5));
    let mut work = |client: &mut Survivor| -> Result<()> {
        client.submit(&mut rng)?;
        ensure!(client.collect()? != Collected::Gone, "the server has hung up");
        Ok(())
    };
    work(&mut client)?;
    // From a line to its file, and from there to a file that asks for it itself.
    let mut new = program.spawn(&[&file, ["--takeover".to_owned()].as_slice()].concat())?;
    new.wait_for_log("has handed over", LIMIT)?;
    ensure!(old.wait(LIMIT)?.code() == Some(0), "{}", old.log());
    work(&mut client)?;
    let text = std::fs::read_to_string(bench.path("e0.toml")).context("read the file")?;
    std::fs::write(bench.path("e0.toml"), format!("takeover = true\n{text}"))
        .context("write the file")?;
    let newest = program.spawn(&file)?;
    newest.wait_for_log("has handed over", LIMIT)?;
    ensure!(new.wait(LIMIT)?.code() == Some(0), "{}", new.log());
    work(&mut client)?;
    client.drain()?;
    let expected = client.expected();
    drop(client);
    stop(newest, &[&disk.socket()])?;
    let found = std::fs::read(disk.image()).context("read the image")?;
    ensure!(found == expected, "the image does not hold the completed writes");
    Ok(())
}

#[test]
fn a_process_with_a_file_takes_the_place_of_one_with_a_line() {
    with(&ringloom(), takes_over);
}

fn is_kept(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let disk = disk(&bench)?;
    let mut line = line(&bench, &disk);
    line.extend(["--state".to_owned(), bench.text("state")]);
    let file = as_file(&bench, &line)?;
    let sockets = [disk.socket(), monitor_socket(&bench)];
    stop(program.start(&file, &sockets)?, &[&disk.socket()])?;
    let exit = ask(&bench, "check", &file)?;
    let path = bench.text("e0.toml");
    let expected = format!("state {}: as the command line and {path} says", bench.text("state"));
    ensure!(exit.status.success() && exit.stdout.contains(&expected), "{exit:?}");
    // What the file says now, the state does not know.
    let text = std::fs::read_to_string(bench.path("e0.toml")).context("read the file")?;
    let more = "\n[[blockdev]]\ndriver = \"null-co\"\nnode-name = \"more\"\n";
    std::fs::write(bench.path("e0.toml"), format!("{text}{more}")).context("write the file")?;
    std::fs::set_permissions(bench.path("e0.toml"), PermissionsExt::from_mode(0o666))
        .context("let others write it")?;
    let server = program.start(&file, &sockets)?;
    let log = stop(server, &[&disk.socket()])?;
    for said in [
        format!("node 'more' is in the command line and {path} only; the state counts"),
        format!("config {path}: others than its owner may write it (mode 0666), and so decide"),
    ] {
        ensure!(log.contains(&said), "{said} is not said: {log}");
    }
    let exit = ask(&bench, "check", &file)?;
    let unwise = format!("unwise: config {path}: others than its owner may write it (mode 0666)");
    ensure!(exit.stdout.contains(&unwise), "{exit:?}");
    Ok(())
}

#[test]
fn what_is_kept_counts_instead_of_a_file_and_the_difference_is_said() {
    with(&ringloom(), is_kept);
}

#[test]
fn check_tells_what_is_wrong_with_a_file_and_where() {
    let bench = Bench::new().expect("a directory");
    let text = "[[blockdev]]\ndriver = \"file\"\nnode-name = \"n\"\nfilenmae = \"x\"\n";
    std::fs::write(bench.path("a.toml"), text).expect("a file");
    let words = ["--config".to_owned(), "a.toml".to_owned()];
    for (command, status) in [("check", 1), ("serve", 2)] {
        let exit = ask(&bench, command, &words).expect("it ends");
        let expected = "a.toml:4:1: [[blockdev]] 'n': unknown option 'filenmae' of --blockdev driver=file; did you mean \
                        'filename'?\n";
        assert!(exit.status.code() == Some(status) && exit.stderr.ends_with(expected), "{exit:?}");
    }
}

/// A process that a service manager has started, as its variables say, and waits for.
fn under_manager(bench: &Bench, words: &[&str]) -> Result<Exit> {
    let script =
        format!("SYSTEMD_EXEC_PID=$$ exec {} serve \"$@\"", env!("CARGO_BIN_EXE_ringloom"));
    let shell = Program::named("sh", "/bin/sh", &["-c", &script, "sh"]);
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let shell = shell.with_variable("NOTIFY_SOCKET", &bench.text("manager"));
    shell.in_directory(bench.path("")).refusal(&words, LIMIT)
}

/// What somebody has to change is not tried again and again by a service manager, which the exit status tells.
#[test]
fn a_configuration_that_is_wrong_in_itself_has_an_exit_status_of_its_own() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let check = |text: &str, status: i32, said: &str| -> Result<()> {
            std::fs::write(bench.path("w.toml"), text)?;
            let exit = ask(&bench, "serve", &["--config".to_owned(), "w.toml".to_owned()])?;
            ensure!(exit.status.code() == Some(status) && exit.stderr.contains(said), "{exit:?}");
            Ok(())
        };
        check("imgae = \"x\"\n", 2, "did you mean 'image'?")?;
        check("image = \"nowhere\"\nsocket = \"s\"\n", 1, "could not open 'nowhere'")?;
        let served = "image = \"i\"\nsocket = \"s\"\n";
        testkit::image::create_sparse(&bench.path("i"), 1 << 20)?;
        std::fs::write(bench.path("d.toml"), format!("{served}daemonize = true\n"))?;
        // What does not go together, and what serves nothing.
        let mixed = format!("{served}[[object]]\nqom-type = \"iothread\"\nid = \"t\"\n");
        check(&mixed, 2, "cannot be combined with --object (w.toml:3:1)")?;
        check("", 2, "nothing to serve")?;
        check("state = \"kept\"\n", 2, "nothing to serve")?;
        let exit = under_manager(&bench, &["--config", "d.toml"])?;
        let said = "a service manager has started this process and waits for it";
        ensure!(exit.status.code() == Some(2) && exit.stderr.contains(said), "{exit:?}");
        // One that takes another's place tells which process goes on; here it has none to tell.
        let exit = under_manager(&bench, &["--config", "d.toml", "--takeover", "--socket-mode=x"])?;
        ensure!(!exit.stderr.contains(said), "{exit:?}");
        Ok(())
    });
}
