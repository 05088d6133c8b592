//! The O(nnz) proof that a packed system terminates, computes every row, and stays within its arrays.

use super::pack::{ALIGNED, NO_ROW, Packed, TASK};
use super::scheme::Shape;
use crate::ops::Refusal;

/// Refuses a packed system in which a task would await an unknown that no earlier task owns, would read beyond an array, or in which a
/// row of x is not owned exactly once. `rows` is the length of b and of x.
///
/// Warps take tasks in rising order, and all warps are resident: the lowest unfinished task is being worked on, and all that it awaits
/// is owned by finished ones.
pub fn prove(packed: &Packed, shape: &Shape, rows: usize) -> Result<(), Refusal> {
    let refuse = |what: String| Err(Refusal(what));
    let mut owned = vec![false; rows];
    let (mut column, mut value, mut slot, mut partial) = (0usize, 0usize, 0usize, 0usize);
    for (number, task) in packed.tasks.chunks_exact(TASK).enumerate() {
        let [first, columns, first_value, first_slot, width, solves, first_partial, partials] =
            [0, 1, 2, 3, 4, 5, 6, 7].map(|at| task[at] as usize);
        let begins = (first, first_value * ALIGNED, first_slot) == (column, value, slot)
            && (partials == 0 || first_partial == partial);
        if !begins || !(1..=shape.rows as usize).contains(&width) || solves > 1 {
            return refuse(format!(
                "task {number} is {task:?}, from column {column}, value {value} and slot {slot} on"
            ));
        }
        let cols = packed.cols.get(first..first + columns);
        let sums = packed.partials.get(partial..partial + partials);
        let of = packed.rows.get(slot..slot + width);
        let (Some(cols), Some(sums), Some(of)) = (cols, sums, of) else {
            return refuse(format!("task {number} has more than there is"));
        };
        let late = |it: &u32| *it as usize + width > slot;
        if let Some(later) = sums.iter().find(|it| late(it)) {
            return refuse(format!(
                "task {number} would await sums from slot {later} on, its own is {slot}"
            ));
        }
        if let Some(later) = cols.iter().find(|&&it| it as usize >= slot) {
            return refuse(format!("task {number} would await slot {later}, its own is {slot}"));
        }
        for &row in of {
            if (row == NO_ROW) == (solves == 1) {
                return refuse(format!("task {number} has row {row}"));
            }
            if row != NO_ROW {
                match owned.get_mut(row as usize) {
                    None => return refuse(format!("task {number} has row {row} of {rows}")),
                    Some(known) if *known => return refuse(format!("row {row} is owned twice")),
                    Some(known) => *known = true,
                }
            }
        }
        let inner = if solves == 1 { width * (width - 1) } else { 0 };
        value += (columns * width).next_multiple_of(ALIGNED) + inner.next_multiple_of(ALIGNED);
        column += columns;
        slot += width;
        partial += partials;
    }
    if let Some(row) = owned.iter().position(|owned| !owned) {
        return refuse(format!("no task owns row {row}, so it would never be computed"));
    }
    let ends = (
        packed.cols.len(),
        packed.vals.len(),
        packed.slots,
        packed.rows.len(),
        packed.scale.len(),
        packed.partials.len(),
    );
    if ends != (column, value, slot, slot, slot, partial) {
        return refuse(format!("{ends:?} is not what the tasks have"));
    }
    Ok(())
}
