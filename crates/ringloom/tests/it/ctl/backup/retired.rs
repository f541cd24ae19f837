//! `--keep N`: older backups are merged and removed, and those that stay have the bytes that they had.

use std::collections::BTreeMap;

use super::*;

/// What qemu-img finds in each file.
fn contents(place: &Place) -> Result<BTreeMap<String, Vec<u8>>> {
    let all = place.list()?;
    all.iter().map(|it| Ok((file(it)?, bytes_of(&place.bench, &file(it)?)?))).collect()
}

fn kept() -> Result<()> {
    let place = Place::new()?;
    let mut expected: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for round in 1..=9 {
        // Over what was written before, beside it, and zeroes.
        place.write("b", round % 3 * 65536, round)?;
        place.write("b", (round + 3) * 65536, round)?;
        place.write("b", (round + 2) * 65536, 0)?;
        let full = if round == 6 { " --full" } else { "" };
        let made = place.backup_json(&format!("b --keep 3{full}"))?;
        let now = contents(&place)?;
        ensure!(now.len() == usize::try_from(round.min(3))?, "round {round}: {:?}", now.keys());
        for (name, bytes) in &now {
            let before = expected.entry(name.clone()).or_insert_with(|| bytes.clone());
            ensure!(before == bytes, "round {round}: {name} has other bytes than before");
        }
        ensure!(now.contains_key(&file(&made)?), "round {round}: the newest is gone");
        ensure!(place.list()?[0]["kind"] == "full", "round {round}");
    }
    let text = place.backup("b --keep 1")?;
    ensure!(text.ends_with("--keep: 3 older merged or removed\n"), "{text}");
    ensure!(contents(&place)?.len() == 1, "{:?}", files(&place.bench)?);
    // The next one stands on what was merged.
    place.write("b", 0, 77)?;
    let made = place.backup_json("b")?;
    ensure!(made["kind"] == "incremental", "{made}");
    place.check_clean()?;
    let (last, bench) = (file(&made)?, place.bench);
    stop(place.server, &[])?;
    qemu_img(&bench, &format!("compare -q -f qcow2 -F qcow2 b.img {last}"))?;
    let left: Vec<String> =
        files(&bench)?.into_iter().filter(|name| name.starts_with('.')).collect();
    ensure!(left == [".b.lock"], "{left:?}");
    Ok(())
}

#[test]
fn older_backups_go_and_the_others_stay_as_they_are() {
    kept().unwrap_or_else(|error| panic!("{error:#}"));
}
