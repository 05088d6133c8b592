//! The rules of SpMM on made-up devices.

use super::*;
use crate::domain::{Dtype, Param};

fn tile() -> Tile {
    let candidate =
        [("lanes", 8), ("ways", 1), ("vec", 4), ("cols", 1), ("unroll", 2), ("block", 256)]
            .into_iter()
            .fold(Candidate::new("row_split"), |candidate, (name, value)| {
                candidate.with(name, value)
            })
            .with_text("fetch", "direct")
            .with_text("order", "natural")
            .with_text("b", "given");
    family::kernel(&candidate, &Spmm::new(32, Dtype::F32, Layout::Row)).unwrap().tile()
}

/// Registers a block may have on a device that is otherwise nothing.
fn facts(registers_per_block: u32) -> Facts {
    let device = serde_json::json!({
        "id": "cuda:0", "kind": "cuda", "name": "G", "compute_capability": "9.0", "multiprocessors": 1,
        "warp_size": 32, "max_threads_per_block": 1024, "max_threads_per_multiprocessor": 2048,
        "max_blocks_per_multiprocessor": 32, "registers_per_thread": 255,
        "registers_per_block": registers_per_block, "registers_per_multiprocessor": 65536,
        "shared_bytes_per_block": 0, "shared_bytes_per_multiprocessor": 0, "l2_bytes": 0, "memory_bytes": 0,
        "copy_gbps": 1.0, "driver": "", "compiler": "", "vendor": null,
    });
    let matrix = crate::sparse::Csr::new(1, 1, vec![0, 1], vec![0], vec![1.0]).unwrap();
    Facts {
        inspection: Inspection::of(&matrix),
        problem: Spmm::new(32, Dtype::F32, Layout::Row),
        device: serde_json::from_value(device).unwrap(),
        compiled: HashMap::new(),
    }
}

#[test]
fn constraints_apply_in_the_order_that_the_house_knows() {
    for kind in [DeviceKind::Cuda, DeviceKind::Cpu] {
        let Facts { inspection, problem, device, .. } = facts(1);
        let device = Device { kind, ..device };
        let all = all(&inspection, &problem, &device, HashMap::new());
        let fixed = Fixed([("vec".to_owned(), Param::Int(4))].into());
        let families = vec!["row_split".to_owned()];
        let all = requested(all, &Narrowing { families, fixed, ..Narrowing::default() });
        let place = |name: &str| funnel::ORDER.iter().position(|known| *known == name);
        let places: Vec<_> = all.iter().map(|constraint| place(constraint.name())).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
    }
}

#[test]
fn compiler_figures_take_precedence_over_the_estimate() {
    let (tile, facts) = (tile(), facts(16_384));
    let judge = |compiled: Option<(u32, u32)>| {
        let figures =
            compiled.map(|(registers, local_bytes)| KernelFigures { registers, local_bytes });
        let limits = Limits::of(&facts.device);
        let fits = tile::registers(&tile, &limits, figures.as_ref()).keeps();
        (fits, spills(figures.as_ref()).keeps())
    };
    assert!(tile.registers * tile.threads <= 16_384);
    assert_eq!(judge(None), (true, true));
    assert_eq!(judge(Some((64, 0))), (true, true));
    assert_eq!(judge(Some((57, MAX_LOCAL_BYTES))), (true, true));
    // 65 registers are allocated as 72.
    assert_eq!(judge(Some((65, 0))), (false, true));
    assert_eq!(judge(Some((40, MAX_LOCAL_BYTES + 8))), (true, false));
}

