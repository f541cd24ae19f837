//! Where tests have it panic, to see that the terminal is given back.
//!
//! With the feature `fault-points`, and `RINGLOOM_TOP_FAULT` set, the key `!` panics. In normal builds nothing is left of it.

use ratatui::crossterm::event::KeyEvent;

/// A key was pressed.
#[inline]
pub(crate) fn pressed(key: KeyEvent) {
    #[cfg(feature = "fault-points")]
    if std::env::var_os("RINGLOOM_TOP_FAULT").is_some()
        && key.code == ratatui::crossterm::event::KeyCode::Char('!')
    {
        panic!("a test has asked for it");
    }
    #[cfg(not(feature = "fault-points"))]
    let _nobody_listens = key;
}
