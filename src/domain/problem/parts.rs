//! A solve with both triangles of one matrix: two solves, one after the other.

use super::{Diagonal, Problem, Sptrsv, Triangle};

impl Problem {
    /// The two solves that the problem consists of, in their order, if it names both triangles: `L y = b` and `U x = y`; or of the
    /// transpose of `L U`, `U^T y = b` and `L^T x = y`. The problem's diagonal is that of L, and U's is stored: factors in one
    /// square matrix have room for one diagonal, so that of L is all ones, or the same.
    pub const fn parts(&self) -> Option<[Self; 2]> {
        let Self::Sptrsv(solve @ Sptrsv { triangle: Triangle::Both, .. }) = *self else {
            return None;
        };
        let lower = Self::Sptrsv(Sptrsv { triangle: Triangle::Lower, ..solve });
        let diagonal = Diagonal::NonUnit;
        let upper = Self::Sptrsv(Sptrsv { triangle: Triangle::Upper, diagonal, ..solve });
        Some(if solve.transpose { [upper, lower] } else { [lower, upper] })
    }

    /// The problem whose [`Self::parts`] these two are.
    pub fn of_parts(first: &Self, second: &Self) -> Option<Self> {
        [first, second].into_iter().find_map(|part| match part {
            Self::Sptrsv(solve) => {
                let both = Self::Sptrsv(Sptrsv { triangle: Triangle::Both, ..*solve });
                (both.parts() == Some([*first, *second])).then_some(both)
            }
            Self::Spmm(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_triangles_are_two_solves_in_the_order_of_substitution() {
        for (transpose, order) in [
            (false, [Triangle::Lower, Triangle::Upper]),
            (true, [Triangle::Upper, Triangle::Lower]),
        ] {
            for diagonal in [Diagonal::Unit, Diagonal::NonUnit] {
                let solve = Sptrsv {
                    rhs: 3,
                    triangle: Triangle::Both,
                    diagonal,
                    transpose,
                    ..Sptrsv::PLAIN
                };
                let both = Problem::Sptrsv(solve);
                let parts = both.parts().unwrap();
                for (part, triangle) in parts.into_iter().zip(order) {
                    let Problem::Sptrsv(part) = part else { panic!("{part}") };
                    assert_eq!((part.triangle, part.transpose, part.rhs), (triangle, transpose, 3));
                    let stored = triangle == Triangle::Upper;
                    assert_eq!(part.diagonal, if stored { Diagonal::NonUnit } else { diagonal });
                }
                assert_eq!(Problem::of_parts(&parts[0], &parts[1]), Some(both));
                assert_eq!(Problem::of_parts(&parts[1], &parts[0]), None);
                assert_eq!(parts[0].parts(), None);
            }
        }
        let plain = Problem::Sptrsv(Sptrsv::PLAIN);
        assert_eq!(Problem::of_parts(&plain, &plain), None);
    }
}
