//! The terminal: taken, given back, taken again.
//!
//! Invariants: while it is taken, a panic gives it back before it says anything, and ends the process; whoever drops it gives it
//! back. What is drawn goes out in one piece, which is what a slow line needs.

use std::io::{self, BufWriter, IsTerminal, Stdout, stdout};
use std::panic;
use std::process::abort;
use std::sync::Once;

use anyhow::{Context, Result};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Position, Rect};
use ratatui::{Frame, Terminal};

/// The terminal on standard output, for as long as it is drawn on.
#[derive(Debug)]
pub(crate) struct Screen(Terminal<CrosstermBackend<BufWriter<Stdout>>>);

/// Whether there is one that can be drawn on.
pub(crate) fn is_there() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|it| it == "dumb");
    stdout().is_terminal() && !is_dumb
}

impl Screen {
    /// Takes it.
    pub(crate) fn open() -> Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(restore_after_panics);
        take().context("take the terminal")?;
        let backend = CrosstermBackend::new(BufWriter::new(stdout()));
        match Terminal::new(backend) {
            Ok(terminal) => Ok(Self(terminal)),
            Err(error) => {
                give_back();
                Err(error).context("take the terminal")
            }
        }
    }

    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> Result<()> {
        self.0.draw(draw).map(drop).context("write to the terminal")
    }

    /// Takes it again after a suspension, or draws all of it anew.
    pub(crate) fn reopen(&mut self) -> Result<()> {
        take().context("take the terminal")?;
        // `Terminal::clear` would ask the terminal where its cursor is, and wait for the answer.
        let size = self.0.size().context("ask for the size of the terminal")?;
        let area = Rect::from((Position::ORIGIN, size));
        self.0.resize(area).context("write to the terminal")
    }

    /// Gives it back.
    pub(crate) fn close(&mut self) {
        give_back();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn take() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide)
}

fn give_back() {
    // A terminal that has gone away needs nothing back.
    drop(execute!(stdout(), LeaveAlternateScreen, Show));
    drop(disable_raw_mode());
}

fn restore_after_panics() {
    let say = panic::take_hook();
    panic::set_hook(Box::new(move |found| {
        give_back();
        say(found);
        abort();
    }));
}
