//! The rules of SpMM on made-up devices.

use super::*;
use crate::domain::Param;

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
    family::kernel(&candidate, &Spmm::new(32, crate::domain::Dtype::F32, Layout::Row))
        .unwrap()
        .tile()
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
        problem: Spmm::new(32, crate::domain::Dtype::F32, Layout::Row),
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
        let all = requested(all, &["row_split".to_owned()], &fixed);
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