/// LO-SpMM's worked example (sections 3.2 to 3.4): an 8 x 8 sparse matrix times an 8 x 8 dense one on a device with 2 threads in
/// a warp, 2 warps in a block, 8 multiprocessors, and at most 6 registers in a thread and 24 in a block; every (M1, N1) of 1 to 8
/// by 1 to 8. The paper states how many of the 64 each constraint leaves: 38, 12, 6.
///
/// It does not state two things. Of the natural counts of registers a thread (M1 or its half or double, plus a constant, plus N1
/// or not) only M1 leaves 38: a register for each output, as the figure has. And the hardware constraint leaves 12 only if N1 is
/// a multiple of 2 and at most the device's 4 threads in a block; with wider blocks Eq. 1 would leave 18.
///
/// The text gives the entries of some tiles: 22 and 8 for M1 = 6, 15 and 15 for M1 = 4. The lengths here are some that do.
#[test]
fn the_papers_example_comes_down_from_64_to_38_to_12_to_6() {
    let lengths = [6, 2, 3, 4, 4, 3, 6, 2];
    let mut facts = facts(24);
    facts.device = Device {
        multiprocessors: 8,
        warp_size: 2,
        max_threads_per_block: 4,
        registers_per_thread: 6,
        ..facts.device
    };
    facts.problem = Spmm::new(8, Dtype::F32, Layout::Row);
    facts.inspection.rows = 8;
    facts.inspection = facts.inspection.with_groups(&lengths, 1..=8);
    let (facts, usual) = (Arc::new(facts), tile());
    let tile_of = move |candidate: &Candidate| {
        let [m1, n1] = ["m1", "n1"].map(|name| family::count(candidate, name).unwrap());
        Tile {
            rows: m1,
            columns: n1,
            threads: n1,
            threads_per_tile: n1,
            tiles_per_block: 1,
            registers: m1,
            grid_y: 1,
            ..usual
        }
    };
    type Judge = fn(&Facts, &Tile) -> Verdict;
    struct OnTile<F> {
        name: &'static str,
        judge: Judge,
        facts: Arc<Facts>,
        tile_of: F,
    }
    impl<F: Fn(&Candidate) -> Tile + Send + Sync> Constraint for OnTile<F> {
        fn name(&self) -> &'static str {
            self.name
        }
        fn judge(&self, candidate: &Candidate) -> Verdict {
            (self.judge)(&self.facts, &(self.tile_of)(candidate))
        }
        fn soft(&self) -> bool {
            false
        }
    }
    let rules: [(&'static str, Judge); 5] = [
        ("register_resource", |f, t| tile::registers(t, &Limits::of(&f.device), None)),
        ("launch_limits", launch_limits),
        ("whole_warps", whole_warps),
        ("hardware_utilization", |f, t| {
            tile::enough_blocks(family::blocks(t, &f.inspection, &f.problem), &f.device)
        }),
        ("load_balance", |f, t| {
            let cov = f.inspection.imbalance(t.rows, t.order);
            tile::balanced(cov, tile::waste(f.problem.n, t.columns))
        }),
    ];
    let rules = rules.map(|(name, judge)| -> Box<dyn Constraint> {
        Box::new(OnTile { name, judge, facts: facts.clone(), tile_of })
    });
    let sizes = (1..=8).flat_map(|m1| (1..=8).map(move |n1| (m1, n1)));
    let all = sizes.map(|(m1, n1)| Candidate::new("paper").with("m1", m1).with("n1", n1));
    let pruned = crate::search::prune(all.collect(), &rules);
    let left = |name: &str| pruned.funnel.iter().find(|it| it.constraint == name).map(|it| it.left);
    assert_eq!(pruned.kept.len() + pruned.removed.len(), 64);
    assert_eq!(
        ["register_resource", "hardware_utilization", "load_balance"].map(left),
        [Some(38), Some(12), Some(6)]
    );
    // What the text says of two heights of 2 tiles each.
    let removal = |m1: i64| {
        let of = |it: &&crate::search::Removed| {
            it.candidate.int("m1") == Some(m1) && it.candidate.int("n1") == Some(4)
        };
        pruned.removed.iter().find(of).map(crate::search::Removed::removal)
    };
    let (unequal, equal) = (removal(6).unwrap(), removal(4));
    assert_eq!((&*unequal.pruned_by, unequal.limit, equal), ("load_balance", Some(0.25), None));
    assert!((unequal.value.unwrap() - 7.0 / 15.0).abs() < 1e-12, "{unequal:?}");
    assert!((tile::waste(8, 6) - 1.0 / 3.0).abs() < 1e-12 && tile::waste(8, 4) == 0.0);
}

