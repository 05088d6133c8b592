//! Files damaged at random: a reader may accept or refuse them, but neither panics nor runs long nor takes much memory.

use super::fixtures::{format, npy, npy_i64, npz, rutherford_boeing, smtx, zip};
use crate::sparse::Csr;
use crate::sparse::read::{Limits, Pool, ReadErrorKind, read_bytes};
use proptest::prelude::*;
use proptest::sample::Index;
use std::time::{Duration, Instant};

fn sound() -> Vec<Vec<u8>> {
    let csr = Csr::new(
        4,
        5,
        vec![0, 2, 3, 3, 6],
        vec![0, 3, 2, 1, 3, 4],
        vec![1.5, -2.0, 3e10, 4.0, 0.25, -6.125],
    )
    .unwrap();
    let mut market = Vec::new();
    crate::sparse::write::matrix_market(&csr, Some("a/b"), &mut market).unwrap();
    let symmetric =
        b"%%MatrixMarket matrix coordinate integer symmetric\n3 3 3\n1 1 4\n2 1 -1\n3 3 7\n"
            .to_vec();
    let array = b"%%MatrixMarket matrix array real general\n2 3\n1\n2\n3\n4\n5\n6\n".to_vec();
    let gzip = {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut out, &market).unwrap();
        out.finish().unwrap()
    };
    let zstd = zstd::encode_all(&market[..], 1).unwrap();
    vec![
        npz(&csr, "csr"),
        npz(&csr, "csc"),
        npz(&csr, "coo"),
        smtx(&csr),
        rutherford_boeing(&csr, false),
        rutherford_boeing(&csr, true),
        market,
        symmetric,
        array,
        gzip,
        zstd,
    ]
}

/// One wound: what happens, where, and with which bytes.
type Wound = (u8, Index, Index, Vec<u8>);

fn damage(bytes: &mut Vec<u8>, (what, at, to, with): &Wound) {
    if bytes.is_empty() {
        return;
    }
    let at = at.index(bytes.len());
    let to = to.index(bytes.len());
    match what % 5 {
        0 => bytes[at] = with.first().copied().unwrap_or(0),
        1 => bytes.truncate(at),
        2 => drop(bytes.splice(at..at, with.iter().copied())),
        3 => drop(bytes.drain(at.min(to)..at.max(to))),
        _ => bytes.extend_from_within(at.min(to)..at.max(to)),
    }
}

