//! A matrix on one device class: all its problems, in figures that are independent of the number of columns.

use super::common;
use crate::domain::{Clock, DeviceClass, Matrix, Plan};
use crate::http::dashboard::bound;
use crate::http::dashboard::format;
use crate::http::dashboard::matrix::plan_row::{PlanRow, question};
use crate::http::dashboard::pictures::comparison::{self, Comparison, Group, Timed};

pub struct Row {
    pub plan: PlanRow,
    pub column_time: String,
    /// Useful arithmetic operations; absent if the number of entries in the triangle is unknown.
    pub gflops: Option<String>,
    pub gbps: String,
    pub best: bool,
}

/// Plans of one device class, by operation and number of columns.
pub fn chosen<'a>(plans: &'a [Plan], class: &DeviceClass) -> Vec<&'a Plan> {
    let mut chosen: Vec<&Plan> =
        plans.iter().filter(|plan| plan.device.class() == *class).collect();
    chosen.sort_by_cached_key(|plan| (plan.problem.op(), plan.problem.columns(), question(plan)));
    chosen
}

pub fn rows(plans: &[&Plan], matrix: &Matrix) -> Vec<Row> {
    let clock = common(plans);
    let rates: Vec<Option<f64>> = plans.iter().map(|plan| gflops(plan, clock, matrix)).collect();
    let highest = rates.iter().flatten().copied().reduce(f64::max);
    let row = |(plan, rate): (&&Plan, &Option<f64>)| Row {
        plan: PlanRow::of(plan, &matrix.digest),
        column_time: told(plan, clock, |us| format::micros(us / columns(plan))),
        gflops: rate.map(format::digits),
        gbps: told(plan, clock, |us| format::digits(plan.limit.bytes as f64 / (us * 1e3))),
        best: plans.len() > 1 && rate.is_some() && *rate == highest,
    };
    plans.iter().zip(&rates).map(row).collect()
}

/// A figure derived from the time by this clock.
fn told(plan: &Plan, clock: Option<Clock>, figure: impl Fn(f64) -> String) -> String {
    match clock.and_then(|clock| plan.median_by(clock)) {
        Some(us) => figure(us),
        None if plan.is_predicted() => "not measured".to_owned(),
        None => "by another clock".to_owned(),
    }
}

fn columns(plan: &Plan) -> f64 {
    f64::from(plan.problem.columns().max(1))
}

/// A multiplication and an addition for each entry and column, divided by the time.
fn gflops(plan: &Plan, clock: Option<Clock>, matrix: &Matrix) -> Option<f64> {
    let flops = 2.0 * plan.problem.entries(matrix)? as f64 * columns(plan);
    Some(flops / (plan.median_by(clock?)? * 1e3))
}

/// One bar per problem: the time per column.
pub fn picture(plans: &[&Plan], name: &str) -> Option<Comparison> {
    let clock = common(plans);
    let timed = |plan: &&Plan| {
        let columns = columns(plan);
        Some(Timed {
            label: question(plan),
            us: plan.median_by(clock?)? / columns,
            vendor_us: plan.baseline_by(clock?).map(|us| us / columns),
            bound_us: plan.limit.us / columns,
            bound: bound::time_name(plan.limit.bound),
        })
    };
    let group = Group { name: String::new(), timed: plans.iter().filter_map(timed).collect() };
    comparison::of(format!("Time per column of {name}, by problem, as in the table"), &[group])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn matrix() -> Matrix {
        let spread = json!({"max": 1, "mean": 1.0, "cov": 0.0});
        let zero = "0".repeat(64);
        serde_json::from_value(json!({
            "digest": zero, "pattern_digest": zero, "name": null, "rows": 10, "cols": 10, "nnz": 1000,
            "symmetric": false, "has_full_diagonal": true, "created_at": 0,
            "features": {
                "version": 1, "density": 0.1, "row_nnz": spread, "col_nnz": spread, "empty_rows": 0, "empty_cols": 0,
                "bandwidth": 1, "mean_offset": 0.0, "neighbour_overlap": 0.0,
                "lower": {"nnz": 300, "rnnz": spread, "lnnz": spread, "levels": 1, "dep_dist": 0.0}
            }
        }))
        .unwrap()
    }

    fn plan(problem: serde_json::Value, us: f64) -> Plan {
        let mut plan: Plan =
            serde_json::from_str(include_str!("../../../../tests/http/plan.json")).unwrap();
        plan.problem = serde_json::from_value(problem).unwrap();
        plan.measured.as_mut().unwrap().median_us = us;
        plan
    }

    fn solve(triangle: &str) -> Plan {
        plan(json!({"op": "sptrsv", "rhs": 2, "triangle": triangle, "diagonal": "unit"}), 1.0)
    }

    #[test]
    fn arithmetic_follows_the_formulas() {
        let product = plan(json!({"op": "spmm", "n": 32}), 8.0);
        assert_eq!(
            gflops(&product, Some(Clock::Isolated), &matrix()),
            Some(8.0),
            "2 x 1000 x 32 / 8 us"
        );
        assert_eq!(
            gflops(&solve("lower"), Some(Clock::Isolated), &matrix()),
            Some(1.2),
            "2 x 300 x 2 / 1 us"
        );
        assert_eq!(
            gflops(&solve("upper"), Some(Clock::Isolated), &matrix()),
            Some(2.84),
            "of 1000 + 10 - 300"
        );
        let holes = Matrix { has_full_diagonal: false, ..matrix() };
        assert_eq!(gflops(&solve("upper"), Some(Clock::Isolated), &holes), None);
    }

    #[test]
    fn the_highest_rate_is_the_best_whatever_the_width() {
        let wide = plan(json!({"op": "spmm", "n": 128}), 16.0);
        let narrow = plan(json!({"op": "spmm", "n": 8}), 4.0);
        let plans = [wide, narrow];
        let chosen = chosen(&plans, &plans[0].device.class());
        let rows = rows(&chosen, &matrix());
        assert_eq!(rows[0].plan.problem, "SpMM N=8 f32 row");
        assert_eq!([rows[0].best, rows[1].best], [false, true]);
        assert_eq!(rows[0].column_time, "0.500 µs");
    }
}
