//! librbd, opened at run time: the functions that are used of it, and the types of its C interface.
//!
//! Where it stands: [`crate::cluster`] and [`crate::image`] call what is here, and nobody else does. The daemon is built and
//! runs without Ceph; only who names a node of `driver=rbd` needs the library.
//!
//! Invariants: the types are those of `rbd/librbd.h` and `rados/librados.h`, which are kept compatible under the same
//! soname. The library stays loaded: its threads and its callbacks are in it.

#![expect(unsafe_code, reason = "a C library is opened, and its functions get their types")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use libc::{iovec, size_t, ssize_t, timespec};

/// The name under which the library is looked for; with this soname it has one interface.
const SONAME: &CStr = c"librbd.so.1";

/// `rados_t`: a client of a cluster.
pub(crate) type RadosHandle = *mut c_void;
/// `rados_ioctx_t`: a pool of a cluster.
pub(crate) type IoContext = *mut c_void;
/// `rbd_image_t`: an image that is open.
pub(crate) type ImageHandle = *mut c_void;
/// `rbd_completion_t`: an operation under way.
pub(crate) type Completion = *mut c_void;

/// What is called when an operation is over, on a thread of the library.
pub(crate) type CompletionCallback = unsafe extern "C" fn(Completion, *mut c_void);
/// What is called when the header of an image has changed, on a thread of the library.
pub(crate) type UpdateCallback = unsafe extern "C" fn(*mut c_void);
/// What is called for each extent, on the calling thread.
pub(crate) type ExtentCallback = unsafe extern "C" fn(u64, size_t, c_int, *mut c_void) -> c_int;

/// `RBD_LOCK_MODE_EXCLUSIVE`.
pub(crate) const LOCK_MODE_EXCLUSIVE: c_int = 0;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`: the space stays.
pub(crate) const ZEROES_KEEP_SPACE: c_int = 1;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
pub(crate) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
/// `RBD_FEATURE_FAST_DIFF`.
pub(crate) const FEATURE_FAST_DIFF: u64 = 1 << 4;
/// `RBD_FLAG_OBJECT_MAP_INVALID | RBD_FLAG_FAST_DIFF_INVALID`.
pub(crate) const FLAGS_NO_FAST_DIFF: u64 = 0b11;

/// `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watcher {
    /// The address of the client.
    pub(crate) address: *mut c_char,
    /// Its number.
    pub(crate) id: i64,
    /// Its number for the watch.
    pub(crate) cookie: u64,
}

/// `rbd_snap_info_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshot {
    /// Its number.
    pub(crate) id: u64,
    /// The size of the image then, in bytes.
    pub(crate) size: u64,
    /// Its name; null behind the last one.
    pub(crate) name: *const c_char,
}

/// `rbd_config_option_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConfigOption {
    /// Its name.
    pub(crate) name: *mut c_char,
    /// What holds for the image.
    pub(crate) value: *mut c_char,
    /// Where that comes from.
    pub(crate) source: c_int,
}

/// `rbd_image_info_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ImageInfo {
    /// In bytes.
    pub(crate) size: u64,
    /// The bytes of an object.
    pub(crate) object_bytes: u64,
    object_count: u64,
    order: c_int,
    name_prefix: [u8; 24],
    parent_pool: i64,
    parent_name: NameOfParent,
}

/// `char[RBD_MAX_IMAGE_NAME_SIZE]`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct NameOfParent([u8; 96]);

impl Default for NameOfParent {
    fn default() -> Self {
        Self([0; 96])
    }
}

/// The library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// It is not there.
    #[error("driver=rbd needs librbd (Debian: apt install librbd1): {0}")]
    Open(String),
    /// This program has no dynamic linker.
    #[error(
        "driver=rbd: this ringloom is linked statically and cannot open librbd; use one that is linked dynamically"
    )]
    Static,
    /// It lacks a function.
    #[error("librbd.so.1 is too old: {0}")]
    Function(String),
}

/// Declares the functions, each with the type that its header gives it, and how they are found.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of the library that are used.
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            fn find(library: *mut c_void) -> Result<Self, LibraryError> {
                $(
                    let $name = symbol(library, concat!(stringify!($name), "\0"))?;
                )*
                Ok(Self {
                    $(
                        // SAFETY: the address is that of the function of this name, which has this type in the
                        // library's header, and the library is never unloaded.
                        $name: unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> $result,
                            >($name)
                        },
                    )*
                })
            }
        }
    };
}

