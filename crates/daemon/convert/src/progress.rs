//! How far a copy has come, on the terminal.

use std::io::IsTerminal;

use copy::CopyJob;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A line on stderr that says how far a job has come, its rate, and when it will be over. Not there if stderr is no
/// terminal.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn new(what: &str, bytes: u64, is_quiet: bool) -> Self {
        let bar = ProgressBar::new(bytes);
        let style = ProgressStyle::with_template(
            "{msg} {percent:>3} % {wide_bar} {binary_bytes} of {binary_total_bytes}, \
             {binary_bytes_per_sec}, {eta} left",
        );
        bar.set_style(style.expect("the template is right").progress_chars("━╸ "));
        if is_quiet || !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        bar.set_message(what.to_owned());
        Self(bar)
    }

    pub(crate) fn look(&self, job: &CopyJob) {
        self.0.set_position(job.progress().done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
