//! What a node of a test says as the node does that it stands in front of.
//!
//! Not here: the same of lanes (`block::pass_on_to`).

/// For a [`block::Node`] that differs from the node in that field in its lanes alone.
#[macro_export]
macro_rules! same_node_as {
    ($below:ident) => {
        fn name(&self) -> &str {
            self.$below.name()
        }

        fn size(&self) -> block::DiskSize {
            self.$below.size()
        }

        fn limits(&self) -> block::BlockLimits {
            self.$below.limits()
        }

        fn access(&self) -> block::Access {
            self.$below.access()
        }

        fn flush(&self) -> std::io::Result<()> {
            self.$below.flush()
        }

        fn claim(&self, rights: block::Rights) -> Result<block::Claim, block::ClaimError> {
            self.$below.claim(rights)
        }
    };
}
