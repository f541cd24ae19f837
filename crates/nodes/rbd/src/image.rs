//! An image that is open: what it is, its lock, its changes of size, and operations on it.
//!
//! Where it stands in the life of a request: at its end. A channel hands an operation over as a [`Request`]; the library
//! calls back when it is over, on a thread of its own, and the request goes into the queue of the channel.
//!
//! Invariants: a request belongs to the library from [`Image::begin`] until it is in its queue, with the list of its memory;
//! the memory itself is there as long as the contract of [`block::Channel`] says. The image is closed when nobody has it.
//! Threads: any. All but [`Image::begin`] may block, for as long as the cluster does not answer.

#![expect(unsafe_code, reason = "functions of a C library are called, and call back")]

mod lock;
mod snapshots;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::{ControlFlow, Range};
use std::ptr;
use std::sync::Arc;

use block::Access;
use rustix::io::Errno;

use crate::cluster::{CallError, Pool, checked, text};
use crate::header_watch::UpdateSignal;
use crate::library::{Completion, ConfigOption, Functions, ImageHandle, ImageInfo};
use crate::library::{FEATURE_EXCLUSIVE_LOCK, FEATURE_FAST_DIFF, FLAGS_NO_FAST_DIFF};
use crate::request::{LibraryCall, Request};

/// The most options of an image that are looked at. Ceph 16 has 77.
const OPTIONS_MAX: usize = 1024;

/// An image of a pool.
#[derive(Debug)]
pub(crate) struct Image {
    handle: ImageHandle,
    /// The number of the watch for changes, and who is told.
    watch: Option<(u64, *const UpdateSignal)>,
    pool: Pool,
}

// SAFETY: librbd lets its handles be used by any thread; the signal of the watch may be used by any as well.
unsafe impl Send for Image {}
// SAFETY: the same, by several at a time.
unsafe impl Sync for Image {}

impl Image {
    /// Opens an image, or a snapshot of it. Blocks.
    pub(crate) fn open(
        pool: Pool,
        name: &str,
        snapshot: Option<&str>,
        access: Access,
    ) -> Result<Self, CallError> {
        let functions = pool.cluster.functions;
        let (call, open) = match access {
            Access::ReadWrite => ("rbd_open", functions.rbd_open),
            Access::ReadOnly => ("rbd_open_read_only", functions.rbd_open_read_only),
        };
        let name = text(call, name)?;
        let snapshot = snapshot.map(|snapshot| text(call, snapshot)).transpose()?;
        let snapshot = snapshot.as_ref().map_or(ptr::null(), |it| it.as_ptr());
        let mut handle = ptr::null_mut();
        // SAFETY: the pool is open, the names are C strings, or null for no snapshot, and the handle is written before the
        // call returns.
        let opened = unsafe { open(pool.context, name.as_ptr(), &raw mut handle, snapshot) };
        checked(call, opened)?;
        Ok(Self { handle, watch: None, pool })
    }

