//! Filters on a node that have no name of their own (QEMU's implicit filters): what records its changes, and what a job
//! has put there.
//!
//! Where it stands: those above the node stand on the uppermost filter of it, whatever they name; the lowest stands on the
//! node. No state file knows of them.
//!
//! Invariants: a node has at most one filter of each kind, the lower kinds below the others. An image that a job writes to while it
//! stands on what the job copies stays below the filters that come meanwhile.

use std::fmt::Debug;
use std::sync::Arc;

use block::{Child, Node};

use super::Graph;
use super::change::{ChangedPlace, GraphChange};
use crate::model::{ModelError, NodeUser};

/// What a filter is for; the first stands below the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FilterKind {
    /// It records what is changed, for dirty bitmaps.
    Recorder,
    /// A job needs it.
    Job,
}

/// A filter on a node.
#[derive(Debug, Clone)]
pub(super) struct ImplicitFilter {
    kind: FilterKind,
    pub(super) node: Arc<dyn Node>,
    below: Arc<Child>,
}

impl ImplicitFilter {
    /// The first one on a node that nobody uses yet.
    pub(super) fn first(
        kind: FilterKind,
        node: &Arc<dyn Node>,
        make: impl FnOnce(Arc<Child>) -> Arc<dyn Node>,
    ) -> Self {
        let below = Child::new(Arc::clone(node));
        Self { kind, node: make(Arc::clone(&below)), below }
    }

    pub(super) fn kind(&self) -> FilterKind {
        self.kind
    }

    /// Puts a node below it.
    pub(super) fn place_below(&self, node: &Arc<dyn Node>) -> ChangedPlace {
        ChangedPlace::Node { child: Arc::clone(&self.below), node: Arc::clone(node) }
    }
}

impl Graph {
    /// Whether a node has a filter of that kind.
    pub fn has_filter(&self, name: &str, kind: FilterKind) -> Result<bool, ModelError> {
        self.model.activity(name)?;
        Ok(self.vertices[name].filters.iter().any(|filter| filter.kind == kind))
    }

    /// The change that puts a filter on a node, which has none of that kind; `make` makes it over what stands below it.
    ///
    /// # Panics
    /// If the node has one of that kind.
    pub fn put_filter(
        &self,
        name: &str,
        kind: FilterKind,
        make: impl FnOnce(Arc<Child>) -> Arc<dyn Node>,
    ) -> Result<GraphChange, ModelError> {
        assert!(!self.has_filter(name, kind)?, "node {name} has a filter {kind:?}");
        let vertex = &self.vertices[name];
        let place = vertex.filters.partition_point(|filter| filter.kind < kind);
        let below = match place.checked_sub(1) {
            Some(lower) => &vertex.filters[lower].node,
            None => &vertex.made.node,
        };
        let below = Child::new(Arc::clone(below));
        let node = make(Arc::clone(&below));
        let mut filters = vertex.filters.clone();
        let places = self.above_filter(name, place, &node);
        filters.insert(place, ImplicitFilter { kind, node, below });
        Ok(self.filter_change(name, filters, places))
    }

    /// The change that takes the filter of that kind from a node.
    ///
    /// # Panics
    /// If the node has none of that kind.
    pub fn take_filter(&self, name: &str, kind: FilterKind) -> Result<GraphChange, ModelError> {
        self.model.activity(name)?;
        let mut filters = self.vertices[name].filters.clone();
        let place = filters.iter().position(|filter| filter.kind == kind);
        let place = place.expect("the filter was put there");
        let gone = filters.remove(place);
        let places = self.above_filter(name, place + 1, &gone.below.node());
        Ok(self.filter_change(name, filters, places))
    }

    /// Puts a node below the filter at that place, or below those above the node if there is no such filter.
    fn above_filter(&self, name: &str, place: usize, node: &Arc<dyn Node>) -> Vec<ChangedPlace> {
        if let Some(above) = self.vertices[name].filters.get(place) {
            return vec![above.place_below(node)];
        }
        // What a filter writes to does not stand on it.
        let users = self.model.users_of(name).into_iter();
        let users = users.filter(|(user, _)| !self.model.is_job_overlay(user));
        let put = |(user, key): (NodeUser, String)| {
            let child = Arc::clone(self.place(&user, &key));
            ChangedPlace::Node { child, node: Arc::clone(node) }
        };
        users.map(put).collect()
    }

    fn filter_change(
        &self,
        name: &str,
        filters: Vec<ImplicitFilter>,
        places: Vec<ChangedPlace>,
    ) -> GraphChange {
        let (model, user) = (self.model.clone(), NodeUser::Node(name.to_owned()));
        GraphChange {
            places,
            exports: model.exports_above(&user),
            jobs: model.jobs_above(&user),
            successions: Vec::new(),
            remade: Vec::new(),
            filtered: vec![(name.to_owned(), filters)],
            is_of_filters: true,
            model,
        }
    }
}
