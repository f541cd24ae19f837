//! A client of a cluster, and a pool of it.
//!
//! Where it stands: made when a node is opened, from its options and the configuration file; an image is opened in the pool.
//!
//! Invariants: a pool keeps its client, and an image its pool, so what the library gave is given back in order. Threads:
//! any; the library starts its own when it connects, from the thread that asks for it.

#![expect(unsafe_code, reason = "functions of a C library are called")]

use std::ffi::{CString, c_char};
use std::ptr;

use rustix::io::Errno;

use crate::library::{Functions, IoContext, RadosHandle};

/// The longest value of an option that is read.
const VALUE_BYTES_MAX: usize = 1 << 16;

/// A function of the library has failed.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("{call}: {errno}")]
pub struct CallError {
    /// Which.
    pub call: &'static str,
    /// What it said.
    pub errno: Errno,
}

/// What a function has returned: a negative errno, or a result.
pub(crate) fn checked(call: &'static str, returned: i32) -> Result<i32, CallError> {
    if returned < 0 {
        return Err(CallError { call, errno: Errno::from_raw_os_error(returned.saturating_neg()) });
    }
    Ok(returned)
}

/// A text as C has it. One with a zero inside is no name that the cluster could know.
pub(crate) fn text(call: &'static str, text: &str) -> Result<CString, CallError> {
    CString::new(text).map_err(|_zero_inside| CallError { call, errno: Errno::INVAL })
}

/// A client of a cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) functions: &'static Functions,
    handle: RadosHandle,
}

// SAFETY: librados lets its handles be used by any thread.
unsafe impl Send for Cluster {}
// SAFETY: the same, by several at a time.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// A client of that name (`client.NAME`) that knows nothing of its cluster yet. Starts no thread.
    pub(crate) fn new(functions: &'static Functions, user: &str) -> Result<Self, CallError> {
        const CALL: &str = "rados_create";
        let user = text(CALL, user)?;
        let mut handle = ptr::null_mut();
        // SAFETY: the handle is written before the call returns, and the name is a C string that is copied.
        checked(CALL, unsafe { (functions.rados_create)(&raw mut handle, user.as_ptr()) })?;
        Ok(Self { functions, handle })
    }

    /// Reads a configuration file, or those of the usual places if none is named. Blocks.
    pub(crate) fn read_file(&self, path: Option<&str>) -> Result<(), CallError> {
        const CALL: &str = "rados_conf_read_file";
        let path = path.map(|path| text(CALL, path)).transpose()?;
        let path = path.as_ref().map_or(ptr::null(), |path| path.as_ptr());
        // SAFETY: the handle is open; the path is a C string or null, as the call allows.
        checked(CALL, unsafe { (self.functions.rados_conf_read_file)(self.handle, path) }).map(drop)
    }

    /// Sets an option, before it is connected.
    pub(crate) fn set(&self, option: &str, value: &str) -> Result<(), CallError> {
        const CALL: &str = "rados_conf_set";
        let (option, value) = (text(CALL, option)?, text(CALL, value)?);
        let (functions, handle) = (self.functions, self.handle);
        // SAFETY: the handle is open, and both texts are C strings that are copied.
        let set = unsafe { (functions.rados_conf_set)(handle, option.as_ptr(), value.as_ptr()) };
        checked(CALL, set).map(drop)
    }

    /// The value of an option.
    pub(crate) fn get(&self, option: &str) -> Result<String, CallError> {
        const CALL: &str = "rados_conf_get";
        let option = text(CALL, option)?;
        let mut room = vec![0_u8; VALUE_BYTES_MAX];
        let (functions, handle) = (self.functions, self.handle);
        let (name, start) = (option.as_ptr(), room.as_mut_ptr().cast::<c_char>());
        // SAFETY: the handle is open, the name is a C string, and no more is written than there is room for.
        checked(CALL, unsafe { (functions.rados_conf_get)(handle, name, start, room.len()) })?;
        let count = room.iter().position(|byte| *byte == 0).unwrap_or(room.len());
        Ok(String::from_utf8_lossy(&room[..count]).into_owned())
    }

    /// Connects to the monitors. Blocks for `client_mount_timeout` at most.
    pub(crate) fn connect(&self) -> Result<(), CallError> {
        // SAFETY: the handle is open and was not connected before.
        let connected = unsafe { (self.functions.rados_connect)(self.handle) };
        checked("rados_connect", connected).map(drop)
    }

    /// A pool of the cluster that it is connected to. Blocks.
    pub(crate) fn into_pool(self, name: &str, namespace: &str) -> Result<Pool, CallError> {
        const CALL: &str = "rados_ioctx_create";
        let (name, namespace) = (text(CALL, name)?, text(CALL, namespace)?);
        let mut context = ptr::null_mut();
        let (functions, handle) = (self.functions, self.handle);
        // SAFETY: the handle is connected, the name is a C string, and the context is written before the call returns.
        let made =
            unsafe { (functions.rados_ioctx_create)(handle, name.as_ptr(), &raw mut context) };
        checked(CALL, made)?;
        // SAFETY: the context was made just now, and the name is a C string that is copied.
        unsafe { (functions.rados_ioctx_set_namespace)(context, namespace.as_ptr()) };
        Ok(Pool { context, cluster: self })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: nothing that was made of the handle is left: a pool has it as a field, and goes first.
        unsafe { (self.functions.rados_shutdown)(self.handle) };
    }
}

/// A pool of a cluster, or a name space of it.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) context: IoContext,
    pub(crate) cluster: Cluster,
}

// SAFETY: librados lets its handles be used by any thread.
unsafe impl Send for Pool {}
// SAFETY: the same, by several at a time.
unsafe impl Sync for Pool {}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: nothing that was made of the context is left: an image has it as a field, and is closed first.
        unsafe { (self.cluster.functions.rados_ioctx_destroy)(self.context) };
    }
}
