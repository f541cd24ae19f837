//! The kept inputs, without the engine: what was found once stays fixed in every `cargo test`.

use std::path::Path;

/// Tidy keeps the repository small; a corpus grows by itself.
const CORPUS_BYTES_MAX: u64 = 200 << 10;

/// Runs the target on every file of its corpus.
#[track_caller]
fn check(name: &str, target: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut count = 0;
    for entry in directory.read_dir().expect("every target has a corpus") {
        let path = entry.expect("the directory can be read").path();
        let data = std::fs::read(&path).expect("the file can be read");
        let result = std::panic::catch_unwind(|| target(&data));
        assert!(result.is_ok(), "{} makes {name} panic", path.display());
        count += 1;
    }
    assert!(count > 0, "no input of {name}");
}

#[test]
fn kept_split_rings_do_no_harm() {
    check("split_ring", fuzz::split_ring);
}

#[test]
fn kept_packed_rings_do_no_harm() {
    check("packed_ring", fuzz::packed_ring);
}

#[test]
fn kept_requests_are_decoded_as_the_specification_says() {
    check("blk_decode", fuzz::blk_decode);
}

#[test]
fn kept_sessions_end_with_all_rings_stopped() {
    check("vhost_user_session", fuzz::vhost_user_session);
}

#[test]
fn kept_hand_overs_are_gone_on_with_or_refused() {
    check("takeover_wire", fuzz::takeover_wire);
}

#[test]
fn kept_command_lines_are_understood_or_refused() {
    check("options_keyval", fuzz::options_keyval);
}

#[test]
fn kept_configurations_are_understood_or_refused() {
    check("config_file", fuzz::config_file);
}

#[test]
fn kept_messages_are_understood_or_refused() {
    check("qmp", fuzz::qmp);
}

#[test]
fn kept_headers_are_understood_or_refused() {
    check("qcow2_header", fuzz::qcow2_header);
}

#[test]
fn kept_results_are_rendered_or_refused() {
    check("results_file", fuzz::results_file);
}

#[test]
fn kept_handshakes_are_answered_within_bounds() {
    check("nbd_negotiation", fuzz::nbd_negotiation);
}

#[test]
fn kept_nbd_requests_are_whole_sectors_of_the_disk() {
    check("nbd_transmission", fuzz::nbd_transmission);
}

#[test]
fn the_planted_bug_is_not_in_reach_of_its_first_input() {
    check("must_fail", fuzz::must_fail);
}

#[test]
fn the_corpora_stay_small() {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut bytes = 0;
    for target in all.read_dir().expect("there are corpora") {
        let target = target.expect("the directory can be read").path();
        for file in target.read_dir().expect("a corpus is a directory") {
            bytes += file.and_then(|it| it.metadata()).expect("it can be read").len();
        }
    }
    assert!(bytes <= CORPUS_BYTES_MAX, "{bytes} bytes in fuzz/corpus");
}
