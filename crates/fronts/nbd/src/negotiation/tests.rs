//! What clients send, and what they are told: whole conversations, cut into parts at any place.

use block::{Access, ByteCount, DiskSize};

use super::*;
use crate::wire::{OPTION_REPLY_MAGIC, transmission};
use crate::{BlockSizes, ExportSummary};

struct Catalog(Vec<ExportOffer>);

impl ExportCatalog for Catalog {
    fn list(&self) -> Vec<ExportSummary> {
        let summary = |offer: &ExportOffer| ExportSummary {
            name: offer.name.clone(),
            description: offer.description.clone(),
        };
        self.0.iter().map(summary).collect()
    }

    fn find(&self, name: &str) -> Option<ExportOffer> {
        let name = if name.is_empty() { "disk" } else { name };
        self.0.iter().find(|offer| offer.name.as_str() == name).cloned()
    }
}

fn offer(name: &str) -> ExportOffer {
    ExportOffer {
        name: ProtocolString::new(name).unwrap(),
        description: None,
        size: DiskSize(ByteCount(1 << 20)),
        access: Access::ReadWrite,
        block_sizes: BlockSizes::of_block(512),
        allocation_depth: false,
        bitmaps: Vec::new(),
        multi_conn: true,
    }
}

fn catalog() -> Catalog {
    let described = ExportOffer {
        description: Some(ProtocolString::new("a description").unwrap()),
        access: Access::ReadOnly,
        size: DiskSize(ByteCount((1 << 20) + 700)),
        allocation_depth: true,
        multi_conn: true,
        ..offer("deep")
    };
    let blocks = ExportOffer { block_sizes: BlockSizes::of_block(4096), ..offer("4k") };
    let bitmaps = vec!["a".to_owned(), "b:c".to_owned()];
    let marked = ExportOffer { bitmaps, ..offer("marked") };
    Catalog(vec![offer("disk"), described, blocks, marked])
}

fn flags(flags: u32) -> Vec<u8> {
    flags.to_be_bytes().to_vec()
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    bytes.extend(data);
    bytes
}

