//! Tables for people: the best candidates, the funnel, the plan in a few lines.

use super::client::Answer;
use crate::domain::plan::Bound;
use crate::domain::{FunnelStep, StoppedBy};
use crate::usage::{Place, ways};
use crate::wire::{Lookup, Matrix, Plan, Role, Trial};
use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, ContentLineStyle, LineStyle, Table,
    TableStyle, Width,
};

/// Columns of text for the funnel's rules.
const RULE_WIDTH: u16 = 100;

/// Rows of the table of candidates.
const BEST: usize = 10;

pub fn matrix(matrix: &Matrix) -> String {
    let name = matrix.name.as_deref().unwrap_or("matrix");
    format!(
        "{name}: {} x {}, {} nonzeros\n  digest  {}\n  pattern {}",
        matrix.rows, matrix.cols, matrix.nnz, matrix.digest, matrix.pattern_digest
    )
}

/// The fastest measured candidates, the vendor's best among them wherever it stands.
pub fn candidates(trials: &[Answer<Trial>], plan: &Plan) -> Table {
    let mut measured: Vec<(&Trial, f64)> =
        trials.iter().filter_map(|trial| Some((&trial.view, trial.view.median_us?))).collect();
    measured.sort_by(|a, b| a.1.total_cmp(&b.1));
    let vendor = measured.iter().find(|(trial, _)| trial.baseline).copied();
    let mut table = table(&[
        "candidate",
        "median us",
        "95 % interval",
        "predicted us",
        "of limit",
        "vs vendor",
    ]);
    let mut vendor_shown = false;
    for &(trial, median) in measured.iter().take(BEST) {
        vendor_shown |= vendor.is_some_and(|(best, _)| std::ptr::eq(best, trial));
        table.add_row(candidate(trial, median, vendor, plan));
    }
    if let Some((trial, median)) = vendor.filter(|_| !vendor_shown) {
        table.add_row(candidate(trial, median, vendor, plan));
    }
    right(&mut table, 1..6);
    table
}

/// The vendor's routines that the baseline does without, a line each with the reason; empty if all ran.
pub fn left_out(trials: &[Answer<Trial>]) -> String {
    let failed = trials.iter().map(|trial| &trial.view).filter(|trial| trial.baseline);
    let failed = failed.filter(|trial| trial.median_us.is_none() && trial.state != "pruned");
    let lines = failed.map(|trial| {
        let error = trial.rel_error.map(|error| format!("relative error {error:.1e}"));
        let why = trial.detail.clone().or(error).unwrap_or_else(|| "no reason given".to_owned());
        format!("left out of the baseline: {}, {}: {why}\n", trial.candidate, trial.state)
    });
    lines.collect()
}

fn candidate(
    trial: &Trial,
    median: f64,
    vendor: Option<(&Trial, f64)>,
    plan: &Plan,
) -> Vec<String> {
    let interval = trial.ci95_us.map(|[low, high]| format!("{} .. {}", us(low), us(high)));
    vec![
        trial.candidate.to_string(),
        us(median),
        interval.unwrap_or_default(),
        trial.predicted_us.map(us).unwrap_or_default(),
        format!("{:.0} %", 100.0 * plan.limit.us / median),
        vendor.map(|(_, vendor)| format!("{:.2}x", vendor / median)).unwrap_or_default(),
    ]
}

/// What each constraint removed.
pub fn funnel(steps: &[FunnelStep]) -> Table {
    let mut table = table(&["constraint", "removed", "left", ""]);
    for step in steps {
        table.add_row([
            step.constraint.clone(),
            step.removed.to_string(),
            step.left.to_string(),
            // A rule a line.
            step.detail.clone().unwrap_or_default().replace("; ", ";\n"),
        ]);
    }
    // Also where there is no terminal to say how wide it is.
    if let Some(column) = table.column_mut(3) {
        column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(RULE_WIDTH)));
    }
    right(&mut table, 1..3);
    table
}

/// Alternatives of a predicted plan that are shown; the JSON has all.
const NEXT: usize = 3;

