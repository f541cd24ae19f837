//! Guest memory that changes under rings.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};

use virtio::GuestMemory;

use crate::front_end::{
    ADD_MEM_REG, FrontEnd, HIGH, LOW, Place, REM_MEM_REG, SET_MEM_TABLE, memfd, state, words,
};
use crate::mock::Asked;

fn memory(front_end: &FrontEnd, queue: u16) -> Weak<GuestMemory> {
    Arc::downgrade(&front_end.mock.record().served[&queue].memory)
}

#[test]
fn rings_stop_before_the_memory_changes_and_go_on_after() {
    let mut front_end = FrontEnd::negotiated();
    front_end.set_memory(&[LOW]);
    front_end.start(0, 5);
    front_end.start(1, 6);
    front_end.start(2, 7);
    front_end.enable(1, 0);
    front_end.mock.asked();
    let rests = front_end.mock.record().rests;
    let old = memory(&front_end, 0);
    front_end.set_memory(&[HIGH, LOW]);
    let asked = [Asked::Stop(0), Asked::Stop(2), Asked::Start(0, 15), Asked::Start(2, 17)];
    assert_eq!(front_end.mock.asked(), asked);
    assert!(old.upgrade().is_none(), "nobody holds the old memory");
    assert_eq!(front_end.mock.record().rests, rests, "a pause is no rest");
    let new = memory(&front_end, 0).upgrade().unwrap();
    assert!(new.at_user_address(HIGH.user, HIGH.bytes).is_some());
    drop(new);
    front_end.leave().unwrap();
}

#[test]
fn regions_come_and_go_under_rings() {
    let mut front_end = FrontEnd::negotiated();
    front_end.add_memory(HIGH);
    front_end.add_memory(LOW);
    front_end.start(0, 0);
    front_end.remove_memory(HIGH);
    let asked = [Asked::Start(0, 0), Asked::Stop(0), Asked::Start(0, 10)];
    assert_eq!(front_end.mock.asked(), asked);
    let now = memory(&front_end, 0).upgrade().unwrap();
    assert!(now.at_user_address(HIGH.user, 1).is_none());
    drop(now);
    front_end.leave().unwrap();
}

#[test]
fn a_ring_whose_region_is_taken_away_waits_until_it_is_back() {
    let mut front_end = FrontEnd::negotiated();
    front_end.set_memory(&[LOW, HIGH]);
    front_end.start(0, 0);
    front_end.remove_memory(LOW);
    assert_eq!(front_end.mock.asked(), [Asked::Start(0, 0), Asked::Stop(0)]);
    front_end.remove_memory(HIGH);
    front_end.add_memory(LOW);
    assert_eq!(front_end.mock.asked(), [Asked::Start(0, 10)]);
    front_end.leave().unwrap();
}

/// QEMU takes a region away and adds it again when its size or what is around it changes, while the
/// guest runs: the guest goes on, and so its image must stay its own.
#[test]
fn rings_whose_memory_is_taken_away_only_pause() {
    let check = |name: &str, take_away: fn(&mut FrontEnd), give_back: fn(&mut FrontEnd)| {
        let mut front_end = FrontEnd::negotiated();
        front_end.set_memory(&[LOW]);
        front_end.start(0, 5);
        front_end.start(1, 6);
        let rests = front_end.mock.record().rests;
        take_away(&mut front_end);
        assert!(front_end.mock.record().served.is_empty(), "{name}: their memory is gone");
        assert_eq!(front_end.mock.record().rests, rests, "{name}: a pause is no rest");
        give_back(&mut front_end);
        assert_eq!(front_end.mock.record().served.len(), 2, "{name}: it is back");
        assert_eq!(front_end.mock.record().rests, rests, "{name}: a pause is no rest");
        // One that still waits for its memory counts as served.
        take_away(&mut front_end);
        front_end.enable(0, 0);
        assert_eq!(front_end.mock.record().rests, rests, "{name}: queue 1 waits");
        front_end.base(1);
        assert_eq!(front_end.mock.record().rests, rests + 1, "{name}: the last one has stopped");
        front_end.leave().unwrap();
    };
    let remove = |front_end: &mut FrontEnd| front_end.remove_memory(LOW);
    check("one region", remove, |front_end| front_end.add_memory(LOW));
    let elsewhere = |front_end: &mut FrontEnd| front_end.set_memory(&[HIGH]);
    check("the table", elsewhere, |front_end| front_end.set_memory(&[LOW]));
}