/// Of a few hundred rows one is long: few blocks, each of which is done at once. With four times as many entries they are not.
#[test]
fn products_whose_blocks_are_brief_may_leave_multiprocessors_idle() {
    let team = [("block", 256), ("chunk", 1024), ("cols", 1), ("heavy", 32), ("lanes", 8)]
        .into_iter()
        .chain([("team", 8), ("unroll", 4), ("vec", 4), ("ways", 1)])
        .fold(Candidate::new("nnz_split"), |candidate, (name, value)| candidate.with(name, value))
        .with_text("b", "given")
        .with_text("fetch", "ahead")
        .with_text("order", "length");
    let judged = |lengths: &[usize], copy_gbps: f64| {
        let indptr = lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        let indptr: Vec<usize> = std::iter::once(0).chain(indptr).collect();
        let indices: Vec<u32> = lengths.iter().flat_map(|&length| 0..length as u32).collect();
        let values = vec![1.0; indices.len()];
        let matrix =
            crate::sparse::Csr::new(lengths.len(), 20_000, indptr, indices, values).unwrap();
        let Facts { problem, device, compiled, .. } = facts(65_536);
        let device = Device { multiprocessors: 132, copy_gbps, ..device };
        let facts = Facts { inspection: Inspection::of(&matrix), problem, device, compiled };
        with_kernel(&facts, &team, hardware_utilization).keeps()
    };
    let mut lengths = vec![8; 305];
    lengths[7] = 300;
    assert!(judged(&lengths, 3000.0));
    // By a device that was not measured nothing is brief.
    assert!(!judged(&lengths, 0.0));
    lengths.iter_mut().for_each(|length| *length *= 4);
    assert!(!judged(&lengths, 3000.0));
}

#[test]
fn widths_between_powers_of_two_are_listed_where_they_pad_less() {
    let widths = |n: u32| -> Vec<u32> {
        [48, 96, 192].into_iter().filter(|&width| family::width_serves(n, width)).collect()
    };
    assert_eq!([96, 192, 48, 33].map(widths), [vec![48, 96], vec![96, 192], vec![48], vec![48]]);
    assert!([32, 64, 128, 256, 512].into_iter().all(|n| widths(n).is_empty()));
}

#[test]
fn unbalanced_tiles_stay_if_they_are_almost_the_least_unbalanced() {
    // The fallback of a family without a balanced tile, as the funnel applies it.
    let by = |cov: f64, waste: f64| match tile::balanced(cov, waste) {
        Verdict::Remove(excess) => excess.by,
        _ => 0.0,
    };
    assert_eq!((by(0.25, 0.25), by(0.75, 0.0)), (0.0, 0.5));
    let most = tile::spared(by(0.75, 0.0));
    assert!(by(0.79, 0.25) <= most && by(0.81, 0.0) > most && by(0.75, 0.31) > most);
    // The worse of the two is stored.
    assert!(matches!(tile::balanced(0.3, 0.4), Verdict::Remove(it) if it.value == 0.4));
}

#[test]
fn tiles_are_judged_in_the_order_that_their_rows_are_taken_in() {
    // Two kinds of rows, long and short, alternate: pairs are equal in natural order, and unequal once like rows meet.
    let rows = 64usize;
    let indices: Vec<u32> =
        (0..rows).flat_map(|row| if row % 2 == 0 { 0..30u32 } else { 40..50 }).collect();
    let indptr = (0..=rows).map(|row| row / 2 * 40 + row % 2 * 30).collect();
    let values = vec![1.0; indices.len()];
    let matrix = crate::sparse::Csr::new(rows, 50, indptr, indices, values).unwrap();
    let seen = Inspection::of(&matrix);
    use crate::ops::spmm::family::RowOrder::{Length, Natural, Radix, Similarity};
    let cov = [Natural, Length, Similarity, Radix].map(|order| seen.imbalance(2, order));
    assert_eq!(cov, [0.0, 0.5, 0.5, 0.5]);
}