    fn functions(&self) -> &'static Functions {
        self.pool.cluster.functions
    }

    /// What it is. Blocks.
    pub(crate) fn info(&self) -> Result<ImageInfo, CallError> {
        let mut info = ImageInfo::default();
        let bytes = size_of::<ImageInfo>();
        // SAFETY: the image is open, and no more is written than that many bytes.
        let told = unsafe { (self.functions().rbd_stat)(self.handle, &raw mut info, bytes) };
        checked("rbd_stat", told)?;
        Ok(info)
    }

    /// A number of the image.
    fn number(
        &self,
        call: &'static str,
        ask: unsafe extern "C" fn(ImageHandle, *mut u64) -> c_int,
    ) -> Result<u64, CallError> {
        let mut number = 0;
        // SAFETY: the image is open; all functions of this type write the number before they return.
        checked(call, unsafe { ask(self.handle, &raw mut number) })?;
        Ok(number)
    }

    /// How large it is now. Blocks.
    pub(crate) fn size(&self) -> Result<u64, CallError> {
        self.number("rbd_get_size", self.functions().rbd_get_size)
    }

    /// Whether it has the exclusive lock as a feature. Blocks.
    pub(crate) fn can_be_locked(&self) -> Result<bool, CallError> {
        let features = self.number("rbd_get_features", self.functions().rbd_get_features)?;
        Ok(features & FEATURE_EXCLUSIVE_LOCK != 0)
    }

    /// Whether it is known which of its objects there are, and they are bytes of its own that follow each other. Blocks.
    pub(crate) fn knows_its_objects(&self, object_bytes: u64) -> Result<bool, CallError> {
        let functions = self.functions();
        let features = self.number("rbd_get_features", functions.rbd_get_features)?;
        let flags = self.number("rbd_get_flags", functions.rbd_get_flags)?;
        let stripe = self.number("rbd_get_stripe_unit", functions.rbd_get_stripe_unit)?;
        let overlap = self.number("rbd_get_overlap", functions.rbd_get_overlap)?;
        let is_valid = features & FEATURE_FAST_DIFF != 0 && flags & FLAGS_NO_FAST_DIFF == 0;
        Ok(is_valid && stripe == object_bytes && overlap == 0)
    }

    /// The options that hold for the image, whether they come from the client, the pool or the image. Blocks.
    pub(crate) fn options(&self) -> Result<Vec<(String, String)>, CallError> {
        let nothing = ConfigOption { name: ptr::null_mut(), value: ptr::null_mut(), source: 0 };
        let mut options = vec![nothing; OPTIONS_MAX];
        let mut count = c_int::try_from(OPTIONS_MAX).expect("a small number");
        let (functions, start) = (self.functions(), options.as_mut_ptr());
        // SAFETY: the image is open, and no more is written than the count says.
        let told = unsafe { (functions.rbd_config_image_list)(self.handle, start, &raw mut count) };
        checked("rbd_config_image_list", told)?;
        let found = usize::try_from(count).unwrap_or(0).min(OPTIONS_MAX);
        let read = |option: &ConfigOption| (copied(option.name), copied(option.value));
        let texts = options[..found].iter().map(read).collect();
        // SAFETY: these were written by the call, and their texts are copied.
        unsafe { (functions.rbd_config_image_list_cleanup)(start, count) };
        Ok(texts)
    }

    /// Makes durable what was answered. Blocks.
    pub(crate) fn flush(&self) -> Result<(), CallError> {
        // SAFETY: the image is open.
        checked("rbd_flush", unsafe { (self.functions().rbd_flush)(self.handle) }).map(drop)
    }

    /// Has the signal given when the header of the image changes. Once.
    pub(crate) fn watch(&mut self, signal: Arc<UpdateSignal>) -> Result<(), CallError> {
        assert!(self.watch.is_none(), "an image is watched once");
        let signal = Arc::into_raw(signal);
        let mut number = 0;
        let (functions, argument) = (self.functions(), signal.cast_mut().cast());
        // SAFETY: the image is open, and the signal stays until the watch has ended.
        let watched = unsafe {
            (functions.rbd_update_watch)(self.handle, &raw mut number, changed, argument)
        };
        // On a failure the signal is told of nothing, and leaked.
        checked("rbd_update_watch", watched)?;
        self.watch = Some((number, signal));
        Ok(())
    }

    /// Tells of the extents in the range where there are objects, in order, until it is told to stop. Blocks.
    pub(crate) fn for_each_object(
        &self,
        range: Range<u64>,
        mut tell: impl FnMut(Range<u64>) -> ControlFlow<()>,
    ) -> Result<(), CallError> {
        let mut tell: &mut dyn FnMut(Range<u64>) -> ControlFlow<()> = &mut tell;
        let (start, count) = (range.start, range.end - range.start);
        let (functions, argument) = (self.functions(), (&raw mut tell).cast());
        // SAFETY: the image is open. No snapshot is named; the callback is called on this thread with the argument, which
        // lives as long as the call.
        let told = unsafe {
            (functions.rbd_diff_iterate2)(
                self.handle,
                ptr::null(),
                start,
                count,
                1,
                1,
                extent,
                argument,
            )
        };
        match checked("rbd_diff_iterate2", told) {
            Err(CallError { errno: STOPPED, .. }) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Begins an operation; its request is in its queue when it is over. Does not wait. What could not be begun is handed
    /// back.
    pub(crate) fn begin(&self, request: Box<Request>) -> Result<(), (Box<Request>, Errno)> {
        let functions = self.functions();
        let (call, list) = (request.call(), request.list());
        let argument: *mut Request = Box::into_raw(request);
        let mut completion = ptr::null_mut();
        // SAFETY: the completion is written before the call returns. Its argument is a request that nobody else has, until
        // the callback takes it back.
        let made = unsafe {
            (functions.rbd_aio_create_completion)(argument.cast(), over, &raw mut completion)
        };
        if made < 0 {
            // SAFETY: no callback will take it.
            let request = unsafe { Box::from_raw(argument) };
            return Err((request, Errno::from_raw_os_error(-made)));
        }
        let (image, (vectors, count)) = (self.handle, list);
        let begun = match call {
            // SAFETY: the image is open. The list is in the request, which stays until the callback, and so does the
            // memory that it names, by the contract of `Channel::begin`.
            LibraryCall::Read { offset } => unsafe {
                (functions.rbd_aio_readv)(image, vectors, count, offset, completion)
            },
            // SAFETY: the same.
            LibraryCall::Write { offset } => unsafe {
                (functions.rbd_aio_writev)(image, vectors, count, offset, completion)
            },
            // SAFETY: the image is open, and nothing but numbers is handed over.
            LibraryCall::Discard { offset, count } => unsafe {
                (functions.rbd_aio_discard)(image, offset, count, completion)
            },
            // SAFETY: the same.
            LibraryCall::Zeroes { offset, count, flags } => unsafe {
                (functions.rbd_aio_write_zeroes)(image, offset, count, completion, flags, 0)
            },
            // SAFETY: the same.
            LibraryCall::Flush => unsafe { (functions.rbd_aio_flush)(image, completion) },
        };
        if begun < 0 {
            // SAFETY: what was not begun is not called back for, so the completion and the request are still ours.
            unsafe { (functions.rbd_aio_release)(completion) };
            // SAFETY: the same.
            let request = unsafe { Box::from_raw(argument) };
            return Err((request, Errno::from_raw_os_error(-begun)));
        }
        Ok(())
    }
}

impl Drop for Image {
    /// Blocks. What was under way has ended.
    fn drop(&mut self) {
        let functions = self.functions();
        if let Some((number, signal)) = self.watch.take() {
            // SAFETY: the image is open, and the number is that of its watch; after it no callback comes.
            let ended = unsafe { (functions.rbd_update_unwatch)(self.handle, number) };
            if ended >= 0 {
                // SAFETY: it came from `Arc::into_raw`, and the watch that had it has ended.
                drop(unsafe { Arc::from_raw(signal) });
            }
        }
        // SAFETY: nobody has the image any more. The pool is closed after it.
        let closed = unsafe { (functions.rbd_close)(self.handle) };
        if let Err(error) = checked("rbd_close", closed) {
            tracing::warn!("an image of a Ceph cluster was not closed in order: {error}");
        }
    }
}

/// What stops [`Image::for_each_object`] before its end; the library returns what its callback does.
const STOPPED: Errno = Errno::CANCELED;

/// Takes one extent of [`Image::for_each_object`].
unsafe extern "C" fn extent(
    offset: u64,
    count: usize,
    exists: c_int,
    argument: *mut c_void,
) -> c_int {
    let tell = argument.cast::<&mut dyn FnMut(Range<u64>) -> ControlFlow<()>>();
    // SAFETY: `for_each_object` has handed it over, on this thread, and waits for the end of the call.
    let tell = unsafe { &mut *tell };
    if exists == 0 {
        return 0;
    }
    match tell(offset..offset.saturating_add(count as u64)) {
        ControlFlow::Continue(()) => 0,
        ControlFlow::Break(()) => -STOPPED.raw_os_error(),
    }
}

/// An operation is over: takes its request back, and leaves it in its queue.
unsafe extern "C" fn over(completion: Completion, argument: *mut c_void) {
    // SAFETY: `Image::begin` has handed it over for this call, which is made once.
    let request = unsafe { Box::from_raw(argument.cast::<Request>()) };
    let functions = Functions::load().expect("it is loaded: it calls back");
    // SAFETY: the completion is that of this call, and over.
    let returned = unsafe { (functions.rbd_aio_get_return_value)(completion) };
    // SAFETY: the same; nobody uses it any more.
    unsafe { (functions.rbd_aio_release)(completion) };
    let result = u64::try_from(returned).map_err(|_negative| {
        let errno = i32::try_from(returned.saturating_neg()).unwrap_or(libc::EIO);
        Errno::from_raw_os_error(errno)
    });
    request.end(result);
}

/// The header of an image has changed.
unsafe extern "C" fn changed(argument: *mut c_void) {
    // SAFETY: `Image::watch` keeps it until the watch has ended, after which this is not called.
    let signal = unsafe { &*argument.cast::<UpdateSignal>() };
    signal.changed();
}

/// A text of the library.
fn copied(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: what the library writes and is not null is a C string, which its caller frees after this.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
