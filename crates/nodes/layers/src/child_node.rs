//! What a node with one child says as its child does.

/// For the [`block::Node`] of a layer that leaves size and limits as they are: all but its claims and lanes. Its fields are
/// `name`, `child` and `access`.
macro_rules! same_as_child {
    () => {
        fn name(&self) -> &str {
            &self.name
        }

        fn image_file(&self) -> Option<std::path::PathBuf> {
            self.child.node().image_file()
        }

        fn size(&self) -> block::DiskSize {
            self.child.node().size()
        }

        fn limits(&self) -> block::BlockLimits {
            self.child.node().limits()
        }

        fn access(&self) -> block::Access {
            self.access
        }

        fn flush(&self) -> std::io::Result<()> {
            self.child.node().flush()
        }

        fn resize(&self, size: block::DiskSize) -> Result<(), block::ResizeError> {
            match self.access {
                block::Access::ReadOnly => {
                    Err(block::ResizeError::refused(self, "Image is read-only"))
                }
                block::Access::ReadWrite => self.child.node().resize(size),
            }
        }
    };
}

pub(crate) use same_as_child;
