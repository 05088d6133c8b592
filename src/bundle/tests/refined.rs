//! Bundles of solves that are refined: packed equations, and the system's own entries beside them.

use super::*;
use crate::domain::bundle::{Forward, GraphUse};
use crate::ops::sptrsv::slices::rewrite::Rewrite;
use crate::ops::sptrsv::slices::scheme::Scheme;

#[test]
fn refined_solves_have_three_launches_and_begin_each_captured_call_anew() {
    let matrix = generated(GENERATED[0]).unwrap();
    for (dtype, transpose) in [(Dtype::F64, false), (Dtype::F32, true)] {
        let problem = solve(1, dtype, Triangle::Lower, transpose);
        let scheme = Scheme::plain(Rewrite { refine: true, ..Rewrite::of(1000, 256) });
        let candidate = scheme.candidate();
        let plan = plan(&matrix, &problem, DeviceKind::Cuda, &candidate).unwrap();
        let read = Bundle::from_bytes(bundle(&matrix, &plan, Values::Included).unwrap()).unwrap();
        let manifest = read.manifest();
        let Forward::Cuda(forward) = &manifest.forward else { panic!("no kernels") };
        let symbols: Vec<&str> = forward.steps.iter().map(|step| &step.symbol[..]).collect();
        assert_eq!(symbols, ["solve", "residual_of", "solve_again"]);
        assert_eq!((forward.graph, manifest.scratch.len()), (GraphUse::Refill, 3));
        // Equations are made again for new values, and the entries that the residual is computed from with them.
        assert!(matches!(manifest.update_values, UpdateValues::Host(_)));
        assert!(
            ["row_ptr", "col_idx", "values", "diagonal"]
                .iter()
                .all(|name| read.array(name).is_some())
        );
    }
}
