//! Tables for people: the best candidates, the funnel, the plan in a few lines.

use super::client::Answer;
use crate::domain::candidate::is_approximate;
use crate::domain::outcome::FEWEST_FOR_INTERVAL;
use crate::domain::plan::Bound;
use crate::domain::{FunnelStep, JobId, StoppedBy};
use crate::explain::WHY_SLOWER;
use crate::service::{MEASURED_BY_POST, STORED_BY_POST, UNSTORED};
use crate::usage::{Place, ways};
use crate::wire::{Lookup, Matrix, Open, Plan, Role, Trial};
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

/// What was timed alternately at the end, and decided; `None` if there were no finals.
pub fn finals(plan: &Plan) -> Option<String> {
    if plan.finals.is_empty() {
        return None;
    }
    let mut table =
        table(&["", "finals", "median us", "95 % interval", "rounds", "of bound", "vs baseline"]);
    let baseline = plan.baseline.as_ref().map(|baseline| baseline.median_us);
    for one in &plan.finals {
        let won = one.candidate == plan.candidate;
        let [low, high] = one.ci95_us;
        let enough = u64::from(one.samples) >= FEWEST_FOR_INTERVAL;
        table.add_row([
            if won { WINNER } else { "" }.to_owned(),
            one.candidate.to_string(),
            us(one.median_us),
            if enough { format!("{} .. {}", us(low), us(high)) } else { String::new() },
            one.samples.to_string(),
            format!("{:.0} %", 100.0 * plan.limit.us / one.median_us),
            baseline.map(|us| format!("{:.2}x", us / one.median_us)).unwrap_or_default(),
        ]);
    }
    right(&mut table, 2..7);
    Some(table.to_string())
}

const WINNER: &str = "winner";

/// Why the winner of the finals is not the fastest trial, or why it is slower than its trial, if so.
pub fn why_other(trials: &[Answer<Trial>], plan: &Plan) -> Option<String> {
    let measured = plan.measured.as_ref().filter(|_| !plan.finals.is_empty())?;
    let timed = trials.iter().filter_map(|trial| Some((&trial.view, trial.view.median_us?)));
    let (fastest, then) = timed.min_by(|a, b| a.1.total_cmp(&b.1))?;
    let again = plan.finals.iter().find(|one| one.candidate == fastest.candidate);
    let again =
        again.map_or_else(String::new, |one| format!(", {} in the finals", us(one.median_us)));
    let lost = fastest.candidate != plan.candidate;
    if !lost && measured.median_us <= then {
        return None;
    }
    let lost = match lost {
        true => format!(" It lost to {}{}.", plan.candidate, tie(plan)),
        false => String::new(),
    };
    Some(format!("The fastest trial took {} us{again}.{lost} {WHY_SLOWER}", us(then)))
}

/// The fastest measured candidates by their trials, the baseline's best and the winner among them wherever they stand.
pub fn candidates(trials: &[Answer<Trial>], plan: &Plan) -> Table {
    let mut measured: Vec<(&Trial, f64)> =
        trials.iter().filter_map(|trial| Some((&trial.view, trial.view.median_us?))).collect();
    measured.sort_by(|a, b| a.1.total_cmp(&b.1));
    let clock = plan.measured.as_ref().map(|measured| Open::from(measured.clock));
    let by_plans = |trial: &Trial| clock.is_none() || trial.clock == clock;
    let baselines = || measured.iter().filter(|(trial, _)| trial.baseline);
    let baseline = baselines().find(|(trial, _)| by_plans(trial)).or(baselines().next()).copied();
    let by = plan.measured.as_ref().map_or("", |measured| measured.clock.name());
    let median = format!("median us {by}");
    let mut table =
        table(&["", "trials", &median, "95 % interval", "predicted us", "of bound", "vs baseline"]);
    let named = |trial: &Trial| {
        trial.candidate == plan.candidate
            || baseline.is_some_and(|(best, _)| std::ptr::eq(best, trial))
    };
    for (place, &(trial, median)) in measured.iter().enumerate() {
        if place < BEST || named(trial) {
            table.add_row(candidate(trial, median, baseline, plan));
        }
    }
    right(&mut table, 2..7);
    table
}

/// Routines that the baseline does without, a line each with the reason; empty if all ran.
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
    baseline: Option<(&Trial, f64)>,
    plan: &Plan,
) -> Vec<String> {
    let interval = trial.ci95_us.map(|[low, high]| format!("{} .. {}", us(low), us(high)));
    // One call alone, where others were timed back to back, does not compare with them.
    let plans = plan.measured.as_ref().map(|measured| Open::from(measured.clock));
    let other = trial.clock.as_ref().filter(|clock| plans.as_ref() != Some(*clock));
    let cut = || match (trial.cut, other) {
        (true, Some(clock)) => format!("cut short, {clock}"),
        (true, None) => "cut short".to_owned(),
        (false, _) => String::new(),
    };
    let baseline = baseline.filter(|(best, _)| best.clock == trial.clock);
    vec![
        if trial.candidate == plan.candidate { WINNER } else { "" }.to_owned(),
        trial.candidate.to_string(),
        us(median),
        interval.unwrap_or_else(cut),
        trial.predicted_us.map(us).unwrap_or_default(),
        format!("{:.0} %", 100.0 * plan.limit.us / median),
        baseline.map(|(_, us)| format!("{:.2}x", us / median)).unwrap_or_default(),
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
        (Some(baseline), Some(speedup)) => {
            format!("baseline {baseline}: {} us, so {speedup:.2}x", us(baseline.median_us))
        }
        _ if plan.measured.is_none() => "baseline not measured".to_owned(),
        _ => match &plan.no_baseline {
            Some(why) => format!("baseline none: {why}"),
            None => "baseline none ran here".to_owned(),
        },
    });
    lines.extend(other_clock(plan));
    lines.push(bound(plan));
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