functions! {
    rados_create: fn(*mut RadosHandle, *const c_char) -> c_int;
    rados_conf_read_file: fn(RadosHandle, *const c_char) -> c_int;
    rados_conf_set: fn(RadosHandle, *const c_char, *const c_char) -> c_int;
    rados_conf_get: fn(RadosHandle, *const c_char, *mut c_char, size_t) -> c_int;
    rados_connect: fn(RadosHandle) -> c_int;
    rados_shutdown: fn(RadosHandle) -> ();
    rados_ioctx_create: fn(RadosHandle, *const c_char, *mut IoContext) -> c_int;
    rados_ioctx_set_namespace: fn(IoContext, *const c_char) -> ();
    rados_ioctx_destroy: fn(IoContext) -> ();
    rbd_open: fn(IoContext, *const c_char, *mut ImageHandle, *const c_char) -> c_int;
    rbd_open_read_only: fn(IoContext, *const c_char, *mut ImageHandle, *const c_char) -> c_int;
    rbd_close: fn(ImageHandle) -> c_int;
    rbd_stat: fn(ImageHandle, *mut ImageInfo, size_t) -> c_int;
    rbd_get_size: fn(ImageHandle, *mut u64) -> c_int;
    rbd_get_features: fn(ImageHandle, *mut u64) -> c_int;
    rbd_get_flags: fn(ImageHandle, *mut u64) -> c_int;
    rbd_get_overlap: fn(ImageHandle, *mut u64) -> c_int;
    rbd_get_stripe_unit: fn(ImageHandle, *mut u64) -> c_int;
    rbd_config_image_list: fn(ImageHandle, *mut ConfigOption, *mut c_int) -> c_int;
    rbd_config_image_list_cleanup: fn(*mut ConfigOption, c_int) -> ();
    rbd_update_watch: fn(ImageHandle, *mut u64, UpdateCallback, *mut c_void) -> c_int;
    rbd_update_unwatch: fn(ImageHandle, u64) -> c_int;
    rbd_is_exclusive_lock_owner: fn(ImageHandle, *mut c_int) -> c_int;
    rbd_lock_acquire: fn(ImageHandle, c_int) -> c_int;
    rbd_lock_release: fn(ImageHandle) -> c_int;
    rbd_lock_get_owners: fn(ImageHandle, *mut c_int, *mut *mut c_char, *mut size_t) -> c_int;
    rbd_lock_get_owners_cleanup: fn(*mut *mut c_char, size_t) -> ();
    rbd_lock_break: fn(ImageHandle, c_int, *const c_char) -> c_int;
    rbd_watchers_list: fn(ImageHandle, *mut Watcher, *mut size_t) -> c_int;
    rbd_watchers_list_cleanup: fn(*mut Watcher, size_t) -> ();
    rbd_snap_list: fn(ImageHandle, *mut Snapshot, *mut c_int) -> c_int;
    rbd_snap_list_end: fn(*mut Snapshot) -> ();
    rbd_snap_get_timestamp: fn(ImageHandle, u64, *mut timespec) -> c_int;
    rbd_snap_create: fn(ImageHandle, *const c_char) -> c_int;
    rbd_snap_remove: fn(ImageHandle, *const c_char) -> c_int;
    rbd_diff_iterate2: fn(
        ImageHandle, *const c_char, u64, u64, u8, u8, ExtentCallback, *mut c_void
    ) -> c_int;
    rbd_aio_create_completion: fn(*mut c_void, CompletionCallback, *mut Completion) -> c_int;
    rbd_aio_get_return_value: fn(Completion) -> ssize_t;
    rbd_aio_release: fn(Completion) -> ();
    rbd_aio_readv: fn(ImageHandle, *const iovec, c_int, u64, Completion) -> c_int;
    rbd_aio_writev: fn(ImageHandle, *const iovec, c_int, u64, Completion) -> c_int;
    rbd_aio_discard: fn(ImageHandle, u64, u64, Completion) -> c_int;
    rbd_aio_write_zeroes: fn(ImageHandle, u64, size_t, Completion, c_int, c_int) -> c_int;
    rbd_flush: fn(ImageHandle) -> c_int;
    rbd_aio_flush: fn(ImageHandle, Completion) -> c_int;
}

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("librbd")
    }
}

impl Functions {
    /// The library, which is opened the first time. Blocks. It starts no thread and connects to nothing.
    pub(crate) fn load() -> Result<&'static Self, LibraryError> {
        if cfg!(target_feature = "crt-static") {
            // What a static program opens brings a second C library along, which is not ready for use.
            return Err(LibraryError::Static);
        }
        static LIBRARY: OnceLock<Functions> = OnceLock::new();
        if let Some(library) = LIBRARY.get() {
            return Ok(library);
        }
        // SAFETY: the name is a C string. What the library does when it is loaded makes objects of its own and touches
        // nothing of this process.
        let library = unsafe { libc::dlopen(SONAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(LibraryError::Open(last_error()));
        }
        let found = Self::find(library)?;
        Ok(LIBRARY.get_or_init(|| found))
    }
}

/// The address of a function; its name ends with a zero.
fn symbol(library: *mut c_void, name: &str) -> Result<*mut c_void, LibraryError> {
    let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("it ends with its only zero");
    // SAFETY: the library is open and stays so, and the name is a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        return Err(LibraryError::Function(last_error()));
    }
    Ok(found)
}

/// What the linker says of the last failure on this thread.
fn last_error() -> String {
    // SAFETY: it takes nothing and returns a C string of this thread, or null.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the dynamic linker says nothing".to_owned();
    }
    // SAFETY: what is not null is a C string that stays until the next call on this thread; it is copied here.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
