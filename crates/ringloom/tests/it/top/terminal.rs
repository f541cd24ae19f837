//! A terminal for programs: a pseudoterminal, and what is shown on it, by an emulator nobody here wrote.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, Result, bail, ensure};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use testkit::deadline::{Deadline, poll_until};
use testkit::process::Signal;

use super::LIMIT;

/// A program in a terminal of its own.
pub(super) struct Terminal {
    child: Child,
    /// Our end.
    master: File,
    /// Keeps the terminal there when the program has ended.
    user_end: File,
    screen: vt100::Parser,
}

impl Terminal {
    /// Starts it in a session whose terminal this is.
    pub(super) fn start(command: &Command, (columns, rows): (u16, u16)) -> Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).context("open a pseudoterminal")?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let flags = rustix::fs::OFlags::NOCTTY.bits().cast_signed();
        let mut open = File::options();
        let user_end = open
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(name.to_str().context("the name of the terminal")?)
            .context("open the terminal")?;
        rustix::io::ioctl_fionbio(&master, true)?;
        let screen = vt100::Parser::new(rows, columns, 0);
        tcsetwinsize(&master, size(columns, rows))?;
        let mut inner = Command::new("setsid");
        inner.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inner.env(name, value),
                None => inner.env_remove(name),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            inner.current_dir(directory);
        }
        inner.stdin(user_end.try_clone()?).stdout(user_end.try_clone()?);
        let child = inner.stderr(user_end.try_clone()?).spawn().context("start it")?;
        Ok(Self { child, master: master.into(), user_end, screen })
    }

    /// Takes what was written since; gives all that is shown.
    pub(super) fn shown(&mut self) -> Result<String> {
        let mut bytes = [0; 65_536];
        loop {
            match self.master.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => self.screen.process(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("read from the terminal"),
            }
        }
        Ok(self.screen.screen().contents())
    }

    /// Waits until what is shown is right.
    pub(super) fn wait_for(
        &mut self,
        what: &str,
        mut is_right: impl FnMut(&str) -> bool,
    ) -> Result<String> {
        let mut last = String::new();
        let found = poll_until(what, LIMIT, || {
            last = self.shown()?;
            if is_right(&last) {
                return Ok(Some(last.clone()));
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("it has ended ({status})");
            }
            Ok(None)
        });
        found.with_context(|| format!("shown:\n{last}"))
    }

    /// Waits until a text is shown.
    pub(super) fn wait_for_text(&mut self, text: &str) -> Result<String> {
        self.wait_for(text, |shown| shown.contains(text))
    }

    /// Types.
    pub(super) fn press(&mut self, keys: &str) -> Result<()> {
        self.master.write_all(keys.as_bytes()).context("type")
    }

    /// Gives the terminal another size.
    pub(super) fn resize(&mut self, columns: u16, rows: u16) -> Result<()> {
        self.screen.screen_mut().set_size(rows, columns);
        tcsetwinsize(&self.master, size(columns, rows)).context("resize")
    }

    /// Sends a signal to the program.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, signal).context("send a signal")
    }

    /// Whether it is stopped.
    pub(super) fn is_stopped(&self) -> Result<bool> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
        Ok(state == Some('T'))
    }

    /// Waits for its end.
    pub(super) fn wait(&mut self) -> Result<ExitStatus> {
        let deadline = Deadline::after(LIMIT);
        let status = poll_until("its end", deadline.limit(), || {
            self.shown()?;
            Ok(self.child.try_wait()?)
        })?;
        self.shown()?;
        Ok(status)
    }

    /// Keys are lines that are echoed again, the cursor is there, and the screen is the shell's.
    pub(super) fn check_given_back(&mut self) -> Result<()> {
        self.shown()?;
        let modes = tcgetattr(&self.user_end)?.local_modes;
        ensure!(modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG), "raw");
        let screen = self.screen.screen();
        ensure!(!screen.alternate_screen(), "the other screen is left");
        ensure!(!screen.hide_cursor(), "the cursor is hidden");
        Ok(())
    }

    /// Whether it draws on the other screen.
    pub(super) fn is_taken(&self) -> bool {
        self.screen.screen().alternate_screen()
    }

    /// Whether anything on the screen has a colour.
    pub(super) fn has_colours(&self) -> bool {
        let screen = self.screen.screen();
        let (rows, columns) = screen.size();
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let cells = cells.filter_map(|(row, column)| screen.cell(row, column));
        cells.into_iter().any(|it| it.fgcolor() != vt100::Color::Default)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}
