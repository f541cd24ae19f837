//! The table of drivers.

use syntax::{ArgumentError, OptionFields};

use super::driver::Driver;
use super::{
    copy_before_write, copy_on_read, delay, file, nbd, null, qcow2, raw, rbd, snapshot_access,
    stripe, throttle,
};

/// The drivers, in the order in which messages name them and the help shows them.
pub const DRIVERS: &[&Driver] = &[
    &file::FILE,
    &file::HOST_DEVICE,
    &raw::RAW,
    &qcow2::QCOW2,
    &null::NULL_CO,
    &null::NULL_AIO,
    &nbd::NBD,
    &rbd::RBD,
    &throttle::THROTTLE,
    &delay::DELAY,
    &stripe::STRIPE,
    &copy_on_read::COPY_ON_READ,
    &copy_before_write::COPY_BEFORE_WRITE,
    &snapshot_access::SNAPSHOT_ACCESS,
];

/// The drivers of qemu-storage-daemon. One that is not in [`DRIVERS`] is not there yet.
const OF_QEMU: &str = "blkdebug blklogwrites blkreplay blkverify bochs cloop compress copy-before-write \
    copy-on-read dmg file ftp ftps gluster host_cdrom host_device http https io_uring iscsi \
    luks nbd nfs null-aio null-co nvme nvme-io_uring parallels preallocate qcow qcow2 qed \
    quorum raw rbd replication snapshot-access ssh throttle vdi vhdx virtio-blk-vfio-pci \
    virtio-blk-vhost-user virtio-blk-vhost-vdpa vmdk vpc vvfat";

/// The driver of that name. What is not there yet and what nobody knows are told apart.
pub(super) fn find(fields: &OptionFields, name: String) -> Result<&'static Driver, ArgumentError> {
    if let Some(driver) = DRIVERS.iter().find(|driver| driver.name == name) {
        return Ok(driver);
    }
    let accepted: Vec<&str> = DRIVERS.iter().map(|driver| driver.name).collect();
    if OF_QEMU.split(' ').any(|known| known == name) {
        return Err(ArgumentError::ValueNotYet {
            key: fields.path("driver"),
            value: name,
            accepted,
        });
    }
    Err(fields.unknown_value("driver", name, &accepted))
}

/// The formats that an image can be said to have.
pub fn image_formats() -> impl Iterator<Item = &'static Driver> {
    DRIVERS.iter().copied().filter(|driver| driver.as_format.is_some())
}

/// The format of that name.
pub fn image_format(name: &str) -> Option<&'static Driver> {
    image_formats().find(|driver| driver.name == name)
}
