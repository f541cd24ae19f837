//! A mistake on purpose, which a test must find.

use control::DaemonState;

/// What must never happen: with `RINGLOOM_FAULT=WrittenTooEarly:1` this process changes the images that another one
/// owns, and ends. A test must find that.
pub(super) fn write_too_early(built: &DaemonState) {
    if std::env::var("RINGLOOM_FAULT").is_ok_and(|fault| fault == "WrittenTooEarly:1") {
        // Direct I/O wants its memory aligned.
        let room = vec![0xcd_u8; 8192];
        let start = room.as_ptr().align_offset(4096);
        for file in built.files().all() {
            for place in (0..file.bytes()).step_by(4096) {
                rustix::io::pwrite(&*file, &room[start..start + 4096], place)
                    .expect("a test's image can be written");
            }
        }
        panic!("as it was asked to");
    }
}
