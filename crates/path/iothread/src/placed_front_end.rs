//! A front end on an iothread, as its owner sees it, who knows its type and gets it back.
//!
//! Invariants: what stands behind `dyn Source` is the `FrontEndSource<F>` that was placed.
//! Threads: any control thread; never an iothread, since the methods may wait for one.

use std::any::Any;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use block::LaneError;
use request_path::{Engine, FrontEnd, FrontEndContext, FrontEndSource, Source};

use crate::command::{Closure, PostKind, SourceClosure};
use crate::placed_source::prepare;
use crate::{Iothread, PlacedSource, SourceName, SourceObserver, SourceStopped};

/// A source could not be placed on an iothread; it is handed back.
#[derive(Debug, thiserror::Error)]
#[error("iothread {iothread} cannot serve it")]
pub struct PlacementError<F: FrontEnd> {
    /// Where it should have gone.
    pub iothread: String,
    /// The source.
    pub rejected: Box<FrontEndSource<F>>,
    /// Why.
    #[source]
    pub source: LaneError,
}

/// A front end on an iothread, as its owner sees it: run closures on it, get it back. Others may have the
/// [`PlacedSource`] as well.
#[derive(Debug)]
pub struct PlacedFrontEnd<F> {
    placed: Arc<PlacedSource>,
    front: PhantomData<fn() -> F>,
}

impl<F> Deref for PlacedFrontEnd<F> {
    type Target = Arc<PlacedSource>;

    fn deref(&self) -> &Arc<PlacedSource> {
        &self.placed
    }
}

impl<F: FrontEnd> PlacedFrontEnd<F> {
    /// Has an iothread serve the source.
    pub fn on(
        iothread: &Arc<Iothread>,
        name: SourceName,
        source: FrontEndSource<F>,
        observer: Arc<dyn SourceObserver>,
    ) -> Result<Self, PlacementError<F>> {
        let source = Box::new(source);
        let lanes = match prepare(iothread.inbox(), source.nodes()) {
            Ok(lanes) => lanes,
            Err(error) => {
                let iothread = iothread.name().to_owned();
                return Err(PlacementError { iothread, rejected: source, source: error });
            }
        };
        let gauges = source.gauges();
        let placed = PlacedSource::arrive(iothread, name, source, gauges, (lanes, observer));
        Ok(Self { placed, front: PhantomData })
    }

    /// Has the front end do something on its iothread, where what is finished was published before, and waits for the
    /// answer. No request waits for it.
    pub fn visit<R: Send + 'static>(
        &self,
        visit: impl FnOnce(&mut F, &mut FrontEndContext<'_>) -> R + Send + 'static,
    ) -> Result<R, SourceStopped> {
        self.placed.visit(|reply| {
            closure(move |front, port| {
                reply.send(visit(front, port)).expect("whoever asks waits for the answer");
            })
        })
    }

    /// The same without an answer. Does not wait, and takes the place of what this closure of the caller's code has
    /// posted before and was not done yet. On a source that was stopped nothing is done.
    pub fn post(&self, visit: impl FnOnce(&mut F, &mut FrontEndContext<'_>) + Send + 'static) {
        self.placed.post(PostKind::of(&visit), closure(visit));
    }

    /// Stops the source as [`PlacedSource::stop`] does, if nobody has, and gives it back.
    pub fn stop(self) -> Box<FrontEndSource<F>> {
        let source: Box<dyn Any> = self.placed.take();
        source.downcast().expect("the source that was placed")
    }
}

/// Has a front end of that type do something.
fn closure<F: FrontEnd>(
    visit: impl FnOnce(&mut F, &mut FrontEndContext<'_>) + Send + 'static,
) -> SourceClosure {
    Closure(Box::new(move |source: &mut (dyn Source + 'static), engine: &mut Engine| {
        let source: &mut dyn Any = source;
        let served: &mut FrontEndSource<F> =
            source.downcast_mut().expect("the source that was placed");
        served.visit(engine, visit);
    }))
}
