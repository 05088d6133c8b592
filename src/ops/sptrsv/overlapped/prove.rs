//! The O(nnz) proof that a packed system terminates, computes every row, and stays within its arrays.

use super::pack::{NO_ROW, Packed};
use super::scheme::{FIRST_AWAITED, Shape};
use crate::ops::Refusal;

/// Refuses a packed system in which a group would await an unknown that no earlier group owns, would read what it has not computed,
/// or in which a row of x is not owned exactly once. `rows` is the length of b and of x.
///
/// Warps take groups in rising order, and all warps are resident: the lowest unfinished group is being worked on, and all that it
/// awaits is owned by finished ones. That a row that is computed again has its own terms is what verification finds.
pub fn prove(packed: &Packed, shape: &Shape, rows: usize) -> Result<(), Refusal> {
    let (a_pass, rows_a_pass) = (shape.pass_terms() as usize, shape.rows() as usize);
    let (mut awaited, mut pass, mut slot) = (0usize, 0usize, 0usize);
    let mut owned = vec![false; rows];
    for (number, group) in packed.groups.chunks_exact(4).enumerate() {
        let [first, count, first_pass, passes] = [0, 1, 2, 3].map(|at| group[at] as usize);
        let fits =
            count <= 32 * shape.awaited as usize && (1..=shape.levels as usize).contains(&passes);
        if !fits || (first, first_pass) != (awaited, pass) {
            return Err(Refusal(format!(
                "group {number} is {group:?}, from {awaited} and pass {pass} on"
            )));
        }
        let needs = packed.awaited.get(first..first + count);
        let needs =
            needs.ok_or_else(|| Refusal(format!("group {number} awaits more than there is")))?;
        if let Some(later) = needs.iter().find(|&&it| it as usize >= slot) {
            return Err(Refusal(format!(
                "group {number} would await slot {later}, its own first is {slot}"
            )));
        }
        for at in 0..passes {
            let words = packed.passes.get(2 * pass..2 * pass + 2);
            let cols = packed.cols.get(pass * a_pass..(pass + 1) * a_pass);
            let of = packed.rows.get(pass * rows_a_pass..(pass + 1) * rows_a_pass);
            let (Some(&[first_slot, owns]), Some(cols), Some(of)) = (words, cols, of) else {
                return Err(Refusal(format!("pass {pass} is not within the arrays")));
            };
            if first_slot as usize != slot || owns as usize > rows_a_pass {
                return Err(Refusal(format!(
                    "pass {pass} owns {owns} rows from {first_slot} on, not from {slot}"
                )));
            }
            // What a pass reads: the zero, what is awaited, and rows of earlier passes.
            let (from, to) = (FIRST_AWAITED as usize, shape.first_row() as usize);
            let readable = |&col: &u16| {
                let col = usize::from(col);
                col == 0
                    || (from..from + count).contains(&col)
                    || (to..to + at * rows_a_pass).contains(&col)
            };
            if let Some(col) = cols.iter().find(|col| !readable(col)) {
                return Err(Refusal(format!(
                    "pass {pass} would read place {col}, which is not there yet"
                )));
            }
            for (place, &row) in of.iter().enumerate().filter(|(_, row)| **row != NO_ROW) {
                let known = owned.get_mut(row as usize);
                let known =
                    known.ok_or_else(|| Refusal(format!("pass {pass} has row {row} of {rows}")))?;
                if place < owns as usize && std::mem::replace(known, true) {
                    return Err(Refusal(format!("row {row} is owned twice")));
                }
            }
            slot += owns as usize;
            pass += 1;
        }
        awaited += count;
    }
    if let Some(row) = owned.iter().position(|owned| !owned) {
        return Err(Refusal(format!("no group owns row {row}, so it would never be computed")));
    }
    let ends = (
        packed.slots,
        packed.awaited.len(),
        packed.passes.len(),
        packed.rows.len(),
        packed.cols.len(),
    );
    if ends != (slot, awaited, 2 * pass, pass * rows_a_pass, pass * a_pass) {
        return Err(Refusal(format!("{ends:?} is more than the groups have")));
    }
    Ok(())
}
