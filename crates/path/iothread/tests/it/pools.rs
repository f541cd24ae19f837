//! Pools: where rings begin, and which iothreads end.

use std::sync::Arc;

use iothread::{Confinement, IothreadPool, PollSettings, ProcessResources};

use crate::setup::process_resources;

fn pool(slots: usize) -> IothreadPool {
    pool_behind(None, slots)
}

fn pool_behind(confine: Option<Arc<dyn Confinement>>, slots: usize) -> IothreadPool {
    let host = ProcessResources { confine, ..process_resources() };
    IothreadPool::new("p", slots, host, PollSettings::OFF).unwrap()
}

fn running(pool: &IothreadPool) -> Vec<usize> {
    pool.running().iter().map(|(slot, _)| *slot).collect()
}

#[test]
fn rings_begin_on_an_iothread_that_runs_and_stays() {
    let pool = pool(3);
    assert_eq!((pool.home().name(), running(&pool)), ("p-0", vec![0]));
    pool.set_home(2).unwrap();
    assert_eq!((pool.home().name(), running(&pool)), ("p-2", vec![0, 2]));
    pool.end(2);
    pool.end(0);
    assert_eq!((pool.home().name(), running(&pool)), ("p-2", vec![2]));
}

#[test]
fn an_iothread_that_somebody_has_does_not_end() {
    let pool = pool(2);
    let placing = pool.home();
    pool.set_home(1).unwrap();
    pool.end(0);
    assert_eq!(running(&pool), [0, 1]);
    drop(placing);
    pool.end(0);
    assert_eq!(running(&pool), [1]);
    // The slot is free for another one.
    pool.start(0).unwrap();
    assert_eq!(running(&pool), [0, 1]);
}

/// A fence in name only.
#[derive(Debug)]
struct Fence;

impl Confinement for Fence {
    fn confine(&self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn behind_fences_none_ends_that_could_not_be_replaced() {
    let pool = pool_behind(Some(Arc::new(Fence)), 3);
    pool.set_home(1).unwrap();
    pool.end(0);
    assert_eq!(running(&pool), [0, 1], "there is no ring for another one");
}
