//! Images on block devices, and in the hands of several daemons in turn.

use testkit::loop_device::LoopDevice;
use testkit::rawring::{BlockRequest, Form, RawDevice, RawShape, kind};
use testkit::report::skipped;

use super::*;

#[test]
fn an_image_lies_directly_on_a_block_device() {
    if let Some(reason) = LoopDevice::missing() {
        return skipped(reason);
    }
    with(&ringloom(), |program| {
        for (block, direct, seed) in [(512, "on", 0x300), (4096, "on", 0x310), (512, "off", 0x320)]
        {
            let bench = Bench::new()?;
            testkit::image::create_sparse(&bench.path("device"), 64 << 20)?;
            let device = LoopDevice::attach(&bench.path("device"), block)?;
            let path = device.path().display();
            qemu_img(&bench, &format!("create -q -f qcow2 {path} 24M"))?;
            let node = format!(
                "file.driver=host_device,file.filename={path},cache.direct={direct},discard=unmap"
            );
            let mut model = DiskModel::new(vec![0; 24 * MIB]);
            let server = serve(program, &bench, &node, "on")?;
            work(&bench, &mut model, &plan(seed, 3000)).with_context(|| server.log())?;
            stop(server, &[&bench.path("s")])?;
            check_image(&bench, &path.to_string(), &model)
                .with_context(|| format!("blocks of {block}, direct {direct}"))?;
        }
        Ok(())
    });
}

/// Writes a sector of this byte far into the disk, where nothing has been.
fn write(device: &mut RawDevice, sector: u64, stamp: u8) -> Result<()> {
    device.put(8192, &[stamp; 512]);
    let data = vec![device.data(8192, 512, 0)];
    let request = BlockRequest { kind: kind::OUT, sector, data, form: Form::Direct };
    let outcome = device.request(0, &request)?;
    ensure!(outcome.is_ok(), "the write ended with {outcome:?}");
    Ok(())
}

/// An inactive image is everybody's while no queue runs: what others do to it meanwhile counts.
#[test]
fn an_inactive_image_is_read_anew_each_time() {
    with(&ringloom(), |program| {
        for direct in ["on", "off"] {
            let bench = Bench::new()?;
            qemu_img(&bench, "create -q -f qcow2 d.qcow2 24M")?;
            let node = format!(
                "active=off,file.driver=file,file.filename=d.qcow2,cache.direct={direct},discard=unmap"
            );
            let server = serve(program, &bench, &node, "on")?;
            let mut expected = vec![0; 24 * MIB];
            let shape = RawShape { queues: 1, ..RawShape::default() };
            let mut device = RawDevice::connect(&bench.path("s"), shape)?;
            for round in 1..6_u8 {
                let (ours, theirs) = (2 * usize::from(round), 2 * usize::from(round) + 1);
                write(&mut device, (ours * MIB / 512) as u64, round)?;
                expected[ours * MIB..][..512].fill(round);
                let words = ["-f", "qcow2", "-c", "write 0 4k", "d.qcow2"];
                let refused = qemu_io(&bench, &words).err().context("two write")?;
                ensure!(format!("{refused:#}").contains("lock"), "{refused:#}");
                let base = device.stop_ring(0)?;
                qemu_img(&bench, "check -q -f qcow2 d.qcow2")?;
                let command = format!("write -P {} {theirs}M 100k", round + 100);
                qemu_io(&bench, &["-f", "qcow2", "-c", &command, "d.qcow2"])?;
                expected[theirs * MIB..][..100 << 10].fill(round + 100);
                device.start_ring(0, base)?;
            }
            drop(device);
            let mut client = Client::connect(&bench.path("s"), Shape::small())?;
            let model = DiskModel::new(expected);
            model::verify_through(&mut client, &model).with_context(|| server.log())?;
            drop(client);
            stop(server, &[&bench.path("s")])?;
            check_image(&bench, "d.qcow2", &model)?;
        }
        Ok(())
    });
}
