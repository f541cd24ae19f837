//! The target `takeover_wire` under libFuzzer; built otherwise, it replays the files it is given.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::takeover_wire(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    fuzz::replay(fuzz::takeover_wire)
}