fn string(string: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(string.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(string.as_bytes());
    bytes
}

fn export(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend(u16::try_from(wanted.len()).unwrap().to_be_bytes());
    wanted.iter().for_each(|wanted| bytes.extend(wanted.to_be_bytes()));
    bytes
}

fn queries(export: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = string(export);
    bytes.extend(u32::try_from(queries.len()).unwrap().to_be_bytes());
    queries.iter().for_each(|query| bytes.extend(string(query)));
    bytes
}

/// Replies as text: option, kind and data.
fn text(mut output: &[u8]) -> Vec<String> {
    let mut replies = Vec::new();
    while output.starts_with(&OPTION_REPLY_MAGIC.to_be_bytes()) {
        let mut fields = Fields(&output[8..]);
        let [option, kind, count] = [(); 3].map(|()| fields.u32().unwrap());
        let data = fields.bytes(usize::try_from(count).unwrap()).unwrap();
        replies.push(reply_text(option, kind, data));
        output = fields.0;
    }
    if !output.is_empty() {
        replies.push(format!("raw {}", output.len()));
    }
    replies
}

fn reply_text(option: u32, kind: u32, data: &[u8]) -> String {
    let mut fields = Fields(data);
    match kind {
        reply::ACK => format!("{option} ack"),
        reply::SERVER => {
            let count = fields.u32().unwrap();
            let name = fields.bytes(usize::try_from(count).unwrap()).unwrap();
            let [name, description] = [name, fields.0].map(|it| str::from_utf8(it).unwrap());
            format!("{option} server {name}/{description}")
        }
        reply::INFO => match fields.u16().unwrap() {
            info::EXPORT => {
                let (size, flags) = (fields.u64().unwrap(), fields.u16().unwrap());
                format!("{option} export {size} {flags:#x}")
            }
            info::BLOCK_SIZE => {
                let sizes = [(); 3].map(|()| fields.u32().unwrap());
                format!("{option} blocks {sizes:?}")
            }
            kind => format!("{option} info {kind} {}", str::from_utf8(fields.0).unwrap()),
        },
        reply::META_CONTEXT => {
            let id = fields.u32().unwrap();
            format!("{option} context {id} {}", str::from_utf8(fields.0).unwrap())
        }
        error => {
            assert!(!str::from_utf8(data).unwrap().is_empty());
            format!("{option} error {}", error & !reply::ERROR)
        }
    }
}

/// How it ended.
fn end(step: NegotiationStep) -> String {
    match step {
        NegotiationStep::More => "more".to_owned(),
        NegotiationStep::StartTls => "tls".to_owned(),
        NegotiationStep::Aborted => "aborted".to_owned(),
        NegotiationStep::Failed(fault) => format!("failed: {fault}"),
        NegotiationStep::Transmission { settings, received } => {
            let offer = catalog().find(settings.export.as_str()).unwrap();
            let contexts: Vec<_> = settings.contexts.iter().map(|it| it.name(&offer)).collect();
            let name = settings.export.as_str();
            format!("{name} {:?} {contexts:?} {}", settings.style, received.len())
        }
    }
}

/// All that is said to this client, and how that ends; with TLS as soon as it is asked for.
fn talk(tls: TlsPolicy, parts: &[Vec<u8>]) -> Vec<String> {
    let whole = converse(tls, parts);
    // Cut in whatever way it makes no difference, but at the bytes that must not come early.
    for cut in [1, 3, 17] {
        let pieces: Vec<_> =
            parts.iter().flat_map(|part| part.chunks(cut).map(<[u8]>::to_vec)).collect();
        assert_eq!(converse(tls, &pieces), whole, "cut into {cut}");
    }
    whole
}

fn converse(tls: TlsPolicy, parts: &[Vec<u8>]) -> Vec<String> {
    let (mut negotiation, catalog) = (Negotiation::new(tls), catalog());
    let (mut said, mut ended, mut behind) = (Vec::new(), None, 0);
    for part in parts {
        if ended.is_some() {
            behind += part.len();
            continue;
        }
        let NegotiationProgress { output, step } = negotiation.receive(part, &catalog);
        said.extend(output);
        match step {
            NegotiationStep::More => {}
            NegotiationStep::StartTls => negotiation.encrypted(),
            NegotiationStep::Transmission { settings, received } => {
                behind += received.len();
                ended = Some(NegotiationStep::Transmission { settings, received: Vec::new() });
            }
            step @ (NegotiationStep::Aborted | NegotiationStep::Failed(_)) => ended = Some(step),
        }
    }
    let ended = match ended {
        Some(NegotiationStep::Transmission { settings, .. }) => {
            NegotiationStep::Transmission { settings, received: vec![0; behind] }
        }
        Some(step) => step,
        None => NegotiationStep::More,
    };
    let mut lines = text(&said);
    lines.push(end(ended));
    lines
}

/// Options of a client without TLS.
#[track_caller]
fn check(options: &[Vec<u8>], expected: &[&str]) {
    let mut parts = vec![flags(3)];
    parts.extend_from_slice(options);
    assert_eq!(talk(TlsPolicy::None, &parts), expected);
}

#[track_caller]
fn check_tls(tls: TlsPolicy, options: &[Vec<u8>], expected: &[&str]) {
    let mut parts = vec![flags(3)];
    parts.extend_from_slice(options);
    assert_eq!(talk(tls, &parts), expected);
}

const STRUCTURED: (u32, &[u8]) = (option::STRUCTURED_REPLY, &[]);
const EXTENDED: (u32, &[u8]) = (option::EXTENDED_HEADERS, &[]);

#[test]
fn the_greeting_is_that_of_a_fixed_newstyle_server() {
    let greeting = Negotiation::new(TlsPolicy::None).greeting();
    assert_eq!(greeting, b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn flags_that_were_not_offered_end_the_connection() {
    let talk = |flags: u32| talk(TlsPolicy::None, &[flags.to_be_bytes().to_vec()]);
    assert_eq!(talk(0), ["more"]);
    assert_eq!(talk(4), ["failed: its handshake flags are 0x4, and 0x3 were offered"]);
    assert_eq!(
        talk(0x8000_0003),
        ["failed: its handshake flags are 0x80000003, and 0x3 were offered"]
    );
}

#[test]
fn a_client_that_does_not_know_fixed_newstyle_may_only_choose() {
    let talk =
        |flags: u32, part: Vec<u8>| talk(TlsPolicy::None, &[flags.to_be_bytes().into(), part]);
    let chosen = option(option::EXPORT_NAME, b"disk");
    assert_eq!(talk(0, chosen.clone()), ["raw 134", "disk Simple [] 0"]);
    assert_eq!(talk(2, chosen.clone()), ["raw 10", "disk Simple [] 0"]);
    assert_eq!(talk(1, chosen), ["raw 134", "disk Simple [] 0"]);
    assert_eq!(talk(0, option(option::LIST, b"")), ["failed: option 3 without fixed newstyle"]);
}

#[test]
fn an_export_is_chosen_by_name_or_the_session_ends() {
    let name = |name: &[u8]| option(option::EXPORT_NAME, name);
    check(&[name(b"")], &["raw 10", "disk Simple [] 0"]);
    check(&[name(b"no")], &["failed: there is no export \"no\""]);
    check(&[name(b"\xff")], &["failed: the name of the export is none"]);
    check(&[name(&[b'x'; 4097])], &["failed: the name of the export is none"]);
    check(
        &[name(b"4k")],
        &["failed: an export with blocks of 4096 bytes was chosen with NBD_OPT_EXPORT_NAME"],
    );
    check(
        &[option(EXTENDED.0, EXTENDED.1), name(b"disk")],
        &["11 ack", "failed: NBD_OPT_EXPORT_NAME after extended headers were agreed on"],
    );
}

#[test]
fn go_describes_and_begins() {
    let go = |name: &str, wanted: &[u16]| option(option::GO, &export(name, wanted));
    let sizes = "7 blocks [512, 4096, 33554432]";
    check(
        &[go("disk", &[]), vec![1; 5]],
        &[sizes, "7 export 1048576 0xd6d", "7 ack", "disk Simple [] 5"],
    );
    check(
        &[go("deep", &[info::DESCRIPTION, info::NAME, 99, info::NAME])],
        &[
            sizes,
            "7 info 1 deep",
            "7 info 2 a description",
            "7 export 1049088 0x50f",
            "7 ack",
            "deep Simple [] 0",
        ],
    );
    check(&[go("no", &[])], &["7 error 6", "more"]);
    check(
        &[go("4k", &[info::EXPORT]), go("4k", &[info::BLOCK_SIZE])],
        &[
            "7 blocks [4096, 4096, 33554432]",
            "7 error 8",
            "7 blocks [4096, 4096, 33554432]",
            "7 export 1048576 0xd6d",
            "7 ack",
            "4k Simple [] 0",
        ],
    );
    let flags = transmission::SEND_DF | 0xd6d;
    check(
        &[option(EXTENDED.0, EXTENDED.1), go("", &[])],
        &["11 ack", sizes, &format!("7 export 1048576 {flags:#x}"), "7 ack", "disk Extended [] 0"],
    );
}

#[test]
fn info_describes_and_goes_on() {
    let info = |data: &[u8]| option(option::INFO, data);
    let described = ["6 blocks [512, 4096, 33554432]", "6 export 1048576 0xd6d", "6 ack", "more"];
    check(&[info(&export("disk", &[]))], &described);
    check(&[info(&export("no", &[]))], &["6 error 6", "more"]);
    for wrong in [
        b"".to_vec(),
        vec![0; 5],
        [export("disk", &[]), vec![0]].concat(),
        export("disk", &[1, 2])[..12].to_vec(),
        [u32::MAX.to_be_bytes().to_vec(), vec![0; 2]].concat(),
        export(&"x".repeat(4097), &[]),
        export("a\0", &[]),
    ] {
        check(&[info(&wrong)], &["6 error 3", "more"]);
    }
}

#[test]
fn lists_aborts_and_what_nobody_knows() {
    check(
        &[option(option::LIST, b"")],
        &[
            "3 server disk/",
            "3 server deep/a description",
            "3 server 4k/",
            "3 server marked/",
            "3 ack",
            "more",
        ],
    );
    check(&[option(option::LIST, b"x")], &["3 error 3", "more"]);
    check(&[option(option::ABORT, b"whatever")], &["2 ack", "aborted"]);
    check(&[option(4, b""), option(77, b"data")], &["4 error 1", "77 error 1", "more"]);
    check(&[vec![0x11; 16]], &["failed: an option begins with 0x1111111111111111"]);
}

#[test]
fn headers_are_agreed_on_once_and_never_weaker() {
    let structured = || option(STRUCTURED.0, STRUCTURED.1);
    let extended = || option(EXTENDED.0, EXTENDED.1);
    check(&[structured(), structured()], &["8 ack", "8 error 3", "more"]);
    check(&[structured(), extended()], &["8 ack", "11 ack", "more"]);
    check(&[extended(), structured(), extended()], &["11 ack", "8 error 10", "11 error 3", "more"]);
    check(
        &[option(STRUCTURED.0, b"x"), option(EXTENDED.0, b"x")],
        &["8 error 3", "11 error 3", "more"],
    );
}

#[test]
fn contexts_are_listed_by_namespace_or_name() {
    let structured = option(STRUCTURED.0, STRUCTURED.1);
    let list = |export: &str, queried: &[&str], expected: &[&str]| {
        let asked = option(option::LIST_META_CONTEXT, &queries(export, queried));
        let mut all = vec!["8 ack"];
        all.extend(expected);
        check(&[structured.clone(), asked], &[all, vec!["more"]].concat());
    };
    let (base, depth) = ("9 context 0 base:allocation", "9 context 0 qemu:allocation-depth");
    list("deep", &[], &[base, depth, "9 ack"]);
    list("disk", &[], &[base, "9 ack"]);
    list("deep", &["base:"], &[base, "9 ack"]);
    list("deep", &["qemu:"], &[depth, "9 ack"]);
    list("disk", &["qemu:", "qemu:allocation-depth"], &["9 ack"]);
    list("deep", &["qemu:allocation-depth", "base:allocation", "base:"], &[base, depth, "9 ack"]);
    list("deep", &["base", "", ":", "x-mine:", "qemu:dirty-bitmap:"], &["9 ack"]);
    let (a, b) = ("9 context 0 qemu:dirty-bitmap:a", "9 context 0 qemu:dirty-bitmap:b:c");
    list("marked", &[], &[base, a, b, "9 ack"]);
    list("marked", &["qemu:dirty-bitmap:"], &[a, b, "9 ack"]);
    list("marked", &["qemu:dirty-bitmap:b:c", "qemu:dirty-bitmap:c"], &[b, "9 ack"]);
    list("no", &[], &["9 error 6"]);
    let asked = option(option::LIST_META_CONTEXT, &queries("deep", &[]));
    check(&[asked], &["9 error 3", "more"]);
}

#[test]
fn contexts_are_chosen_for_one_export() {
    let set = |export: &str, queried: &[&str]| {
        option(option::SET_META_CONTEXT, &queries(export, queried))
    };
    let go = |name: &str| option(option::GO, &export(name, &[]));
    let both = &["base:allocation", "qemu:allocation-depth"];
    let begin = |options: &[Vec<u8>]| {
        let all = [&[flags(3), option(STRUCTURED.0, STRUCTURED.1)], options].concat();
        talk(TlsPolicy::None, &all).pop().unwrap()
    };
    let with_both = r#"deep Structured ["base:allocation", "qemu:allocation-depth"] 0"#;
    let with_none = "deep Structured [] 0";
    assert_eq!(begin(&[set("deep", both), go("deep")]), with_both);
    assert_eq!(begin(&[set("disk", both), go("deep")]), with_none);
    assert_eq!(begin(&[set("deep", both), set("deep", &["base:"]), go("deep")]), with_none);
    assert_eq!(begin(&[set("deep", both), set("no", both), go("deep")]), with_none);
    assert_eq!(begin(&[set("deep", both), set("deep", &[]), go("deep")]), with_none);
    let marked = &["qemu:dirty-bitmap:b:c", "qemu:dirty-bitmap:"];
    let with_one = r#"marked Structured ["qemu:dirty-bitmap:b:c"] 0"#;
    assert_eq!(begin(&[set("marked", marked), go("marked")]), with_one);
    // The default export has a name, too.
    assert_eq!(begin(&[set("", both), go("disk")]), r#"disk Structured ["base:allocation"] 0"#);
    let name = option(option::EXPORT_NAME, b"deep");
    assert_eq!(begin(&[set("deep", both), name]), with_both);
    check(
        &[option(STRUCTURED.0, STRUCTURED.1), set("deep", both)],
        &[
            "8 ack",
            "10 context 1 base:allocation",
            "10 context 2 qemu:allocation-depth",
            "10 ack",
            "more",
        ],
    );
    check(&[set("deep", both)], &["10 error 3", "more"]);
    let wrong = [queries("deep", both), vec![0]].concat();
    check(
        &[option(STRUCTURED.0, STRUCTURED.1), option(option::SET_META_CONTEXT, &wrong)],
        &["8 ack", "10 error 3", "more"],
    );
}

#[test]
fn extended_headers_with_contexts_let_a_status_name_them() {
    let set = option(option::SET_META_CONTEXT, &queries("disk", &["base:allocation"]));
    let go = option(option::GO, &export("disk", &[]));
    let flags = transmission::SEND_DF | transmission::BLOCK_STATUS_PAYLOAD | 0xd6d;
    check(
        &[option(EXTENDED.0, EXTENDED.1), set, go],
        &[
            "11 ack",
            "10 context 1 base:allocation",
            "10 ack",
            "7 blocks [512, 4096, 33554432]",
            &format!("7 export 1048576 {flags:#x}"),
            "7 ack",
            r#"disk Extended ["base:allocation"] 0"#,
        ],
    );
}

#[test]
fn who_needs_tls_tells_nothing_before() {
    let required = TlsPolicy::Required;
    let tls = || option(option::STARTTLS, b"");
    let go = || option(option::GO, &export("disk", &[]));
    for other in [option::LIST, option::INFO, option::GO, STRUCTURED.0, EXTENDED.0, 77] {
        check_tls(required, &[option(other, b"")], &[&format!("{other} error 5"), "more"]);
    }
    check_tls(required, &[option(option::ABORT, b"")], &["2 ack", "aborted"]);
    check_tls(
        required,
        &[option(option::EXPORT_NAME, b"disk")],
        &["failed: an export was chosen without TLS"],
    );
    check_tls(required, &[option(option::STARTTLS, b"x")], &["5 error 3", "more"]);
    let begun = ["7 blocks [512, 4096, 33554432]", "7 export 1048576 0xd6d", "7 ack"];
    check_tls(required, &[tls(), go()], &[&["5 ack"], &begun[..], &["disk Simple [] 0"]].concat());
    check_tls(required, &[tls(), tls()], &["5 ack", "5 error 3", "more"]);
    check_tls(TlsPolicy::None, &[tls()], &["5 error 2", "more"]);
    check_tls(TlsPolicy::Offered, &[go()], &[&begun[..], &["disk Simple [] 0"]].concat());
}

#[test]
fn tls_forgets_what_was_agreed_on_before() {
    let set = option(option::SET_META_CONTEXT, &queries("disk", &["base:allocation"]));
    let parts = [
        flags(3),
        option(STRUCTURED.0, STRUCTURED.1),
        set,
        option(option::STARTTLS, b""),
        option(option::GO, &export("disk", &[])),
    ];
    assert_eq!(talk(TlsPolicy::Offered, &parts).pop().unwrap(), "disk Simple [] 0");
}

#[test]
fn what_comes_in_the_clear_behind_starttls_ends_the_connection() {
    let both = [option(option::STARTTLS, b""), option(option::LIST, b"")].concat();
    let said = converse(TlsPolicy::Offered, &[flags(3), both]);
    assert_eq!(said, ["failed: bytes behind an option that has to be the last one"]);
}

#[test]
fn options_with_too_many_data_are_refused_without_room_for_them() {
    let long = option(77, &vec![0; OPTION_BYTES_MAX + 1]);
    let (mut negotiation, catalog) = (Negotiation::new(TlsPolicy::None), catalog());
    let mut said = Vec::new();
    for part in [flags(3), long].concat().chunks(1000) {
        said.extend(negotiation.receive(part, &catalog).output);
        assert!(negotiation.input.capacity() < 4096);
    }
    assert_eq!(text(&said), ["77 error 9"]);
    let said = text(&negotiation.receive(&option(option::LIST, b""), &catalog).output);
    assert_eq!(said.last().unwrap(), "3 ack");
    let header = |option: u32, count: u32| {
        [
            OPTION_MAGIC.to_be_bytes().to_vec(),
            option.to_be_bytes().into(),
            count.to_be_bytes().into(),
        ]
        .concat()
    };
    check(&[header(option::GO, u32::MAX)], &["failed: option 7 with 4294967295 bytes of data"]);
    let too_long = u32::try_from(OPTION_BYTES_MAX + 1).unwrap();
    check(&[header(option::EXPORT_NAME, too_long)], &["failed: option 1 with 65537 bytes of data"]);
}

#[test]
fn options_without_an_end_are_not_served() {
    let (mut negotiation, catalog) = (Negotiation::new(TlsPolicy::None), catalog());
    let _more = negotiation.receive(&flags(3), &catalog);
    for _ in 0..OPTIONS_MAX {
        let step = negotiation.receive(&option(77, b""), &catalog).step;
        assert!(matches!(step, NegotiationStep::More));
    }
    let step = negotiation.receive(&option(77, b""), &catalog).step;
    assert_eq!(end(step), "failed: more than 1024 options");

    let mut negotiation = Negotiation::new(TlsPolicy::None);
    let _more = negotiation.receive(&flags(3), &catalog);
    let long = option(77, &vec![0; OPTION_BYTES_MAX]);
    let ends = (0..100).map(|_| end(negotiation.receive(&long, &catalog).step));
    assert_eq!(
        ends.into_iter().find(|end| end != "more").unwrap(),
        "failed: more than 4194304 bytes, and no export was chosen"
    );
}

#[test]
fn a_list_without_an_end_is_cut_off() {
    let name = |index: usize| format!("{index:04}{}", "x".repeat(4000));
    let catalog = Catalog((0..400).map(|index| offer(&name(index))).collect());
    let mut negotiation = Negotiation::new(TlsPolicy::None);
    let _more = negotiation.receive(&flags(3), &catalog);
    let NegotiationProgress { output, step } =
        negotiation.receive(&option(option::LIST, b""), &catalog);
    assert!(matches!(step, NegotiationStep::More));
    assert!(output.len() < SENT_BYTES_MAX + 10_000);
    assert_eq!(text(&output).last().unwrap(), "3 error 9");
    // Who asks again without having read the first answer is not worth more memory.
    let twice = option(option::LIST, b"").repeat(2);
    let NegotiationProgress { step, .. } = negotiation.receive(&twice, &catalog);
    assert_eq!(end(step), "failed: options that wait for no reply");
}