#[test]
fn a_front_end_that_leaves_while_rings_wait_for_memory_lets_the_device_rest() {
    let mut front_end = FrontEnd::negotiated();
    front_end.set_memory(&[LOW]);
    front_end.start(0, 5);
    front_end.remove_memory(LOW);
    let (mock, rests) = (front_end.mock.clone(), front_end.mock.record().rests);
    front_end.leave().unwrap();
    assert_eq!(mock.record().rests, rests + 1);
}

#[test]
fn all_509_regions_can_be_used_and_no_more() {
    let mut front_end = FrontEnd::negotiated();
    let place = |n: u64| Place { guest: n << 12, bytes: 1 << 12, user: n << 12 };
    for n in 1..=509 {
        front_end.add_memory(place(n));
    }
    let file = memfd(1 << 12);
    let payload = words(&[0, 510 << 12, 1 << 12, 510 << 12, 0]);
    front_end.send_with(ADD_MEM_REG, &payload, &[file.as_fd()]);
    front_end.refused("510 memory regions, at most 509 are possible");
}

#[test]
fn memory_that_cannot_be_is_refused() {
    let payload = words(&[0, LOW.guest, LOW.bytes, LOW.user, 0]);
    let mut front_end = FrontEnd::negotiated();
    let short = memfd(LOW.bytes - 1);
    front_end.send_with(ADD_MEM_REG, &payload, &[short.as_fd()]);
    front_end.refused(
        "memory region at guest address 0x0 ends at byte 1048576 of a file of 1048575 bytes",
    );
    let mut front_end = FrontEnd::negotiated();
    front_end.add_memory(LOW);
    let file = memfd(LOW.bytes);
    front_end.send_with(ADD_MEM_REG, &payload, &[file.as_fd()]);
    front_end.refused("memory regions at guest addresses 0x0 and 0x0 overlap");
    let mut front_end = FrontEnd::negotiated();
    front_end.send(REM_MEM_REG, &payload);
    front_end.refused(
        "no memory region of 1048576 bytes at guest address 0x0 and front-end address 0x70000000",
    );
    // A socket is no memory.
    let mut front_end = FrontEnd::negotiated();
    let (socket, _other) = UnixStream::pair().unwrap();
    front_end.send_with(ADD_MEM_REG, &payload, &[socket.as_fd()]);
    front_end.refused(
        "the front end shares memory of a file that is no memfd and lies on no tmpfs, hugetlbfs or dax device: use \
         memory-backend-memfd,share=on (libvirt: <source type='memfd'/>), or allow files of one file system with \
         --memory-files DIRECTORY",
    );
}

#[test]
fn a_table_needs_a_file_for_each_region() {
    let mut payload = state(2, 0);
    payload.extend(words(&[LOW.guest, LOW.bytes, LOW.user, 0]));
    payload.extend(words(&[HIGH.guest, HIGH.bytes, HIGH.user, 0]));
    let mut front_end = FrontEnd::negotiated();
    let file = memfd(LOW.bytes);
    front_end.send_with(SET_MEM_TABLE, &payload, &[file.as_fd()]);
    front_end.refused("front end sent a message that cannot be taken: invalid message");
}

/// Said before there ever was memory, and not while regions are exchanged.
#[test]
fn a_ring_that_is_ready_without_memory_is_told_of() {
    let mut front_end = FrontEnd::negotiated();
    front_end.start(3, 0);
    assert_eq!(front_end.mock.record().lacking, [3]);
    front_end.set_memory(&[LOW]);
    assert_eq!(front_end.mock.asked(), [Asked::Start(3, 0)]);
    front_end.remove_memory(LOW);
    assert_eq!(front_end.mock.asked(), [Asked::Stop(3)]);
    assert_eq!(front_end.mock.record().lacking, [3]);
    front_end.leave().unwrap();
}
