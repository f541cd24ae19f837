//! A disk that is a stripe over files: its bytes where RAID0 has them, under load, in a guest with Linux' md, and with a
//! child that fails.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use testkit::image;
use testkit::process::{Bench, Program, Server};

mod bytes;
mod faults;
mod md;

/// Members of one size, and the stripe over them.
#[derive(Debug)]
struct Stripe<'a> {
    bench: &'a Bench,
    /// Names its files and its socket.
    id: String,
    members: usize,
    /// Bytes of a chunk.
    chunk: usize,
    /// Bytes of each member.
    member: usize,
    /// `on` or `off`.
    direct: &'static str,
}

impl Stripe<'_> {
    fn image(&self, member: usize) -> PathBuf {
        self.bench.path(&format!("{}-{member}.img", self.id))
    }

    fn socket(&self) -> PathBuf {
        self.bench.path(&format!("{}.sock", self.id))
    }

    /// The size of the stripe: whole chunks, with md's second rounding.
    fn bytes(&self) -> usize {
        let whole = self.member / self.chunk * self.chunk;
        (whole & !(self.chunk - 512)) * self.members
    }

    /// Makes members with random content.
    fn create(&self, seed: u64) -> Result<()> {
        for (member, seed) in (0..self.members).zip(seed * 100..) {
            image::create_filled(&self.image(member), self.member, seed)?;
        }
        Ok(())
    }

    /// What RAID0 has in the members.
    fn content(&self) -> Result<Vec<u8>> {
        let members: Result<Vec<_>> = (0..self.members)
            .map(|member| std::fs::read(self.image(member)).context("read a member"))
            .collect();
        let members = members?;
        let mut content = Vec::new();
        for row in 0..self.member / self.chunk {
            let at = row * self.chunk;
            members.iter().for_each(|bytes| content.extend_from_slice(&bytes[at..at + self.chunk]));
        }
        content.truncate(self.bytes());
        Ok(content)
    }

    fn arguments(&self, queues: usize) -> Vec<String> {
        let Self { id, chunk, direct, .. } = self;
        let children: String = (0..self.members)
            .map(|member| {
                let file = self.image(member).display().to_string();
                format!(",children.{member}.driver=file,children.{member}.filename={file}")
            })
            .collect();
        let words = [
            "--object",
            "iothread,id=t0",
            "--object",
            "iothread,id=t1",
            "--blockdev",
            &format!(
                "stripe,node-name={id},chunk={chunk},cache.direct={direct},discard=unmap{children}"
            ),
            "--export",
            &format!(
                "vhost-user-blk,id={id},node-name={id},addr.type=unix,addr.path={},writable=on,\
                 num-queues={queues},iothread.0=t0,iothread.1=t1",
                self.socket().display()
            ),
        ];
        words.map(str::to_owned).to_vec()
    }

    fn serve(&self, program: &Program, queues: usize) -> Result<Server> {
        let sockets = [self.socket()];
        program.start(&self.arguments(queues), &sockets)
    }
}

/// Compares, and names the first place.
fn same(found: &[u8], expected: &[u8], what: &str) -> Result<()> {
    ensure!(found.len() == expected.len(), "{what}: {} bytes, not {}", found.len(), expected.len());
    match found.iter().zip(expected).position(|(one, other)| one != other) {
        None => Ok(()),
        Some(place) => anyhow::bail!("{what}: another byte at {place}"),
    }
}
