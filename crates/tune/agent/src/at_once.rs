//! The same thing done for many agents at a time: their answers are waited for together.
//!
//! Who measures with a hundred of them does not want to wait for one after the other.
//!
//! Invariants: nothing is under way any more when [`at_once`] returns. What fails first ends the others, and is what is told.
//! Threads: [`AT_ONCE_MAX`] at most, which end with the call; the caller's asks its `check`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::client::Check;
use crate::clock;

/// As many at a time: enough for nodes that are slow to answer, and few for a server that starts a process for each.
pub const AT_ONCE_MAX: usize = 32;
const LOOK: Duration = Duration::from_millis(20);

/// Why not all was done.
#[derive(Debug)]
pub enum Stopped<E> {
    /// Who waited does not want to any more.
    Ended(Box<dyn std::error::Error + Send + Sync>),
    /// What failed first.
    Failed(E),
}

/// The error of those that end because another one has failed; nobody sees it.
#[derive(Debug, thiserror::Error)]
#[error("another one has failed")]
struct OtherFailed;

/// Does the same for each, with a check that ends it when the caller's does or another one fails; the results in their order.
///
/// # Errors
/// What the check says, or the first failure.
pub fn at_once<T: Send, R: Send, E: Send>(
    all: impl IntoIterator<Item = T>,
    work: impl Fn(T, Check<'_>) -> Result<R, E> + Sync,
    check: Check<'_>,
) -> Result<Vec<R>, Stopped<E>> {
    let queue: VecDeque<(usize, T)> = all.into_iter().enumerate().collect();
    let threads = queue.len().min(AT_ONCE_MAX);
    let (queue, stop) = (Mutex::new(queue), AtomicBool::new(false));
    let (done, failed) = (Mutex::new(Vec::new()), Mutex::new(None));
    let carry_out = || {
        let is_stopped = || stop.load(Ordering::Relaxed);
        // A function, so that the queue is free while something is done.
        let next = || if is_stopped() { None } else { held(&queue).pop_front() };
        while let Some((place, one)) = next() {
            let mut check = || if is_stopped() { Err(OtherFailed.into()) } else { Ok(()) };
            match work(one, &mut check) {
                Ok(result) => held(&done).push((place, result)),
                Err(error) => {
                    held(&failed).get_or_insert(error);
                    stop.store(true, Ordering::Relaxed);
                }
            }
        }
    };
    let ended = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(carry_out)).collect();
        let mut ended = None;
        while threads.iter().any(|it| !it.is_finished()) {
            if ended.is_none()
                && let Err(why) = check()
            {
                stop.store(true, Ordering::Relaxed);
                ended = Some(why);
            }
            clock::pause(LOOK);
        }
        ended
    });
    if let Some(why) = ended {
        return Err(Stopped::Ended(why));
    }
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(Stopped::Failed(error));
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(place, _)| *place);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn go_on() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }

    /// Until it is ended.
    fn wait(check: Check<'_>) -> String {
        loop {
            if let Err(why) = check() {
                return why.to_string();
            }
            clock::pause(LOOK / 10);
        }
    }

    #[test]
    fn results_come_in_the_order_of_what_was_given() {
        let most = AT_ONCE_MAX * 3;
        let mut all: Vec<usize> = (0..most).collect();
        let work = |one: &mut usize, _: Check<'_>| {
            *one += 1;
            Ok::<_, String>(*one)
        };
        let done = at_once(&mut all, work, &mut go_on).expect("nothing fails");
        assert_eq!(done, (1..=most).collect::<Vec<_>>());
        assert_eq!(all, done);
        assert!(
            at_once([0; 0], |it: i32, _| Ok::<_, String>(it), &mut go_on).expect("ok").is_empty()
        );
    }

    #[test]
    fn the_first_failure_ends_the_others() {
        let work = |one: usize, check: Check<'_>| {
            Err::<(), _>(if one == 1 { "no space".to_owned() } else { wait(check) })
        };
        match at_once([0, 1, 2], work, &mut go_on) {
            Err(Stopped::Failed(why)) => assert_eq!(why, "no space"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_check_ends_all() {
        let mut looks = 0;
        let mut check = || {
            looks += 1;
            if looks > 2 { Err("an interrupt".into()) } else { Ok(()) }
        };
        match at_once(0..40, |_, check| Err::<(), _>(wait(check)), &mut check) {
            Err(Stopped::Ended(why)) => assert_eq!(why.to_string(), "an interrupt"),
            other => panic!("{other:?}"),
        }
    }
}
