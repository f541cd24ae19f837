//! The command line of fio: one for the host and for the shell of a guest.

/// How often a run that is watched prints a report of what it has done so far.
const INTERVAL_SECONDS: u32 = 1;

/// Everything after the name of the program: runs the job file `job` and writes reports to `out`, or to standard output.
///
/// With `intervals`, fio appends a report every second, for `Intervals`; otherwise it writes one, at
/// its end. Its complaints go to `out` as well, most of them also to standard error.
#[must_use]
pub fn command(job: &str, out: Option<&str>, intervals: bool) -> Vec<String> {
    let mut arguments = vec!["--output-format=json+".to_owned()];
    if intervals {
        arguments.push(format!("--status-interval={INTERVAL_SECONDS}"));
    }
    arguments.extend(out.map(|out| format!("--output={out}")));
    arguments.push(job.to_owned());
    arguments
}
