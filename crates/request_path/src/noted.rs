//! Where the data of a ring's reads go, kept until they are answered, for the dirty log.
//!
//! Where it stands in the life of a request: beside it. As long as nothing is logged a ring does not
//! know where the data of a request are: the job has the list. When a log comes, and when the ring
//! leaves an iothread, the ring notes the lists of its open jobs; and as long as buffers are logged,
//! that of each new read.
//!
//! Invariants: while buffers are logged there is a list for each read in flight, wherever it is
//! carried out. Threads: travels with its ring.
//! Limits: a list for each head, of at most as many segments as a chain has; a warm list grows no
//! more.

use block::Segment;
use virtio::{Head, Ring};

/// The lists of one ring.
#[derive(Debug)]
pub(crate) struct Noted {
    /// By head; empty if nothing was noted. Made with the first list.
    lists: Box<[Vec<Segment>]>,
    /// Lists that are not empty.
    open: usize,
    /// Whether new reads are noted.
    logging: bool,
    /// Whether answers must ask here: `logging`, or a list is left. One look for each answer.
    in_use: bool,
}

impl Noted {
    /// Nothing was noted yet; new reads are if buffers are logged.
    pub(crate) fn new(ring: &Ring) -> Self {
        let logging = ring.marks_buffers();
        Self { lists: Box::default(), open: 0, logging, in_use: logging }
    }

    /// Whether new reads are to be noted.
    pub(crate) fn is_logging(&self) -> bool {
        self.logging
    }

    /// Whether answers are to be told ([`Noted::answered`]).
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use
    }

    /// Notes new reads from now on as the ring's log wants it.
    pub(crate) fn follow(&mut self, ring: &Ring) {
        self.logging = ring.marks_buffers();
        self.in_use = self.logging || self.open > 0;
    }

    /// Notes where data of a request go, instead of what was noted of it before.
    pub(crate) fn note(
        &mut self,
        ring: &Ring,
        head: Head,
        segments: impl IntoIterator<Item = Segment>,
    ) {
        if self.lists.is_empty() {
            self.lists = vec![Vec::new(); usize::from(ring.size())].into_boxed_slice();
        }
        let list = &mut self.lists[usize::from(head.0)];
        let was_open = !list.is_empty();
        list.clear();
        list.extend(segments);
        self.open = self.open + usize::from(!list.is_empty()) - usize::from(was_open);
        self.in_use = self.logging || self.open > 0;
    }

    /// Marks what was noted of a request and its status, which is written already, as far as the
    /// ring's log wants it.
    #[cold]
    pub(crate) fn answered(&mut self, ring: &mut Ring, head: Head, status: Segment) {
        if let Some(list) = self.lists.get_mut(usize::from(head.0))
            && !list.is_empty()
        {
            for segment in list.drain(..) {
                ring.mark_buffer(segment);
            }
            self.open -= 1;
            self.in_use = self.logging || self.open > 0;
        }
        ring.mark_buffer(status);
    }
}
