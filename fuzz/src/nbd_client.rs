//! What a server sends to `driver=nbd`: in the handshake, and as replies.
//!
//! Not here: sockets and connections that are lost. What is asked is always the same (`nbd_client::converse`).

use crate::input::Input;

/// The first byte says into how large pieces replies are split; the others are a server's.
pub fn nbd_client(data: &[u8]) {
    let mut input = Input::new(data);
    let piece = usize::from(input.u8());
    let bytes = input.rest();
    let split = nbd_client::converse(bytes, piece);
    let whole = nbd_client::converse(bytes, bytes.len());
    assert_eq!(split, whole, "it depends on how it is split");
}