/// The line that writes two plans as one file. `from` says where they are: `--server URL`.
pub fn usage_of_both([first, second]: [&Plan; 2], from: &str) -> String {
    let (first, second) = (&first.id, &second.id);
    format!(
        "\nuse it: as one file, which one call runs\n  sparsetune bundle export {first} --second {second} -o both.stplan {from}"
    )
}

/// The time of a call, and what it rests on.
fn time(plan: &Plan) -> String {
    match (&plan.measured, &plan.predicted) {
        (Some(measured), _) => format!(
            "time     {} us a call, {}, {}{}, {} {:.1e}",
            us(measured.median_us),
            measured.clock.how(),
            measured
                .interval_us()
                .map(|[low, high]| format!("95 % within {} .. {}, ", us(low), us(high)))
                .unwrap_or_default(),
            match measured.samples {
                1 => "1 sample".to_owned(),
                samples => format!("{samples} samples"),
            },
            match is_approximate(&plan.candidate.family) {
                true => "approximate, largest residual beside b",
                false => "largest error",
            },
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

/// The times by the clock that did not decide.
fn other_clock(plan: &Plan) -> Option<String> {
    let (clock, own, baseline) = plan.measured.as_ref()?.by_other(plan.baseline.as_ref())?;
    let against = baseline.map_or_else(String::new, |baseline| {
        format!("; the baseline's {} us, so {:.2}x", us(baseline), baseline / own)
    });
    Some(format!("also     {} us a call, {}{against}", us(own), clock.how()))
}

/// What no kernel can be faster than, and why.
fn bound(plan: &Plan) -> String {
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
    format!("bound    {} us {why}: {:.0} % {reached}", us(limit.us), 100.0 * limit.fraction)
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
    let its = plan.baseline.as_ref().map(|baseline| baseline.preprocess_ms);
    let its = its.filter(|ms| *ms > 0.0);
    let its = its.map_or_else(String::new, |ms| format!(" (the baseline's {ms:.2} ms)"));
    let chosen = plan.expected_calls;
    let chosen = chosen.map_or_else(String::new, |calls| format!("; chosen for {calls} calls"));
    let Some(ms) = plan.preprocess_ms else {
        return "prepare  not measured".to_owned();
    };
    let once = format!("prepare  {ms:.2} ms once{its}{chosen}");
    match plan.break_even_calls {
        Some(1) => format!("{once}; breaks even after 1 call"),
        Some(calls) => format!("{once}; breaks even after {calls} calls"),
        None => once,
    }
}

/// What new values of the same pattern cost, where they cost something.
fn values(plan: &Plan) -> Option<String> {
    let ms = plan.validity.update_values_ms;
    let how = match plan.candidate.role {
        Role::Vendor => "on the device, where A is made dense again",
        Role::Own | Role::Baseline if plan.divides_on_device() => {
            "on the host; a bundle takes them on the device"
        }
        Role::Own | Role::Baseline => "on the host",
    };
    let costs = plan.validity.values_may_change && ms > 0.0;
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
    let reasons = lookup.matched.reasons.iter();
    lines.extend(reasons.map(|reason| format!("         {}", by_commands(reason))));
    lines.extend(lookup.plan.as_ref().map(plan));
    if let (Some(first), Some(second)) = (&lookup.plan, &lookup.second) {
        lines.push(format!("\n{}\n\n{}", plan(second), both(first, second)));
    }
    lines.join("\n")
}

/// What the API says of its requests, in the commands of who reads this.
fn by_commands(reason: &str) -> String {
    let unstored = "it is not stored, so it has no page";
    reason
        .replace(&format!("{UNSTORED}: {STORED_BY_POST}"), unstored)
        .replace(UNSTORED, unstored)
        .replace(MEASURED_BY_POST, "`sparsetune submit` measures it")
}

/// Why there is one plan where both triangles were asked for.
pub fn half(job: &JobId) -> String {
    format!(
        "job {job} has the plan of the first triangle only: no job was submitted for the other, and its log says why; ask for both again"
    )
}

/// What two plans take together, one call after the other, if both were measured by the same clock.
pub fn both(first: &Plan, second: &Plan) -> String {
    let (Some(one), Some(two)) = (&first.measured, &second.measured) else {
        return "both     not measured".to_owned();
    };
    if one.clock != two.clock {
        return "both     measured by different clocks, whose times have no sum".to_owned();
    }
    let time = one.median_us + two.median_us;
    let vendor = match (&first.baseline, &second.baseline) {
        (Some(one), Some(two)) => {
            let vendor = one.median_us + two.median_us;
            format!("; the baselines {} us, so {:.2}x", us(vendor), vendor / time)
        }
        _ => String::new(),
    };
    let values = first.validity.update_values_ms + second.validity.update_values_ms;
    format!(
        "both     {} us, one call after the other, {}{vendor}\nvalues   {values:.1} ms on the host for new values of both",
        us(time),
        one.clock.how()
    )
}

fn stopped(by: StoppedBy) -> &'static str {
    match by {
        StoppedBy::Completed => "every chosen candidate tried",
        StoppedBy::Seconds => "ended by its budget of seconds",
        StoppedBy::Trials => "ended by its budget of trials",
        StoppedBy::Cancelled => "ended early on request, so the best until then",
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
mod tests;
