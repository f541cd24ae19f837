//! What an idle connection costs.

use std::time::Duration;

use kernel_io::ReactorChoice;
use nbd::HeaderStyle;
use testkit::deadline::poll_until;

use crate::server::Server;

#[test]
fn an_idle_connection_gives_its_memory_back() {
    let server = Server::of_null(ReactorChoice::Any, 64 << 20);
    let (mut client, placed) = server.connect(HeaderStyle::Structured);
    for _ in 0..40 {
        client.write(0, &[1; 100_000 / 512 * 512], 0);
        client.read(0, 1 << 20);
    }
    (0..80).for_each(|_| assert_eq!(client.answer().error, 0));
    let kept = || placed.visit(|connection, _| connection.memory_bytes()).unwrap();
    assert!(kept() > 1 << 20);
    let is_small = || Ok((kept() <= 8 << 10).then_some(()));
    poll_until("memory to be given back", Duration::from_secs(60), is_small).unwrap();
    client.read(0, 4096);
    assert_eq!(client.answer().data.len(), 4096);
    placed.stop();
}