/// The plan in a few lines.
pub fn plan(plan: &Plan) -> String {
    let mut lines = vec![
        format!("plan     {}", plan.id),
        format!("problem  {}", plan.problem.0.to_string().replace(';', " ")),
        format!("device   {} ({})", plan.device.id, plan.device.name),
        match plan.measured {
            Some(_) => format!("winner   {}{}", plan.candidate, tie(plan)),
            None => format!("choice   {}", plan.candidate),
        },
        time(plan),
    ];
    if plan.measured.is_none() {
        lines.extend(plan.alternatives.iter().take(NEXT).map(|next| format!("next     {next}")));
    }
    lines.push(match (&plan.baseline, plan.speedup) {
        (Some(baseline), Some(speedup)) => format!(
            "vendor   {} {}, {}: {} us, so {speedup:.2}x",
            baseline.name,
            baseline.version,
            baseline.algorithm,
            us(baseline.median_us)
        ),
        _ if plan.measured.is_none() => "vendor   not measured".to_owned(),
        _ => "vendor   no routine of the vendor's ran here".to_owned(),
    });
    lines.push(limit(plan));
    lines.extend(model(plan));
    lines.push(prepare(plan));
    lines.extend(values(plan));
    lines.extend(host(plan));
    let provenance = &plan.provenance;
    lines.extend(plan.measured.as_ref().map(|_| {
        format!("search   {:.1} s, {}", provenance.search_seconds, stopped(provenance.stopped_by))
    }));
    lines.join("\n")
}

/// The lines that use the plan, each block after an empty line.
pub fn usage(plan: &Plan, place: Place<'_>) -> String {
    let ways = ways(&plan.id, &plan.problem.0, place);
    let blocks = ways.iter().map(|way| {
        let lines = way.lines().replace('\n', "\n  ");
        format!("\nuse it: {}\n  {lines}", way.name)
    });
    blocks.collect::<Vec<_>>().join("\n")
}

/// The time of a call, and what it rests on.
fn time(plan: &Plan) -> String {
    match (&plan.measured, &plan.predicted) {
        (Some(measured), _) => format!(
            "time     {} us a call, 95 % within {} .. {}, {} samples, largest error {:.1e}",
            us(measured.median_us),
            us(measured.ci95_us[0]),
            us(measured.ci95_us[1]),
            measured.samples,
            measured.rel_error
        ),
        (None, Some(predicted)) => {
            let by = match plan.provenance.ranked_by() {
                Some(model) => format!("the analytic model, ranked by {model}"),
                None => predicted.model.clone(),
            };
            let over = match predicted.passed_over {
                0 => String::new(),
                n => format!("; {n} ranked before it could not be compiled"),
            };
            let time = us(predicted.median_us);
            format!("time     {time} us a call by {by}: predicted, not measured{over}")
        }
        (None, None) => "time     not measured".to_owned(),
    }
}

/// What no kernel can be faster than, and why.
fn limit(plan: &Plan) -> String {
    let (limit, device) = (&plan.limit, &plan.device);
    let why = match limit.bound {
        Bound::Latency => format!("for its levels at {:.0} ns a hop, measured", device.hop_ns),
        Bound::Bytes | Bound::Flops => {
            format!("for {} bytes at {:.0} GB/s measured copy", limit.bytes, device.copy_gbps)
        }
    };
    let reached = match plan.measured {
        Some(_) => "of it reached",
        None => "of it, if the prediction holds",
    };
    format!("limit    {} us {why}: {:.0} % {reached}", us(limit.us), 100.0 * limit.fraction)
}

/// What the model said of the winner, and how far it was off over all trials.
fn model(plan: &Plan) -> Option<String> {
    // Of a predicted plan the line of its time says so.
    plan.measured.as_ref()?;
    let predicted = plan.predicted.as_ref()?;
    if let Some(model) = plan.provenance.ranked_by() {
        let rank = plan.model_error.as_ref().and_then(|error| error.rank_correlation);
        let rank = rank.map_or_else(String::new, |rank| format!(", rank correlation {rank:.2}"));
        let time = us(predicted.median_us);
        return Some(format!(
            "model    ranked by {model}{rank}; the analytic model said {time} us"
        ));
    }
    let said = format!("model    {} said {} us", predicted.model, us(predicted.median_us));
    let Some(error) = &plan.model_error else { return Some(said) };
    let rank = error.rank_correlation;
    let rank = rank.map_or_else(String::new, |rank| format!(", rank correlation {rank:.2}"));
    Some(format!(
        "{said}; over {} trials measured is {:.2}x predicted, spread {:.2}x{rank}",
        error.trials, error.median_ratio, error.spread
    ))
}

