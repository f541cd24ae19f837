//! Which clusters of the disk, or tables, a task is changing: one at a time for each.
//!
//! Threads: any. A claim is taken whole or not at all, so that two tasks never wait for each other; a
//! task has one claim of a kind.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};
use std::task::{Poll, Waker};

/// The ranges that are claimed.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Begin and end of each; they do not overlap.
    taken: BTreeMap<u64, u64>,
    waiting: Vec<(Range<u64>, Waker)>,
}

/// A range that nobody else changes. Dropped, it is given back.
#[derive(Debug)]
pub(crate) struct Claimed<'a> {
    claims: &'a Claims,
    range: Range<u64>,
}

impl Claims {
    /// Waits until nobody has any of it.
    pub(crate) async fn take(&self, range: Range<u64>) -> Claimed<'_> {
        std::future::poll_fn(|context| {
            let mut state = self.lock();
            if state.is_taken(&range) {
                state.waiting.push((range.clone(), context.waker().clone()));
                return Poll::Pending;
            }
            state.taken.insert(range.start, range.end);
            Poll::Ready(())
        })
        .await;
        Claimed { claims: self, range }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics here")
    }
}

impl State {
    fn is_taken(&self, range: &Range<u64>) -> bool {
        let before = self.taken.range(..range.end).next_back();
        before.is_some_and(|(_, end)| *end > range.start)
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        let mut wakers = Vec::new();
        let mut state = self.claims.lock();
        state.taken.remove(&self.range.start);
        let Range { start, end } = self.range;
        state.waiting.retain(|(range, waker)| {
            let concerned = range.start < end && start < range.end;
            if concerned {
                wakers.push(waker.clone());
            }
            !concerned
        });
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn a_claim_waits_for_those_that_it_touches_and_no_others() {
        let claims = Claims::default();
        let context = &mut Context::from_waker(Waker::noop());
        let Poll::Ready(first) = pin!(claims.take(2..5)).poll(context) else { panic!("free") };
        for range in [0..3, 4..5, 3..4, 0..9] {
            assert!(pin!(claims.take(range)).poll(context).is_pending());
        }
        let mut waits = pin!(claims.take(4..6));
        assert!(waits.as_mut().poll(context).is_pending());
        assert!(pin!(claims.take(0..2)).poll(context).is_ready());
        assert!(pin!(claims.take(5..6)).poll(context).is_ready());
        drop(first);
        assert!(waits.as_mut().poll(context).is_ready());
    }
}