fn wounds() -> impl Strategy<Value = Vec<Wound>> {
    // Text that means something to the readers does more harm than random bytes.
    let telling = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..6),
        prop::sample::select(vec![
            "9",
            "-",
            " ",
            "\n",
            "\r",
            "%",
            ".",
            "e9",
            "D",
            "nan",
            "0",
            "999999999999",
            "(",
            "I"
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    prop::collection::vec((any::<u8>(), any::<Index>(), any::<Index>(), telling), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn damaged_files(which: Index, wounds in wounds()) {
        let mut files = sound();
        let mut bytes = files.swap_remove(which.index(files.len()));
        wounds.iter().for_each(|wound| damage(&mut bytes, wound));
        let limits = Limits { max_decompressed_bytes: 1 << 20, max_rows: 100_000, ..Limits::default() };
        let start = Instant::now();
        if let Ok(parsed) = read_bytes(&bytes, &limits) {
            prop_assert!(parsed.csr.rows() <= 100_000);
        }
        prop_assert!(start.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn noise(bytes in prop::collection::vec(any::<u8>(), 0..300), head in 0usize..6) {
        let heads: [&[u8]; 6] = [
            b"", b"%%MatrixMarket matrix coordinate real general\n", b"PK\x03\x04", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"3, 3, 3\n",
        ];
        let _ = read_bytes(&[heads[head], &bytes].concat(), &Limits::default());
    }
}

/// The same few entries in every format: what they take is charged, and none is taken beyond the budget.
#[test]
fn every_format_keeps_to_its_memory() {
    for bytes in sound() {
        for max_matrix_bytes in [0, 8, 40, 100] {
            let limits = Limits { max_matrix_bytes, ..Limits::default() };
            let error = read_bytes(&bytes, &limits).unwrap_err();
            assert_eq!(error.kind, ReadErrorKind::TooLarge, "{max_matrix_bytes}: {error}");
        }
        // The unpacked pieces of a packed file, a thread's list of parsed entries, and zstd's window are as large for any file.
        let max_matrix_bytes = 16 << 20;
        let memory = Pool::memory(max_matrix_bytes);
        let limits = Limits { max_matrix_bytes, memory: memory.clone(), ..Limits::default() };
        let parsed = read_bytes(&bytes, &limits).unwrap();
        assert_eq!(memory.taken(), parsed.csr.bytes());
        drop(parsed);
        assert_eq!(memory.taken(), 0);
    }
}

/// Counting columns takes memory for each: as many as a small file likes to declare would be gigabytes.
#[test]
fn columns_are_paid_for_by_content() {
    let market = "%%MatrixMarket matrix coordinate pattern general\n1 2000000000 1\n1 1\n";
    let card = |rows: &str, cols: &str| {
        format!(
            "{:80}\n{:14}{:14}{:14}{:14}\nrua{:11}{rows:>14}{cols:>14}{:>14}{:>14}\n",
            "wide", 3, 1, 1, 1, "", 1, 0
        )
    };
    let files = [
        market.to_owned(),
        "1, 2000000000, 1\n0 1\n5\n".to_owned(),
        card("1", "2000000000"),
        card("2000000000", "1"),
    ];
    for file in files {
        let error = read_bytes(file.as_bytes(), &Limits::default()).unwrap_err();
        assert_eq!(error.kind, ReadErrorKind::TooLarge, "{error}");
        assert!(error.message.contains("almost all would be empty"), "{error}");
    }
    // As many as a sparse file may well have.
    let wide = "%%MatrixMarket matrix coordinate pattern general\n1 16777216 1\n1 1\n";
    read_bytes(wide.as_bytes(), &Limits::default()).unwrap();
}

/// The file that killed a server in a group of 2 GiB: 300 KB that become 10^8 entries of one place.
#[test]
fn a_small_file_of_many_duplicates_is_refused_before_it_is_read() {
    const ENTRIES: usize = 100_000_000;
    let zeros = npy("'|u1'", &format!("({ENTRIES},)"), &vec![0; ENTRIES]);
    let members = [
        ("format", format("coo")),
        ("shape", npy_i64(&[1, 1])),
        ("row", zeros.clone()),
        ("col", zeros.clone()),
        ("data", zeros),
    ];
    let file = zip(&members);
    assert!(file.len() < 400_000, "{}", file.len());
    let memory = Pool::memory(256 << 20);
    let limits = Limits { memory: memory.clone(), ..Limits::default() };
    let error = read_bytes(&file, &limits).unwrap_err();
    assert_eq!(error.kind, ReadErrorKind::TooLarge, "{error}");
    let shortage = error.shortage.unwrap();
    assert_eq!((shortage.limit, &*shortage.place), (256 << 20, "row"));
    assert!(shortage.need >= 4 * ENTRIES as u64);
    assert_eq!(memory.taken(), 0);
}

#[test]
fn a_list_of_members_is_charged() {
    let members: Vec<_> = (0..2000).map(|_| ("format", Vec::new())).collect();
    let many: Vec<u8> = zip(&members[..1]).repeat(2000);
    let limits = Limits { max_matrix_bytes: 1 << 20, ..Limits::default() };
    let error = read_bytes(&many, &limits).unwrap_err();
    assert_eq!(error.shortage.unwrap().place, "the zip archive's list of members");
}

/// What the halves of a symmetric matrix become is charged as they are found, also if other readers took it meanwhile.
#[test]
fn mirrored_entries_are_charged() {
    const ENTRIES: usize = 20_000;
    let mut text = format!(
        "%%MatrixMarket matrix coordinate pattern symmetric\n{0} {0} {ENTRIES}\n",
        ENTRIES + 1
    );
    for row in 2..=ENTRIES + 1 {
        text += &format!("{row} 1\n");
    }
    let memory = Pool::memory(64 << 20);
    let limits = Limits { memory: memory.clone(), ..Limits::default() };
    assert_eq!(read_bytes(text.as_bytes(), &limits).unwrap().csr.nnz(), 2 * ENTRIES);
    let others = memory.open(u64::MAX);
    let most = (0..64)
        .map(|mib| (64 - mib) << 20)
        .find(|room| {
            others.keep(0);
            others.charge((64 << 20) - room, 1, "others").unwrap();
            read_bytes(text.as_bytes(), &limits).is_err()
        })
        .unwrap();
    assert!(most >= 28 * ENTRIES as u64, "{most}");
    let error = read_bytes(text.as_bytes(), &limits).unwrap_err();
    assert_eq!(error.kind, ReadErrorKind::Busy, "{error}");
}

#[test]
fn the_files_are_sound_before_they_are_damaged() {
    for bytes in sound() {
        read_bytes(&bytes, &Limits::default()).unwrap();
    }
}