/// What must be done before the first call, and when that has paid for itself.
fn prepare(plan: &Plan) -> String {
    let vendors = plan.baseline.as_ref().map(|baseline| baseline.preprocess_ms);
    let vendors = vendors.filter(|ms| *ms > 0.0);
    let vendors = vendors.map_or_else(String::new, |ms| format!(" (the vendor's {ms:.2} ms)"));
    let chosen = plan.expected_calls;
    let chosen = chosen.map_or_else(String::new, |calls| format!("; chosen for {calls} calls"));
    let Some(ms) = plan.preprocess_ms else {
        return "prepare  not measured".to_owned();
    };
    let once = format!("prepare  {ms:.2} ms once{vendors}{chosen}");
    match plan.break_even_calls {
        Some(1) => format!("{once}; breaks even after 1 call"),
        Some(calls) => format!("{once}; breaks even after {calls} calls"),
        None => once,
    }
}

/// What new values of the same pattern cost, where they cost something.
fn values(plan: &Plan) -> Option<String> {
    let ms = plan.validity.update_values_ms;
    let costs = plan.validity.values_may_change && ms > 0.0;
    let how = match plan.candidate.role {
        Role::Vendor => "on the device, where A is made dense again",
        Role::Own | Role::Baseline => "on the host",
    };
    costs.then(|| format!("values   new ones of the same pattern cost {ms:.2} ms {how}"))
}

/// What the host takes for the same, where that is known: it may be the better place.
fn host(plan: &Plan) -> Option<String> {
    let host = plan.host.as_ref()?;
    let faster = plan.measured.as_ref().is_some_and(|own| host.median_us < own.median_us);
    let verdict = if faster { ": faster than this device" } else { "" };
    Some(format!("host     {} us on {}{verdict}", us(host.median_us), host.device))
}

fn tie(plan: &Plan) -> &'static str {
    if plan.tie {
        " (a tie with the runner-up within the noise: the simpler one stands)"
    } else {
        ""
    }
}

/// The grade of a lookup, why it is not better, and the plan.
pub fn lookup(lookup: &Lookup) -> String {
    let mut lines = vec![format!("match    {}", lookup.matched.grade)];
    lines.extend(lookup.matched.reasons.iter().map(|reason| format!("         {reason}")));
    lines.extend(lookup.plan.as_ref().map(plan));
    lines.join("\n")
}

fn stopped(by: StoppedBy) -> &'static str {
    match by {
        StoppedBy::Completed => "every chosen candidate tried",
        StoppedBy::Seconds => "ended by its budget of seconds",
        StoppedBy::Trials => "ended by its budget of trials",
        StoppedBy::Cancelled => "cancelled",
    }
}

/// Four significant digits: more would be noise.
pub fn us(value: f64) -> String {
    match value.abs() {
        v if v < 10.0 => format!("{value:.3}"),
        v if v < 100.0 => format!("{value:.2}"),
        v if v < 1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Columns apart by their padding, one line under the header.
const PLAIN: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none().junction(' '))
    .header_separator(LineStyle::none().fill('─').junction(' '))
    .content_lines(ContentLineStyle::none().junction(' '));

pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(PLAIN)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header.iter().copied());
    table
}

pub fn right(table: &mut Table, columns: std::ops::Range<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Lookup, Place, Plan, us};
    use crate::domain;
    use serde_json::{Value, json};

    /// The stored plan of the HTTP tests, changed in some members.
    fn plan(change: impl FnOnce(&mut Value)) -> Plan {
        let stored = include_str!("../../tests/http/plan.json");
        let mut stored: Value = serde_json::from_str(stored).unwrap();
        change(&mut stored);
        serde_json::from_value::<domain::Plan>(stored).unwrap().into()
    }

    fn solve(stored: &mut Value) {
        stored["problem"] = json!({
            "op": "sptrsv", "rhs": 1, "dtype": "f64", "triangle": "lower", "diagonal": "unit", "transpose": false
        });
        stored["candidate"] = json!({"family": "slices", "params": {"rows": 4}});
        stored["measured"]["median_us"] = json!(80.0);
        stored["baseline"]["preprocess_ms"] = json!(2.5);
        stored["limit"] = json!({"us": 40.0, "bound": "latency", "fraction": 0.5, "bytes": 9});
        stored["predicted"] = json!({"model": "waits_v1", "median_us": 75.0});
        stored["model_error"] = json!({
            "model": "waits_v1", "trials": 64, "median_ratio": 1.125, "spread": 1.5, "rank_correlation": 0.75
        });
        stored["preprocess_ms"] = json!(6.5);
        stored["break_even_calls"] = json!(25);
        stored["validity"]["update_values_ms"] = json!(1.25);
        stored["host"]["device"] = json!("cpu/P");
        stored["host"]["median_us"] = json!(60.0);
    }

    #[test]
    fn a_plan_of_a_solve_tells_bound_costs_and_host() {
        let dense = plan(|stored| {
            solve(stored);
            let params = json!({"algorithm": "cublas_dense"});
            stored["candidate"] = json!({"family": "vendor", "params": params});
        });
        let shown = super::plan(&dense);
        assert!(
            shown.contains("cost 1.25 ms on the device, where A is made dense again"),
            "{shown}"
        );
        let shown = super::plan(&plan(solve));
        for line in [
            "problem  sptrsv rhs=1 dtype=f64 triangle=lower diagonal=unit transpose=false",
            "limit    40.00 us for its levels at 263 ns a hop, measured: 50 % of it reached",
            "model    waits_v1 said 75.00 us; over 64 trials measured is 1.12x predicted, spread 1.50x, rank correlation 0.75",
            "prepare  6.50 ms once (the vendor's 2.50 ms); chosen for 1000 calls; breaks even after 25 calls",
            "values   new ones of the same pattern cost 1.25 ms on the host",
            "host     60.00 us on cpu/P: faster than this device",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}:\n{shown}");
        }
    }

    #[test]
    fn a_predicted_plan_says_that_nothing_was_measured() {
        let plan = plan(|stored| {
            for absent in ["measured", "baseline", "speedup", "model_error", "preprocess_ms"] {
                stored[absent] = Value::Null;
            }
            for absent in ["expected_calls", "break_even_calls", "host", "launch"] {
                stored[absent] = Value::Null;
            }
            stored["id"] = json!("p");
            stored["device"]["name"] = json!("P");
            stored["candidate"] = json!({"family": "row_split", "params": {"lanes": 8}});
            stored["limit"] = json!({"us": 40.0, "bound": "bytes", "fraction": 0.5, "bytes": 9});
            stored["predicted"] = json!({"model": "nightly", "median_us": 80.0, "passed_over": 2});
            stored["alternatives"] = json!([{"family": "serial", "params": {}}]);
            stored["validity"]["update_values_ms"] = json!(0.0);
            stored["provenance"]["model"] = json!("nightly");
        });
        let lookup: Lookup = serde_json::from_value(json!({
            "match": {"grade": "predicted", "reasons": ["POST /v1/jobs has it measured"]},
            "plan": plan,
        }))
        .unwrap();
        let shown = super::lookup(&lookup);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(
            lines,
            [
                "match    predicted",
                "         POST /v1/jobs has it measured",
                "plan     p",
                "problem  spmm n=32 dtype=f32 layout=row",
                "device   cpu (P)",
                "choice   row_split lanes=8",
                "time     80.00 us a call by the analytic model, ranked by nightly: predicted, not measured; 2 ranked before it \
                 could not be compiled",
                "next     serial",
                "vendor   not measured",
                "limit    40.00 us for 9 bytes at 10 GB/s measured copy: 50 % of it, if the prediction holds",
                "prepare  not measured",
            ]
        );
    }

    #[test]
    fn the_lines_that_use_a_plan_follow_it() {
        let plan = plan(|stored| stored["id"] = json!("p"));
        let place = Place::Server { address: "http://h", token_file: None };
        let shown = super::usage(&plan, place);
        let blocks: Vec<&str> = shown.split("\n\n").collect();
        assert_eq!(blocks.len(), 3, "{shown}");
        assert!(
            blocks[0].starts_with("\nuse it: Python\n  import sparsetune\n  plan = "),
            "{shown}"
        );
        assert!(shown.contains("\n  sparsetune bundle export p -o p.stplan --server 'http://h'\n"));
    }

    #[test]
    fn times_have_four_digits_or_so() {
        assert_eq!(
            [us(1.23456), us(12.3456), us(123.456), us(12345.6)],
            ["1.235", "12.35", "123.5", "12346"]
        );
    }
}
